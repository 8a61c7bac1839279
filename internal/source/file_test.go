package source

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
)

// content is some bytes that are nowhere the same.
func content(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{1})
	r.Read(b)
	return b
}

func newOpener(t *testing.T, o Options) *Opener {
	t.Helper()
	if o.Netrc == "" {
		o.Netrc = "none"
	}
	op, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	op.web.pause /= 10
	t.Cleanup(op.Close)
	return op
}

func writeFile(t *testing.T, b []byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "setup.iso")
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if got := reason.Of(err); err == nil || got != want {
		t.Errorf("got error %v (%s), want the code %s", err, got, want)
	}
}

// sameContent reads here and there, with several readers, and compares.
func sameContent(t *testing.T, s *Source, want []byte) {
	t.Helper()
	if s.Size() != int64(len(want)) {
		t.Fatalf("got a size of %d, want %d", s.Size(), len(want))
	}
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(i)))
			for range 50 {
				p := make([]byte, r.IntN(20_000))
				off := r.Int64N(int64(len(want)) + 100)
				n, err := s.ReadAt(p, off)
				wantN := int(max(min(int64(len(p)), int64(len(want))-off), 0))
				if n != wantN || n < len(p) && err != io.EOF || n == len(p) && err != nil {
					t.Errorf("ReadAt of %d bytes at %d: got %d and error %v, want %d", len(p), off, n, err, wantN)
					return
				}
				if n > 0 && !bytes.Equal(p[:n], want[off:off+int64(n)]) {
					t.Errorf("ReadAt of %d bytes at %d: other bytes", len(p), off)
				}
			}
		})
	}
	wg.Wait()
	all, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size()))
	if err != nil || !bytes.Equal(all, want) {
		t.Errorf("reading all: got %d bytes and error %v, want the %d of the file", len(all), err, len(want))
	}
}

