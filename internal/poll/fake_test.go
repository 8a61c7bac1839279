package poll

import (
	"context"
	"fmt"
	"sync"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/stability"
)

// A fake is a node that follows a script of the time since its first look.
type fake struct {
	name   string
	script func(at time.Duration) (sshnode.Observation, error)
	takes  time.Duration // one look
	deaf   time.Duration // how long a look ignores the end of its context
	stuck  bool          // Close does not end it either

	mu        sync.Mutex
	start     time.Time
	looks     int
	loggedIn  bool
	connected bool
	mayChange []bool
	closed    chan struct{}
	isClosed  bool
}

func newFake(name string, script func(time.Duration) (sshnode.Observation, error)) *fake {
	return &fake{name: name, script: script, closed: make(chan struct{})}
}

func (f *fake) node() Node { return Node{Name: f.name, Prober: f} }

func (f *fake) Probe(ctx context.Context) (sshnode.Observation, error) {
	f.mu.Lock()
	if f.start.IsZero() {
		f.start = time.Now()
	}
	f.looks++
	f.mu.Unlock()
	if f.takes > 0 {
		t := time.NewTimer(f.takes)
		defer t.Stop()
		closed := f.closed
		if f.stuck {
			closed = nil
		}
		select {
		case <-t.C:
		case <-closed:
			return sshnode.Observation{}, reason.New(reason.Interrupted, "closed")
		case <-ctx.Done():
			if f.deaf > 0 {
				late := time.NewTimer(f.deaf)
				defer late.Stop()
				select {
				case <-late.C:
				case <-closed:
				}
			}
			return sshnode.Observation{}, reason.New(reason.NodeUnreachable, "%s: no answer: %w", f.name, context.Cause(ctx))
		}
	}
	o, err := f.script(time.Since(f.start))
	f.mu.Lock()
	f.connected = err == nil || reason.Of(err) == reason.ProbeUnreadable
	f.loggedIn = f.loggedIn || err == nil
	f.mu.Unlock()
	if err == nil {
		o.At = time.Now()
		o.Sample.At = o.At
	}
	return o, err
}

func (f *fake) LoggedIn() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.loggedIn
}

func (f *fake) Connected() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.connected
}

func (f *fake) AllowHostKeyChange(allow bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mayChange = append(f.mayChange, allow)
}

func (f *fake) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.isClosed {
		f.isClosed = true
		close(f.closed)
	}
	return nil
}

func (f *fake) wasClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.isClosed
}

const boot1, boot2 = "11111111-1111-1111-1111-111111111111", "22222222-2222-2222-2222-222222222222"

// obs makes an observation of a unit in a state, after cloud-init is done.
func obs(state stability.State, change ...func(*sshnode.Observation)) sshnode.Observation {
	o := sshnode.Observation{
		BootID: boot1, CloudInit: "done", Hostname: "n",
		Unit:   map[string]string{"LoadState": "loaded", "ActiveState": state.String()},
		Sample: stability.Sample{State: state, BootID: boot1},
	}
	if state == stability.Active {
		o.Sample.Invocation, o.Sample.MainPID = "inv1", 100
	}
	for _, c := range change {
		c(&o)
	}
	return o
}

func restarts(n int64) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) {
		o.Sample.Restarts = n
		if o.Sample.State == stability.Active {
			o.Sample.Invocation = fmt.Sprint("inv", n)
		} else {
			o.Unit["SubState"] = "auto-restart"
			o.Sample.Detail = "auto-restart, result exit-code, status 203/EXEC"
		}
	}
}

func load(s string) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) { o.Unit["LoadState"] = s }
}

func detail(s string) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) { o.Sample.Detail = s }
}

func cloudInit(s string) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) { o.CloudInit = s }
}

func failedBy(line string) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) { o.Marker, o.HasMarker = line, true }
}

func agent(r marker.Result, code reason.Code, message string) func(*sshnode.Observation) {
	return func(o *sshnode.Observation) {
		o.State = &marker.State{Result: r, Code: code, Message: message, BootID: boot1, Step: "find", Hint: "do this"}
	}
}

func rebooted(o *sshnode.Observation) { o.BootID, o.Sample.BootID = boot2, boot2 }

// always shows the same at any time.
func always(o sshnode.Observation) func(time.Duration) (sshnode.Observation, error) {
	return func(time.Duration) (sshnode.Observation, error) { return o, nil }
}

// fails gives the same error at any time.
func fails(c reason.Code, what string) func(time.Duration) (sshnode.Observation, error) {
	return func(time.Duration) (sshnode.Observation, error) {
		return sshnode.Observation{}, reason.New(c, "%s", what)
	}
}

// A span of a script begins at a time.
type step struct {
	from time.Duration
	then func(time.Duration) (sshnode.Observation, error)
}

// script follows the steps in order.
func script(steps ...step) func(time.Duration) (sshnode.Observation, error) {
	return func(at time.Duration) (sshnode.Observation, error) {
		cur := steps[0].then
		for _, s := range steps {
			if at >= s.from {
				cur = s.then
			}
		}
		return cur(at)
	}
}

// flaps lives and waits for its restart in turns, from instance n on.
func flaps(life, delay time.Duration) func(time.Duration) (sshnode.Observation, error) {
	return func(at time.Duration) (sshnode.Observation, error) {
		n, in := int64(at/(life+delay)), at%(life+delay)
		if in < life {
			return obs(stability.Active, restarts(n)), nil
		}
		return obs(stability.Activating, restarts(n)), nil
	}
}
