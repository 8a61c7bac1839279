package scan

import (
	"context"
	"maps"
	"sync"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
)

// flights are the looks that are under way, by what is looked at. Who asks for
// what is already looked at waits for that look.
//
// A look that a request asked for goes on if the requester gives up: the next
// one is to find the answer. One that only a round asked for ends with the round.
type flights struct {
	base context.Context // of all looks; ends with close
	end  context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	running map[answers.ID]*flight // Key is the location here
	ended   map[answers.ID]time.Time
	pruned  time.Time
}

// freshFor is how old an answer about the same image may be for a look not to
// read it again. Requests that come together ask together: one of them may have
// found nothing remembered a moment before another one's look has ended.
const freshFor = 10 * time.Second

// A flight is one look under way.
type flight struct {
	done   chan struct{}
	result result // once done is closed
	cancel context.CancelFunc

	waiting int  // callers
	wanted  bool // by a request
	follows bool // soon after another look at the same
}

// A result is what a look came to.
type result struct {
	answer answers.Answer
	err    error
	stats  source.Stats
	key    string // identity of what was read; "" unknown
}

func newFlights() flights {
	ctx, cancel := context.WithCancel(context.Background())
	return flights{base: ctx, end: cancel, running: make(map[answers.ID]*flight), ended: make(map[answers.ID]time.Time)}
}

// do returns what look comes to, whoever began it. It ends with ctx: then the
// result has the code interrupted, or that of ctx's cause. first tells whether it
// was this caller who began the look.
func (fs *flights) do(ctx context.Context, id answers.ID, timeout time.Duration, request bool, look func(context.Context, *flight) result) (r result, first bool) {
	fs.mu.Lock()
	if fs.closed {
		fs.mu.Unlock()
		return result{err: reason.New(reason.Interrupted, "looking at %s: the scanner was closed", source.Redact(id.Key))}, false
	}
	f, joined := fs.running[id]
	if !joined {
		f = &flight{done: make(chan struct{}), follows: time.Since(fs.ended[id]) < freshFor}
		var within context.Context
		within, f.cancel = context.WithTimeoutCause(fs.base, timeout,
			reason.New(reason.SourceStalled, "%s: the look took longer than %s", source.Redact(id.Key), timeout))
		fs.running[id] = f
		fs.work.Go(func() { fs.run(within, id, f, look) })
	}
	f.waiting++
	f.wanted = f.wanted || request
	fs.mu.Unlock()

	select {
	case <-f.done:
		fs.mu.Lock()
		f.waiting--
		fs.mu.Unlock()
		return f.result, !joined
	case <-ctx.Done():
	}
	fs.mu.Lock()
	f.waiting--
	abandoned := f.waiting == 0 && !f.wanted
	if abandoned {
		fs.forget(id, f) // who comes now begins anew
	}
	fs.mu.Unlock()
	if abandoned {
		f.cancel()
		<-f.done
	}
	return result{err: reason.Ended(ctx, "looking at %s", source.Redact(id.Key))}, !joined
}

func (fs *flights) run(ctx context.Context, id answers.ID, f *flight, look func(context.Context, *flight) result) {
	defer f.cancel()
	r := look(ctx, f)
	fs.mu.Lock()
	fs.forget(id, f)
	f.result = r
	if now := time.Now(); r.err == nil {
		fs.ended[id] = now
		if now.Sub(fs.pruned) > freshFor {
			fs.pruned = now
			maps.DeleteFunc(fs.ended, func(_ answers.ID, at time.Time) bool { return now.Sub(at) > freshFor })
		}
	}
	fs.mu.Unlock()
	close(f.done)
}

// wants reports whether a request waits for f, or has.
func (fs *flights) wants(f *flight) bool {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	return f.wanted
}

// forget keeps others from joining f.
func (fs *flights) forget(id answers.ID, f *flight) {
	if fs.running[id] == f {
		delete(fs.running, id)
	}
}

// close ends all looks and waits for them.
func (fs *flights) close() {
	fs.mu.Lock()
	fs.closed = true
	fs.mu.Unlock()
	fs.end()
	fs.work.Wait()
}
