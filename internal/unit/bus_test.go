package unit

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

func TestLostBus(t *testing.T) {
	names := map[string]error{
		"B84: dbus: connection closed by user": errDrop,
		"systemd left the bus":                 answered("org.freedesktop.DBus.Error.NoReply", "Message recipient disconnected from message bus without replying"),
		"end of file":                          io.EOF,
	}
	for name, e := range names {
		t.Run(name, func(t *testing.T) {
			sys := fakeContract()
			b := sys.bus(t)
			sys.fail = []error{nil, e} // the first call is answered
			for range 2 {
				if _, err := b.Status(t.Context(), "ckst-ok.service"); err != nil {
					t.Fatal(err)
				}
			}
			if sys.dials != 2 {
				t.Errorf("%d connections made, want 2", sys.dials)
			}
		})
	}
	t.Run("lost twice", func(t *testing.T) {
		sys := fakeContract()
		b := sys.bus(t)
		sys.fail = []error{errDrop, errDrop}
		if _, err := b.Status(t.Context(), "ckst-ok.service"); reason.Of(err) != reason.BusUnreachable {
			t.Errorf("got %v, want bus-unreachable", err)
		}
		if _, err := b.Status(t.Context(), "ckst-ok.service"); err != nil {
			t.Errorf("the next call does not connect anew: %v", err)
		}
	})
	t.Run("gone for good", func(t *testing.T) {
		sys := fakeContract()
		b := sys.bus(t)
		if err := b.Reload(t.Context()); err != nil {
			t.Fatal(err)
		}
		sys.fail, sys.dialErr = []error{errDrop}, reason.New(reason.BusUnreachable, "no socket")
		err := b.Reload(t.Context())
		if reason.Of(err) != reason.BusUnreachable || !strings.Contains(err.Error(), "no socket") {
			t.Errorf("got %v, want bus-unreachable with the cause", err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		b := fakeContract().bus(t)
		b.Close()
		if err := b.Reload(t.Context()); reason.Of(err) != reason.BusUnreachable {
			t.Errorf("got %v, want bus-unreachable", err)
		}
	})
}

// A lost signal ends the wait all the same, by the state that polling finds.
func TestLostSignal(t *testing.T) {
	tests := []struct {
		name  string
		start func(*fakeUnit) string
		want  reason.Code
	}{
		{"active", runs, reason.Ready},
		{"failed", func(u *fakeUnit) string {
			u.set("ActiveState", "failed", "Result", "exit-code", "ExecMainCode", int32(1), "ExecMainStatus", int32(2))
			return "failed"
		}, reason.UnitStartFailed},
		{"waits for its restart", cannotExec, reason.UnitStartFailed},
		{"no property Job", func(u *fakeUnit) string { runs(u); delete(u.props, "Job"); return "" }, reason.Ready},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sys := fakeContract()
				u := loaded(tt.start)
				u.silent = true
				sys.units["x.service"] = u
				b := sys.bus(t)
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := b.Start(ctx, "x.service"); reason.Of(err) != tt.want {
					t.Errorf("got %v, want %s", err, tt.want)
				}
				if took := time.Since(began); took > 3*pollInterval {
					t.Errorf("took %s", took)
				}
			})
		})
	}
}

// The bus breaks while a start waits: the signal will never come.
func TestBusLostWhileWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := fakeContract()
		u := loaded(hangs)
		sys.units["x.service"] = u
		b := sys.bus(t)
		time.AfterFunc(2500*time.Millisecond, func() {
			sys.mu.Lock()
			defer sys.mu.Unlock()
			for _, c := range sys.conns {
				c.dead = true
			}
			runs(u)
			u.set("Job", []any{uint32(0), "/"})
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := b.Start(ctx, "x.service"); err != nil {
			t.Error(err)
		}
		if u.starts != 1 || sys.dials != 2 {
			t.Errorf("%d starts over %d connections, want 1 over 2", u.starts, sys.dials)
		}
	})
}

