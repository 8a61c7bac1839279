//go:build linux

package install

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

// checkSpace returns an error with code no-space when the file system of dir
// has fewer than need bytes for ordinary users. When dir does not exist its
// nearest existing parent is asked. A file system that does not know its size,
// such as a tmpfs without a limit, has enough.
func checkSpace(dir string, need uint64) error {
	at, err := filepath.Abs(dir)
	if err != nil {
		return fault(dir, 0, "find the current directory", err)
	}
	var st unix.Statfs_t
	for {
		st, err = unixfs.Statfs(at)
		if !errors.Is(err, fs.ErrNotExist) || filepath.Dir(at) == at {
			break
		}
		at = filepath.Dir(at)
	}
	if err != nil {
		return reason.New(reason.InstallFailed, "cannot tell how much space %s has: %w", dir, err)
	}
	have, known := available(&st)
	if !known || have >= need {
		return nil
	}
	return noSpace(dir, need, nil)
}

// noSpace describes a lack of space in dir. The cause, if any, is what the
// kernel said; need is 0 when it is not known.
func noSpace(dir string, need uint64, cause error) *reason.Error {
	msg := dir
	if need > 0 {
		msg += " needs " + size(need, true)
	}
	at := dir
	st, err := unixfs.Statfs(at)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(at) != at {
		at = filepath.Dir(at)
		st, err = unixfs.Statfs(at)
	}
	if have, known := available(&st); known {
		if need > 0 {
			msg += ","
		}
		msg += " has " + size(have, false) + " free"
		if st.Files > 0 && st.Ffree == 0 {
			msg += " and no free inode"
		}
	}
	if cause == nil {
		return reason.New(reason.NoSpace, "%s", msg)
	}
	return reason.New(reason.NoSpace, "%s: %w", msg, cause)
}

// available returns the bytes that st has for ordinary users, as df(1) counts
// them; known is false when the file system does not count its blocks.
func available(st *unix.Statfs_t) (bytes uint64, known bool) {
	block := st.Frsize
	if block == 0 {
		block = st.Bsize
	}
	if st.Blocks == 0 || block <= 0 {
		return 0, false
	}
	if max := ^uint64(0) / uint64(block); st.Bavail > max {
		return ^uint64(0), true
	}
	return st.Bavail * uint64(block), true
}

// size prints bytes in MiB with one decimal. What is needed is rounded up and
// what is there is rounded down, so that a message never shows two equal
// numbers and calls one of them too little.
func size(n uint64, up bool) string {
	const mib = 1 << 20
	tenths := n / mib * 10
	rest := n % mib * 10
	tenths += rest / mib
	if up && rest%mib != 0 {
		tenths++
	}
	return fmt.Sprintf("%d.%d MiB", tenths/10, tenths%10)
}
