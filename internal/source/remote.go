package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"syscall"
	"time"

	"cks-etcd/internal/reason"
)

const (
	// maxTries is how often one read is tried in a row without a byte of progress.
	// With the pauses between, a server that is restarted comes back in time, and one
	// that is down is given up in seconds.
	maxTries = 5
	// maxParts is how many answers one read may be made of.
	maxParts = 32

	firstPause = 200 * time.Millisecond // doubled each time
	maxPause   = 5 * time.Second

	// stallShare is the part of the time for a read in which something must arrive:
	// what has stopped is tried anew on another connection.
	stallShare = 3
)

// errStalled ends a request that makes no progress.
var errStalled = errors.New("nothing has arrived")

// An attemptError is a failed request.
type attemptError struct {
	code  reason.Code
	err   error
	again bool          // another attempt may succeed
	after time.Duration // not before that
	hint  string
}

func (e *attemptError) Error() string { return e.err.Error() }
func (e *attemptError) Unwrap() error { return e.err }

func bad(err error) *attemptError { return &attemptError{code: reason.SourceBadAnswer, err: err} }

// A remote is an image on a server, read by ranges.
type remote struct {
	web   *web
	place *place
	name  string
	count *counter
	idle  time.Duration // longest time without progress

	at     hop      // of the last answer
	pinned *version // nil before the first answer
}

func (o *Opener) newRemote(name string, count *counter) (*remote, error) {
	p, err := o.web.place(name)
	if err != nil {
		code := reason.Usage
		if errors.Is(err, errScheme) {
			code = reason.SourceUnsupported
		}
		return nil, reason.New(code, "%s: %w", Redact(name), err)
	}
	return &remote{
		web: o.web, place: p, name: Redact(name), count: count,
		idle: max(o.timeout/stallShare, time.Millisecond),
		at:   hop{p.named, true},
	}, nil
}

// openURL opens a URL into s.
func (o *Opener) openURL(s *Source, name string) error {
	r, err := o.newRemote(name, &s.count)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(s.ctx, o.timeout)
	defer cancel()
	head, err := r.first(ctx, s.ctx, headStart, headEnd-headStart)
	if err != nil && o.download && reason.Of(err) == reason.SourceNoRanges {
		return o.openDownload(s, r)
	}
	if err != nil {
		return err
	}
	s.medium, s.id, s.size = r, r.identity(), r.pinned.size
	if len(head) > 0 {
		s.cache.add(headStart, head)
		s.window.next(headStart, len(head), s.size)
		s.window.took(headStart+int64(len(head)), 0)
	}
	return nil
}

func (o *Opener) identifyURL(ctx context.Context, name string) (Identity, error) {
	r, err := o.newRemote(name, new(counter))
	if err != nil {
		return Identity{}, err
	}
	within, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	_, err = r.first(within, ctx, 0, 1)
	// A server without ranges tells as much in its answer with the whole, whose
	// content is left unread.
	if err != nil && !(r.pinned != nil && reason.Of(err) == reason.SourceNoRanges) {
		return Identity{}, err
	}
	return r.identity(), nil
}

func (r *remote) identity() Identity {
	id := Identity{Kind: KindURL, Size: r.pinned.size, URL: identityURL(r.place.named, r.at.url), ETag: r.pinned.tag}
	if !r.pinned.young {
		id.LastModified = r.pinned.modified
	}
	return id
}

// first makes the first request, for n bytes at off, which pins the version. It
// returns what it got: nothing where the image ends before off.
func (r *remote) first(ctx, caller context.Context, off int64, n int) ([]byte, error) {
	p := make([]byte, n)
	got, err := r.fill(ctx, p, off)
	if e, ok := errors.AsType[*beyondError](err); ok {
		switch {
		case e.size == 0:
			if r.pinned == nil {
				r.pinned = &version{}
			}
			return nil, nil
		case off > 0: // too short to be an ISO, but not to be named
			return r.first(ctx, caller, 0, 1)
		}
	}
	if err != nil {
		return nil, r.codeOf(caller, err)
	}
	if off == 0 {
		return nil, nil
	}
	return p[:got], nil
}

func (r *remote) read(ctx context.Context, p []byte, off int64) error {
	_, err := r.fill(ctx, p, off)
	if err != nil {
		return r.codeOf(ctx, err)
	}
	return nil
}

func (r *remote) close(context.Context) error { return nil }

