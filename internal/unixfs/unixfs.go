//go:build unix

// Package unixfs holds the file system calls of Unix that package os does not
// offer, or not in the form that a program needs which must not fail half-way.
package unixfs

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// dirMode is the mode of a directory that MakeDirs made.
const dirMode = 0o755

// Retry repeats a system call that a signal interrupted (EINTR): the Go runtime
// sends signals to its own threads, and not every call is restarted.
func Retry(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// TryLock takes the exclusive lock of flock(2) on f without waiting for it. The
// error is unix.EWOULDBLOCK while another open file has the lock. Closing f, or
// the end of the process, releases it.
func TryLock(f *os.File) error {
	return Retry(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
}

// Statfs describes the file system that holds path.
func Statfs(path string) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := Retry(func() error { return unix.Statfs(path, &st) })
	return st, err
}

// MakeDirs creates dir and its missing parents with mode 0755 whatever the
// umask: a directory that only root may enter hides what is in it from everybody.
// The new entries are synced, since a synced file in a lost directory is lost.
// It is nil when dir is there; whether it is a directory shows when it is opened.
func MakeDirs(dir string) error {
	err := os.Mkdir(dir, dirMode)
	if errors.Is(err, fs.ErrNotExist) && filepath.Dir(dir) != dir {
		if err := MakeDirs(filepath.Dir(dir)); err != nil {
			return err
		}
		err = os.Mkdir(dir, dirMode)
	}
	if err == nil {
		if err := os.Chmod(dir, dirMode); err != nil {
			return err
		}
		return syncPath(filepath.Dir(dir))
	}
	// Whatever mkdir says of a directory that is there (EROFS, say) is no obstacle.
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	if to, linkErr := os.Readlink(dir); linkErr == nil {
		return fmt.Errorf("%s is a link to %s, where there is no directory", dir, to)
	}
	return err
}

func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return SyncDir(f)
}

// SyncDir makes the entries of an open directory durable. File systems that
// cannot do so for a directory say EINVAL, and have nothing better to offer.
func SyncDir(f *os.File) error {
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// RandomHex returns n random bytes in hex: the part of a name that nobody can
// guess, and so block.
func RandomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails: crypto/rand
	return hex.EncodeToString(b)
}
