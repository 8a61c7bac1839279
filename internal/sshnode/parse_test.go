package sshnode

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode/sshtest"
	"cks-etcd/internal/stability"
)

// look observes what a command wrote.
func look(stdout string) (Observation, error) {
	return observe(time.Unix(1764626400, 0), output{stdout: []byte(stdout)})
}

func ptr(s string) *string { return &s }

func TestObserve(t *testing.T) {
	with := func(f func(*sshtest.Values)) string {
		v := wellValues()
		f(&v)
		return sshtest.ProbeOutput(v)
	}
	ok := sshtest.ProbeOutput(wellValues())
	tests := []struct {
		name  string
		out   string
		check func(Observation) any
		want  any
		err   string
	}{
		{name: "well", out: ok, check: func(o Observation) any { return o.Sample.State }, want: stability.Active},
		{name: "message of the day", out: "Welcome!\n\x1b[0m\n\n" + ok + "bye\n", check: func(o Observation) any { return o.BootID }, want: testBoot},
		{name: "noise without line break", out: "prompt> " + ok, check: func(o Observation) any { return o.BootID }, want: testBoot},
		{name: "marker", out: with(func(v *sshtest.Values) { v.Marker = ptr("etcd archive\tmissing\n>marker\n") }),
			check: func(o Observation) any { return []any{o.HasMarker, o.Marker} }, want: []any{true, "etcd archive missing"}},
		{name: "marker that looks like the frame", out: with(func(v *sshtest.Values) { v.Marker = ptr("cks-etcd-probe 1 end\n") }),
			check: func(o Observation) any { return o.Marker }, want: "cks-etcd-probe 1 end"},
		{name: "empty marker", out: with(func(v *sshtest.Values) { v.Marker = ptr("") }),
			check: func(o Observation) any { return []any{o.HasMarker, o.Marker} }, want: []any{true, "the failure marker is empty"}},
		{name: "marker of a node without systemctl", out: with(func(v *sshtest.Values) { v.Marker, v.Unit = ptr("no ISO\n"), nil }),
			check: func(o Observation) any { return []any{o.Marker, o.Unit == nil, o.Sample.State} }, want: []any{"no ISO", true, stability.Unknown}},
		{name: "marker that cannot be read", out: strings.Replace(ok, "<marker\n=\n=40\n", "<marker\n=head: Permission denied\n=\n=1\n", 1),
			check: func(o Observation) any { return []any{o.HasMarker, o.Marker} },
			want:  []any{true, "the failure marker cannot be read: head: Permission denied"}},
		{name: "marker below a closed directory", out: strings.Replace(ok, "<marker\n=\n=40\n", "<marker\n=cannot search /home/cloud\n=\n=42\n", 1),
			check: func(o Observation) any { return []any{o.HasMarker, o.MarkerNote} }, want: []any{false, "cannot search /home/cloud"}},
		{name: "no systemctl", out: with(func(v *sshtest.Values) { v.Unit = nil }), err: "there is no systemctl"},
		{name: "no systemd", out: strings.Replace(ok, "<unit\n", "<unit\n=System has not been booted with systemd as init system (PID 1). Can't operate.\n=\n=1\n>unit\n<ci-result\n", 1),
			err: "section"},
		{name: "hostile state file", out: with(func(v *sshtest.Values) { v.State = []byte("{") }),
			check: func(o Observation) any { return []any{o.State == nil, o.StateNote != ""} }, want: []any{true, true}},
		{name: "state file", out: with(func(v *sshtest.Values) {
			v.State = []byte(`{"schema_version":1,"result":"failed","code":"archive-missing","message":"etcd archive missing"}`)
		}), check: func(o Observation) any {
			if o.State == nil {
				return o.StateNote
			}
			return o.State.Code
		}, want: reason.ArchiveMissing},
		{name: "auto-restart", out: with(func(v *sshtest.Values) {
			v.Unit = map[string]string{"ActiveState": "activating", "SubState": "auto-restart", "Result": "exit-code",
				"ExecMainCode": "1", "ExecMainStatus": "203", "NRestarts": "7", "InvocationID": "", "MainPID": "0"}
		}), check: func(o Observation) any { return o.Sample }, want: stability.Sample{At: time.Unix(1764626400, 0), State: stability.Activating,
			Restarts: 7, BootID: testBoot, Detail: "auto-restart, result exit-code, status 203/EXEC"}},
		{name: "old systemd", out: with(func(v *sshtest.Values) { v.Unit = map[string]string{"ActiveState": "active", "SubState": "running"} }),
			check: func(o Observation) any { return o.Sample.Restarts }, want: stability.RestartsUnknown},
		{name: "not found", out: with(func(v *sshtest.Values) {
			v.Unit = map[string]string{"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead"}
		}), check: func(o Observation) any { return []any{o.UnitLoaded(), o.Sample.State, o.Sample.Detail} },
			want: []any{false, stability.Inactive, "not-found"}},
		{name: "no ActiveState", out: with(func(v *sshtest.Values) { v.Unit = map[string]string{"SubState": "dead"} }), err: "ActiveState"},
		{name: "odd values", out: with(func(v *sshtest.Values) {
			v.BootID, v.Clock, v.Hostname = "x", "y", "a\x1b[2Jb"
			v.Unit["NRestarts"], v.Unit["MainPID"], v.Unit["InvocationID"] = "-3", "99999999999999999999", "zz"
			v.Unit["Surprise"] = "\x07"
		}), check: func(o Observation) any {
			return []any{o.BootID, o.Clock.IsZero(), o.Hostname, o.Sample.Restarts, o.Sample.MainPID, o.Sample.Invocation, o.Unit["Surprise"]}
		}, want: []any{"", true, "a?[2Jb", int64(-1), 0, "", ""}},
		{name: "cloud-init running", out: with(func(v *sshtest.Values) { v.CloudInit = "running" }), check: func(o Observation) any { return o.CloudInit }, want: "running"},
		{name: "cloud-init error", out: with(func(v *sshtest.Values) { v.CloudInit = "error" }), check: func(o Observation) any { return o.CloudInit }, want: "error"},
		{name: "cloud-init not run", out: with(func(v *sshtest.Values) { v.CloudInit = "not run" }), check: func(o Observation) any { return o.CloudInit }, want: "not run"},
		{name: "cloud-init disabled", out: with(func(v *sshtest.Values) { v.CloudInit = "disabled" }), check: func(o Observation) any { return o.CloudInit }, want: "disabled"},
		{name: "cut off", out: ok[:len(ok)-30], err: "cut off"},
		{name: "cut inside a section", out: ok[:len(ok)/2], err: "cut off"},
		{name: "noise inside", out: strings.Replace(ok, "<state", "Broadcast message\n<state", 1), err: "Broadcast message"},
		{name: "section twice", out: strings.Replace(ok, "<state", "<marker\n=\n=0\n>marker\n<state", 1), err: "repeated"},
		{name: "restricted shell", out: "", err: "did not run the probe"},
		{name: "nologin", out: "This account is currently not available.\n", err: "This account is currently not available."},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o, err := look(tt.out)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("got %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, tt.check(o)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	ok := sshtest.ProbeOutput(wellValues())
	marked := wellValues()
	marked.Marker, marked.State = ptr("etcd archive missing: x\n"), []byte(`{"schema_version":1}`)
	for _, s := range []string{"", ok, sshtest.ProbeOutput(marked), "noise\n" + ok, ok[:100], ok[:len(ok)-3],
		"cks-etcd-probe 1\n<unit\n=\n=0\n>unit\ncks-etcd-probe 1 end\n", "cks-etcd-probe 1\n<unit\n=0\n>unit\n", "cks-etcd-probe 1\n+boot\n",
		strings.ReplaceAll(ok, "active", "\xff\x1b[2J")} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := observe(time.Unix(0, 0), output{stdout: b})
		if err != nil {
			if e := reason.New(reason.ProbeUnreadable, "%w", err).Error(); e != reason.Line(e) {
				t.Errorf("not one printable line: %q", e)
			}
			return
		}
		texts := []string{o.BootID, o.Marker, o.MarkerNote, o.StateNote, o.CloudInit, o.Hostname, o.Sample.Detail, o.Sample.Invocation}
		for k, v := range o.Unit {
			texts = append(texts, k, v)
		}
		for _, s := range texts {
			if !utf8.ValidString(s) || s != reason.Line(s) {
				t.Errorf("not one printable line: %q", s)
			}
		}
		if !framed(b) {
			t.Error("an answer without its end was taken")
		}
		if o.Unit == nil && !o.HasMarker {
			t.Error("neither unit nor marker, and no error")
		}
	})
}

