package unit

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"
)

// A fakeSystemd answers as systemd 252 does, for the units of contract_test.go
// and others. It stands at the seam conn and has the same contract tests as the
// real one (tag lab).
type fakeSystemd struct {
	mu      sync.Mutex
	units   map[string]*fakeUnit
	jobs    uint32
	dials   int
	reloads int
	conns   []*fakeConn

	dialErr error
	fail    []error // errors of the next calls; errDrop also breaks the connection
}

// errDrop as the error of a call means that the connection breaks under it.
var errDrop = errors.New("drop")

type fakeUnit struct {
	props     map[string]any
	enableErr error
	enabled   bool
	starts    int
	start     func(u *fakeUnit) string // sets props; the job's result, "" while it goes on
	silent    bool                     // the signal is lost
}

func (u *fakeUnit) set(kv ...any) {
	for i := 0; i < len(kv); i += 2 {
		u.props[kv[i].(string)] = kv[i+1]
	}
}

type fakeConn struct {
	sys  *fakeSystemd
	dead bool
}

func (s *fakeSystemd) dial(context.Context) (conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dials++
	if s.dialErr != nil {
		return nil, s.dialErr
	}
	c := &fakeConn{sys: s}
	s.conns = append(s.conns, c)
	return c, nil
}

// bus returns a Bus over s.
func (s *fakeSystemd) bus(t testing.TB) *Bus {
	b := newBus(s.dial)
	t.Cleanup(b.Close)
	return b
}

// enter begins a call: the lock is held when it returns nil.
func (c *fakeConn) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.sys.mu.Lock()
	err := error(nil)
	if len(c.sys.fail) > 0 {
		err, c.sys.fail = c.sys.fail[0], c.sys.fail[1:]
		if errors.Is(err, errDrop) {
			c.dead = true
		}
	}
	if c.dead {
		err = dbus.ErrClosed
	}
	if err != nil {
		c.sys.mu.Unlock()
	}
	return err
}

func (c *fakeConn) leave() { c.sys.mu.Unlock() }

func (c *fakeConn) Connected() bool {
	c.sys.mu.Lock()
	defer c.sys.mu.Unlock()
	return !c.dead
}

func (c *fakeConn) Close() {
	c.sys.mu.Lock()
	defer c.sys.mu.Unlock()
	c.dead = true
}

func (c *fakeConn) ReloadContext(ctx context.Context) error {
	if err := c.enter(ctx); err != nil {
		return err
	}
	defer c.leave()
	c.sys.reloads++
	return nil
}

// unit returns the unit, made up as systemd does for a name without a file.
func (s *fakeSystemd) unit(name string) *fakeUnit {
	u, ok := s.units[name]
	if !ok {
		u = &fakeUnit{props: map[string]any{
			"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead",
			"LoadError": []any{"org.freedesktop.systemd1.NoSuchUnit", "Unit " + name + " not found."},
		}}
	}
	return u
}

func (c *fakeConn) EnableUnitFilesContext(ctx context.Context, files []string, _, _ bool) (bool, []sd.EnableUnitFileChange, error) {
	if err := c.enter(ctx); err != nil {
		return false, nil, err
	}
	defer c.leave()
	u := c.sys.unit(files[0])
	if u.enableErr != nil {
		return false, nil, u.enableErr
	}
	if u.enabled {
		return true, nil, nil
	}
	u.enabled = true
	u.set("UnitFileState", "enabled")
	return true, []sd.EnableUnitFileChange{{Type: "symlink"}}, nil
}

func (c *fakeConn) StartUnitContext(ctx context.Context, name, _ string, ch chan<- string) (int, error) {
	return c.queue(ctx, name, ch)
}

func (c *fakeConn) RestartUnitContext(ctx context.Context, name, _ string, ch chan<- string) (int, error) {
	return c.queue(ctx, name, ch)
}

func (c *fakeConn) queue(ctx context.Context, name string, ch chan<- string) (int, error) {
	if err := c.enter(ctx); err != nil {
		return 0, err
	}
	defer c.leave()
	u := c.sys.unit(name)
	if u.props["LoadState"] == "not-found" {
		return 0, dbus.Error{Name: "org.freedesktop.systemd1.NoSuchUnit", Body: []any{"Unit " + name + " not found."}}
	}
	u.starts++
	c.sys.jobs++
	u.set("Job", []any{c.sys.jobs, dbus.ObjectPath("/job")})
	if result := u.start(u); result != "" {
		u.set("Job", []any{uint32(0), dbus.ObjectPath("/")})
		if !u.silent {
			select {
			case ch <- result:
			default:
				panic("the channel of a job's result has no place: every later call would hang")
			}
		}
	}
	return int(c.sys.jobs), nil
}

func (c *fakeConn) GetAllPropertiesContext(ctx context.Context, name string) (map[string]any, error) {
	if err := c.enter(ctx); err != nil {
		return nil, err
	}
	defer c.leave()
	return maps.Clone(c.sys.unit(name).props), nil
}

// loaded returns a unit that is not running; start sets what a start does.
func loaded(start func(u *fakeUnit) string) *fakeUnit {
	return &fakeUnit{start: start, props: map[string]any{
		"LoadState": "loaded", "LoadError": []any{"", ""}, "ActiveState": "inactive", "SubState": "dead",
		"Result": "success", "UnitFileState": "disabled", "Type": "exec", "NRestarts": uint32(0),
		"Job": []any{uint32(0), dbus.ObjectPath("/")}, "ConditionResult": false,
		"ExecStart": [][]any{{"/opt/bin/etcd", []string{"/opt/bin/etcd"}, false}},
	}}
}

func runs(u *fakeUnit) string {
	u.set("ActiveState", "active", "SubState", "running", "ConditionResult", true, "MainPID", uint32(100+u.starts),
		"ActiveEnterTimestampMonotonic", uint64(1e6*u.starts), "InvocationID", []byte("0123456789abcde"+string(rune('a'+u.starts))))
	return "done"
}

func cannotExec(u *fakeUnit) string {
	u.set("ActiveState", "activating", "SubState", "auto-restart", "Result", "exit-code",
		"ExecMainCode", int32(1), "ExecMainStatus", int32(203), "ConditionResult", true)
	return "failed"
}

func hangs(u *fakeUnit) string {
	u.set("ActiveState", "activating", "SubState", "start", "ConditionResult", true)
	return ""
}
