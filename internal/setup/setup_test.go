package setup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/media"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/unit"
)

// A bench is a node in a directory: the ISO is a directory that a mount table
// of our own calls an ISO 9660 file system; systemd is a fake.
type bench struct {
	t   *testing.T
	dir string
	cfg Config
	bus *fakeBus
	env Env
}

func newBench(t *testing.T) *bench {
	dir := t.TempDir()
	b := &bench{t: t, dir: dir, bus: &fakeBus{t: t, began: time.Now()}}
	b.cfg = Config{
		Archive: DefaultArchive, Arch: runtime.GOARCH, Unit: DefaultUnit, BinDir: b.path("opt/bin"),
		ISOWait: 10 * time.Second, StartTimeout: time.Minute,
		Marker: b.path("home/etcd-setup-failed"), Success: b.path("home/success"),
		State: b.path("var/state.json"), Lock: b.path("lock"), Version: "test",
	}
	for _, d := range []string{"home", "dev", "sys"} {
		if err := os.Mkdir(b.path(d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	b.write("mountinfo", "")
	b.env = Env{
		Finder:    b.finder(),
		Connect:   func(context.Context) (Bus, error) { return b.bus, b.bus.connectErr },
		Journal:   func(context.Context, string, time.Time, int) ([]string, error) { return b.bus.journal, nil },
		Preflight: func(context.Context, unit.Status) ([]string, error) { return nil, b.bus.preflightErr },
		BootID:    "boot-1",
		Log:       slog.New(slog.DiscardHandler),
	}
	return b
}

func (b *bench) finder() Finder {
	return media.New(media.Options{
		Archive: b.cfg.Archive, Dev: b.path("dev"), Sys: b.path("sys"), MountInfo: b.path("mountinfo"),
		Uevents: func(context.Context) (<-chan struct{}, error) { return nil, errors.New("none here") },
	})
}

func (b *bench) path(name string) string { return filepath.Join(b.dir, name) }

func (b *bench) write(name, content string) {
	b.t.Helper()
	if err := os.MkdirAll(filepath.Dir(b.path(name)), 0o755); err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(b.path(name), []byte(content), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// mount makes the one medium of the bench appear, with these files. Its device
// number is the directory's own: a mount that shows something else is not used.
func (b *bench) mount(files map[string]string) {
	b.t.Helper()
	for n, content := range files {
		b.write(filepath.Join("iso", n), content)
	}
	var st unix.Stat_t
	if err := unix.Stat(b.path("iso"), &st); err != nil {
		b.t.Fatal(err)
	}
	b.write("mountinfo", fmt.Sprintf("100 1 %d:%d / %s ro - iso9660 /dev/sr0 ro\n", unix.Major(st.Dev), unix.Minor(st.Dev), b.path("iso")))
}

// kube are the files of a Kubernetes ISO with this archive.
func kube(archive []byte) map[string]string {
	return map[string]string{"k8s/kubeadm": "x", DefaultArchive: string(archive)}
}

func good(version string) []byte { return archivetest.Archive(version, runtime.GOARCH) }

func (b *bench) run() error { return Run(b.t.Context(), b.cfg, b.env) }

// state returns the state file, "" fields as they are.
func (b *bench) state() marker.State {
	b.t.Helper()
	s, err := marker.ReadState(b.cfg.State)
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// failed checks everything that a failure must leave behind.
func (b *bench) failed(err error, code reason.Code, text string) {
	b.t.Helper()
	if got := reason.Of(err); got != code || !strings.Contains(err.Error(), text) {
		b.t.Errorf("got %s: %v\nwant %s with %q", got, err, code, text)
	}
	content, rerr := os.ReadFile(b.cfg.Marker)
	if rerr != nil {
		b.t.Fatal(rerr)
	}
	if got, want := string(content), reason.Line(err.Error())+"\n"; got != want {
		b.t.Errorf("marker %q, want %q", got, want)
	}
	s := b.state()
	if s.Result != marker.ResultFailed || s.Code != code || s.Hint == "" || s.Ended.IsZero() || s.Message != reason.Line(err.Error()) {
		b.t.Errorf("state %+v does not tell the failure", s)
	}
	if left, _ := filepath.Glob(b.path("opt/bin/.*")); len(left) > 0 {
		b.t.Errorf("left behind: %v", left)
	}
}

// A fakeBus is systemd with one unit. Its life is a function of the time since
// it was started.
type fakeBus struct {
	t     *testing.T
	began time.Time

	life         func(sinceStart time.Duration) unit.Status // nil: active for good
	load         string                                     // LoadState, "" for loaded
	delay        time.Duration                              // RestartSec, when over 5 s
	active       bool
	started      time.Time
	connectErr   error
	reloadErr    error
	startErr     error
	statusErr    error
	preflightErr error
	journal      []string
	calls        []string
}

func (f *fakeBus) did(s string)                              { f.calls = append(f.calls, s) }
func (f *fakeBus) Close()                                    {}
func (f *fakeBus) Reload(context.Context) error              { f.did("reload"); return f.reloadErr }
func (f *fakeBus) Enable(_ context.Context, _ string) error  { f.did("enable"); return nil }
func (f *fakeBus) Start(_ context.Context, _ string) error   { f.did("start"); return f.begin() }
func (f *fakeBus) Restart(_ context.Context, _ string) error { f.did("restart"); return f.begin() }

func (f *fakeBus) begin() error {
	if f.startErr == nil {
		f.started, f.active = time.Now(), true
	}
	return f.startErr
}

func (f *fakeBus) Status(_ context.Context, name string) (unit.Status, error) {
	s := unit.Status{Name: name, LoadState: f.load, ActiveState: "inactive", SubState: "dead", NRestarts: 0, FragmentPath: "/etc/systemd/system/" + name, RestartDelay: max(f.delay, 5*time.Second)}
	if f.load == "" {
		s.LoadState = "loaded"
	}
	if f.active {
		s.ActiveState, s.SubState, s.InvocationID, s.MainPID, s.ActiveEnter = "active", "running", "inv-0", 42, 1
		if f.life != nil {
			s = f.life(time.Since(f.started))
		}
	}
	return s, f.statusErr
}

func TestReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.write("home/etcd-setup-failed", "last time's reason\n")
		b.mount(kube(good("3.5.21")))
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Lstat(b.cfg.Marker); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the stale marker is still there: %v", err)
		}
		if diff := cmp.Diff([]string{"reload", "enable", "start"}, b.bus.calls); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
		s := b.state()
		var steps []string
		for _, st := range s.Steps {
			steps = append(steps, st.Name+" "+st.Result)
		}
		want := []string{"clean ok", "find ok", "verify ok", "install ok", "preflight ok", "start ok", "watch ok"}
		if diff := cmp.Diff(want, steps); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if s.Result != marker.ResultReady || s.Archive.EtcdVersion != "3.5.21" || len(s.Archive.SHA256) != 64 || s.BootID != "boot-1" {
			t.Errorf("state %+v", s)
		}
		if fi, err := os.Stat(b.path("opt/bin/etcd")); err != nil || fi.Mode().Perm() != 0o755 {
			t.Errorf("etcd: %v, %v", fi, err)
		}

		// Once more: nothing is touched.
		before := b.state()
		b.bus.calls = nil
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if len(b.bus.calls) > 0 {
			t.Errorf("a second setup did %v", b.bus.calls)
		}
		if diff := cmp.Diff(before, b.state()); diff != "" {
			t.Errorf("a second setup changed the state:\n%s", diff)
		}

		// The unit is down and the ISO is gone: the unit is started, no more.
		b.bus.active = false
		b.write("mountinfo", "")
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"reload", "enable", "start"}, b.bus.calls); diff != "" {
			t.Errorf("calls after a stop (-want +got):\n%s", diff)
		}
		if s := b.state(); s.Archive == nil || len(s.Binaries) == 0 {
			t.Errorf("the state lost what is installed: %+v", s)
		}

		// A binary was removed: the ISO is needed again.
		b.bus.active = false
		if err := os.Remove(b.path("opt/bin/etcd")); err != nil {
			t.Fatal(err)
		}
		b.failed(b.run(), reason.ISONotFound, "gone")
	})
}