// The command must survive any login shell: see probeCommand.
func TestCommandIsPlain(t *testing.T) {
	c := probeCommand(DefaultUnit, DefaultMarker, DefaultState)
	inner, ok := strings.CutPrefix(c, "exec sh -c '")
	inner, ok2 := strings.CutSuffix(inner, "'")
	if !ok || !ok2 || strings.ContainsAny(inner, "'!\n\r\t") || strings.Contains(inner, `\\`) {
		t.Errorf("not plain: %s", c)
	}
}

// The real command, run by the shells of this machine, gives what ProbeOutput
// pretends.
func TestCommandInShells(t *testing.T) {
	dir := t.TempDir()
	state := `{"schema_version":1,"result":"failed","code":"archive-missing","message":"m"}`
	big := strings.Repeat("x", 2*maxMarker)
	write(t, filepath.Join(dir, "state"), state)
	write(t, filepath.Join(dir, "empty"), "")
	write(t, filepath.Join(dir, "big"), big)
	write(t, filepath.Join(dir, "binary"), "a\x00\xff\r\n>marker\n=\nno end")
	if err := exec.Command("mkfifo", filepath.Join(dir, "fifo")).Run(); err != nil {
		t.Fatal(err)
	}
	if err := exec.Command("ln", "-s", "state", filepath.Join(dir, "link")).Run(); err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, shell := range []string{"sh", "dash", "bash", "busybox", "ksh", "mksh", "zsh", "csh", "tcsh", "fish"} {
		if _, err := exec.LookPath(shell); err != nil {
			continue
		}
		ran++
		t.Run(shell, func(t *testing.T) {
			for _, tt := range []struct {
				marker string
				has    bool
				text   string
				note   string
			}{
				{"none", false, "", ""},
				{"none/below/that", false, "", ""},
				{"empty", true, "the failure marker is empty", ""},
				{"big", true, "xxx", ""},
				{"binary", true, "a?", ""}, // busybox's sed takes a NUL for the end of a line
				{"fifo", false, "", "not a regular file"},
				{"link", false, "", "a symbolic link"},
			} {
				args := []string{"-c", probeCommand("no-such-unit.service", filepath.Join(dir, tt.marker), filepath.Join(dir, "state"))}
				if shell == "busybox" {
					args = append([]string{"sh"}, args...)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				var stdout, stderr bytes.Buffer
				cmd := exec.CommandContext(ctx, shell, args...)
				cmd.Stdout, cmd.Stderr = &stdout, &stderr
				if err := cmd.Run(); err != nil || stderr.Len() > 0 {
					t.Fatalf("%v: %s", err, stderr.String())
				}
				a, err := parse(stdout.Bytes())
				if err != nil {
					t.Fatalf("%v in\n%s", err, stdout.String())
				}
				var o Observation
				o.observeMarker(a)
				o.observeState(a)
				if o.HasMarker != tt.has || !strings.HasPrefix(o.Marker, tt.text) || o.MarkerNote != tt.note {
					t.Errorf("%s: got %v %q %q", tt.marker, o.HasMarker, o.Marker, o.MarkerNote)
				}
				if tt.marker == "big" && len(a.sections["marker"].body) != maxMarker {
					t.Errorf("read %d bytes of the marker, want %d", len(a.sections["marker"].body), maxMarker)
				}
				if o.State == nil || o.State.Code != reason.ArchiveMissing {
					t.Errorf("state: %v %s", o.State, o.StateNote)
				}
				if !uuid.MatchString(a.values["boot"]) || a.values["host"] == "" || parseClock(a.values["clock"]).IsZero() {
					t.Errorf("values: %v", a.values)
				}
				if _, ok := a.sections["unit"]; !ok {
					t.Error("no section of the unit")
				}
			}
		})
	}
	if ran == 0 {
		t.Fatal("no shell to try")
	}
}