// fill reads len(p) bytes at off, or as many as there are when that is not known
// before. It tries again what may be mended by that.
func (r *remote) fill(ctx context.Context, p []byte, off int64) (int, error) {
	n, tries, parts := 0, 0, 0
	var last error
	for {
		if r.pinned != nil {
			p = p[:min(int64(len(p)), max(r.pinned.size-off, 0))]
		}
		if n >= len(p) && r.pinned != nil {
			return n, nil
		}
		m, err := r.fetch(ctx, p[n:], off+int64(n))
		n += m
		if parts++; parts > maxParts {
			return n, bad(fmt.Errorf("the server answers in more than %d small parts", maxParts))
		}
		if err == nil {
			tries = 0
			continue
		}
		e, ok := errors.AsType[*attemptError](err)
		if ctx.Err() != nil && last != nil {
			return n, fmt.Errorf("%w; before that: %w", ctx.Err(), last)
		}
		if ctx.Err() != nil || !ok || !e.again {
			return n, err
		}
		last = err
		if m > 0 {
			tries = 0
		}
		if tries++; tries >= maxTries {
			return n, err
		}
		pause := max(r.web.backoff(tries), e.after)
		if end, ok := ctx.Deadline(); ok && time.Until(end) <= pause {
			return n, err
		}
		r.web.log.Debug("trying a request again", "url", r.name, "err", err, "pause", pause)
		if !sleep(ctx, pause) {
			return n, err
		}
	}
}

// backoff returns the pause after so many failures: between half and the whole
// of a time that doubles, so that many readers do not come back at once.
func (w *web) backoff(failures int) time.Duration {
	d := min(w.pause<<(failures-1), maxPause)
	return d/2 + rand.N(d/2+1)
}

// sleep reports whether d passed before ctx ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// A beyondError says that the image ends before the range asked for.
type beyondError struct{ size int64 } // -1: not told

func (e *beyondError) Error() string { return "the server says that the range is beyond the end" }

// fetch makes one request, redirects included, for len(p) bytes at off. The
// bytes it returns are good whatever the error.
func (r *remote) fetch(ctx context.Context, p []byte, off int64) (int, error) {
	ctx, progress, stop := watch(ctx, r.idle)
	defer stop()
	h := http.Header{}
	h.Set("Range", fmt.Sprintf("bytes=%d-%d", off, off+int64(len(p))-1))
	if r.pinned != nil {
		r.pinned.condition(h)
	}
	resp, err := r.ask(ctx, h)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusPartialContent {
		return 0, r.refusal(resp, off)
	}
	n, size, err := checkPart(resp, off, int64(len(p)))
	if err != nil {
		return 0, bad(err)
	}
	now := versionOf(resp.Header, size)
	if r.pinned != nil {
		if err := r.pinned.differs(now); err != nil {
			return 0, &attemptError{code: reason.SourceChanged, err: err}
		}
	}
	got, err := r.body(ctx, resp.Body, p[:n], progress)
	if r.pinned == nil && (err == nil || got > 0) {
		r.pinned = &now
	}
	return got, err
}

// ask sends a request to where the last answer came from. The URL that a redirect
// led to may have been good for a time only; then the one that was named is asked again.
func (r *remote) ask(ctx context.Context, h http.Header) (*http.Response, error) {
	for {
		resp, at, err := r.web.get(ctx, r.place, r.at, h, r.count)
		if err != nil {
			r.at = hop{r.place.named, true}
			return nil, r.transportError(ctx, err)
		}
		if r.at.url != r.place.named && (resp.StatusCode == http.StatusUnauthorized || resp.StatusCode == http.StatusForbidden ||
			resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusGone) {
			drain(resp)
			r.at = hop{r.place.named, true}
			continue
		}
		if resp.StatusCode < http.StatusMultipleChoices {
			r.at = at
		}
		return resp, nil
	}
}

// body reads all of an answer, which must have len(p) bytes.
func (r *remote) body(ctx context.Context, body io.Reader, p []byte, progress func()) (int, error) {
	n := 0
	for n < len(p) {
		m, err := body.Read(p[n:])
		r.count.bytes.Add(int64(m))
		n += m
		if m > 0 {
			progress()
		}
		if n < len(p) && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return n, r.transportError(ctx, fmt.Errorf("the answer ended after %d of %d bytes: %w", n, len(p), err))
		}
	}
	// Reading to the end gives the connection back for the next request.
	var more [1]byte
	if m, _ := io.ReadFull(body, more[:]); m > 0 {
		return n, bad(fmt.Errorf("the server sends more than the %d bytes it announced", len(p)))
	}
	return n, nil
}

// watch returns a context that ends with errStalled when progress was not called
// for the time of idle.
func watch(ctx context.Context, idle time.Duration) (_ context.Context, progress, stop func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	t := time.AfterFunc(idle, func() {
		cancel(fmt.Errorf("%w for %v", errStalled, idle))
	})
	return ctx, func() { t.Reset(idle) }, func() { t.Stop(); cancel(nil) }
}