func TestWaitGivesUpOnADeadBus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sys := fakeContract()
		b := sys.bus(t)
		time.AfterFunc(1500*time.Millisecond, func() {
			sys.mu.Lock()
			defer sys.mu.Unlock()
			sys.conns[0].dead, sys.dialErr = true, reason.New(reason.BusUnreachable, "no socket")
		})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if err := b.Start(ctx, "ckst-slow.service"); reason.Of(err) != reason.BusUnreachable {
			t.Errorf("got %v, want bus-unreachable", err)
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

func TestJobResults(t *testing.T) {
	for result, says := range map[string]string{
		"failed":     "the start job failed",
		"timeout":    "ran into its own timeout",
		"canceled":   "was canceled by another request",
		"dependency": "a unit that it needs failed",
		"skipped":    "systemd skipped the start job",
		"assert":     "an assertion",
		"collected":  `ended as "collected"`,
	} {
		sys := fakeContract()
		sys.units["x.service"] = loaded(func(*fakeUnit) string { return result })
		err := sys.bus(t).Start(t.Context(), "x.service")
		if reason.Of(err) != reason.UnitStartFailed || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: got %v", result, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	tests := []struct {
		err  error
		want reason.Code
	}{
		{answered("org.freedesktop.systemd1.UnitMasked", "Unit file x.service is masked."), reason.UnitMasked},
		{answered("org.freedesktop.DBus.Error.FileNotFound", "x.service does not exist"), reason.UnitMissing},
		{answered("org.freedesktop.systemd1.NoSuchUnit", "Unit x.service not found."), reason.UnitMissing},
		{answered("org.freedesktop.systemd1.BadUnitSetting", "x"), reason.UnitBadSetting},
		{answered("org.freedesktop.DBus.Error.AccessDenied", "x"), reason.NotPermitted},
		{answered("org.freedesktop.DBus.Error.InteractiveAuthorizationRequired", "x"), reason.NotPermitted},
		{answered("org.freedesktop.DBus.Error.Failed", "Read-only file system"), reason.UnitEnableFailed},
		{errors.New("strange"), reason.BusUnreachable},
	}
	for _, tt := range tests {
		sys := fakeContract()
		u := loaded(runs)
		u.enableErr = tt.err
		sys.units["x.service"] = u
		if err := sys.bus(t).Enable(t.Context(), "x.service"); reason.Of(err) != tt.want || !errors.Is(err, tt.err) && reason.Of(err) == reason.BusUnreachable {
			t.Errorf("%v: got %v, want %s", tt.err, err, tt.want)
		}
	}
}

func TestEnableReloadsOnlyWhatChanged(t *testing.T) {
	sys := fakeContract()
	b := sys.bus(t)
	for range 2 {
		if err := b.Enable(t.Context(), "ckst-ok.service"); err != nil {
			t.Fatal(err)
		}
	}
	if sys.reloads != 1 {
		t.Errorf("%d reloads, want 1", sys.reloads)
	}
}

// Many goroutines over a bus that keeps breaking: for the race detector, and no
// call may fail because another renewed the connection.
func TestSharedBus(t *testing.T) {
	sys := fakeContract()
	b := sys.bus(t)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if st, err := b.Status(t.Context(), "ckst-ok.service"); err == nil && st.LoadState != "loaded" {
					t.Errorf("got %+v", st)
				}
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			sys.mu.Lock()
			if n := len(sys.conns); n > 0 {
				sys.conns[n-1].dead = true
			}
			sys.mu.Unlock()
		}
	})
	wg.Wait()
}

func TestConnect(t *testing.T) {
	dir := t.TempDir()
	mute := filepath.Join(dir, "mute")
	l, err := net.Listen("unix", mute)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	t.Run("no socket at all", func(t *testing.T) {
		_, err := sockets{System: filepath.Join(dir, "bus"), Private: filepath.Join(dir, "private")}.connect(t.Context())
		if reason.Of(err) != reason.BusUnreachable || !strings.Contains(err.Error(), filepath.Join(dir, "bus")) {
			t.Fatalf("got %v", err)
		}
		if want := filepath.Join(dir, "private"); os.Geteuid() == 0 && !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not name %s", err, want)
		}
		if !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v hides the cause", err)
		}
	})
	t.Run("nobody answers", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := sockets{System: mute}.connect(ctx)
		if reason.Of(err) != reason.BusUnreachable || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("the dialling's context is not the connection's", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		sys := fakeContract()
		b := sys.bus(t)
		if _, err := b.get(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		if _, err := b.Status(t.Context(), "ckst-ok.service"); err != nil || sys.dials != 1 {
			t.Errorf("%v after %d dials", err, sys.dials)
		}
	})
}

// A look that failed is unknown to stability, whatever the zero Status holds.
func TestFailedStatusIsUnknown(t *testing.T) {
	sys := fakeContract()
	sys.fail = []error{errors.New("strange")}
	st, err := sys.bus(t).Status(t.Context(), "ckst-ok.service")
	if err == nil || st.Sample(time.Time{}, "").State != stability.Unknown || st.NRestarts != stability.RestartsUnknown {
		t.Errorf("got %+v, %v", st, err)
	}
}
