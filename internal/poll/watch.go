package poll

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"
	"unicode"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
)

// A watch looks at one node again and again until its judge has a verdict or
// the context ends.
type watch struct {
	index   int
	node    Node
	opts    Options
	past    bool // the deadline was past before the first look
	started time.Time
	dials   chan struct{} // held while a connection is being made
	updates chan<- update
	judge   *judge

	failed int // connections in a row that failed
	looks  int

	state State
	since time.Time       // of state
	told  map[string]bool // kinds of events since then
}

// run watches until there is a verdict, and hands it over.
func (w *watch) run(ctx context.Context) {
	w.state, w.since = StateWaiting, w.started
	f, done := w.look(ctx)
	for !done {
		f, done = w.look(ctx)
	}
	w.finish(f)
}

// look waits for the right moment, takes one look, and returns what is known
// after it. done says that this is the verdict.
func (w *watch) look(ctx context.Context) (f finding, done bool) {
	release, ok := w.enter(ctx)
	if !ok {
		return w.ended(ctx, 0), true
	}
	w.node.Prober.AllowHostKeyChange(w.opts.BootGrace > 0 && time.Since(w.started) < w.opts.BootGrace && !w.node.Prober.LoggedIn())
	begin := time.Now()
	o, err, answered := w.probe(ctx)
	release()
	now := time.Now()
	if !answered || err != nil && ctx.Err() != nil && !permanent(err) {
		// What a look that was cut short says is our own doing. It is better than
		// nothing, though.
		if answered && w.looks == 0 && isDeadline(context.Cause(ctx)) {
			w.judge.erred(now, err)
		}
		return w.ended(ctx, now.Sub(begin)), true
	}
	w.looks++
	next := now
	if err == nil {
		w.failed = 0
		f = w.judge.observed(now, o)
		// The look itself lies before the time of its answer, so from this to
		// the next one no less than the interval goes by.
		next = o.At.Add(w.interval())
	} else {
		f = w.judge.erred(now, err)
		if reason.Of(err) == reason.ProbeUnreadable {
			w.failed = 0
			next = now.Add(w.interval())
		} else {
			next = now.Add(w.backoff())
		}
	}
	switch {
	case f.final:
		return f, true
	case w.opts.Once:
		return w.judge.once(now), true
	case w.past:
		return w.judge.late(now, w.opts.Why, 0), true
	}
	w.tell(now, f)
	t := time.NewTimer(time.Until(next))
	defer t.Stop()
	select {
	case <-t.C:
		return f, false
	case <-ctx.Done():
		return w.ended(ctx, 0), true
	}
}

// enter waits for the right to connect, which a node that is connected does
// not need. release gives it back.
func (w *watch) enter(ctx context.Context) (release func(), ok bool) {
	if ctx.Err() != nil {
		return nil, false
	}
	if w.node.Prober.Connected() {
		return func() {}, true
	}
	select {
	case w.dials <- struct{}{}:
	case <-ctx.Done():
		return nil, false
	}
	if w.looks == 0 {
		w.tell(time.Now(), finding{state: StateConnecting})
	}
	return func() { <-w.dials }, true
}

// A result is what Probe returned.
type result struct {
	o   sshnode.Observation
	err error
}

// probe takes one look. answered is false when it was given up because it went
// on after ctx had ended; then its node is closed.
func (w *watch) probe(ctx context.Context) (o sshnode.Observation, err error, answered bool) {
	c := make(chan result, 1)
	go func() {
		o, err := w.node.Prober.Probe(ctx)
		c <- result{o, err}
	}()
	select {
	case r := <-c:
		return r.o, r.err, true
	case <-ctx.Done():
	}
	if r, ok := within(c); ok {
		return r.o, r.err, true
	}
	closed := make(chan result, 1)
	go func() {
		_ = w.node.Prober.Close() // nobody could act on its error
		closed <- <-c
	}()
	_, _ = within(closed)
	return o, nil, false
}

// within waits for c, but no longer than abandonAfter.
func within(c <-chan result) (r result, ok bool) {
	t := time.NewTimer(abandonAfter)
	defer t.Stop()
	select {
	case r = <-c:
		return r, true
	case <-t.C:
		return r, false
	}
}

// ended is the verdict when ctx ended first. running is how long a look had
// been under way.
func (w *watch) ended(ctx context.Context, running time.Duration) finding {
	now, cause := time.Now(), context.Cause(ctx)
	var stopped *stopError
	switch {
	case errors.As(cause, &stopped):
		return w.judge.stopped(now, reason.Undecided, stopped.Error())
	case isDeadline(cause):
		return w.judge.late(now, w.opts.Why, running)
	default:
		return w.judge.stopped(now, reason.Interrupted, "")
	}
}

// isDeadline reports whether the cause of a context's end is a deadline, ours
// or the caller's.
func isDeadline(cause error) bool {
	return errors.Is(cause, errDeadline) || errors.Is(cause, context.DeadlineExceeded)
}

// interval is the wait until the next look. Jitter only lengthens it, since
// checks that count have a least distance.
func (w *watch) interval() time.Duration {
	return w.opts.Interval + time.Duration(jitter*w.opts.Rand()*float64(w.opts.Interval))
}

// backoff is the wait after a connection that failed.
func (w *watch) backoff() time.Duration {
	d := firstBackoff << min(w.failed, 10)
	d = min(d, lastBackoff)
	w.failed++
	return d - time.Duration(backoffJitter*w.opts.Rand()*float64(d))
}

// tell reports f if it is news.
func (w *watch) tell(now time.Time, f finding) {
	w.enterState(now, f.state)
	kind := f.kind()
	if w.told[kind] {
		return
	}
	w.told[kind] = true
	w.updates <- update{index: w.index, event: w.event(now, f, false)}
}

// enterState notes when the node came to its state.
func (w *watch) enterState(now time.Time, s State) {
	if s != w.state || w.told == nil {
		if s != w.state {
			w.since = now
		}
		w.state, w.told = s, make(map[string]bool)
	}
}

// event makes the event of f.
func (w *watch) event(now time.Time, f finding, final bool) Event {
	return Event{
		At: now, Node: w.node.Name, Index: w.index, State: f.state, Since: w.since, Code: f.code,
		Checks: f.checks, Want: w.opts.Checks, Message: f.message, Final: final,
	}
}

// finish hands over the verdict.
func (w *watch) finish(f finding) {
	now := time.Now()
	w.enterState(now, f.state)
	v := &Verdict{
		Node: w.node.Name, Member: w.node.Member, State: f.state, Code: f.code, Class: reason.Lookup(f.code).Class,
		Message: f.message, Hint: f.hint, Checks: f.checks, Want: w.opts.Checks, Since: w.since,
		Started: w.started, Ended: now, Looks: w.looks, Last: w.judge.last,
	}
	if v.Hint == "" {
		v.Hint = reason.Lookup(f.code).Hint
	}
	w.updates <- update{index: w.index, event: w.event(now, f, true), verdict: v}
}

// kind is what makes an event of f differ from others of its state: all but
// the numbers in its message.
func (f finding) kind() string {
	words := strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, f.message)
	return strings.Join([]string{string(f.code), strconv.Itoa(f.checks), words}, "\x00")
}
