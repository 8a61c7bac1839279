package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
)

// failedHint stands in for that of the code, which is for a reader elsewhere.
const failedHint = "see 'journalctl -u etcd-nodeagent', then run 'etcd-nodeagent setup' again"

// failedCommand is what etcd-nodeagent-failed.service runs.
func failedCommand(stdout io.Writer, getenv func(string) string) *cli.Command {
	var statePath, markerPath string
	return &cli.Command{
		Name:  "failed",
		Usage: "leave a reason for a setup that could not say why it ended",
		Description: `Called by systemd when etcd-nodeagent.service has failed. A setup that was
killed, crashed, or never began leaves no reason; this command then writes the
marker and the state for it. A reason that is there already, a setup that is
running, and a node that is set up are left alone.

Exit status:
0  there is a reason now, or none was needed
1  the marker or the state cannot be written`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "marker", Usage: "`FILE` the one line of reason", Value: setup.DefaultMarker, Destination: &markerPath, EnvVars: env("marker"), DefaultText: setup.DefaultMarker},
			&cli.StringFlag{Name: "state", Usage: "`FILE` machine-readable state", Value: setup.DefaultState, Destination: &statePath, EnvVars: env("state"), DefaultText: setup.DefaultState},
		},
		Action: func(c *cli.Context) error {
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			return runFailed(stdout, statePath, markerPath, cause(getenv), time.Now())
		},
	}
}

// runFailed writes the marker and the state of a setup that ended as cause says
// without writing them itself.
func runFailed(stdout io.Writer, statePath, markerPath, cause string, now time.Time) error {
	s, err := marker.ReadState(statePath)
	thisBoot := err == nil && s.BootID == bootID()
	var line string
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		line = fmt.Sprintf("the setup %s; %s", cause, reason.Line(err.Error()))
		s = marker.State{}
	case err == nil && s.Result == marker.ResultReady:
		fmt.Fprintln(stdout, "nothing to do: etcd is set up")
		return nil
	case thisBoot && s.Result == marker.ResultRunning && alive(s):
		fmt.Fprintf(stdout, "nothing to do: another setup is running, process %d\n", s.PID)
		return nil
	case thisBoot && s.Result == marker.ResultFailed:
		fmt.Fprintln(stdout, "nothing to do: the reason is there: "+s.Message)
		return nil
	case thisBoot && s.Message != "":
		line = fmt.Sprintf("the setup %s while %s", cause, s.Message)
	default: // no state, or one from before this boot
		line = fmt.Sprintf("the setup %s before it began", cause)
		s = marker.State{}
	}

	failure := reason.New(reason.SetupFailed, "%s", line).WithHint(failedHint)
	s.Result, s.Code, s.Message, s.Hint = marker.ResultFailed, failure.Code, failure.Error(), failure.Hint
	s.Ended, s.BootID, s.AgentVersion = now, bootID(), version
	if s.Started.IsZero() {
		s.Started = now
	}
	// The marker is what others wait for, so it is tried whatever becomes of the
	// state.
	err = errors.Join(marker.Write(markerPath, s.Message), marker.WriteState(statePath, s))
	if err != nil {
		return reason.New(reason.SetupFailed, "%s; and this cannot be written down: %w", line, err)
	}
	fmt.Fprintln(stdout, s.Message)
	return nil
}

// cause says how the service ended, as far as systemd tells: systemd.exec(5),
// "Environment Variables Set or Propagated by the Service Manager", for units
// of OnFailure= since version 251.
func cause(getenv func(string) string) string {
	status := getenv("MONITOR_EXIT_STATUS")
	switch result := getenv("MONITOR_SERVICE_RESULT"); {
	case result == "":
		return "was killed or crashed"
	case result == "oom-kill":
		return "was killed for want of memory"
	case result == "signal" || result == "core-dump":
		return "was killed by SIG" + cmp.Or(status, "?")
	case result == "exit-code":
		return "ended with exit status " + cmp.Or(status, "?")
	default: // timeout, resources, protocol, ...
		return fmt.Sprintf("was ended by systemd (%s)", result)
	}
}