func TestSuccessFile(t *testing.T) {
	b := newBench(t)
	b.write("home/success", "")
	if err := b.run(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(b.cfg.State); !errors.Is(err, os.ErrNotExist) || len(b.bus.calls) > 0 {
		t.Errorf("something was touched: %v, %v", err, b.bus.calls)
	}
}

func TestFailures(t *testing.T) {
	crashing := func(d time.Duration) unit.Status {
		n := int64(d / (5 * time.Second))
		s := unit.Status{Name: DefaultUnit, ActiveState: "activating", SubState: "auto-restart", Result: "exit-code", NRestarts: n, ExecMainCode: 1, ExecMainStatus: 2, RestartDelay: 5 * time.Second}
		if d%(5*time.Second) < 2*time.Second {
			s.ActiveState, s.SubState, s.InvocationID, s.MainPID = "active", "running", fmt.Sprint("inv-", n), int(100+n)
			s.ActiveEnter = uint64(1 + n)
		}
		return s
	}
	for _, tt := range []struct {
		name string
		prep func(*bench)
		code reason.Code
		text string
	}{
		{"no medium ever", func(b *bench) {}, reason.ISONoDrive, ""},
		{"ISO without etcd", func(b *bench) { b.mount(map[string]string{"k8s/kubeadm": "x"}) }, reason.ArchiveMissing, DefaultArchive},
		{"archive is a web page", func(b *bench) { b.mount(kube([]byte("<!DOCTYPE html><html>404</html>"))) }, reason.ArchiveNotGzip, "HTML"},
		{"digest of a sidecar differs", func(b *bench) {
			files := kube(good("3.5.21"))
			files[DefaultArchive+".sha256"] = strings.Repeat("0", 64) + "  etcd-linux-amd64.tar.gz\n"
			b.mount(files)
		}, reason.ArchiveDigest, "/iso"},
		{"digest of the flag differs", func(b *bench) {
			b.cfg.SHA256 = strings.Repeat("0", 64)
			b.mount(kube(good("3.5.21")))
		}, reason.ArchiveDigest, ""},
		{"systemd cannot be asked", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.connectErr = reason.New(reason.BusUnreachable, "no socket")
		}, reason.BusUnreachable, "no socket"},
		{"unit missing", func(b *bench) { b.mount(kube(good("3.5.21"))); b.bus.load = "not-found" }, reason.UnitMissing, "etcd.service"},
		{"unit masked", func(b *bench) { b.mount(kube(good("3.5.21"))); b.bus.load = "masked" }, reason.UnitMasked, "etcd.service"},
		{"port taken", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.preflightErr = reason.New(reason.PortInUse, "2379 by process 7 (nc)")
		}, reason.PortInUse, "2379"},
		{"start job fails", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.startErr = reason.New(reason.UnitStartFailed, "job failed")
			b.bus.journal = []string{"something else", "flag provided but not defined: -enable-v2"}
		}, reason.FlagRemoved, "enable-v2"},
		{"restarts again and again", func(b *bench) { b.mount(kube(good("3.5.21"))); b.bus.life = crashing }, reason.UnitFlapping, "restart"},
		{"never gets active", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.life = func(time.Duration) unit.Status {
				return unit.Status{Name: DefaultUnit, ActiveState: "activating", SubState: "start"}
			}
		}, reason.UnitStartTimeout, "activating"},
		{"ends and stays down", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.life = func(time.Duration) unit.Status {
				return unit.Status{Name: DefaultUnit, ActiveState: "failed", SubState: "failed", Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 1}
			}
		}, reason.UnitFailed, "exit-code"},
		{"state cannot be read while it starts", func(b *bench) {
			b.mount(kube(good("3.5.21")))
			b.bus.life = func(time.Duration) unit.Status { b.bus.statusErr = errors.New("timed out"); return unit.Status{} }
		}, reason.UnitStartTimeout, "timed out"},
		{"binaries directory is a file", func(b *bench) { b.mount(kube(good("3.5.21"))); b.write("opt/bin", "") }, reason.InstallFailed, "opt/bin"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				tt.prep(b)
				b.failed(b.run(), tt.code, tt.text)
			})
		})
	}
}

