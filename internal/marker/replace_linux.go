package marker

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/unixfs"
)

const (
	// tempPrefix and tempRandom make the name of a file before it is renamed into
	// place: the prefix and that many random bytes in hex, which nobody can guess
	// and so block.
	tempPrefix = ".etcd-nodeagent.tmp-"
	tempRandom = 8

	// asideInfix stands between the name of a directory that was in the way and
	// random hex; asideName is how much of the name is kept, so that the whole
	// stays within NAME_MAX (255).
	asideInfix = ".moved-"
	asideName  = 200

	// replaceAttempts is how often a write is tried while somebody else changes
	// the directory at the same time. A user who always wins that race can as well
	// remove the file a moment later: more attempts would prove nothing.
	replaceAttempts = 8

	// staleAge is when a temporary file is one that a killed process left. A
	// living one renames it within a sync.
	staleAge = 10 * time.Minute

	// staleScan bounds the entries looked at for such files: the directory is not
	// ours, and may hold any number.
	staleScan = 4096

	fileMode = 0o644
)

// errRaced means that somebody else changed the directory between two of our
// system calls.
var errRaced = errors.New("somebody else keeps changing the directory")

// entry is a name in an open directory. All work on it is relative to that
// directory, so that nobody can redirect it by renaming what leads there.
type entry struct {
	dir  *os.File
	name string
}

// openDir opens the directory of path, which must not be a link.
func openDir(path string) (*entry, error) {
	path = filepath.Clean(path)
	dir, name := filepath.Dir(path), filepath.Base(path)
	if name == "." || name == ".." || name == "/" {
		return nil, errors.New("it does not name a file")
	}
	var fd int
	err := unixfs.Retry(func() (err error) {
		fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		return err
	})
	if errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		if info, err := os.Lstat(dir); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return nil, fmt.Errorf("its directory %s is a symbolic link", dir)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot open its directory %s: %w", dir, err)
	}
	return &entry{os.NewFile(uintptr(fd), dir), name}, nil
}

func (e *entry) close() { e.dir.Close() }

func (e *entry) fd() int { return int(e.dir.Fd()) }

// replace makes the entry a file with the given content, durably.
func (e *entry) replace(data []byte) error {
	e.removeStale()
	var err error
	for range replaceAttempts {
		if err = e.tryReplace(data); !errors.Is(err, errRaced) {
			break
		}
	}
	if err != nil {
		return err
	}
	return e.sync()
}

// tryReplace is one attempt of replace; it leaves no temporary file of its own.
func (e *entry) tryReplace(data []byte) (err error) {
	temp := tempPrefix + unixfs.RandomHex(tempRandom)
	var fd int
	err = unixfs.Retry(func() (err error) {
		fd, err = unix.Openat(e.fd(), temp, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		return err
	})
	if errors.Is(err, unix.EEXIST) {
		return errRaced
	}
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), temp)
	defer func() {
		f.Close()
		if err != nil {
			unix.Unlinkat(e.fd(), temp, 0)
		}
	}()
	if _, err := f.Write(data); err != nil {
		return bare(err)
	}
	// The mode only now: until then it is nobody else's business. fchmod is not
	// subject to the umask.
	if err := f.Chmod(fileMode); err != nil {
		return bare(err)
	}
	if err := f.Sync(); err != nil {
		return bare(err)
	}
	var ours unix.Stat_t
	if err := unix.Fstat(fd, &ours); err != nil {
		return err
	}

	err = unix.Renameat(e.fd(), temp, e.fd(), e.name)
	if errors.Is(err, unix.EISDIR) {
		if err := e.moveAside(); err != nil {
			return err
		}
		err = unix.Renameat(e.fd(), temp, e.fd(), e.name)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return errRaced // the temporary file was taken away or exchanged, or another directory put there
	case err != nil:
		return err
	}
	// The owner of the directory may have exchanged the temporary file before the
	// rename, for a link of his, say.
	var there unix.Stat_t
	if err := unix.Fstatat(e.fd(), e.name, &there, unix.AT_SYMLINK_NOFOLLOW); errors.Is(err, unix.ENOENT) {
		return errRaced
	} else if err != nil {
		return err
	}
	if there.Dev != ours.Dev || there.Ino != ours.Ino {
		return errRaced
	}
	return nil
}

// moveAside gives the entry another name in the same directory.
func (e *entry) moveAside() error {
	aside := e.name[:min(len(e.name), asideName)] + asideInfix + unixfs.RandomHex(tempRandom)
	err := unix.Renameat(e.fd(), e.name, e.fd(), aside)
	if errors.Is(err, unix.ENOENT) {
		return nil // it is out of the way already
	}
	return err
}

// remove removes the entry, durably; nil when it is not there.
func (e *entry) remove() error {
	err := unix.Unlinkat(e.fd(), e.name, 0)
	if errors.Is(err, unix.EISDIR) {
		err = e.moveAside()
	}
	if err == nil {
		return e.sync()
	}
	// A read-only file system refuses before it looks whether there is anything
	// to remove.
	var st unix.Stat_t
	if errors.Is(unix.Fstatat(e.fd(), e.name, &st, unix.AT_SYMLINK_NOFOLLOW), unix.ENOENT) {
		return nil
	}
	return err
}

// sync makes the directory durable, where its file system can do that.
func (e *entry) sync() error {
	return bare(unixfs.SyncDir(e.dir))
}

// removeStale removes temporary files that killed processes of this user left.
// It is a courtesy to the directory's owner: failures do not matter.
func (e *entry) removeStale() {
	names, _ := e.dir.Readdirnames(staleScan)
	for _, name := range names {
		tail, ok := strings.CutPrefix(name, tempPrefix)
		if !ok || len(tail) != 2*tempRandom {
			continue
		}
		var st unix.Stat_t
		if err := unix.Fstatat(e.fd(), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			continue
		}
		regular := st.Mode&unix.S_IFMT == unix.S_IFREG
		if regular && int(st.Uid) == os.Geteuid() && time.Since(time.Unix(st.Mtim.Unix())) > staleAge {
			unix.Unlinkat(e.fd(), name, 0)
		}
	}
}

// bare returns the cause without the name of the temporary file around it.
func bare(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
