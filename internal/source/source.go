package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
)

// defaultTimeout is long enough for an NFS server to be restarted into its
// first retransmission, and short enough for somebody who waits.
const defaultTimeout = 30 * time.Second

// maxSize is the largest length that is believed. ISO 9660 ends at 8 TiB
// (2^32 blocks of 2048 bytes); a claim far beyond is a fault.
const maxSize = 1 << 50

// Options of an Opener. The zero value is useful.
type Options struct {
	Timeout time.Duration // longest time one open, or one read of at most 1 MiB, may take with its retries; 0: 30 s

	CAFile  string   // PEM file with certificates to trust besides the system's
	Headers []string // "Name: value", sent to the hosts that were named, never to those they redirect to
	Netrc   string   // path; "": $NETRC or ~/.netrc where there is one; "none": no netrc
	Agent   string   // User-Agent; "": etcd-fleet

	Download bool   // read a server without ranges through, into an unnamed temporary file
	TempDir  string // for Download; "": the system's

	// Progress, if not nil, hears how far downloads are, in bytes. total is -1
	// where it is not known. Calls for different names may come at once.
	Progress func(name string, read, total int64)

	// Calls makes the file system calls, and knows those that have not come back. A
	// process has one. nil: one of the Opener's own.
	Calls *fscall.Calls

	Log *slog.Logger // retries and lost workers; nil: nothing
}

// An Opener opens images. Its methods may be used by several goroutines.
type Opener struct {
	timeout  time.Duration
	calls    *fscall.Calls
	web      *web
	download bool
	tempDir  string
	progress func(name string, read, total int64)
}

// New returns an Opener. It fails with the code usage if a header, the CA file
// or the netrc file that was named cannot be used.
func New(o Options) (*Opener, error) {
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Progress == nil {
		o.Progress = func(string, int64, int64) {}
	}
	if o.Calls == nil {
		o.Calls = fscall.New(o.Log)
	}
	w, err := newWeb(o)
	if err != nil {
		return nil, err
	}
	return &Opener{
		timeout:  o.Timeout,
		calls:    o.Calls,
		web:      w,
		download: o.Download,
		tempDir:  o.TempDir,
		progress: o.Progress,
	}, nil
}

