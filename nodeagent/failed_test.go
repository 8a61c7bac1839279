package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
)

// TestFailed: a reason is left exactly where the setup of this boot left none.
func TestFailed(t *testing.T) {
	const gone = 1 << 30 // no process has this number
	running := marker.State{Result: marker.ResultRunning, BootID: bootID(), PID: gone, Step: "verify", Message: "verifying the etcd archive", Started: time.Unix(1e9, 0)}
	with := func(change func(*marker.State)) *marker.State {
		s := running
		change(&s)
		return &s
	}
	for _, tt := range []struct {
		name   string
		state  *marker.State // nil: there is none
		env    map[string]string
		marker string // "": none is written
	}{
		{name: "killed", state: &running, env: map[string]string{"MONITOR_SERVICE_RESULT": "signal", "MONITOR_EXIT_STATUS": "KILL"},
			marker: "the setup was killed by SIGKILL while verifying the etcd archive"},
		{name: "out of memory", state: &running, env: map[string]string{"MONITOR_SERVICE_RESULT": "oom-kill", "MONITOR_EXIT_STATUS": "KILL"},
			marker: "the setup was killed for want of memory while verifying the etcd archive"},
		{name: "systemd before 251", state: &running, marker: "the setup was killed or crashed while verifying the etcd archive"},
		{name: "never began", env: map[string]string{"MONITOR_SERVICE_RESULT": "exit-code", "MONITOR_EXIT_STATUS": "203"},
			marker: "the setup ended with exit status 203 before it began"},
		{name: "resources", env: map[string]string{"MONITOR_SERVICE_RESULT": "resources"},
			marker: "the setup was ended by systemd (resources) before it began"},
		{name: "a state of another boot", state: with(func(s *marker.State) { s.BootID = "another" }),
			marker: "the setup was killed or crashed before it began"},
		{name: "a failure of another boot", state: with(func(s *marker.State) {
			s.BootID, s.Result, s.Code = "another", marker.ResultFailed, reason.ArchiveMissing
		}), marker: "the setup was killed or crashed before it began"},
		{name: "a real reason", state: with(func(s *marker.State) { s.Result, s.Code = marker.ResultFailed, reason.ArchiveMissing })},
		{name: "another setup", state: with(func(s *marker.State) { s.PID = os.Getpid() })},
		{name: "ready", state: with(func(s *marker.State) { s.Result = marker.ResultReady })},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			statePath, markerPath := filepath.Join(dir, "lib", "state.json"), filepath.Join(dir, "failed")
			if tt.state != nil {
				if err := marker.WriteState(statePath, *tt.state); err != nil {
					t.Fatal(err)
				}
			}
			before, _ := os.ReadFile(statePath)
			var out bytes.Buffer
			err := runFailed(&out, statePath, markerPath, cause(func(k string) string { return tt.env[k] }), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			line, err := marker.Read(markerPath)
			if tt.marker == "" {
				after, _ := os.ReadFile(statePath)
				if err == nil || !bytes.Equal(before, after) || !strings.HasPrefix(out.String(), "nothing to do") {
					t.Errorf("marker %q, state before %s and after %s, output %s", line, before, after, out.String())
				}
				return
			}
			if err != nil || !strings.HasSuffix(line, ": "+tt.marker) {
				t.Errorf("marker %q, %v; want ...%q", line, err, tt.marker)
			}
			s, err := marker.ReadState(statePath)
			if err != nil || s.Result != marker.ResultFailed || s.Code != reason.SetupFailed || s.Message != line || s.Hint != failedHint || s.Ended.IsZero() {
				t.Errorf("state %+v, %v", s, err)
			}
			// Once is enough.
			out.Reset()
			if err := runFailed(&out, statePath, markerPath, "x", time.Now()); err != nil || !strings.HasPrefix(out.String(), "nothing to do") {
				t.Errorf("a second time: %v, %s", err, out.String())
			}
		})
	}
}

// TestFailedUnreadable: a state that cannot be read is replaced, and the marker is
// written even where the state cannot be.
func TestFailedUnreadable(t *testing.T) {
	dir := t.TempDir()
	statePath, markerPath := filepath.Join(dir, "state.json"), filepath.Join(dir, "failed")
	if err := os.WriteFile(statePath, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := runFailed(&out, statePath, markerPath, "was killed", time.Now()); err != nil {
		t.Fatal(err)
	}
	if s, err := marker.ReadState(statePath); err != nil || !strings.Contains(s.Message, "was killed; "+statePath+": cannot read the state") {
		t.Errorf("state %+v, %v", s, err)
	}
	if err := os.Remove(markerPath); err != nil {
		t.Fatal(err)
	}
	err := runFailed(&out, filepath.Join(markerPath, "below", "a", "file"), markerPath, "was killed", time.Now())
	if line, rerr := marker.Read(markerPath); err == nil || rerr != nil || !strings.Contains(line, "was killed") {
		t.Errorf("error %v; marker %q, %v", err, line, rerr)
	}
}
