package scan

import (
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
)

// stallSlack is how many times in a row, more than it has jobs, a site may give no
// answer in time before it is left for the next round. Images alone can be
// unreadable; so many in a row are the fault of their store, and each costs the
// deadline of a read.
const stallSlack = 3

// A visit is one site in one round.
type visit struct {
	*round
	site site
	out  *Visit

	mu     sync.Mutex
	err    error // why the site is not asked any more
	stalls int   // in a row
	held   []answers.Failure

	before func() map[string]*place // what was there in the last round, by location
}

// run does all that a round does at one site.
func (v *visit) run(ctx context.Context) {
	start := time.Now()
	v.before = sync.OnceValue(func() map[string]*place { return v.previous(v.site) })
	places, err := v.survey(ctx)
	v.out.Name, v.out.Took = v.site.name, time.Since(start)
	for _, p := range places {
		if !p.gone {
			v.out.Copies++
		}
	}
	v.round.join(places)
	v.expect.Done()
	if err == nil && v.wait(ctx) {
		v.readAll(ctx, places)
	}
	v.release()
	if v.err != nil && ctx.Err() == nil {
		v.out.Err = v.err
		v.log.Warn("a store cannot be asked", "store", v.site.name, "error", v.err.Error())
	}
}

func (v *visit) stallLimit() int { return v.config.Jobs + stallSlack }

// survey lists the copies of the site, with what is remembered of each. An error
// means that this is not known.
func (v *visit) survey(ctx context.Context) ([]*place, error) {
	places, err := v.list(ctx, v.site, v.step)
	if err != nil {
		v.err = err
		places = v.addKnown(places, err)
	}
	spread(v.config.Jobs, places, func(p *place) bool {
		switch {
		case p.gone:
			return true
		case incomplete(p.Err):
			p.unready = true
			return true
		case p.Err != nil:
			v.restore(p)
			return true
		}
		v.name(ctx, p)
		v.step()
		return ctx.Err() == nil
	})
	ids := make([]answers.ID, 0, len(places))
	for _, p := range places {
		ids = append(ids, answers.ID{Key: p.failureKey(), File: v.config.File})
	}
	as, fs, err := v.ledger.get(ctx, ids)
	if err != nil {
		v.unread(err)
	}
	for i, p := range places {
		if a, ok := as[ids[i]]; ok && p.Key != "" && definite(a.Value) {
			p.answer = &a
		}
		if f, ok := fs[ids[i]]; ok {
			p.failed = &f
		}
	}
	return places, err
}

// name asks for the identity of p.
func (v *visit) name(ctx context.Context, p *place) {
	if err := v.given(); err != nil {
		v.lose(p, err)
		return
	}
	if _, err := v.identify(ctx, p); err != nil {
		v.lose(p, err)
		v.judge(err)
		return
	}
	v.judge(nil)
}

// lose marks p as one that cannot be asked now. What is remembered about what it
// was stays with it.
func (v *visit) lose(p *place, err error) {
	p.Err, p.lost = err, err
	if old, ok := v.before()[p.Location]; ok {
		p.Key = old.Key
		if p.size < 0 {
			p.size = old.size
		}
	}
}

// restore makes of p, whose directory cannot be read, what it was in the last
// round.
func (v *visit) restore(p *place) {
	err := p.Err
	for _, old := range v.before() {
		if p.template != "" && old.template == p.template && old.account == p.account || old.Location == p.Location {
			*p = *old
			break
		}
	}
	p.Err, p.lost, p.gone, p.unready, p.answer, p.failed = err, err, true, false, nil, nil
}

// addKnown adds to the places of a site those that it had in the last round and
// that could not be listed this time.
func (v *visit) addKnown(places []*place, err error) []*place {
	seen := make(map[string]bool, len(places))
	for _, p := range places {
		if p.Err != nil && !incomplete(p.Err) {
			v.restore(p)
		}
		seen[p.Location] = true
	}
	for _, old := range v.before() {
		if !seen[old.Location] {
			p := *old
			p.Err, p.lost, p.gone, p.unready, p.answer, p.failed = err, err, true, false, nil, nil
			places = append(places, &p)
		}
	}
	return places
}