// Close lets go of idle connections. Sources that are open stay usable.
func (o *Opener) Close() {
	if t, ok := o.web.transport.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// Calls returns what makes the file system calls, for others that have to make
// some.
func (o *Opener) Calls() *fscall.Calls { return o.calls }

// Lost returns how many workers are held by file system calls that were given
// up and have not come back, of all who use the same Calls. It goes down when one
// does.
func (o *Opener) Lost() int { return o.calls.Lost() }

// Open opens the image of that name, a path or a URL. A path may lead through
// symbolic links to a regular file or a block device; anything else, such as a
// directory, a FIFO or a character device, is refused unopened with the code
// source-unsupported. Opening a URL makes the first request and reads the part
// where an image has its volume descriptors.
//
// The end of ctx ends reads of the source too.
func (o *Opener) Open(ctx context.Context, name string) (*Source, error) {
	s := &Source{name: Redact(name), timeout: o.timeout}
	s.ctx, s.cancel = context.WithCancel(ctx)
	s.turn = make(chan struct{}, 1)
	var err error
	if IsURL(name) {
		err = o.openURL(s, name)
	} else {
		err = o.openFile(s, name)
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	return s, nil
}

// Identify returns the identity that Open would find now: by stat, or by a
// request for one byte. It reads no content.
func (o *Opener) Identify(ctx context.Context, name string) (Identity, error) {
	if IsURL(name) {
		return o.identifyURL(ctx, name)
	}
	return o.identifyFile(ctx, name)
}

// A medium is what a Source reads from.
type medium interface {
	// read fills p, which belongs to the medium until read returns. It fails
	// with a *reason.Error if it cannot fill it before ctx ends.
	read(ctx context.Context, p []byte, off int64) error
	// close lets go of the medium, and reports whether it has become another one.
	close(ctx context.Context) error
}

// Stats is what reading has cost.
type Stats struct {
	Requests int   // HTTP requests, with redirects and retries; or reads of the file
	Bytes    int64 // of content, moved over the network or read from the file
}

// A counter counts what a medium does.
type counter struct{ requests, bytes atomic.Int64 }

// Source is an open image. It may be read by several goroutines at once.
type Source struct {
	name    string
	size    int64
	id      Identity
	timeout time.Duration
	ctx     context.Context // of Open: io.ReaderAt has no room for one
	cancel  context.CancelFunc
	count   counter
	cache   cache

	turn   chan struct{} // held by the one who uses medium and window
	medium medium
	window window

	closing  sync.Once
	closed   atomic.Bool
	closeErr error
}

// Name returns the name the source was opened by, without user and password.
func (s *Source) Name() string { return s.name }

// Size returns the length in bytes at the time of opening.
func (s *Source) Size() int64 { return s.size }

// Identity returns the identity at the time of opening.
func (s *Source) Identity() Identity { return s.id }

// Stats returns what reading has cost so far.
func (s *Source) Stats() Stats {
	return Stats{Requests: int(s.count.requests.Load()), Bytes: s.count.bytes.Load()}
}

// ReadAt implements io.ReaderAt. io.EOF comes at Size and nowhere else: content
// that ends before is an error with a code. After a file system call that did not
// come back in time, all reads that need the file fail.
func (s *Source) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 || off > math.MaxInt64-int64(len(p)) {
		return 0, errors.New("cannot read at a negative offset")
	}
	n := 0
	for n < len(p) && off+int64(n) < s.size {
		if s.closed.Load() {
			return n, fs.ErrClosed
		}
		at := off + int64(n)
		if m := s.cache.copy(p[n:], at); m > 0 {
			n += m
			continue
		}
		if err := s.fill(at, len(p)-n); err != nil {
			return n, err
		}
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// fill brings the bytes at off into the cache, want of them or more.
func (s *Source) fill(off int64, want int) error {
	ctx, cancel := context.WithTimeout(s.ctx, s.timeout)
	defer cancel()
	select {
	case s.turn <- struct{}{}:
		defer func() { <-s.turn }()
	case <-ctx.Done():
		return s.ended(ctx)
	}
	if s.closed.Load() {
		return fs.ErrClosed
	}
	if s.cache.has(off) { // somebody else wanted it too
		return nil
	}
	from, to := s.window.next(off, want, s.size)
	buf := make([]byte, s.cache.gap(from, to)-from)
	start := time.Now()
	if err := s.medium.read(ctx, buf, from); err != nil {
		if errors.Is(s.ctx.Err(), context.Canceled) {
			return s.ended(ctx)
		}
		return err
	}
	s.window.took(from+int64(len(buf)), time.Since(start))
	s.cache.add(from, buf)
	return nil
}

// ended is the error after the end of ctx, which is that of the caller's or of
// the time for one read.
func (s *Source) ended(ctx context.Context) error {
	if s.closed.Load() {
		return fs.ErrClosed
	}
	return endError(s.ctx, s.name, fmt.Errorf("another read of it has not ended: %w", ctx.Err()))
}

// endError names why there is no more waiting for name: ctx, the caller's, was
// canceled, or err.
func endError(ctx context.Context, name string, err error) *reason.Error {
	if cause := ctx.Err(); errors.Is(cause, context.Canceled) {
		return reason.New(reason.Interrupted, "cannot read %s: %w", name, cause)
	}
	return reason.New(reason.SourceStalled, "%s: %w", name, err)
}

// Close ends reads that are running and lets go of the source. It fails with the
// code source-changed if a file is not as it was when it was opened: what was
// read of it may be of two minds. Closing again returns the same error.
func (s *Source) Close() error {
	s.closing.Do(func() {
		s.closed.Store(true)
		// The caller's context may have ended; a close must happen all the same.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), s.timeout)
		defer cancel()
		s.cancel()
		s.turn <- struct{}{} // soon: reads end with the context
		s.closeErr = s.medium.close(ctx)
		<-s.turn
	})
	return s.closeErr
}
