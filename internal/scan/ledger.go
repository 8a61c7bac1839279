package scan

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
)

const (
	// batch is how much goes into one transaction: a transaction costs an fsync,
	// which takes as long as looking at dozens of ISOs.
	batch = 500
	// flushAfter is how long what was learned may stay unwritten while there is
	// more to learn. It bounds what a crash loses, which is then looked at again.
	flushAfter = 2 * time.Second
	// flushTimeout bounds the last writing, after the caller has ended.
	flushTimeout = 10 * time.Second
)

// A ledger collects answers and failures and writes them many at a time. What it
// has not written yet is already remembered. What cannot be written, as when the
// disk is full, stays in it, so that the ISOs are not read again; what never can be,
// since the memory refuses it, is logged and dropped.
type ledger struct {
	memory Answers
	log    *slog.Logger
	writer chan struct{} // held by the one who writes

	mu       sync.Mutex
	answers  map[answers.ID]answers.Answer
	failures []answers.Failure
	writing  map[answers.ID]answers.Answer // by the writer; failures are only counted
	since    time.Time                     // when the oldest came, or writing failed
	failing  bool                          // the last time
}

func newLedger(m Answers, log *slog.Logger) *ledger {
	return &ledger{memory: m, log: log, writer: make(chan struct{}, 1), answers: make(map[answers.ID]answers.Answer)}
}

// get returns what is remembered about ids.
func (l *ledger) get(ctx context.Context, ids []answers.ID) (map[answers.ID]answers.Answer, map[answers.ID]answers.Failure, error) {
	as, fs := make(map[answers.ID]answers.Answer, len(ids)), make(map[answers.ID]answers.Failure)
	var failed error
	for from := 0; from < len(ids) && failed == nil; from += batch {
		var a map[answers.ID]answers.Answer
		var f map[answers.ID]answers.Failure
		a, f, failed = l.memory.GetMany(ctx, ids[from:min(from+batch, len(ids))])
		for id, answer := range a {
			as[id] = answer
		}
		for id, failure := range f {
			fs[id] = failure
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, id := range ids {
		a, ok := l.answers[id]
		if !ok {
			a, ok = l.writing[id]
		}
		if ok {
			as[id] = a
			delete(fs, id)
		}
	}
	return as, fs, failed
}

// add notes an answer.
func (l *ledger) add(a answers.Answer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin()
	l.answers[a.ID()] = a
}

// fail notes failures.
func (l *ledger) fail(f ...answers.Failure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin()
	l.failures = append(l.failures, f...)
}

func (l *ledger) begin() {
	if len(l.answers)+len(l.failures) == 0 && !l.failing {
		l.since = time.Now()
	}
}

// due reports whether there is enough to write, or has been for long enough.
func (l *ledger) due() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.answers) + len(l.failures)
	return n >= batch && !l.failing || n > 0 && time.Since(l.since) >= flushAfter
}

// flush writes all there is.
func (l *ledger) flush(ctx context.Context) error {
	select {
	case l.writer <- struct{}{}:
		defer func() { <-l.writer }()
	case <-ctx.Done():
		return reason.Ended(ctx, "writing answers")
	}
	l.mu.Lock()
	as, fs := l.answers, l.failures
	l.writing, l.answers, l.failures = as, make(map[answers.ID]answers.Answer), nil
	l.mu.Unlock()

	fs, err := l.write(ctx, as, fs)

	l.mu.Lock()
	defer l.mu.Unlock()
	for id, a := range as { // that could not be written
		if _, later := l.answers[id]; !later {
			l.answers[id] = a
		}
	}
	l.failures = append(fs, l.failures...)
	l.writing, l.failing = nil, err != nil
	l.since = time.Now()
	return err
}

// write writes, and returns the failures that are left. Answers that it has written
// it removes from as. Failures come first: an answer that was found later clears
// those of its copy.
func (l *ledger) write(ctx context.Context, as map[answers.ID]answers.Answer, fs []answers.Failure) ([]answers.Failure, error) {
	for len(fs) > 0 {
		n, err := keep(ctx, l, fs[:min(batch, len(fs))], l.memory.Fail)
		fs = fs[n:]
		if err != nil {
			return fs, err
		}
	}
	for some := range slices.Chunk(slices.Collect(maps.Values(as)), batch) {
		n, err := keep(ctx, l, some, l.memory.Put)
		l.mu.Lock()
		for _, a := range some[:n] {
			delete(as, a.ID())
		}
		l.mu.Unlock()
		if err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// keep writes records, and returns how many of them are done with. Of those that
// the memory refuses together it writes each half for itself, so that a record that
// it never takes keeps no other one from being written; alone, that one is dropped.
func keep[T interface{ ID() answers.ID }](ctx context.Context, l *ledger, some []T, put func(context.Context, ...T) error) (int, error) {
	err := put(ctx, some...)
	switch {
	case err == nil:
		return len(some), nil
	case !coded(err) || reason.Of(err) != reason.Internal:
		return 0, err
	case len(some) == 1:
		id := some[0].ID()
		l.log.Error("what was learned cannot be remembered", "key", id.Key, "file", id.File, "error", err.Error())
		return 1, nil
	}
	half := len(some) / 2
	n, err := keep(ctx, l, some[:half], put)
	if err != nil {
		return n, err
	}
	m, err := keep(ctx, l, some[half:], put)
	return n + m, err
}