// wait waits until all sites have listed what they hold, or for long enough.
func (v *visit) wait(ctx context.Context) bool {
	t := time.NewTimer(settleTime - time.Since(v.sum.Started))
	defer t.Stop()
	select {
	case <-v.settled:
	case <-t.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// readAll looks at the ISOs that have no answer. An ISO of which another site
// reads a copy comes last: its answer may be there by then. The order is another
// one each round, so that no ISO is always behind those that make the site be left.
func (v *visit) readAll(ctx context.Context, places []*place) {
	places = slices.Clone(places)
	rand.Shuffle(len(places), func(i, j int) { places[i], places[j] = places[j], places[i] })
	var mu sync.Mutex
	var later []*place
	spread(v.config.Jobs, places, func(p *place) bool {
		g := v.groupOf(p)
		select {
		case g.turn <- struct{}{}:
			v.try(ctx, g, p)
			v.step()
			<-g.turn
		default:
			mu.Lock()
			later = append(later, p)
			mu.Unlock()
		}
		v.write(ctx)
		return ctx.Err() == nil
	})
	spread(v.config.Jobs, later, func(p *place) bool {
		g := v.groupOf(p)
		select {
		case g.turn <- struct{}{}:
			v.try(ctx, g, p)
			v.step()
			<-g.turn
		case <-ctx.Done():
		}
		v.write(ctx)
		return ctx.Err() == nil
	})
}

// try looks at p if its ISO has no answer and nothing speaks against it.
func (v *visit) try(ctx context.Context, g *group, p *place) {
	switch {
	case g.has() != nil, p.unready, p.gone:
		return
	case p.failed != nil && p.failed.Count >= v.config.FailureLimit:
		g.goesOn(false)
		return
	}
	g.goesOn(true)
	if p.failed != nil && p.failed.Next.After(time.Now()) {
		return // a round that an event brought forward
	}
	if p.lost != nil {
		if reason.Of(p.lost) != reason.SourceMissing || v.site.root == "" { // else it was removed a moment ago
			v.failed(g, p, p.lost)
		}
		return
	}
	if v.given() != nil {
		return
	}
	start := time.Now()
	res, first := v.look(ctx, v.config, p, false)
	if ctx.Err() != nil && res.err != nil || reason.Of(res.err) == reason.Interrupted {
		return // our own doing
	}
	if first {
		v.note(res, time.Since(start))
	}
	v.judge(res.err)
	if res.err != nil {
		v.failed(g, p, res.err)
		return
	}
	g.got(res.answer)
}

// failed counts a failure of p. Those of a store that does not answer are held
// back until it is clear that it is not the store's fault.
func (v *visit) failed(g *group, p *place, err error) {
	count := 1
	if p.failed != nil {
		count += p.failed.Count
	}
	var next time.Time
	if count < v.config.FailureLimit {
		next = time.Now().UTC().Round(0).Add(v.config.Retry)
	}
	f := p.failure(v.config, err, next)
	shown := f
	shown.Count = count
	if p.failed != nil {
		shown.First = p.failed.First
	}
	g.fails(shown)
	v.mu.Lock()
	defer v.mu.Unlock()
	if !stalled(err) {
		v.ledger.fail(f)
	} else if v.stalls < v.stallLimit() {
		v.held = append(v.held, f)
	}
}

// judge notes whether the site gave an answer in time.
func (v *visit) judge(err error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stalls >= v.stallLimit() {
		return
	}
	if !stalled(err) {
		v.stalls = 0
		v.ledger.fail(v.held...)
		v.held = nil
		return
	}
	if v.stalls++; v.stalls == v.stallLimit() {
		v.held = nil
		if v.err == nil {
			v.err = err
		}
	}
}

// release counts the failures that were held back.
func (v *visit) release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.ledger.fail(v.held...)
	v.held = nil
}

// given returns why the site has been given up, or nil.
func (v *visit) given() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stalls >= v.stallLimit() {
		return v.err
	}
	return nil
}

// incomplete reports whether err is about an ISO that its store does not have all
// of, rather than about a directory that cannot be read.
func incomplete(err error) bool {
	c := reason.Of(err)
	return err != nil && (c == reason.ISOIncomplete || c == reason.DirectDownload)
}

// stalled reports whether err is of a store or server that gives no answer,
// rather than of one image.
func stalled(err error) bool {
	c := reason.Of(err)
	return c == reason.SourceStalled || c == reason.SourceUnreachable
}
