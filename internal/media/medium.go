package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"sync"
	"time"

	"cks-etcd/internal/reason"
)

const (
	// maxSidecar bounds a file beside the archive: a SHA256SUMS of an etcd
	// release has 3 KB.
	maxSidecar = 64 << 10

	// chunk is how much one bounded read asks of the device. It makes the cost of
	// bounding vanish, and is twice the kernel's usual read-ahead.
	chunk = 256 << 10
)

// errChanged says that a medium is not the one that was found: it was taken
// out, or another is in its place. Find looks again.
var errChanged = errors.New("the medium has changed")

// A Medium is an ISO that holds the archive. It keeps nothing open but the
// readers that Open returned. Its methods may be used by several goroutines.
type Medium struct {
	Where    string // "/dev/sr0", or the mount point
	VolumeID string // printable; "" for a mounted ISO
	Names    string // the names its files were found by: "Rock Ridge", "Joliet", "plain ISO 9660" or "mounted"

	archive string
	id      identity
	source  func() (volume, error)
	gate    *gate
	limit   time.Duration

	mu      sync.Mutex
	readers []*reader
	done    chan struct{} // closed by Close
}

func (m *Medium) bound() bound {
	return bound{gate: m.gate, where: m.Where, limit: m.limit, stop: m.done}
}

// volume opens the medium anew and makes sure that it is still the same.
func (m *Medium) volume() (volume, error) {
	v, err := m.source()
	switch {
	case errors.Is(err, errNoMedium), errors.Is(err, errNoDevice):
		return nil, fmt.Errorf("%w: %w", errChanged, err)
	case err != nil:
		return nil, err
	case v.id() != m.id:
		v.Close()
		return nil, errChanged
	}
	return v, nil
}

// Open returns the archive. A read that the device does
// not answer within Options.ReadTimeout fails with os.ErrDeadlineExceeded, and
// so do all after it. Short data fails with an error other than io.EOF. Open
// fails with the code archive-unreadable, also when another medium or none is
// there. The reader is used by one goroutine at
// a time, but may be closed by another.
func (m *Medium) Open() (io.ReadCloser, error) {
	r, err := call(m.bound(), func() (*reader, error) {
		v, err := m.volume()
		if err != nil {
			return nil, err
		}
		src, _, err := v.open(m.archive)
		if err != nil {
			v.Close()
			return nil, err
		}
		return &reader{bound: m.bound(), src: src, vol: v}, nil
	}, (*reader).release)
	if err != nil {
		return nil, reason.New(reason.ArchiveUnreadable, "%s on %s: %w", m.archive, m.Where, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readers = append(m.readers, r)
	return r, nil
}

// ReadSidecar returns the contents of the file name in the archive's directory.
// The error is fs.ErrNotExist only when there is certainly no such file. Files
// over 64 KiB are refused.
func (m *Medium) ReadSidecar(name string) ([]byte, error) {
	fail := func(err error) error {
		return fmt.Errorf("cannot read %s on %s: %w", name, m.Where, err)
	}
	if !fs.ValidPath(name) || path.Base(name) != name || name == "." {
		return nil, fail(fs.ErrInvalid)
	}
	b, err := call(m.bound(), func() ([]byte, error) {
		v, err := m.volume()
		if err != nil {
			return nil, err
		}
		defer v.Close()
		return readSmall(v, path.Join(path.Dir(m.archive), name))
	}, func([]byte) {})
	if err != nil {
		return nil, fail(err)
	}
	return b, nil
}

func readSmall(v volume, name string) ([]byte, error) {
	src, size, err := v.open(name)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	if size > maxSidecar {
		return nil, fmt.Errorf("%d bytes are more than the %d allowed", size, maxSidecar)
	}
	return io.ReadAll(io.LimitReader(src, maxSidecar))
}

// Unchanged reports whether the medium is certainly still there: the same
// device, the same volume descriptors, the same size. It may be called after
// Close. A device that does not answer in time, or before ctx ends, is not.
func (m *Medium) Unchanged(ctx context.Context) bool {
	b := m.bound()
	b.stop = ctx.Done()
	_, err := call(b, func() (struct{}, error) {
		v, err := m.volume()
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, v.Close()
	}, func(struct{}) {})
	return err == nil
}

// Close lets go of the device. Readers still open fail with os.ErrClosed, also
// where one of their reads is hanging. After Close, only Unchanged may be used.
func (m *Medium) Close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	select {
	case <-m.done:
		return
	default:
	}
	close(m.done)
	for _, r := range m.readers {
		r.Close()
	}
	m.readers = nil
}

// A reader reads the archive in bounded calls.
type reader struct {
	bound bound

	mu   sync.Mutex // held while a Read runs
	src  io.ReadCloser
	vol  volume
	buf  []byte // nil while a call that was given up may write to it
	rest []byte // what of buf was not handed out yet
	err  error  // sticky
}

func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if len(r.rest) == 0 {
		if r.err != nil {
			return 0, r.err
		}
		r.fill()
		if len(r.rest) == 0 {
			return 0, r.err
		}
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// fill gets the next bytes or an error. When the call is given up, the device,
// the source and the buffer are left to it.
func (r *reader) fill() {
	if r.buf == nil {
		r.buf = make([]byte, chunk)
	}
	buf, src, vol := r.buf, r.src, r.vol
	type piece struct {
		n   int
		err error
	}
	got, err := call(r.bound, func() (piece, error) {
		n, err := src.Read(buf)
		return piece{n, err}, nil
	}, func(piece) {
		src.Close()
		vol.Close()
	})
	if err != nil {
		r.buf, r.src, r.vol = nil, nil, nil
		r.err = err
		return
	}
	r.rest, r.err = buf[:got.n], got.err
	if got.n == 0 && got.err == nil {
		r.err = io.ErrNoProgress
	}
}

// Close lets go of the device. It waits for a Read that runs, which is bounded.
func (r *reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.release()
	r.rest, r.err = nil, fs.ErrClosed
	return nil
}

func (r *reader) release() {
	if r == nil || r.vol == nil {
		return
	}
	r.src.Close()
	r.vol.Close()
	r.src, r.vol = nil, nil
}
