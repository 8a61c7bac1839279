package source

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

const (
	// maxLostMount is how many workers one mount may hold. All that is learned
	// from more of them is that it still hangs.
	maxLostMount = 4
	// maxLost bounds the threads that hanging calls hold altogether; the Go
	// runtime ends a program with 10,000 of them.
	maxLost = 256
)

// workers are the goroutines that run file system calls.
type workers struct {
	log *slog.Logger

	mu   sync.Mutex
	lost map[*lostCall]struct{}
}

// A lostCall has been given up, and has not come back.
type lostCall struct {
	mount string // "" where it is not known
	since time.Time
}

func newWorkers(log *slog.Logger) *workers {
	return &workers{log: log, lost: make(map[*lostCall]struct{})}
}

func (w *workers) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.lost)
}

// admit refuses a call that would in all likelihood hang too.
func (w *workers) admit(name string) error {
	if w.count() == 0 {
		return nil
	}
	mount := mountOf(name)
	w.mu.Lock()
	defer w.mu.Unlock()
	n, since := 0, time.Time{}
	for c := range w.lost {
		if c.mount != "" && c.mount == mount {
			n++
			if since.IsZero() || c.since.Before(since) {
				since = c.since
			}
		}
	}
	switch {
	case n >= maxLostMount:
		return fmt.Errorf("%s has not answered for %v", mount, time.Since(since).Round(time.Second))
	case len(w.lost) >= maxLost:
		return fmt.Errorf("%d file system calls hang already", len(w.lost))
	}
	return nil
}

// lose counts a call as lost until the function it returns is called.
func (w *workers) lose(name string) (found func()) {
	c := &lostCall{mount: mountOf(name), since: time.Now()}
	w.mu.Lock()
	w.lost[c] = struct{}{}
	n := len(w.lost)
	w.mu.Unlock()
	w.log.Debug("gave up a file system call", "name", name, "mount", c.mount, "lost", n)
	return func() {
		w.mu.Lock()
		delete(w.lost, c)
		w.mu.Unlock()
		w.log.Debug("a file system call came back", "name", name, "after", time.Since(c.since))
	}
}

// A stalledError says that there was no answer, or none to be expected.
type stalledError struct {
	what string
	err  error // of the context; nil where nothing was waited for
}

func (e *stalledError) Error() string { return e.what }
func (e *stalledError) Unwrap() error { return e.err }

// call runs f in a worker and returns its results, or a *stalledError at the
// end of ctx. f goes on then, and drop gets its value when it returns at last.
func call[T any](ctx context.Context, w *workers, name string, f func() (T, error), drop func(T)) (T, error) {
	type result struct {
		v   T
		err error
	}
	var zero T
	if err := ctx.Err(); err != nil {
		return zero, &stalledError{"there was no time left", err}
	}
	if err := w.admit(name); err != nil {
		return zero, &stalledError{what: err.Error()}
	}
	start := time.Now()
	done := make(chan result, 1)
	go func() {
		v, err := f()
		done <- result{v, err}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done: // at the same moment
		return r.v, r.err
	default:
	}
	found := w.lose(name)
	go func() { // as long as f runs
		r := <-done
		found()
		if r.err == nil {
			drop(r.v)
		}
	}()
	return zero, &stalledError{fmt.Sprintf("the file system has not answered for %v", time.Since(start).Round(time.Millisecond)), ctx.Err()}
}
