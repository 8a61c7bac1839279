package unit

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

// contractUnits are the units that the contract tests need. The fake behaves
// like them; the real systemd gets these files.
func contractUnits() map[string]string {
	return map[string]string{
		"ckst-ok.service":        "[Service]\nType=exec\nExecStart=/bin/sleep infinity\nRestart=on-failure\nRestartSec=5\n[Install]\nWantedBy=multi-user.target\n",
		"ckst-noexec.service":    "[Service]\nType=exec\nExecStart=/nonexistent/etcd --name x\nRestart=on-failure\nRestartSec=5\n",
		"ckst-bad.service":       "[Service]\nType=exec\n",
		"ckst-slow.service":      "[Service]\nType=notify\nTimeoutStartSec=0\nExecStart=/bin/sleep infinity\n",
		"ckst-needs.service":     "[Unit]\nRequires=ckst-fails.service\nAfter=ckst-fails.service\n[Service]\nType=exec\nExecStart=/bin/sleep infinity\n",
		"ckst-fails.service":     "[Service]\nType=oneshot\nExecStart=/bin/false\n",
		"ckst-condition.service": "[Unit]\nConditionPathExists=/nonexistent\n[Service]\nType=exec\nExecStart=/bin/sleep infinity\n",
		"ckst-exits.service":     "[Service]\nType=exec\nExecStart=/bin/sh -c 'sleep 1; exit 2'\n",
		"ckst-masked.service":    "", // a link to /dev/null
	}
}

// fakeContract is a fakeSystemd with the units of contractUnits.
func fakeContract() *fakeSystemd {
	masked := loaded(nil)
	masked.set("LoadState", "masked", "UnitFileState", "masked", "LoadError", []any{"org.freedesktop.systemd1.UnitMasked", "Unit ckst-masked.service is masked."})
	bad := loaded(nil)
	bad.set("LoadState", "bad-setting", "LoadError", []any{"org.freedesktop.systemd1.BadUnitSetting", "Unit ckst-bad.service has a bad unit file setting."})
	ok := loaded(runs)
	ok.set("RestartUSec", uint64(5e6))
	noexec := loaded(cannotExec)
	noexec.set("ExecStart", [][]any{{"/nonexistent/etcd", []string{"/nonexistent/etcd", "--name", "x"}, false}})
	return &fakeSystemd{units: map[string]*fakeUnit{
		"ckst-ok.service":     ok,
		"ckst-noexec.service": noexec,
		"ckst-bad.service":    bad,
		"ckst-slow.service":   loaded(hangs),
		"ckst-needs.service":  loaded(func(*fakeUnit) string { return "dependency" }),
		"ckst-fails.service":  loaded(func(*fakeUnit) string { return "failed" }),
		"ckst-masked.service": masked,
		"ckst-condition.service": loaded(func(u *fakeUnit) string {
			return "done" // systemd 252: the start job of a unit whose condition fails is done
		}),
		"ckst-exits.service": loaded(func(u *fakeUnit) string {
			u.set("ActiveState", "failed", "SubState", "failed", "Result", "exit-code", "ExecMainCode", int32(1), "ExecMainStatus", int32(2))
			return "done"
		}),
	}}
}

func TestContractFake(t *testing.T) {
	sys := fakeContract()
	for name := range contractUnits() {
		if sys.units[name] == nil {
			t.Errorf("the fake has no %s", name)
		}
	}
	contract(t, sys.bus(t))
}

