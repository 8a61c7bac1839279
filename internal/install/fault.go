//go:build linux

package install

import (
	"errors"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

// fault turns a failed system call into an outcome. dir is the directory for
// the binaries, need the bytes that were wanted there (0: not known), what the
// rest of a sentence that begins with "cannot". An error that has an outcome
// already keeps it.
func fault(dir string, need uint64, what string, err error) error {
	var known *reason.Error
	if errors.As(err, &known) {
		return err
	}
	// The path of an *fs.PathError is relative to the stage and says less than
	// what does: only the errno is of use.
	err = errnoOf(err)
	switch err {
	case unix.ENOSPC, unix.EDQUOT:
		return noSpace(dir, need, err)
	case unix.EROFS, unix.EACCES, unix.EPERM: // EPERM: a directory made immutable with chattr(1)
		return reason.New(reason.BinDirReadOnly, "cannot %s: %w", what, err)
	}
	return reason.New(reason.InstallFailed, "cannot %s: %w", what, err)
}

// errnoOf returns the errno in err, or err itself when there is none.
func errnoOf(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
