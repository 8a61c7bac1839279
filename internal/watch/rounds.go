package watch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// rounds remembers the last round.
type rounds struct {
	mu    sync.Mutex
	count int
	round roundOut
}

func (r *rounds) add(s roundOut) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	r.round = s
}

// last returns the last round, nil before the first has ended.
func (r *rounds) last() *roundOut {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.count == 0 {
		return nil
	}
	s := r.round
	return &s
}

// summaryOf is what is told about a round.
func summaryOf(r scan.Round) roundOut {
	out := roundOut{Started: r.Started.UTC(), Seconds: r.Took.Seconds(), Errors: []string{}}
	if r.Err != nil {
		out.Errors = append(out.Errors, reason.Line(r.Err.Error()))
	}
	for _, v := range r.Visits {
		if v.Err != nil {
			out.Errors = append(out.Errors, reason.Line(v.Name+": "+v.Err.Error()))
		}
	}
	return out
}

// showStatus gives systemd one line for 'systemctl status'.
func (d *daemon) showStatus() {
	now, last := d.current.Load(), d.rounds.last()
	line := "first round under way"
	if last != nil {
		n := make(map[inspect.Value]int)
		isos := now.list()
		for _, i := range isos {
			n[valueOf(i)]++
		}
		line = fmt.Sprintf("%d ISOs: %d included, %d missing, %d broken, %d unknown; a round every %s", len(isos),
			n[inspect.Included], n[inspect.Missing], n[inspect.Broken], n[inspect.Unknown], brief(now.Interval))
		if len(last.Errors) > 0 {
			line += fmt.Sprintf("; %d errors: %s", len(last.Errors), last.Errors[0])
		}
	}
	if d.refused != "" {
		line = "old configuration in use: " + d.refused + "; " + line
	}
	d.notify.status("%s", line)
}

const (
	// usableTime bounds finding out whether answers can be read. Whoever asks
	// for readiness has a deadline of seconds.
	usableTime = 2 * time.Second
	// usableFor is how long that stays true, so that asking often is no load.
	usableFor = time.Second
)

// An answersCheck remembers for a moment whether answers can be read.
type answersCheck struct {
	turn sync.Mutex // held by the one who looks
	of   *backend
	at   time.Time
	err  error
}

func (a *answersCheck) usable(ctx context.Context, b *backend) error {
	a.turn.Lock()
	defer a.turn.Unlock()
	if a.of != b || a.at.IsZero() || time.Since(a.at) > usableFor {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), usableTime)
		defer cancel()
		a.of, a.err = b, b.usable(ctx)
		a.at = time.Now()
	}
	return a.err
}

// notReady says why the daemon cannot give answers that rest on a whole round,
// nil if it can.
func (d *daemon) notReady(ctx context.Context) error {
	switch {
	case d.stopping.Load():
		return errors.New("the daemon is stopping")
	case d.rounds.last() == nil:
		return errors.New("the first round is not done")
	}
	return d.answers.usable(ctx, d.current.Load().backend)
}
