package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
)

// A handle is an open file: *os.File, or a fake that hangs.
type handle interface {
	io.ReaderAt
	Stat() (fs.FileInfo, error)
	Close() error
}

// openFile opens a path into s.
func (o *Opener) openFile(s *Source, name string) error {
	ctx, cancel := context.WithTimeout(s.ctx, o.timeout)
	defer cancel()
	f, err := fscall.Do(ctx, o.calls, name,
		func() (*file, error) { return openFile(name, o.calls.Device) },
		func(f *file) { f.h.Close() })
	if err != nil {
		return fileError(s.ctx, name, err)
	}
	f.calls, f.count = o.calls, &s.count
	s.medium, s.id, s.size = f, f.id, f.id.Size
	return nil
}

func (o *Opener) identifyFile(ctx context.Context, name string) (Identity, error) {
	within, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	id, err := fscall.Do(within, o.calls, name, func() (Identity, error) {
		info, err := os.Stat(name)
		if err != nil {
			return Identity{}, err
		}
		if err := readable(info.Mode()); err != nil {
			return Identity{}, err
		}
		if info.Mode()&fs.ModeDevice != 0 { // its size is nowhere but in the open device
			f, err := openFile(name, o.calls.Device)
			if err != nil {
				return Identity{}, err
			}
			return f.id, f.h.Close()
		}
		return identify(info, o.calls.Device), nil
	}, nil)
	if err != nil {
		return Identity{}, fileError(ctx, name, err)
	}
	return id, nil
}

// A file is a regular file or a block device.
type file struct {
	name  string // for people
	path  string
	id    Identity
	calls *fscall.Calls
	count *counter

	h   handle // nil: left to a worker that has not come back
	err error  // why
}

// openFile may hang. What cannot be an image is not opened: that alone rewinds a
// tape, arms a watchdog, or waits for a FIFO's writer. O_NONBLOCK is for what
// takes the name's place in between, and for drives without a medium.
func openFile(name string, mounted deviceMount) (*file, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if err := readable(info.Mode()); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	fail := func(err error) (*file, error) {
		return nil, errors.Join(err, f.Close())
	}
	if info, err = f.Stat(); err != nil {
		return fail(err)
	}
	if err := readable(info.Mode()); err != nil {
		return fail(err)
	}
	id := identify(info, mounted)
	if id.Kind == KindDevice {
		// stat has no size for it; the end of the device is where lseek(2) finds it.
		if id.Size, err = f.Seek(0, io.SeekEnd); err != nil {
			return fail(err)
		}
		if id.Size == 0 {
			return fail(errNoMedium)
		}
	}
	if id.Size < 0 || id.Size > maxSize {
		return fail(fmt.Errorf("%w: a length of %d bytes is not believed", errUnsupported, id.Size))
	}
	return &file{name: name, path: name, id: id, h: f}, nil
}

var (
	errUnsupported = errors.New("cannot be read as an image")
	errNoMedium    = errors.New("there is no medium in the drive")
	errDirectory   = fmt.Errorf("%w: it is a directory", errUnsupported)
)

// readable returns why a file of that mode is not read, or nil.
func readable(m fs.FileMode) error {
	switch {
	case m.IsRegular(), m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0:
		return nil
	case m.IsDir():
		return errDirectory
	case m&fs.ModeNamedPipe != 0:
		return fmt.Errorf("%w: it is a FIFO", errUnsupported)
	case m&fs.ModeSocket != 0:
		return fmt.Errorf("%w: it is a socket", errUnsupported)
	case m&fs.ModeCharDevice != 0:
		return fmt.Errorf("%w: it is a character device", errUnsupported)
	}
	return fmt.Errorf("%w: it is neither a regular file nor a block device", errUnsupported)
}

// read fills p, by way of a buffer that a worker which never comes back may keep.
func (f *file) read(ctx context.Context, p []byte, off int64) error {
	if f.h == nil {
		return f.err
	}
	h := f.h
	f.count.requests.Add(1)
	type got struct {
		b   []byte
		err error
	}
	g, err := fscall.Do(ctx, f.calls, f.path, func() (got, error) {
		b := make([]byte, len(p))
		n, err := h.ReadAt(b, off)
		if n < len(b) && err == nil {
			err = io.ErrNoProgress
		}
		return got{b[:n], err}, nil
	}, func(got) { h.Close() })
	if err != nil { // the worker has the file
		f.h = nil
		e := fileError(ctx, f.name, err)
		f.err = e
		return e
	}
	f.count.bytes.Add(int64(len(g.b)))
	n := copy(p, g.b)
	switch {
	case n == len(p):
		return nil
	case errors.Is(g.err, io.EOF):
		return f.short(ctx, off+int64(n))
	}
	return fileError(ctx, f.name, g.err)
}

// short is the error when the file ends at end, before the length it had.
func (f *file) short(ctx context.Context, end int64) error {
	if err := f.changed(ctx); err != nil {
		return err
	}
	return reason.New(reason.ISOTruncated, "%s has %d bytes, but reading ended at byte %d", f.name, f.id.Size, end)
}

// changed compares the open file with what it was. A device has no length and
// no time that would tell.
func (f *file) changed(ctx context.Context) error {
	if f.h == nil || f.id.Kind != KindFile {
		return nil
	}
	h := f.h
	info, err := fscall.Do(ctx, f.calls, f.path, h.Stat, func(fs.FileInfo) { h.Close() })
	if fscall.Stalled(err) {
		f.h = nil
		f.err = fileError(ctx, f.name, err)
		return f.err
	}
	if err != nil {
		return fileError(ctx, f.name, err)
	}
	switch size, modified := info.Size(), info.ModTime(); {
	case size != f.id.Size:
		return reason.New(reason.SourceChanged, "%s had %d bytes and has %d now", f.name, f.id.Size, size)
	case !modified.Equal(f.id.Modified):
		return reason.New(reason.SourceChanged, "%s was written at %s", f.name, modified.Format(time.RFC3339))
	}
	return nil
}

func (f *file) close(ctx context.Context) error {
	if f.h == nil { // nobody can tell whether it has changed
		return f.err
	}
	changed := f.changed(ctx)
	if f.h == nil {
		return changed
	}
	h := f.h
	f.h, f.err = nil, fs.ErrClosed
	// A FUSE server is told of a close, and may hang in it.
	_, err := fscall.Do(ctx, f.calls, f.path, func() (struct{}, error) { return struct{}{}, h.Close() }, nil)
	if changed == nil && fscall.Stalled(err) {
		return fileError(ctx, f.name, err)
	}
	return changed
}

// fileError finds the code for what a file system call said. ctx is the
// caller's, without the time for one call.
func fileError(ctx context.Context, name string, err error) *reason.Error {
	if fscall.Stalled(err) {
		return endError(ctx, name, err)
	}
	var code reason.Code
	// The name is said once.
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		err = p.Err
	}
	switch {
	case errors.Is(err, errUnsupported):
		code = reason.SourceUnsupported
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP),
		errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, errNoMedium), noMedium(err):
		code = reason.SourceMissing
	case errors.Is(err, fs.ErrPermission):
		code = reason.SourceDenied
	case errors.Is(err, unix.ESTALE): // the NFS server has another file there now
		code = reason.SourceChanged
	case errors.Is(err, unix.EIO):
		code = reason.ISOUnreadable
	default:
		code = reason.SourceUnreachable
	}
	return reason.New(code, "%s: %w", name, err)
}
