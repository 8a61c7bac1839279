// Package fscall makes file system calls that may hang, and bounds what is lost
// when they do.
//
// The kernel gives no way to interrupt a call to a hung NFS or FUSE mount. So
// each call runs in a worker, a goroutine of its own, and a caller whose time is
// over leaves it behind. The worker keeps a thread of the kernel until the file
// system answers, if it ever does.
//
// A [Calls] counts the workers of a process, and bounds them: where a mount has
// kept a few, further calls to it are refused at once, since all they could tell
// is that it still hangs, and other mounts go on being asked. When the mount
// answers again, it is asked again.
package fscall

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxLostMount is how many lost calls one mount has before it is refused
	// further ones.
	maxLostMount = 4
	// maxMount bounds the calls that are under way at one mount, lost or not: that
	// many may be lost at a time, when it begins to hang.
	maxMount = 64
	// maxCalls bounds them altogether. Each may hold a thread, of which a systemd
	// unit commonly has a few hundred (TasksMax=), and the Go runtime ends a program
	// with 10,000.
	maxCalls = 256
	// fewCalls is below how many nobody needs to know which mounts they are at, as
	// long as none is lost.
	fewCalls = 32
)

// Calls are the file system calls of a process. Its methods, and Do, may be used
// by several goroutines.
type Calls struct {
	log   *slog.Logger
	slots chan struct{} // one for each worker
	table table         // of mounts

	mu   sync.Mutex
	lost int
	at   map[mountKey]*mount // with calls that count
}

// A mount has calls under way, or lost ones.
type mount struct {
	key   mountKey
	slots chan struct{} // one for each worker that was counted here when it began
	users int           // calls that hold this, or wait for it
	lost  int
	since time.Time     // when it answered last, as far as lost calls tell
	hangs chan struct{} // closed while too many are lost
}

// New returns Calls of which none is under way. log hears of lost calls at level
// debug; nil: nobody.
func New(log *slog.Logger) *Calls {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Calls{
		log:   log,
		slots: make(chan struct{}, maxCalls),
		table: table{read: readMounts},
		at:    make(map[mountKey]*mount),
	}
}

// Lost returns how many calls were given up and have not come back. It goes down
// when one does.
func (c *Calls) Lost() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// A stalledError says that there was no answer, or none to be expected.
type stalledError struct {
	what string
	err  error // of the context; nil where nothing was waited for
}

func (e *stalledError) Error() string { return e.what }
func (e *stalledError) Unwrap() error { return e.err }

// Stalled reports whether err is from Do itself: the file system has not answered,
// or was not asked since it does not answer others.
func Stalled(err error) bool {
	_, is := errors.AsType[*stalledError](err)
	return is
}

// Do runs f, a call to the file system that name leads to, and returns its
// results. Where f has not come back when ctx ends, or is not to be expected to,
// the error is one for which [Stalled] is true; it wraps that of ctx if ctx ended.
// f goes on then, and drop, if not nil, gets its value when it returns without an
// error at last. So f must not touch what its caller goes on to use. A ctx that
// never ends bounds nothing.
func Do[T any](ctx context.Context, c *Calls, name string, f func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var zero T
	k, err := c.begin(ctx, name)
	if err != nil {
		return zero, err
	}
	start := time.Now()
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
		if c.returned(k) && err == nil && drop != nil {
			drop(v) // which may hang as well
		}
		c.end(k)
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	if !c.giveUp(k) { // it came back at the same moment
		r := <-done
		return r.v, r.err
	}
	return zero, &stalledError{fmt.Sprintf("the file system has not answered for %v", time.Since(start).Round(time.Millisecond)), ctx.Err()}
}

// A call is one that is under way.
type call struct {
	name     string
	slot     *mount // of which it has a slot; nil: none was asked for
	returned bool
	lost     *mount // where it counts as lost; nil: it does not
	since    time.Time
}

// begin waits for a slot, and refuses a call that would in all likelihood hang.
func (c *Calls) begin(ctx context.Context, name string) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, &stalledError{"there was no time left", err}
	}
	k := &call{name: name}
	if free, err := c.beginFew(); free || err != nil {
		return k, err
	}
	if key, known := c.mountOf(name); known {
		m := c.use(key)
		if err := c.enter(ctx, m); err != nil {
			c.leave(m)
			return nil, err
		}
		k.slot = m
	}
	select {
	case c.slots <- struct{}{}:
		return k, nil
	case <-ctx.Done():
		if k.slot != nil {
			<-k.slot.slots
			c.leave(k.slot)
		}
		return nil, &stalledError{fmt.Sprintf("%d other file system calls have not ended", maxCalls), ctx.Err()}
	}
}

// beginFew takes a slot if no call is lost and few are under way.
func (c *Calls) beginFew() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.lost == maxCalls:
		return false, &stalledError{what: fmt.Sprintf("%d file system calls hang already", c.lost)}
	case c.lost > 0 || len(c.slots) >= fewCalls:
		return false, nil
	}
	select {
	case c.slots <- struct{}{}:
		return true, nil
	default:
		return false, nil
	}
}

// use returns the record of a mount, which leave gives back.
func (c *Calls) use(key mountKey) *mount {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.at[key]
	if m == nil {
		m = &mount{key: key, slots: make(chan struct{}, maxMount), hangs: make(chan struct{})}
		c.at[key] = m
	}
	m.users++
	return m
}

func (c *Calls) leave(m *mount) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.users--; m.users == 0 {
		delete(c.at, m.key)
	}
}

// enter waits for a slot of m.
func (c *Calls) enter(ctx context.Context, m *mount) error {
	c.mu.Lock()
	hangs, since := m.hangs, m.since
	c.mu.Unlock()
	refused := func() error {
		return &stalledError{what: fmt.Sprintf("the mount %s has not answered for %v", m.key.point, time.Since(since).Round(time.Second))}
	}
	select {
	case <-hangs:
		return refused()
	default:
	}
	select {
	case m.slots <- struct{}{}:
		return nil
	case <-hangs:
		c.mu.Lock()
		since = m.since
		c.mu.Unlock()
		return refused()
	case <-ctx.Done():
		return &stalledError{fmt.Sprintf("%d other calls to %s have not ended", maxMount, m.key.point), ctx.Err()}
	}
}

// giveUp counts a call as lost, and reports false if it has returned.
func (c *Calls) giveUp(k *call) bool {
	m := k.slot
	if m == nil {
		key, _ := c.mountOf(k.name) // those that are not known count together, and are not refused
		m = c.use(key)
		defer c.leave(m)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.returned {
		return false
	}
	k.lost, k.since = m, time.Now()
	c.lost++
	m.users++
	if m.lost++; m.lost == 1 {
		m.since = k.since
	}
	if m.lost == maxLostMount {
		close(m.hangs)
	}
	c.log.Debug("gave up a file system call", "name", k.name, "mount", m.key.point, "lost", c.lost)
	return true
}

// returned notes that a call has come back, and reports whether it was given up.
func (c *Calls) returned(k *call) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k.returned = true
	return k.lost != nil
}

// end frees what a call held.
func (c *Calls) end(k *call) {
	if m := k.lost; m != nil {
		c.mu.Lock()
		c.lost--
		if m.lost == maxLostMount {
			m.hangs = make(chan struct{})
		}
		m.lost--
		m.since = time.Now()
		c.mu.Unlock()
		c.leave(m)
		c.log.Debug("a file system call came back", "name", k.name, "mount", m.key.point, "after", time.Since(k.since))
	}
	if k.slot != nil {
		<-k.slot.slots
		c.leave(k.slot)
	}
	<-c.slots
}