// TestInterrupted: a signal while the agent waits leaves a marker that says so.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(map[string]string{"tools/setup.exe": "x"})
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() { time.Sleep(3 * time.Second); cancel(errors.New("terminated")) }()
		b.failed(Run(ctx, b.cfg, b.env), reason.Interrupted, "terminated while waiting for the Kubernetes ISO; seen: ")
	})
}

// TestInterruptedWithAReason: a signal while the journal is read for a definite
// reason does not take its place.
func TestInterruptedWithAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		b.bus.life = func(time.Duration) unit.Status {
			return unit.Status{Name: DefaultUnit, ActiveState: "failed", SubState: "failed", Result: "exit-code", ExecMainCode: 1, ExecMainStatus: 1}
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		b.env.Journal = func(context.Context, string, time.Time, int) ([]string, error) {
			cancel(errors.New("terminated"))
			return nil, nil
		}
		b.failed(Run(ctx, b.cfg, b.env), reason.UnitFailed, "exit-code")
	})
}

// TestInterruptedWatch: a signal while etcd may still become active is no
// verdict on it, whatever it has said so far.
func TestInterruptedWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		b.bus.life = func(time.Duration) unit.Status {
			return unit.Status{Name: DefaultUnit, ActiveState: "activating", SubState: "start"}
		}
		b.bus.journal = []string{"flag provided but not defined: -enable-v2"}
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(3*time.Second, func() { cancel(errors.New("terminated")) })
		b.failed(Run(ctx, b.cfg, b.env), reason.Interrupted, "terminated while waiting until etcd.service stays active")
	})
}

