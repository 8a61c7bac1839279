package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
)

func statusCommand(stdout io.Writer) *cli.Command {
	var path, output string
	return &cli.Command{
		Name:  "status",
		Usage: "say how the last setup ended, or what it is doing",
		Description: `Reads the state file of the last setup; it does not ask systemd.

Examples:
etcd-nodeagent status
etcd-nodeagent status -o json

Exit status:
0  the last setup ended well
1, 3, 4, 70, 130  as the last setup ended
1  the last setup was broken off: it was killed, or the node went down
3  a setup is still running
4  no setup has run, or its state cannot be read`,
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "state", Usage: "`FILE` state of the last setup", Value: setup.DefaultState, Destination: &path, EnvVars: env("state"), DefaultText: setup.DefaultState},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` output as text or json", Value: "text", Destination: &output, DefaultText: "text"},
		},
		Action: func(c *cli.Context) error {
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			if output != "text" && output != "json" {
				return reason.New(reason.Usage, "--output %q is neither text nor json", output)
			}
			return runStatus(stdout, path, output == "json")
		},
	}
}

// runStatus prints the state of the last setup and returns how it ended.
func runStatus(stdout io.Writer, path string, asJSON bool) error {
	s, err := marker.ReadState(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return reason.New(reason.StateUnreadable, "no setup has run on this node: %s does not exist", path)
	case err != nil:
		return reason.New(reason.StateUnreadable, "%w", err)
	}
	if asJSON {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(s)
	} else {
		err = printState(stdout, s)
	}
	if err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	switch s.Result {
	case marker.ResultReady:
		return nil
	case marker.ResultRunning:
		if !alive(s) { // etcd was not made ready, and nothing is at it
			return &cmdline.Told{Err: reason.New(reason.SetupFailed, "broken off while %s", s.Message)}
		}
		return &cmdline.Told{Err: reason.New(reason.SetupRunning, "%s", s.Message)}
	}
	if s.Code == "" { // one of a newer agent
		s.Code = reason.SetupFailed
	}
	return &cmdline.Told{Err: &reason.Error{Code: s.Code}}
}

// printState prints s for people.
func printState(w io.Writer, s marker.State) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(key, value string) {
		if value != "" {
			fmt.Fprintf(tw, "%s\t%s\n", key, value)
		}
	}
	result := string(s.Result)
	if s.Result == marker.ResultRunning && !alive(s) {
		result = fmt.Sprintf("broken off: process %d is gone", s.PID)
	}
	row("result", result)
	row("code", string(s.Code))
	row("reason", s.Message)
	row("hint", s.Hint)
	row("step", s.Step)
	if a := s.Archive; a != nil {
		row("etcd", fmt.Sprintf("%s for %s", a.EtcdVersion, a.Arch))
		row("from", fmt.Sprintf("%s on %s", a.Path, a.Where))
		row("sha256", a.SHA256)
	}
	row("started", s.Started.Format(time.RFC3339))
	if !s.Ended.IsZero() {
		row("took", s.Ended.Sub(s.Started).Round(time.Millisecond).String())
	}
	for _, step := range s.Steps {
		row("  "+step.Name, fmt.Sprintf("%8.3fs  %s", step.Seconds, step.Result))
	}
	for _, line := range s.Seen {
		row("seen", line)
	}
	return tw.Flush()
}

// alive reports whether the setup's process may still run: in this boot there is
// one with its id. A reused id makes it say yes wrongly, which only leaves the
// word "running" standing.
func alive(s marker.State) bool {
	if boot := bootID(); boot != "" && s.BootID != "" && s.BootID != boot {
		return false
	}
	_, err := os.Stat(fmt.Sprintf("/proc/%d", s.PID))
	return s.PID > 0 && err == nil
}
