package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
)

const (
	// defaultTimeout is how long a look at one directory or file may take:
	// longer than an NFS client's first retransmissions.
	defaultTimeout = 30 * time.Second

	// maxLost is how many looks of one walk may never come back before the rest
	// of it is given up: the others would most likely hang as well, each for as
	// long as a look may take.
	maxLost = 3

	// maxEntries is how many names of one directory are read, in about 100 MB. A
	// large store has some thousand templates for one account.
	maxEntries = 500_000
)

// looks are those at the file system that a walk takes.
type looks interface {
	list(dir string) ([]fs.DirEntry, error)
	read(name string, limit int64) ([]byte, error) // of a regular file
	lstat(name string) (fs.FileInfo, error)
	stat(name string) (fs.FileInfo, error)
	resolve(name string) (string, error) // without symbolic links
}

// A disk bounds the time of each look of one walk. It is used by one goroutine.
type disk struct {
	looks   looks
	calls   *fscall.Calls
	timeout time.Duration
	lost    int // looks that never came back, or were not taken since others did not
}

func newDisk(l looks, o Options) *disk {
	d := &disk{looks: l, calls: o.Calls, timeout: o.Timeout}
	if d.calls == nil {
		d.calls = fscall.New(o.Log)
	}
	if d.timeout <= 0 {
		d.timeout = defaultTimeout
	}
	return d
}

// look returns the results of f, or a *reason.Error when it does not come back in
// time or before ctx ends.
func look[T any](ctx context.Context, d *disk, name string, f func() (T, error)) (T, error) {
	var zero T
	if ctx.Err() != nil {
		return zero, ended(ctx)
	}
	if d.lost >= maxLost {
		return zero, reason.New(reason.SourceStalled, "%s was not looked at since %d other looks never came back", name, d.lost)
	}
	within, cancel := context.WithTimeout(ctx, d.timeout)
	defer cancel()
	v, err := fscall.Do(within, d.calls, name, f, nil)
	switch {
	case !fscall.Stalled(err):
		return v, err
	case ctx.Err() != nil:
		return zero, ended(ctx)
	}
	d.lost++
	return zero, reason.New(reason.SourceStalled, "%s: %w", name, err)
}

// list returns the entries of a directory by name.
func (d *disk) list(ctx context.Context, dir string) ([]fs.DirEntry, error) {
	entries, err := look(ctx, d, dir, func() ([]fs.DirEntry, error) { return d.looks.list(dir) })
	slices.SortFunc(entries, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return entries, err
}

func (d *disk) read(ctx context.Context, name string, limit int64) ([]byte, error) {
	return look(ctx, d, name, func() ([]byte, error) { return d.looks.read(name, limit) })
}

func (d *disk) lstat(ctx context.Context, name string) (fs.FileInfo, error) {
	return look(ctx, d, name, func() (fs.FileInfo, error) { return d.looks.lstat(name) })
}

func (d *disk) stat(ctx context.Context, name string) (fs.FileInfo, error) {
	return look(ctx, d, name, func() (fs.FileInfo, error) { return d.looks.stat(name) })
}

func (d *disk) resolve(ctx context.Context, name string) (string, error) {
	return look(ctx, d, name, func() (string, error) { return d.looks.resolve(name) })
}

// ended is the outcome when ctx has ended.
func ended(ctx context.Context) *reason.Error {
	cause := context.Cause(ctx)
	if coded, ok := errors.AsType[*reason.Error](cause); ok {
		return coded
	}
	if errors.Is(cause, context.DeadlineExceeded) {
		return reason.New(reason.SourceStalled, "the time for looking at the store is over: %w", cause)
	}
	return reason.New(reason.Interrupted, "the store was being looked at: %w", cause)
}

// outcome gives an error of a look its code. The error names the file.
func outcome(err error) *reason.Error {
	if coded, ok := errors.AsType[*reason.Error](err); ok {
		return coded
	}
	code := reason.SourceUnreachable
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = reason.SourceMissing
	case errors.Is(err, fs.ErrPermission):
		code = reason.SourceDenied
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.ELOOP):
		code = reason.SourceUnsupported
	}
	return reason.New(code, "%w", err)
}

// errNotRegular says that a file is a directory, a link, a pipe or a device.
var errNotRegular = errors.New("not a regular file")

// system is the real file system.
type system struct{}

func (system) lstat(name string) (fs.FileInfo, error) { return os.Lstat(name) }
func (system) stat(name string) (fs.FileInfo, error)  { return os.Stat(name) }
func (system) resolve(name string) (string, error)    { return filepath.EvalSymlinks(name) }

// list returns the entries of a directory in no order.
func (system) list(dir string) ([]fs.DirEntry, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	entries, err := f.ReadDir(maxEntries)
	if errors.Is(err, io.EOF) {
		err = nil // an empty one
	}
	if err == nil && len(entries) == maxEntries {
		err = fmt.Errorf("%s has more than %d entries", dir, maxEntries)
	}
	return entries, err
}

// read returns the first bytes of a file. It does not wait for the writer of a
// named pipe, and follows no symbolic link.
func (system) read(name string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.ENXIO) { // a link, a socket
		return nil, fmt.Errorf("%s is %w", name, errNotRegular)
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	i, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !i.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is %w", name, errNotRegular)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