// TestRerunAfterFailure: what an earlier setup placed is used when the ISO is
// gone, and an ISO that is there is used again.
func TestRerunAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		b.bus.load = "masked"
		b.failed(b.run(), reason.UnitMasked, "etcd.service")

		b.bus.load = ""
		b.write("mountinfo", "")
		b.env.Finder = b.finder()
		began := time.Now()
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 12*time.Second {
			t.Errorf("took %v: an ISO was waited for", took)
		}
		if s := b.state(); s.Archive == nil || s.Archive.EtcdVersion != "3.5.21" || len(s.Binaries) == 0 {
			t.Errorf("the state lost what is installed: %+v", s)
		}

		b.bus.active, b.bus.load = false, "masked"
		b.failed(b.run(), reason.UnitMasked, "etcd.service")
		b.bus.load = ""
		b.mount(kube(good("3.6.1")))
		b.env.Finder = b.finder()
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if got := b.state().Archive.EtcdVersion; got != "3.6.1" {
			t.Errorf("etcd %s was installed, want that of the new ISO", got)
		}
	})
}

func TestPanicLeavesMarker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		b.env.Preflight = func(context.Context, unit.Status) ([]string, error) { panic("a bug") }
		b.failed(b.run(), reason.Internal, "a bug")
	})
}

// TestMarkerCannotBeWritten: the outcome is the same without it.
func TestMarkerCannotBeWritten(t *testing.T) {
	b := newBench(t)
	b.cfg.Marker = b.path("no-such-directory/etcd-setup-failed")
	b.mount(map[string]string{"k8s/kubeadm": "x"})
	if got := reason.Of(b.run()); got != reason.ArchiveMissing {
		t.Errorf("got %s", got)
	}
	if got := b.state().Code; got != reason.ArchiveMissing {
		t.Errorf("state has code %q", got)
	}
}