// refusal is the error of an answer other than 206.
func (r *remote) refusal(resp *http.Response, off int64) error {
	e := &attemptError{err: fmt.Errorf("the server answers %d %s", resp.StatusCode, http.StatusText(resp.StatusCode))}
	switch c := resp.StatusCode; {
	case c == http.StatusOK:
		if err := encoded(resp.Header); err != nil {
			return bad(err)
		}
		now := versionOf(resp.Header, resp.ContentLength)
		if r.pinned == nil {
			r.pinned = &now
			if now.size == 0 { // no range of nothing can be given
				return &beyondError{0}
			}
		} else if err := r.pinned.differs(now); err != nil {
			return &attemptError{code: reason.SourceChanged, err: err}
		}
		e.code, e.err = reason.SourceNoRanges, errors.New("it answers with the whole to a request for a range")
		return e // the body is not drained: it is the image
	case c == http.StatusRequestedRangeNotSatisfiable:
		size := int64(-1)
		if cr, err := parseContentRange(resp.Header.Get("Content-Range")); err == nil && cr.first < 0 {
			size = cr.size
		}
		if r.pinned == nil {
			drain(resp)
			return &beyondError{size}
		}
		e.code = reason.SourceBadAnswer
		if size >= 0 && size != r.pinned.size {
			e.code, e.err = reason.SourceChanged, fmt.Errorf("it had %d bytes and has %d now", r.pinned.size, size)
		}
	case c == http.StatusPreconditionFailed && r.pinned != nil:
		e.code, e.err = reason.SourceChanged, errors.New("the server has another version now")
	case c == http.StatusUnauthorized, c == http.StatusForbidden, c == http.StatusProxyAuthRequired:
		e.code = reason.SourceDenied
	case c == http.StatusNotFound, c == http.StatusGone:
		e.code = reason.SourceMissing
	case c == http.StatusRequestTimeout, c == http.StatusTooEarly, c == http.StatusTooManyRequests, c >= 500:
		e.code, e.after = reason.SourceUnreachable, retryAfter(resp.Header, time.Now())
		e.again = c != http.StatusNotImplemented && c != http.StatusHTTPVersionNotSupported
		if e.after > 0 {
			e.err = fmt.Errorf("%w and asks to wait %v", e.err, e.after.Round(time.Second))
		}
	default:
		e.code = reason.SourceBadAnswer
	}
	drain(resp)
	return e
}

// transportError finds the code for a request without a usable answer.
func (r *remote) transportError(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); errors.Is(cause, errStalled) {
		return &attemptError{code: reason.SourceStalled, err: cause, again: true}
	}
	e := &attemptError{code: reason.SourceBadAnswer, err: err, again: true}
	if errors.Is(err, errRedirects) || errors.Is(err, errNoLocation) {
		e.again = false
		return e
	}
	if unproved(err) {
		e.code, e.again = reason.SourceUnreachable, false
		e.hint = "name the file with the certificate of the server's authority (--ca)"
		return e
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok {
		e.code, e.again = reason.SourceUnreachable, !dns.IsNotFound
		return e
	}
	_, isNet := errors.AsType[net.Error](err)
	_, isSys := errors.AsType[syscall.Errno](err)
	if isNet || isSys || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed) {
		e.code = reason.SourceUnreachable
	}
	return e
}

// unproved reports whether a server could not prove who it is.
func unproved(err error) bool {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return true
	}
	_, a := errors.AsType[x509.UnknownAuthorityError](err)
	_, b := errors.AsType[x509.HostnameError](err)
	_, c := errors.AsType[x509.CertificateInvalidError](err)
	return a || b || c
}

// codeOf turns the last error of a read into the caller's.
func (r *remote) codeOf(caller context.Context, err error) *reason.Error {
	if errors.Is(caller.Err(), context.Canceled) {
		return endError(caller, r.name, err)
	}
	where := r.name
	if r.at.url != r.place.named {
		where += " (redirected to " + shown(r.at.url) + ")"
	}
	if b, ok := errors.AsType[*beyondError](err); ok {
		return reason.New(reason.SourceBadAnswer, "%s: %w", where, b)
	}
	e, ok := errors.AsType[*attemptError](err)
	switch {
	case !ok, errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.SourceStalled, "%s: no complete answer: %w", where, err)
	case e.hint != "":
		return reason.New(e.code, "%s: %w", where, e.err).WithHint(e.hint)
	}
	return reason.New(e.code, "%s: %w", where, e.err)
}