func TestFile(t *testing.T) {
	for _, size := range []int{0, 1, 2048, 40_000, 3<<20 + 77} {
		data := content(size)
		name := writeFile(t, data)
		o := newOpener(t, Options{})
		s, err := o.Open(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		sameContent(t, s, data)
		id, err := o.Identify(t.Context(), name)
		if err != nil || id != s.Identity() {
			t.Errorf("Identify: got %+v and error %v, want %+v", id, err, s.Identity())
		}
		if id.Key() == "" || id.Kind != KindFile || id.Inode == 0 {
			t.Errorf("got the identity %+v with the key %q", id, id.Key())
		}
		if got := s.Stats(); got.Bytes < int64(size) {
			t.Errorf("got %+v after reading %d bytes", got, size)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if _, err := s.ReadAt(make([]byte, 1), 0); size > 0 && !errors.Is(err, fs.ErrClosed) {
			t.Errorf("reading after Close: got %v", err)
		}
	}
}

func TestNotAnImage(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	if err := unix.Mkfifo(path("fifo"), 0o644); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for link, to := range map[string]string{"to-fifo": "fifo", "dangling": "nowhere", "loop": "loop"} {
		if err := os.Symlink(to, path(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(path("file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		want reason.Code
	}{
		{path("fifo"), reason.SourceUnsupported},
		{path("to-fifo"), reason.SourceUnsupported},
		{path("socket"), reason.SourceUnsupported},
		{"/dev/null", reason.SourceUnsupported},
		{"/dev/tty", reason.SourceUnsupported},
		{dir, reason.SourceUnsupported},
		{path("nowhere"), reason.SourceMissing},
		{path("dangling"), reason.SourceMissing},
		{path("loop"), reason.SourceMissing},
		{path("file/below"), reason.SourceMissing},
		{"s3://bucket/setup.iso", reason.SourceUnsupported},
		{"nfs://host/export", reason.SourceUnsupported},
		{"http://", reason.Usage},
		{"http://user:secret@ho st/", reason.Usage},
	}
	o := newOpener(t, Options{Timeout: 20 * time.Second})
	for _, test := range tests {
		start := time.Now()
		_, err := o.Open(t.Context(), test.name)
		wantCode(t, err, test.want)
		_, err = o.Identify(t.Context(), test.name)
		wantCode(t, err, test.want)
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("%s took %v", test.name, d)
		}
	}
	if n := o.Lost(); n != 0 {
		t.Errorf("%d workers are lost", n)
	}
}

func TestFileChanges(t *testing.T) {
	data := content(2 << 20)
	tests := []struct {
		name     string
		change   func(name string) error
		wantRead reason.Code // of the rest; Ready: it can be read
		want     reason.Code // of Close
	}{
		{"nothing", func(string) error { return nil }, reason.Ready, reason.Ready},
		{"grows", func(name string) error { return os.Truncate(name, 3<<20) }, reason.Ready, reason.SourceChanged},
		{"shrinks", func(name string) error { return os.Truncate(name, 1<<20) }, reason.SourceChanged, reason.SourceChanged},
		{"is written to", func(name string) error {
			return os.Chtimes(name, time.Time{}, time.Now().Add(-time.Hour))
		}, reason.Ready, reason.SourceChanged},
		{"is replaced", func(name string) error { // what is open stays whole
			if err := os.WriteFile(name+"~", nil, 0o644); err != nil {
				return err
			}
			return os.Rename(name+"~", name)
		}, reason.Ready, reason.Ready},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			name := writeFile(t, data)
			s, err := newOpener(t, Options{}).Open(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := s.ReadAt(make([]byte, 2048), headStart); err != nil {
				t.Fatal(err)
			}
			if err := test.change(name); err != nil {
				t.Fatal(err)
			}
			_, err = s.ReadAt(make([]byte, 2048), 2<<20-2048)
			if got := reason.Of(err); got != test.wantRead {
				t.Errorf("reading: got %v, want the code %s", err, test.wantRead)
			}
			err = s.Close()
			if got := reason.Of(err); got != test.want {
				t.Errorf("Close: got %v, want the code %s", err, test.want)
			}
		})
	}
}

func TestChangedFileHasAnotherKey(t *testing.T) {
	name := writeFile(t, content(4096))
	o := newOpener(t, Options{})
	seen := map[string]string{}
	see := func(after string) {
		t.Helper()
		id, err := o.Identify(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		if was, ok := seen[id.Key()]; ok {
			t.Errorf("the key after %q is that after %q", after, was)
		}
		seen[id.Key()] = after
	}
	see("nothing")
	when := time.Now().Add(-time.Hour)
	if err := os.Chtimes(name, when, when); err != nil {
		t.Fatal(err)
	}
	see("another time")
	if err := os.Chtimes(name, when, when.Add(time.Microsecond)); err != nil {
		t.Fatal(err)
	}
	see("a time that differs by a microsecond")
	if err := os.Truncate(name, 4095); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(name, when, when); err != nil {
		t.Fatal(err)
	}
	see("another length")
}

// A hanging is a file whose reads hang until released is closed.
type hanging struct {
	release chan struct{}
	closed  chan struct{}
}

func (h *hanging) ReadAt(p []byte, off int64) (int, error) {
	<-h.release
	return len(p), nil
}
func (h *hanging) Stat() (fs.FileInfo, error) { return nil, errors.New("not to be asked") }
func (h *hanging) Close() error               { close(h.closed); return nil }

func TestReadThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpener(t, Options{Timeout: 7 * time.Second})
		h := &hanging{make(chan struct{}), make(chan struct{})}
		s := &Source{name: "x.iso", size: 1 << 20, timeout: o.timeout, turn: make(chan struct{}, 1)}
		s.ctx, s.cancel = context.WithCancel(t.Context())
		s.medium = &file{name: "x.iso", path: "x.iso", calls: o.calls, count: &s.count, h: h, id: Identity{Kind: KindFile, Size: 1 << 20}}

		start := time.Now()
		_, err := s.ReadAt(make([]byte, 10), 0)
		wantCode(t, err, reason.SourceStalled)
		if d := time.Since(start); d != 7*time.Second {
			t.Errorf("the read ended after %v, want 7s", d)
		}
		if o.Lost() != 1 {
			t.Errorf("got %d lost workers, want 1", o.Lost())
		}
		// The worker has the file: no second one is lost to it.
		start = time.Now()
		_, err = s.ReadAt(make([]byte, 10), 0)
		wantCode(t, err, reason.SourceStalled)
		wantCode(t, s.Close(), reason.SourceStalled)
		if d := time.Since(start); d != 0 || o.Lost() != 1 {
			t.Errorf("reading again and closing took %v and lost %d workers", d, o.Lost())
		}
		close(h.release)
		<-h.closed
		synctest.Wait()
		if o.Lost() != 0 {
			t.Errorf("got %d lost workers after the read came back, want 0", o.Lost())
		}
	})
}

func TestContextEndsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newOpener(t, Options{})
		h := &hanging{make(chan struct{}), make(chan struct{})}
		s := &Source{name: "x.iso", size: 1 << 20, timeout: o.timeout, turn: make(chan struct{}, 1)}
		ctx, cancel := context.WithCancel(t.Context())
		s.ctx, s.cancel = context.WithCancel(ctx)
		s.medium = &file{name: "x.iso", path: "x.iso", calls: o.calls, count: &s.count, h: h, id: Identity{Kind: KindFile, Size: 1 << 20}}
		time.AfterFunc(3*time.Second, cancel)
		start := time.Now()
		var wg sync.WaitGroup
		for range 3 { // one reads, the others wait for it
			wg.Go(func() {
				_, err := s.ReadAt(make([]byte, 10), 0)
				wantCode(t, err, reason.Interrupted)
				if !errors.Is(err, context.Canceled) {
					t.Errorf("got %v, want it to be context.Canceled", err)
				}
			})
		}
		wg.Wait()
		if d := time.Since(start); d != 3*time.Second {
			t.Errorf("the reads ended after %v, want 3s", d)
		}
		close(h.release)
		<-h.closed
	})
}

// TestCalls: Openers that are given the same Calls know of each other's lost
// workers, and an Opener that is given none knows of its own.
func TestCalls(t *testing.T) {
	calls := fscall.New(nil)
	one, two := newOpener(t, Options{Calls: calls}), newOpener(t, Options{Calls: calls})
	own := newOpener(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	release := make(chan struct{})
	defer close(release)
	_, err := fscall.Do(ctx, one.Calls(), "x.iso", func() (int, error) { <-release; return 0, nil }, nil)
	if !fscall.Stalled(err) || one.Lost() != 1 || two.Lost() != 1 || own.Lost() != 0 {
		t.Errorf("got %v, and %d, %d and %d lost workers, want 1, 1 and 0", err, one.Lost(), two.Lost(), own.Lost())
	}
}

func TestNewRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("no certificate, no netrc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{
		{Headers: []string{"no colon"}},
		{Headers: []string{": value"}},
		{Headers: []string{"A b: c"}},
		{Headers: []string{"X: a\r\nY: b"}},
		{Headers: []string{"Range: bytes=0-1"}},
		{Headers: []string{"accept-encoding: gzip"}},
		{CAFile: bad}, {CAFile: bad + "-absent"},
		{Netrc: bad}, {Netrc: bad + "-absent"}, {Netrc: "/dev/null"},
	} {
		_, err := New(o)
		wantCode(t, err, reason.Usage)
	}
}
