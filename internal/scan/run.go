package scan

import (
	"context"
	"time"
)

// leastRest is the least time between the end of a round and the start of the
// next: a store that is being filled sends a stream of events.
const leastRest = time.Second

// Run makes rounds until ctx ends: one at once, then one each interval, counted
// from the start of a round, and one for each kick. A kick during a round, and any
// number of them, has one more round follow. When a round takes longer than
// interval, the next one follows soon after it; they never overlap. after, which
// may be nil, is called with what each round came to, the last one included, which
// may have been interrupted.
//
// interval 0 or less is DefaultInterval. kick may be nil. When Run returns, all that
// it started has ended.
func (s *Scanner) Run(ctx context.Context, interval time.Duration, kick <-chan struct{}, after func(Round)) {
	if interval <= 0 {
		interval = DefaultInterval
	}
	s.mu.Lock()
	s.retry = interval / 2
	s.mu.Unlock()
	for ctx.Err() == nil {
		start := time.Now()
		r := s.Round(ctx)
		if after != nil {
			after(r)
		}
		rest := time.NewTimer(leastRest)
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
		next := time.NewTimer(interval - time.Since(start))
		for again := false; !again; {
			select {
			case <-ctx.Done():
				next.Stop()
				return
			case <-next.C:
				again = true
			case _, open := <-kick:
				if !open {
					kick = nil
					continue
				}
				again = true
			}
		}
		next.Stop()
	}
}
