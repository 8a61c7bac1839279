package scan

import (
	"context"
	"sync"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// settleTime is how long a site waits for the others to have listed what they
// hold, before it reads an ISO of which another one may have an answer already.
const settleTime = 5 * time.Second

// A Round is what one round came to.
type Round struct {
	Started time.Time
	Took    time.Duration
	// Err is why the round is not whole: it was interrupted, or answers cannot be
	// read or written. Stores that cannot be asked have their errors in Visits.
	Err    error
	Visits []Visit // in the order of the configuration, servers after stores

	Copies     int // that were listed
	ISOs       int // that these are copies of
	Known      int // ISOs that had an answer before
	Incomplete int // copies that are not wholly on their store, and not looked at
	LeftAlone  int // ISOs without an answer whose copies have all failed too often

	Looks    int                   // copies that were read
	Found    map[inspect.Value]int // answers they gave
	Failed   int                   // looks that failed
	Requests int                   // reads and requests they took
	Bytes    int64                 // that they moved
}

// A Visit is what one store, or one server with URLs, came to in a round.
type Visit struct {
	Name   string // of the store; host of the server
	Copies int
	Took   time.Duration // until its copies were listed and identified
	Err    error         // why not all could be asked; *reason.Error
}

// A round is one that is under way.
type round struct {
	*Scanner
	config  Config
	step    func()
	looked  func(inspect.Value, error, time.Duration)
	settled chan struct{} // closed once every site has listed what it holds
	expect  sync.WaitGroup

	mu     sync.Mutex
	sum    Round
	groups map[isoID]*group
	blind  bool // what is remembered could not be read
}

// A group is the copies of one ISO.
type group struct {
	turn   chan struct{} // held by who reads a copy
	places []*place

	mu     sync.Mutex
	answer *answers.Answer
	known  bool             // it was remembered
	failed *answers.Failure // the latest one
	alone  int              // copies that have failed too often
	tried  int              // copies that were tried, or may be later
}

// Round looks once at everything that has no answer. One round runs at a time: a
// second one waits for its turn. When it returns, all that it started has ended.
func (s *Scanner) Round(ctx context.Context) Round {
	start := time.Now()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return Round{Started: start, Err: reason.Ended(ctx, "waiting for another round")}
	}
	s.mu.Lock()
	r := &round{
		Scanner: s, config: s.config, step: s.step, looked: s.looked, settled: make(chan struct{}),
		groups: make(map[isoID]*group),
		sum:    Round{Started: time.Now(), Found: make(map[inspect.Value]int)},
	}
	s.mu.Unlock()
	r.run(ctx)
	r.sum.Took = time.Since(r.sum.Started)
	return r.sum
}

func (r *round) run(ctx context.Context) {
	sites := r.config.sites(anyZone)
	r.sum.Visits = make([]Visit, len(sites))
	r.expect.Add(len(sites))
	var work sync.WaitGroup
	for i, t := range sites {
		v := &visit{round: r, site: t, out: &r.sum.Visits[i]}
		work.Go(func() { v.run(ctx) })
	}
	done := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() { r.writeSoon(ctx, done) })
	r.expect.Wait()
	r.publish(ctx) // what is there is seen before all of it has been read
	close(r.settled)
	work.Wait()
	close(done)
	writing.Wait()

	// What is known is written even if the caller is in a hurry.
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	if err := r.ledger.flush(last); err != nil {
		r.trouble(err)
	}
	if ctx.Err() != nil {
		r.sum.Err = reason.Ended(ctx, "a round")
	}
	r.count()
	r.publish(ctx)
}

// writeSoon keeps what was learned from being unwritten for long, until done is
// closed.
func (r *round) writeSoon(ctx context.Context, done <-chan struct{}) {
	t := time.NewTicker(flushAfter)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			r.write(ctx)
		case <-done:
			return
		}
	}
}

// write writes what was learned if it is time.
func (r *round) write(ctx context.Context) {
	if ctx.Err() != nil || !r.ledger.due() {
		return // at its end the round writes the rest
	}
	if err := r.ledger.flush(ctx); err != nil && ctx.Err() == nil {
		// At its end the round tries again, and says so if that fails as well.
		r.log.Warn("answers could not be written", "error", err.Error())
	}
}

// trouble notes why the round is not whole.
func (r *round) trouble(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.sum.Err == nil {
		r.sum.Err = withCode(err, reason.AnswersUnwritable, "answers")
	}
}

// unread notes that what is remembered could not be read. What could not be
// looked up is not looked at either: most of it has an answer.
func (r *round) unread(err error) {
	r.trouble(err)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blind = true
}

// join makes the places known to all sites.
func (r *round) join(places []*place) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, p := range places {
		g := r.groups[p.iso()]
		if g == nil {
			g = &group{turn: make(chan struct{}, 1)}
			r.groups[p.iso()] = g
		}
		g.places = append(g.places, p)
		g.mu.Lock()
		if p.answer != nil && (g.answer == nil || p.answer.At.After(g.answer.At)) {
			g.answer, g.known = p.answer, true
		}
		if p.failed != nil && (g.failed == nil || p.failed.At.After(g.failed.At)) {
			g.failed = p.failed
		}
		g.mu.Unlock()
	}
}

func (r *round) groupOf(p *place) *group {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.groups[p.iso()]
}

// count sums up what the groups came to.
func (r *round) count() {
	r.sum.ISOs = len(r.groups)
	for _, g := range r.groups {
		switch {
		case g.known:
			r.sum.Known++
		case g.answer == nil && g.alone > 0 && g.tried == 0:
			r.sum.LeftAlone++
		}
		for _, p := range g.places {
			if !p.gone {
				r.sum.Copies++
			}
			if p.unready {
				r.sum.Incomplete++
			}
		}
	}
}

// note notes what a look cost and came to.
func (r *round) note(res result, took time.Duration) {
	r.looked(res.answer.Value, res.err, took)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sum.Looks++
	r.sum.Requests += res.stats.Requests
	r.sum.Bytes += res.stats.Bytes
	if res.err != nil {
		r.sum.Failed++
	} else {
		r.sum.Found[res.answer.Value]++
	}
}

// has returns the answer of g, if there is one.
func (g *group) has() *answers.Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.answer
}

// got notes the answer.
func (g *group) got(a answers.Answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answer = &a
}

// fails notes a failure of a copy.
func (g *group) fails(f answers.Failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed = &f
}

// goesOn notes whether a copy was or will be tried.
func (g *group) goesOn(yes bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if yes {
		g.tried++
	} else {
		g.alone++
	}
}

// spread calls f for each place, so many at once, until f says that it is enough.
func spread(jobs int, places []*place, f func(*place) bool) {
	var (
		work sync.WaitGroup
		mu   sync.Mutex
		next int
		done bool
	)
	take := func() *place {
		mu.Lock()
		defer mu.Unlock()
		if done || next == len(places) {
			return nil
		}
		next++
		return places[next-1]
	}
	for range min(jobs, len(places)) {
		work.Go(func() {
			for p := take(); p != nil; p = take() {
				if !f(p) {
					mu.Lock()
					done = true
					mu.Unlock()
				}
			}
		})
	}
	work.Wait()
}
