//go:build linux

package install

import (
	"errors"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

// File is a binary that is being staged. It is written from its first to its
// last byte, then closed; it can be read back at any time until the stage ends.
type File struct {
	stage *Stage
	name  string
	size  int64 // announced; negative: not known
	n     int64 // written

	w *os.File // nil once closed: a file that is open for writing cannot be run
	// r stays open from before the first write to the end of the stage. It makes
	// sure that what is synced, compared and placed is what was written, and that
	// no error of writing back is missed: fsync(2) reports those since the open.
	r *os.File
}

// Create begins the binary name of size bytes in the stage, with mode 0755. The
// space is reserved at once where the file system can do so, so that a full
// disk shows before the work is done. A negative size is one that is not known.
func (s *Stage) Create(name string, size int64) (*File, error) {
	if s.dir == nil {
		return nil, reason.New(reason.InstallFailed, "cannot stage %s: the stage has ended", name)
	}
	if name == "" || name != filepath.Base(name) || !filepath.IsLocal(name) || name == "." {
		return nil, reason.New(reason.InstallFailed, "cannot stage %q: not a plain file name", name)
	}
	f := &File{stage: s, name: name, size: size}
	var err error
	// O_EXCL never follows a link, and refuses to stage one name twice.
	if f.w, err = s.dir.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o700); err != nil {
		return nil, f.fault("stage", err)
	}
	if err := f.prepare(); err != nil {
		f.release()
		s.dir.Remove(name)
		return nil, f.fault("stage", err)
	}
	s.files[name] = f
	return f, nil
}

// prepare sets the mode, opens the file for reading and reserves its space.
func (f *File) prepare() error {
	if err := f.w.Chmod(binMode); err != nil { // whatever the umask
		return err
	}
	var err error
	if f.r, err = f.stage.dir.Open(f.name); err != nil {
		return err
	}
	if f.size <= 0 {
		return nil
	}
	// The size stays 0, so that a reader finds the end where the bytes end.
	err = unixfs.Retry(func() error { return unix.Fallocate(int(f.w.Fd()), unix.FALLOC_FL_KEEP_SIZE, 0, f.size) })
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		return checkSpace(f.stage.binDir, uint64(f.size))
	}
	return err
}

// Write appends p. More bytes than were announced are an error.
func (f *File) Write(p []byte) (int, error) {
	if f.w == nil {
		return 0, f.fault("write", os.ErrClosed)
	}
	if f.size >= 0 && int64(len(p)) > f.size-f.n {
		return 0, reason.New(reason.InstallFailed, "cannot write %s: more than the %d bytes announced", f.path(), f.size)
	}
	n, err := f.w.Write(p)
	f.n += int64(n)
	if err != nil {
		return n, f.fault("write", err)
	}
	return n, nil
}

// ReadAt reads what has been written so far, also after Close.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if f.r == nil {
		return 0, f.fault("read", os.ErrClosed)
	}
	return f.r.ReadAt(p, off) // io.EOF must stay io.EOF
}

// Close ends the writing. It may be called more than once. The bytes are made
// durable by Stage.Commit.
func (f *File) Close() error {
	if f.w == nil {
		return nil
	}
	err := f.w.Close()
	f.w = nil
	if err != nil {
		return f.fault("write", err)
	}
	return nil
}

// complete says whether the binary can be run and placed.
func (f *File) complete() error {
	if f.w != nil {
		return reason.New(reason.InstallFailed, "%s is still being written", f.path())
	}
	if f.size >= 0 && f.n != f.size {
		return reason.New(reason.InstallFailed, "%s has %d of the %d bytes announced", f.path(), f.n, f.size)
	}
	return nil
}

func (f *File) release() {
	if f.w != nil {
		f.w.Close()
		f.w = nil
	}
	if f.r != nil {
		f.r.Close()
		f.r = nil
	}
}

// path is the place the binary is meant for, which is what a message is about.
func (f *File) path() string { return filepath.Join(f.stage.binDir, f.name) }

func (f *File) fault(verb string, err error) error {
	need := uint64(0)
	if f.size > f.n {
		need = uint64(f.size - f.n)
	}
	return fault(f.stage.binDir, need, verb+" "+f.path(), err)
}