// contract says what this package promises about a systemd with contractUnits.
func contract(t *testing.T, b *Bus) {
	ctx := t.Context()
	within := func(d time.Duration) context.Context {
		c, cancel := context.WithTimeout(ctx, d)
		t.Cleanup(cancel)
		return c
	}
	if err := b.Reload(ctx); err != nil {
		t.Fatalf("Reload: %v", err)
	}
	t.Run("start", func(t *testing.T) {
		tests := []struct {
			unit string
			want reason.Code
			says []string
		}{
			{"ckst-nosuch.service", reason.UnitMissing, []string{"ckst-nosuch.service"}},
			{"ckst-masked.service", reason.UnitMasked, []string{"ckst-masked.service"}},
			{"ckst-bad.service", reason.UnitBadSetting, []string{"bad unit file setting"}},
			{"ckst-noexec.service", reason.UnitStartFailed, []string{"the start job failed", "result exit-code", "status 203/EXEC", "/nonexistent/etcd"}},
			{"ckst-needs.service", reason.UnitStartFailed, []string{"a unit that it needs failed"}},
			{"ckst-condition.service", reason.UnitStartFailed, []string{"condition"}},
			{"ckst-slow.service", reason.UnitStartTimeout, []string{"last seen activating (start)"}},
			{"ckst-ok.service", reason.Ready, nil},
			{"ckst-exits.service", reason.Ready, nil}, // Type=exec: that is for stability to find
		}
		for _, tt := range tests {
			t.Run(tt.unit, func(t *testing.T) {
				err := b.Start(within(2*time.Second), tt.unit)
				if got := reason.Of(err); got != tt.want {
					t.Fatalf("got %s (%v), want %s", got, err, tt.want)
				}
				for _, s := range tt.says {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("%q does not say %q", err, s)
					}
				}
				if tt.want == reason.UnitStartTimeout && !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("%v does not wrap the deadline", err)
				}
			})
		}
	})
	t.Run("start again and restart", func(t *testing.T) {
		invocation := func() string {
			st, err := b.Status(ctx, "ckst-ok.service")
			if err != nil || st.state() != stability.Active || st.InvocationID == "" || st.MainPID == 0 || st.ActiveEnter == 0 || st.RestartDelay != 5*time.Second {
				t.Fatalf("status %+v, %v", st, err)
			}
			return st.InvocationID
		}
		first := invocation()
		if err := b.Start(within(5*time.Second), "ckst-ok.service"); err != nil {
			t.Fatal(err)
		}
		if got := invocation(); got != first {
			t.Error("Start restarted an active unit")
		}
		if err := b.Restart(within(5*time.Second), "ckst-ok.service"); err != nil {
			t.Fatal(err)
		}
		if got := invocation(); got == first {
			t.Error("Restart left the unit as it was")
		}
	})
	t.Run("enable", func(t *testing.T) {
		for unit, want := range map[string]reason.Code{
			"ckst-ok.service":     reason.Ready,
			"ckst-nosuch.service": reason.UnitMissing,
			"ckst-masked.service": reason.UnitMasked,
			"ckst-bad.service":    reason.UnitBadSetting,
		} {
			for range 2 { // again is no different
				if err := b.Enable(ctx, unit); reason.Of(err) != want {
					t.Errorf("%s: got %v, want %s", unit, err, want)
				}
			}
		}
		if st, err := b.Status(ctx, "ckst-ok.service"); err != nil || st.UnitFileState != "enabled" {
			t.Errorf("got %q, %v; want enabled", st.UnitFileState, err)
		}
	})
	t.Run("spent context", func(t *testing.T) {
		// B83: an expired context is not an inactive unit.
		spent, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
		defer cancel()
		st, err := b.Status(spent, "ckst-ok.service")
		if reason.Of(err) != reason.BusUnreachable || !errors.Is(err, context.DeadlineExceeded) || st.state() != stability.Unknown {
			t.Errorf("got %v and state %s, want could not tell", err, st.state())
		}
		stopped, cancel := context.WithCancel(ctx)
		cancel()
		if err := b.Start(stopped, "ckst-noexec.service"); reason.Of(err) != reason.Interrupted || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want interrupted", err)
		}
	})
}

// answered returns an error as systemd answers a call.
func answered(name, text string) error { return dbus.Error{Name: name, Body: []any{text}} }
