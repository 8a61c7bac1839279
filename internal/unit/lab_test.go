//go:build lab && linux

package unit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

// insideEnv is set in the copy of this program that runs on the test host.
const insideEnv = "CKS_ETCD_INSIDE"

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// A realHost is a test host as this package sees it from outside: by the socket
// of its system bus, below its root directory in /proc.
type realHost struct {
	*lab.Host
	bus string
}

// TestLabSystemd holds the package against a real systemd.
func TestLabSystemd(t *testing.T) {
	if os.Getenv(insideEnv) != "" {
		b, err := sockets{System: "/nonexistent", Private: defaultSockets().Private}.connect(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		contract(t, b)
		return
	}
	h := realHost{Host: lab.StartT(t, lab.UpT(t), lab.HostOptions{Name: "unit"})}
	h.bus = filepath.Join("/proc", strconv.Itoa(h.PID()), "root", defaultSockets().System)
	t.Run("contract on the system bus", h.contract)
	t.Run("contract on the private socket", h.contractInside)
	t.Run("systemd executed anew", func(t *testing.T) { h.lost(t, "systemctl", "daemon-reexec") })
	t.Run("D-Bus restarted", func(t *testing.T) { h.lost(t, "systemctl", "restart", "dbus.service") })
	t.Run("flapping", h.flapping)
	t.Run("CloudStack's unit", h.cloudstack)
}

// connect returns a Bus to the host after units were installed there.
func (h realHost) connect(t *testing.T, units map[string]string) *Bus {
	t.Helper()
	h.install(t, units)
	b, err := sockets{System: h.bus}.connect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Reload(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// install writes units to the host and takes them away at the end.
func (h realHost) install(t *testing.T, units map[string]string) {
	t.Helper()
	for name, text := range units {
		file := "/etc/systemd/system/" + name
		if text == "" {
			if _, err := h.Must(t.Context(), "ln", "-sfn", "/dev/null", file); err != nil {
				t.Fatal(err)
			}
		} else if err := h.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		script := "cd /etc/systemd/system && systemctl disable --now ckst-*.service; rm -f ckst-*; systemctl daemon-reload; systemctl reset-failed"
		if _, err := h.Exec(context.Background(), "sh", "-c", script); err != nil {
			t.Error(err)
		}
	})
}

func (h realHost) contract(t *testing.T) { contract(t, h.connect(t, contractUnits())) }

// contractInside runs this program on the host: systemd resets a private
// connection whose peer it cannot name, being in another PID namespace.
func (h realHost) contractInside(t *testing.T) {
	h.install(t, contractUnits())
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const copied = "/root/unit.test"
	if err := h.CopyIn(self, copied); err != nil {
		t.Fatal(err)
	}
	r, err := h.Run(t.Context(), lab.Command{Args: []string{copied, "-test.v", "-test.run=^TestLabSystemd$"}, Env: []string{insideEnv + "=1"}})
	if err != nil || r.Exit != 0 || !strings.Contains(r.Stdout, "--- PASS: TestLabSystemd/enable") {
		t.Errorf("exit %d, %v\n%s\n%s", r.Exit, err, r.Stdout, r.Stderr)
	}
}

// B84: the bus goes away while a start waits.
func (h realHost) lost(t *testing.T, breakIt ...string) {
	b := h.connect(t, map[string]string{
		"ckst-late.service": "[Service]\nType=notify\nNotifyAccess=all\nExecStart=/bin/sh -c 'touch /run/ckst-waits; until test -e /run/ckst-go; do sleep 0.1; done; systemd-notify --ready; exec sleep infinity'\n",
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- b.Start(ctx, "ckst-late.service") }()
	script := "until test -e /run/ckst-waits; do sleep 0.1; done; " + strings.Join(breakIt, " ") + "; touch /run/ckst-go"
	if _, err := h.Must(ctx, "sh", "-c", script); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st, err := b.Status(ctx, "ckst-late.service"); err != nil || st.state() != stability.Active {
		t.Errorf("got %s, %v; want active", st, err)
	}
	if _, err := h.Must(ctx, "rm", "-f", "/run/ckst-waits", "/run/ckst-go"); err != nil {
		t.Error(err)
	}
}

// B54: a service that dies after a moment, again and again, is never stable, and
// its journal says why.
func (h realHost) flapping(t *testing.T) {
	b := h.connect(t, map[string]string{
		"ckst-flaps.service": "[Service]\nType=exec\nRestart=on-failure\nRestartSec=500ms\nStartLimitIntervalSec=0\nExecStart=/bin/sh -c 'echo flag provided but not defined: -enable-v2; sleep 0.3; exit 2'\n",
	})
	if err := b.Start(t.Context(), "ckst-flaps.service"); err != nil {
		t.Fatalf("Start: %v", err)
	}
	run := stability.New(stability.Rule{Gap: 2 * time.Second})
	start := time.Now()
	for ; ; time.Sleep(100 * time.Millisecond) {
		st, err := b.Status(t.Context(), "ckst-flaps.service")
		if err != nil {
			t.Fatal(err)
		}
		v := run.Add(st.Sample(time.Now(), ""))
		if v.Outcome == stability.Flapping {
			t.Log(v.Why)
			break
		}
		if v.Outcome != stability.Undecided || time.Since(start) > 20*time.Second {
			t.Fatalf("got %s (%s), want flapping", v.Outcome, v.Why)
		}
	}
	// The journal is the host's: a program that enters it stands for journalctl.
	enter := filepath.Join(t.TempDir(), "journalctl")
	if err := os.WriteFile(enter, fmt.Appendf(nil, "#!/bin/sh\nexec nsenter -t %d -a journalctl \"$@\"\n", h.PID()), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, since := range []time.Time{start, {}} {
		lines, err := journal(t.Context(), enter, "ckst-flaps.service", since, JournalLines)
		if err != nil {
			t.Fatal(err)
		}
		if code, _, ok := Classify(lines); !ok || code != reason.FlagRemoved {
			t.Errorf("since %v: got %q, want etcd-flag-removed, of %q", since, code, lines)
		}
	}
}

// The command of CloudStack's etcd.service comes through systemd as it was
// written, and a missing program is told at once.
func (h realHost) cloudstack(t *testing.T) {
	const name = "ckst-etcd.service"
	b := h.connect(t, map[string]string{
		name: "[Unit]\nDescription=etcd\n[Service]\nType=exec\nExecStart=" + strings.Join(etcdArgv(), " \\\n  ") + "\nRestart=on-failure\nRestartSec=5\n[Install]\nWantedBy=multi-user.target\n",
	})
	st, err := b.Status(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(st.ExecStart, etcdArgv()) || st.Type != "exec" || st.RestartDelay != 5*time.Second || st.Check() != nil {
		t.Errorf("got %+v", st)
	}
	if _, err := (Preflight{}).Check(t.Context(), st); reason.Of(err) != reason.AddressNotLocal {
		t.Errorf("got %v, want address-not-local", err)
	}
	err = b.Start(t.Context(), name)
	if reason.Of(err) != reason.UnitStartFailed || !strings.Contains(err.Error(), "203/EXEC: cannot execute /opt/bin/etcd") {
		t.Errorf("got %v", err)
	}
}
