package answers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

const (
	fileMode = 0o640 // others of the group may look
	dirMode  = 0o750

	// newMark and asideMark are in the names of files beside that of the answers.
	newMark   = ".new-"
	asideMark = ".damaged-"
	// abandonedAfter is when a file that was begun and never got its name is
	// nobody's any more; making one takes milliseconds.
	abandonedAfter = time.Hour

	// firstPoll and lastPoll bound the pause between two tries to get the lock. It
	// is held for milliseconds.
	firstPoll = 500 * time.Microsecond
	lastPoll  = 20 * time.Millisecond
)

// A stamp changes whenever the file does.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime unix.Timespec
}

func stampOf(f *os.File) (stamp, error) {
	var st unix.Stat_t
	if err := unixfs.Retry(func() error { return unix.Fstat(int(f.Fd()), &st) }); err != nil {
		return stamp{}, err
	}
	return stamp{uint64(st.Dev), st.Ino, st.Size, st.Mtim, st.Ctim}, nil
}

// openFile opens path without following a link there and without waiting for
// a pipe. An error other than that of the system says that there is no regular
// file at path; fs.ErrNotExist that there is nothing.
func openFile(path string, write bool) (*os.File, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, damaged("%s is %s", path, kind(info.Mode()))
	}
	flag := os.O_RDONLY
	if write {
		flag = os.O_RDWR
	}
	f, err := os.OpenFile(path, flag|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ELOOP) {
		return nil, damaged("%s is %s", path, kind(fs.ModeSymlink))
	}
	if err != nil {
		return nil, err
	}
	if opened, err := f.Stat(); err != nil || !opened.Mode().IsRegular() {
		f.Close()
		return nil, damaged("%s is not a regular file", path)
	}
	return f, nil
}

func kind(m fs.FileMode) string {
	switch m.Type() {
	case fs.ModeDir:
		return "a directory"
	case fs.ModeSymlink:
		return "a symbolic link, which is not followed"
	case fs.ModeNamedPipe:
		return "a pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}

// lock waits for the lock of flock(2) on f: a shared one to read, the only one
// to write. Asking again and again is how a wait can end with ctx.
func lock(ctx context.Context, f *os.File, write bool) error {
	how := unix.LOCK_SH | unix.LOCK_NB
	if write {
		how = unix.LOCK_EX | unix.LOCK_NB
	}
	began := time.Now()
	for pause := firstPoll; ; pause = min(2*pause, lastPoll) {
		err := unixfs.Retry(func() error { return unix.Flock(int(f.Fd()), how) })
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return lateError{"another has not let go of it " + after(began), ctx.Err()}
		case <-time.After(pause/2 + rand.N(pause)):
		}
	}
}

// release gives up the lock and f. The lock belongs to the open file, which a
// mapping of it keeps alive: closing f alone may not be enough.
func release(f *os.File) {
	unixfs.Retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_UN) })
	f.Close()
}

// acquire opens the file and waits for its lock, until the context wait ends. In
// the meantime the file may have been replaced: it is the one at the path when
// acquire returns. To write, the file is made when there is none; to read, the
// error is fs.ErrNotExist.
func (s *Store) acquire(wait context.Context, write bool) (*os.File, error) {
	for {
		f, err := openFile(s.path, write)
		if write && errors.Is(err, fs.ErrNotExist) {
			if err := s.create(); err != nil {
				return nil, err
			}
			f, err = openFile(s.path, write)
		}
		if err != nil {
			return nil, err
		}
		if err := lock(wait, f, write); err != nil {
			f.Close()
			return nil, err
		}
		if at(s.path, f) {
			return f, nil
		}
		release(f)
		if err := wait.Err(); err != nil {
			return nil, err
		}
	}
}

// at reports whether f is the file at path.
func at(path string, f *os.File) bool {
	there, err := os.Lstat(path)
	if err != nil {
		return false
	}
	here, err := f.Stat()
	return err == nil && os.SameFile(there, here)
}

// create makes a file without answers. It gets its name when it is whole, so
// that nobody ever sees a part of it, and only if no other process was faster.
func (s *Store) create() error {
	dir := filepath.Dir(s.path)
	if err := makeDir(dir); err != nil {
		return err
	}
	sweep(s.path)
	name := s.path + newMark + unixfs.RandomHex(8)
	defer os.Remove(name)
	db, err := bbolt.Open(name, fileMode, &bbolt.Options{
		Timeout:      time.Second, // nobody else knows the name
		NoStatistics: true,
		OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
			f, err := os.OpenFile(name, flag|os.O_EXCL|unix.O_NOFOLLOW, mode)
			if err != nil {
				return nil, err
			}
			if err := f.Chmod(mode); err != nil { // whatever the umask
				f.Close()
				return nil, err
			}
			if err := giveTo(dir, f); err != nil {
				f.Close()
				return nil, err
			}
			return f, nil
		},
	})
	if err != nil {
		return err
	}
	err = db.Update(begin)
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Link(name, s.path) // unlike rename, it replaces nothing
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncDir(dir)
}

// giveTo makes a file that root has made that of the directory's owner: of the
// daemon, whose answers root may look at, and must not lock it out of.
func giveTo(dir string, f *os.File) error {
	if os.Geteuid() != 0 {
		return nil
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid != 0 {
		return f.Chown(int(st.Uid), int(st.Gid))
	}
	return nil
}

// sweep removes what a killed process has left of a create.
func sweep(path string) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		return
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), filepath.Base(path)+newMark) || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > abandonedAfter {
			os.Remove(filepath.Join(filepath.Dir(path), e.Name()))
		}
	}
}

// makeDir makes the directory of the answers, which no stranger may enter, and
// those above it.
func makeDir(dir string) error {
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, fs.ErrNotExist) {
		if err := unixfs.MakeDirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, dirMode)
	}
	if err == nil {
		if err := os.Chmod(dir, dirMode); err != nil { // whatever the umask
			return err
		}
		return syncDir(filepath.Dir(dir))
	}
	// Whatever mkdir says of a directory that is there (EROFS, say) is no obstacle.
	if info, statErr := os.Stat(dir); statErr == nil && info.IsDir() {
		return nil
	}
	return err
}

func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return unixfs.SyncDir(f)
}

// setAside renames the file that was found damaged, and says how it is called
// then; "" when another process has replaced it already.
func (s *Store) setAside(wait context.Context, found fs.FileInfo) (string, error) {
	switch found.Mode().Type() {
	case fs.ModeDir, fs.ModeDevice, fs.ModeDevice | fs.ModeCharDevice:
		return "", damaged("%s is %s, which is left where it is", s.path, kind(found.Mode())).
			WithHint("choose another file with --answers")
	}
	// Of processes that set aside at once, those that come late to the lock find
	// another file at the path. What is no file has no lock either.
	if found.Mode().IsRegular() {
		f, err := openFile(s.path, true)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EROFS) {
			f, err = openFile(s.path, false)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		defer release(f)
		if err := lock(wait, f, true); err != nil {
			return "", err
		}
	}
	now, err := os.Lstat(s.path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(found, now) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	aside := s.path + asideMark + time.Now().UTC().Format("20060102T150405Z")
	if _, err := os.Lstat(aside); !errors.Is(err, fs.ErrNotExist) {
		aside += "-" + unixfs.RandomHex(4)
	}
	if err := os.Rename(s.path, aside); err != nil {
		return "", err
	}
	return aside, syncDir(filepath.Dir(s.path))
}

// damaged is the error for a file that cannot be used.
func damaged(format string, args ...any) *reason.Error {
	return reason.New(reason.AnswersDamaged, "%w", fmt.Errorf(format, args...))
}
