package media

import (
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// A gate lets one call at a time through to one device. A call that hangs in
// the kernel cannot be interrupted: it keeps the gate shut until it returns, so
// that a device never holds more than one thread, and others go on.
type gate struct {
	pass chan struct{}

	mu    sync.Mutex
	since time.Time // start of the running call; zero when there is none
}

func newGate() *gate { return &gate{pass: make(chan struct{}, 1)} }

// enter reports whether the caller may go through now. It calls leave then.
func (g *gate) enter() bool {
	select {
	case g.pass <- struct{}{}:
		g.start()
		return true
	default:
		return false
	}
}

func (g *gate) start() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.since = time.Now()
}

func (g *gate) leave() {
	g.mu.Lock()
	g.since = time.Time{}
	g.mu.Unlock()
	<-g.pass
}

// busy returns for how long the running call has been running, and whether
// there is one.
func (g *gate) busy() (time.Duration, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.since.IsZero() {
		return 0, false
	}
	return time.Since(g.since), true
}

// A noAnswerError says that a device has not answered in time. It is
// os.ErrDeadlineExceeded.
type noAnswerError struct {
	where string
	after time.Duration
}

func (e *noAnswerError) Error() string {
	return fmt.Sprintf("%s does not answer for %v", e.where, e.after)
}

func (e *noAnswerError) Is(target error) bool { return target == os.ErrDeadlineExceeded }

// A bound is how far a call may go: its device's gate, its time, and the end
// of the caller's interest.
type bound struct {
	gate  *gate
	where string
	limit time.Duration
	stop  <-chan struct{} // closed: give up with os.ErrClosed; may be nil
}

// call runs f in a goroutine of its own, through the gate, and returns its
// results. It fails with os.ErrDeadlineExceeded after b.limit and with
// os.ErrClosed after b.stop. f goes on then, and drop gets its value when it
// returns at last; where f was not even started, drop gets a zero value at once.
// A panic of f is the caller's, who can say what was being done.
func call[T any](b bound, f func() (T, error), drop func(T)) (T, error) {
	var zero T
	timer := time.NewTimer(b.limit)
	defer timer.Stop()
	select {
	case b.gate.pass <- struct{}{}:
		b.gate.start()
	case <-timer.C:
		drop(zero)
		return zero, b.noAnswer()
	case <-b.stop:
		drop(zero)
		return zero, os.ErrClosed
	}
	type result struct {
		v      T
		err    error
		broken any
	}
	done, gone := make(chan result), make(chan struct{})
	go func() {
		var r result
		r.broken = panicOf(func() { r.v, r.err = f() })
		b.gate.leave()
		select {
		case done <- r:
		case <-gone:
			drop(r.v)
		}
	}()
	select {
	case r := <-done:
		if r.broken != nil {
			panic(r.broken)
		}
		return r.v, r.err
	case <-timer.C:
		close(gone)
		return zero, b.noAnswer()
	case <-b.stop:
		close(gone)
		return zero, os.ErrClosed
	}
}

// panicOf runs f and returns what it panicked with and where, or nil. A medium is
// hostile input: a bug that it finds must not end the process in a goroutine where
// nobody can leave a reason.
func panicOf(f func()) (value any) {
	defer func() {
		if p := recover(); p != nil {
			value = fmt.Sprintf("%v\n%s", p, debug.Stack())
		}
	}()
	f()
	return nil
}

// noAnswer names the time since which the device is silent, which may be
// longer than this call was.
func (b bound) noAnswer() error {
	d := b.limit
	if age, ok := b.gate.busy(); ok {
		d = max(d, age)
	}
	return &noAnswerError{b.where, d.Round(time.Second)}
}
