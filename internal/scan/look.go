package scan

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// look reads one copy, or waits for somebody who does, and remembers the answer.
// request is false for a round, which writes its answers many at a time, and
// whose look ends with it. first is false for a look that somebody else began.
func (s *Scanner) look(ctx context.Context, c Config, p *place, request bool) (r result, first bool) {
	id := answers.ID{Key: p.raw, File: c.File}
	return s.flights.do(ctx, id, c.LookTimeout, request, func(ctx context.Context, f *flight) result {
		if f.follows {
			if a, ok := s.fresh(ctx, c, p); ok {
				return result{answer: a, key: a.Key}
			}
		}
		r := s.read(ctx, c, p)
		if r.err != nil {
			s.log.Warn("an ISO could not be checked", "iso", p.Location, "code", string(reason.Of(r.err)), "error", r.err.Error())
			return r
		}
		s.log.Info("an ISO was checked", "iso", p.Location, "file", c.File, "answer", string(r.answer.Value))
		s.answered(r.answer)
		if r.answer.Key == "" {
			return r // nothing to remember it by
		}
		s.ledger.add(r.answer)
		if s.flights.wants(f) {
			soon, cancel := context.WithTimeout(ctx, flushAfter) // somebody waits for the answer
			defer cancel()
			if err := s.ledger.flush(soon); err != nil { // it stays in the ledger
				s.log.Warn("an answer could not be written", "iso", p.Location, "error", err.Error())
			}
		}
		return r
	})
}

// fresh returns an answer about what p is now that has just been found.
func (s *Scanner) fresh(ctx context.Context, c Config, p *place) (answers.Answer, bool) {
	now := *p // the caller may have given up, and use p
	a, ok, err := s.recall(ctx, c, &now)
	return a, err == nil && ok && time.Since(a.At) < freshFor
}

// recall returns the remembered answer about what p is now.
func (s *Scanner) recall(ctx context.Context, c Config, p *place) (answers.Answer, bool, error) {
	i, err := s.identify(ctx, p)
	if err != nil || i.Key() == "" {
		return answers.Answer{}, false, err
	}
	id := answers.ID{Key: i.Key(), File: c.File}
	found, _, err := s.ledger.get(ctx, []answers.ID{id})
	a, ok := found[id]
	if ok && !definite(a.Value) {
		return answers.Answer{}, false, err
	}
	return a, ok, err
}

// read reads one copy.
func (s *Scanner) read(ctx context.Context, c Config, p *place) (r result) {
	defer func() {
		if v := recover(); v != nil {
			r = result{err: s.crash(v, debug.Stack(), "looking at "+p.Location), key: r.key}
		}
		if r.err != nil && ctx.Err() != nil && !coded(r.err) {
			r.err = reason.Ended(ctx, "looking at %s", p.Location)
		}
	}()
	img, err := s.images.Open(ctx, p.raw)
	if err != nil {
		return result{err: err}
	}
	open := true
	defer func() {
		if open {
			_ = img.Close() // the panic says more
		}
	}()
	identity := img.Identity()
	r.key = identity.Key()
	info, results := s.check(ctx, img, img.Size(), inspect.Request{Files: []string{c.File}})
	r.stats = img.Stats()
	open = false
	if err := img.Close(); err != nil && reason.Of(err) == reason.SourceChanged {
		r.err = err // whatever was read is of no image
		return r
	}
	if len(results) != 1 {
		r.err = info.Err
		if r.err == nil {
			r.err = reason.New(reason.Internal, "%d answers about %s", len(results), p.Location)
		}
		return r
	}
	got := results[0]
	if !definite(got.Value) {
		switch {
		case got.Err != nil:
			r.err = got.Err
		case info.Err != nil:
			r.err = info.Err
		default:
			r.err = reason.New(reason.Internal, "%q is no answer about %s", string(got.Value), p.Location)
		}
		return r
	}
	a := answers.Of(r.key, info, got)
	a.File, a.Size, a.At = c.File, identity.Size, time.Now().UTC().Round(0)
	a.From, a.Name, a.Account, a.Template, a.Zone = p.Location, p.name, p.account, p.template, p.Zone
	r.answer = a
	return r
}

// failure is the note about a look at p that failed now. The ledger's file
// counts.
func (p *place) failure(c Config, err error, next time.Time) answers.Failure {
	now := time.Now().UTC().Round(0)
	return answers.Failure{
		Key: p.failureKey(), File: c.File, Rules: inspect.Rules, Count: 1,
		Code: reason.Of(err), Message: err.Error(), First: now, At: now, Next: next,
		From: p.Location, Name: p.name, Template: p.template, Zone: p.Zone,
	}
}

// definite reports whether v is a yes or a no.
func definite(v inspect.Value) bool { return v.Yes() || v.No() }

// coded reports whether err carries a reason code.
func coded(err error) bool {
	_, ok := errors.AsType[*reason.Error](err)
	return ok
}

// withCode returns err with the code c, unless it has one.
func withCode(err error, c reason.Code, format string, args ...any) error {
	if coded(err) {
		return err
	}
	return reason.New(c, "%s: %w", fmt.Sprintf(format, args...), err)
}