// TestRestarts: a unit that runs another etcd than the one in place is started
// anew, also while it still waits for its peers.
func TestRestarts(t *testing.T) {
	for _, tt := range []struct {
		name   string
		before string // ActiveState
		placed bool   // the binaries are in place already
		want   string
	}{
		{"active, binaries change", "active", false, "restart"},
		{"activating, binaries change", "activating", false, "restart"},
		{"active, binaries in place", "active", true, "start"},
		{"inactive, binaries change", "inactive", false, "start"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t)
				b.mount(kube(good("3.5.21")))
				if tt.placed {
					if err := b.run(); err != nil {
						t.Fatal(err)
					}
					if err := os.Remove(b.cfg.State); err != nil {
						t.Fatal(err)
					}
					b.bus.calls = nil
				}
				b.bus.active = tt.before != "inactive"
				b.bus.life = func(time.Duration) unit.Status {
					s := unit.Status{Name: DefaultUnit, LoadState: "loaded", ActiveState: tt.before, MainPID: math.MaxInt32, InvocationID: "inv-0", ActiveEnter: 1}
					if !b.bus.started.IsZero() {
						s.ActiveState = "active"
					}
					return s
				}
				if err := b.run(); err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff([]string{"reload", "enable", tt.want}, b.bus.calls); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestOutdated: what runs is told from what is in place after a setup that was
// killed between the two.
func TestOutdated(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(sleep)
	if err != nil {
		t.Fatal(err)
	}
	etcd := filepath.Join(t.TempDir(), "etcd")
	if err := os.WriteFile(etcd, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), etcd, "100")
	cmd.Args[0] = sleep // a multi-call binary goes by its name
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	r, status := &run{}, unit.Status{MainPID: cmd.Process.Pid}
	if r.outdated(status, nil) {
		t.Error("outdated with its file in place")
	}
	if err := os.Rename(etcd, etcd+".new"); err != nil {
		t.Fatal(err)
	}
	if r.outdated(status, nil) {
		t.Error("outdated since its file has another name")
	}
	if err := os.Rename(etcd+".new", etcd); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(etcd); err != nil {
		t.Fatal(err)
	}
	if !r.outdated(status, nil) {
		t.Error("not outdated, although its file is gone")
	}
}

// TestLongRestartDelay: a delay longer than the time for the start does not make
// an etcd that runs one that never got active.
func TestLongRestartDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		b.bus.delay = 10 * time.Minute
		if err := b.run(); err != nil {
			t.Error(err)
		}
	})
}

// TestLockCannotBeOpened: that is a failure like any other, but one for want of
// rights is no setup at all.
func TestLockCannotBeOpened(t *testing.T) {
	b := newBench(t)
	b.cfg.Lock = b.path("no-such-directory/lock")
	b.failed(b.run(), reason.InstallFailed, "lock")
}

// TestStateAfterDoubt: a setup that could not ask systemd at first, and found
// the binaries in place, still knows afterwards which they are.
func TestStateAfterDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		first := true
		b.env.Connect = func(context.Context) (Bus, error) {
			if first {
				first = false
				return nil, reason.New(reason.BusUnreachable, "not yet")
			}
			return b.bus, nil
		}
		b.write("mountinfo", "")
		if err := b.run(); err != nil {
			t.Fatal(err)
		}
		if s := b.state(); s.Archive == nil || len(s.Binaries) == 0 {
			t.Errorf("the state lost what is installed: %+v", s)
		}
	})
}

// TestLock: a second setup waits for the first and then finds everything done;
// when it gives up it says for whom, and leaves the first one's files alone.
func TestLock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.mount(kube(good("3.5.21")))
		f, err := os.OpenFile(b.cfg.Lock, os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(f, "process 4711 since noon")
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		err = b.run()
		if reason.Of(err) != reason.SetupRunning || !strings.Contains(err.Error(), "4711") {
			t.Errorf("got %v", err)
		}
		for _, p := range []string{b.cfg.Marker, b.cfg.State} {
			if _, err := os.Lstat(p); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("%s: %v", p, err)
			}
		}
		go func() { time.Sleep(2 * time.Second); f.Close() }()
		if err := b.run(); err != nil {
			t.Error(err)
		}
	})
}
