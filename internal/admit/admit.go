// Package admit decides whether a request for a cluster with etcd nodes may go
// ahead, by what is known of the Kubernetes ISO it would use.
//
// A request is refused only where it certainly cannot work: the etcd archive is
// known not to be on the ISO, or known to be of no use. Whatever keeps that from
// being known, be it storage that is down, an ISO that is on no storage, or a
// look that takes too long, lets the request through and says so: a check must
// not break what would have worked without it.
package admit

import (
	"context"
	"errors"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// DefaultWait is how long a decision takes at most unless told otherwise. A look
// takes milliseconds on storage that answers; the management server's API calls
// time out after tens of seconds.
const DefaultWait = 10 * time.Second

// A Request is what is known of a cluster that somebody wants to create.
type Request struct {
	EtcdNodes int    // number of etcd nodes; 0 or less: a cluster without
	ISO       string // path, URL, or the id or unique name of the template
	Version   string // name of the Kubernetes version, for messages; may be ""
	Zone      string // whose copy is read; "" any
}

// Unchecked is the decision about q where nobody can be asked, and why.
func Unchecked(q Request, why error) Decision { return q.unchecked(why) }

// An Asker knows about ISOs. *scan.Scanner is one.
type Asker interface {
	// Known returns the remembered answer about an ISO, and false where there is
	// none. It reads no content.
	Known(ctx context.Context, iso, zone string) (answers.Answer, bool, error)
	// Look reads the zone's copy of the ISO now. The error says why nobody can
	// tell.
	Look(ctx context.Context, iso, zone string) (answers.Answer, error)
}

// A Decision is what becomes of a request.
type Decision struct {
	Allow   bool
	Checked bool            // it rests on a definite answer about the ISO
	Value   inspect.Value   // of that answer; Unknown if nobody could tell, "" if nothing was asked
	Code    reason.Code     // Included, NotAsked, AdmitUnchecked, or why it is refused
	Cause   reason.Code     // with AdmitUnchecked: why nobody could tell
	Message string          // one line; a refusal names the version and the file
	Hint    string          // what to do next; "" nothing
	Answer  *answers.Answer // the definite answer; nil if Checked is false
	Took    time.Duration
}

// Decide decides about q within wait, whatever a does; 0 or less is DefaultWait.
// It asks nothing if the request has no etcd nodes. Otherwise a definite answer
// that is remembered decides, then one look, and without a definite answer the
// request is allowed, unchecked.
//
// The end of ctx counts as a failed look. Whoever must tell them apart looks at
// ctx.
func Decide(ctx context.Context, q Request, a Asker, wait time.Duration) Decision {
	start := time.Now()
	d := decide(ctx, q, a, wait)
	d.Took = time.Since(start)
	return d
}

func decide(ctx context.Context, q Request, a Asker, wait time.Duration) Decision {
	if q.EtcdNodes <= 0 {
		return Decision{Allow: true, Code: reason.NotAsked, Message: reason.New(reason.NotAsked, "nothing is checked").Error()}
	}
	if q.ISO == "" {
		return q.unchecked(reason.New(reason.NoCopy, "the request names no ISO"))
	}
	if wait <= 0 {
		wait = DefaultWait
	}
	answer, err := ask(ctx, q, a, wait)
	switch {
	case err != nil:
		return q.unchecked(err)
	case answer.Value.Yes():
		return q.allow(answer)
	default:
		return q.refuse(answer)
	}
}

// ask returns a definite answer, or why there is none. It gives up when wait is
// over even if a does not.
func ask(ctx context.Context, q Request, a Asker, wait time.Duration) (answers.Answer, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, wait,
		reason.New(reason.SourceStalled, "it took longer than %s", wait))
	defer cancel()
	type result struct {
		answer answers.Answer
		err    error
	}
	c := make(chan result, 1) // so that a result nobody waits for any more holds up nobody
	go func() {
		var r result
		defer func() {
			if p := recover(); p != nil {
				r = result{err: reason.New(reason.Internal, "asking about ISO %s: %v", clip(q.ISO), p)}
			}
			c <- r
		}()
		r.answer, r.err = consult(ctx, q, a)
	}()
	select {
	case r := <-c:
		return r.answer, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-c: // both at once
		return r.answer, r.err
	default:
		return answers.Answer{}, q.ended(ctx)
	}
}

// consult asks what is remembered, then looks. What goes wrong with the memory is
// no reason to refuse, nor to allow: the look tells.
func consult(ctx context.Context, q Request, a Asker) (answers.Answer, error) {
	known, ok, err := a.Known(ctx, q.ISO, q.Zone)
	if err == nil && ok && definite(known) {
		return known, nil
	}
	answer, err := a.Look(ctx, q.ISO, q.Zone)
	switch {
	case err == nil && definite(answer):
		return answer, nil
	case err == nil:
		return answers.Answer{}, reason.New(reason.SourceBadAnswer, "%q is no answer about ISO %s", clip(string(answer.Value)), clip(q.ISO))
	case ctx.Err() != nil && !coded(err):
		return answers.Answer{}, q.ended(ctx)
	}
	return answers.Answer{}, err
}

// definite reports whether an answer is a yes or a no. A value that this version
// does not know is neither.
func definite(a answers.Answer) bool { return a.Value.Yes() || a.Value.No() }

// ended is the reason why ctx ended before there was an answer.
func (q Request) ended(ctx context.Context) error {
	return reason.Ended(ctx, "the look at ISO %s", clip(q.ISO))
}

// coded reports whether err carries a reason code.
func coded(err error) bool {
	_, ok := errors.AsType[*reason.Error](err)
	return ok
}
