//go:build linux

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

// last is the binary that is placed after all others: its presence means that
// the set is complete.
const last = "etcd"

// compareChunk is how much of two files is compared at a time; between two
// chunks a cancelled context is noticed.
const compareChunk = 128 << 10

// Commit makes the staged binaries durable and renames them into place, etcd
// last. It returns the names that were placed, in that order. A binary that is
// there already, byte for byte and with the right owner and mode, is left
// untouched.
//
// A link at a binary's name is replaced itself, its target is not touched; so
// is anything else but a directory, which is an error before any name changed.
// ctx is heeded until the first rename: from there on ending early would only
// leave a mixed set behind.
func (s *Stage) Commit(ctx context.Context) (changed []string, err error) {
	if len(s.files) == 0 {
		return nil, reason.New(reason.InstallFailed, "nothing is staged for %s", s.binDir)
	}
	var replace []*File
	for _, name := range s.order() {
		if err := stopped(ctx, "install etcd"); err != nil {
			return nil, err
		}
		f := s.files[name]
		if err := f.complete(); err != nil {
			return nil, err
		}
		if info, err := s.bin.Lstat(name); err == nil && info.IsDir() {
			return nil, reason.New(reason.InstallFailed, "cannot place %s: a directory has that name", f.path())
		}
		same, err := f.inPlace(ctx)
		if err != nil {
			return nil, err
		}
		if !same {
			replace = append(replace, f)
		}
	}
	for _, f := range replace {
		if err := stopped(ctx, "install etcd"); err != nil {
			return nil, err
		}
		if err := f.r.Sync(); err != nil {
			return nil, f.fault("write", err)
		}
	}
	if len(replace) == 0 {
		return nil, nil
	}
	if err := unixfs.SyncDir(s.lock); err != nil {
		return nil, fault(s.binDir, 0, "write "+s.Dir(), err)
	}
	if err := stopped(ctx, "install etcd"); err != nil {
		return nil, err
	}
	for _, f := range replace {
		if err := s.bin.Rename(filepath.Join(s.name, f.name), f.name); err != nil {
			return changed, f.fault("place", err)
		}
		changed = append(changed, f.name)
	}
	if err := unixfs.SyncDir(s.binFile); err != nil {
		return changed, fault(s.binDir, 0, "write "+s.binDir, err)
	}
	return changed, nil
}

// order returns the staged names as they are placed.
func (s *Stage) order() []string {
	names := slices.Sorted(maps.Keys(s.files))
	if i := slices.Index(names, last); i >= 0 {
		names = append(slices.Delete(names, i, i+1), last)
	}
	return names
}

// inPlace reports whether the binary's place holds a regular file, not a link
// to one, with the same bytes, this user as owner and the right mode. A file
// there that cannot be read is one to replace.
func (f *File) inPlace(ctx context.Context) (bool, error) {
	old, err := f.stage.openNoFollow(f.name, 0)
	if err != nil {
		return false, nil
	}
	defer old.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(old.Fd()), &st); err != nil {
		return false, nil
	}
	if st.Mode != unix.S_IFREG|binMode || int(st.Uid) != os.Geteuid() || st.Size != f.n {
		return false, nil
	}
	a, b := make([]byte, compareChunk), make([]byte, compareChunk)
	for off := int64(0); off < f.n; {
		if err := stopped(ctx, "install etcd"); err != nil {
			return false, err
		}
		n := min(compareChunk, f.n-off)
		if _, err := f.r.ReadAt(a[:n], off); err != nil {
			if errors.Is(err, io.EOF) {
				err = fmt.Errorf("%w at byte %d", io.ErrUnexpectedEOF, off)
			}
			return false, f.fault("read back", err)
		}
		if _, err := old.ReadAt(b[:n], off); err != nil || !bytes.Equal(a[:n], b[:n]) {
			return false, nil
		}
		off += n
	}
	return true, nil
}

// stopped returns the cause why ctx ended, or nil while it has not.
func stopped(ctx context.Context, what string) error {
	if ctx.Err() == nil {
		return nil
	}
	return fmt.Errorf("cannot %s: %w", what, context.Cause(ctx))
}
