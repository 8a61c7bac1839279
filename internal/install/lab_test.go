//go:build linux && lab

package install

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
)

func wantWords(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("got %q, want %q in it", err, w)
		}
	}
}

func TestLabFullDisk(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "size=1m")
	s := begin(t, dir)
	_, err := s.Create("etcd", 2<<20)
	wantCode(t, err, reason.NoSpace)
	wantWords(t, err, dir, "needs 2.0 MiB, has 1.0 MiB free")
	mustNotExist(t, filepath.Join(s.Dir(), "etcd")) // and its space is free again

	f, err := s.Create("etcd", -1)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(make([]byte, 2<<20))
	wantCode(t, err, reason.NoSpace)
	wantWords(t, err, dir, "has 0.0 MiB free", "no space left on device")
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want it to keep ENOSPC", err)
	}
	wantCode(t, checkSpace(filepath.Join(dir, "sub", "dir"), 1), reason.NoSpace)
	if err := s.Discard(); err != nil {
		t.Fatal(err)
	}
	if err := checkSpace(dir, 1<<20); err != nil {
		t.Errorf("after Discard: %v", err)
	}
}

func TestLabNoInodes(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "nr_inodes=2")
	begin(t, dir) // takes the last one
	_, err := Begin(dir)
	wantCode(t, err, reason.NoSpace)
	wantWords(t, err, dir, "no free inode")
	_, err = Begin(filepath.Join(dir, "opt", "bin"))
	wantCode(t, err, reason.NoSpace)
}

// TestLabUnknownSpace: a file system that does not count its blocks, and has no
// fallocate(2), is neither full nor an obstacle.
func TestLabUnknownSpace(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	for _, dir := range []string{lab.MountT(t, "tmpfs", 0, "size=0"), lab.MountT(t, "ramfs", 0, "")} {
		if err := checkSpace(dir, 1<<62); err != nil {
			t.Errorf("checkSpace: %v", err)
		}
		s := begin(t, dir)
		etcd := program("etcd", 1, 1<<20)
		mustPut(t, s, "etcd", etcd)
		if out, err := s.Run(context.Background(), "etcd"); err != nil || out != "etcd 1\n" {
			t.Errorf("Run: got %q, %v", out, err)
		}
		if _, err := s.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		wantFile(t, filepath.Join(dir, "etcd"), etcd)
		if err := s.Discard(); err != nil {
			t.Error(err)
		}
	}
}

func TestLabNoExec(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", unix.MS_NOEXEC, "size=4m")
	s := begin(t, dir)
	mustPut(t, s, "etcd", program("etcd", 1, 1))
	_, err := s.Run(context.Background(), "etcd", "--version")
	wantCode(t, err, reason.BinNoExec)
	wantWords(t, err, dir, "mounted noexec")
}

func TestLabReadOnly(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := t.TempDir()
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	s, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "etcd", program("etcd", 1, 1))
	readOnly := func(flag uintptr) {
		if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|flag, ""); err != nil {
			t.Fatal(err)
		}
	}
	readOnly(unix.MS_RDONLY)
	for _, d := range []string{dir, filepath.Join(dir, "opt", "bin")} {
		_, err := Begin(d)
		wantCode(t, err, reason.BinDirReadOnly)
		wantWords(t, err, d, "read-only file system")
	}
	// It became read-only between the staging and the renames.
	_, err = s.Commit(context.Background())
	wantCode(t, err, reason.BinDirReadOnly)
	wantWords(t, err, filepath.Join(dir, "etcd"))
	readOnly(0)
	if err := s.Discard(); err != nil {
		t.Error(err)
	}
}

// TestLabTargetIsMount: a file that is mounted at the binary's name cannot be
// replaced, and stays.
func TestLabTargetIsMount(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := t.TempDir()
	target := filepath.Join(dir, "etcd")
	if err := os.WriteFile(target, []byte("old"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(target, target, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(target, unix.MNT_DETACH) })
	s := begin(t, dir)
	mustPut(t, s, "etcd", program("etcd", 1, 1))
	_, err := s.Commit(context.Background())
	wantCode(t, err, reason.InstallFailed)
	wantWords(t, err, target, "busy")
	if got, err := os.ReadFile(target); err != nil || string(got) != "old" {
		t.Errorf("got %q, %v, want the old file", got, err)
	}
}

// TestLabSmallDiskStillInstalls: what fits is installed, and an identical
// second run needs no more than the space of one stage.
func TestLabSmallDiskStillInstalls(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "size=2m")
	for range 3 {
		s := begin(t, dir)
		f, err := s.Create("etcd", 700<<10)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(f, io.LimitReader(zeros{}, 700<<10)); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := s.Discard(); err != nil {
			t.Fatal(err)
		}
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
