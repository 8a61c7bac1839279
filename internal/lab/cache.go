//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/unixfs"
)

// lockPoll is how often a taken file lock is tried again. What the locks guard takes seconds to minutes.
const lockPoll = 200 * time.Millisecond

// CacheDir returns the directory that keeps what is expensive to make (root file system, etcd binaries and archives)
// and the directories of running labs: $CKS_LAB_CACHE, else cks-etcd-lab below the user's cache directory, else (root
// without a home) below /var/cache. It is not created.
func CacheDir() string {
	if d := os.Getenv("CKS_LAB_CACHE"); d != "" {
		return d
	}
	d, err := os.UserCacheDir()
	if err != nil {
		d = "/var/cache"
	}
	return filepath.Join(d, "cks-etcd-lab")
}

// cached returns the path of the entry called name in the cache, which build makes when it is not there yet. build
// is given a path that does not exist, beside the entry, and creates a file or a directory there; only a complete one
// gets the entry's name, so a build that was killed leaves nothing that could be taken for one. Concurrent callers,
// in this process or others, wait for one builder.
func cached(ctx context.Context, name string, build func(ctx context.Context, tmp string) error) (string, error) {
	dir := CacheDir()
	entry := filepath.Join(dir, name)
	if _, err := os.Lstat(entry); err == nil {
		return entry, nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("cannot create the lab's cache: %w", err)
	}
	lock, err := lockFile(ctx, entry+".lock")
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if _, err := os.Lstat(entry); err == nil {
		return entry, nil
	}
	unfinished, err := filepath.Glob(entry + ".part-*")
	if err != nil {
		return "", err
	}
	for _, old := range unfinished {
		if err := removeTree(old); err != nil {
			return "", fmt.Errorf("cannot remove an unfinished build: %w", err)
		}
	}
	tmp := fmt.Sprintf("%s.part-%08x", entry, rand.Uint32())
	if err := build(ctx, tmp); err != nil {
		return "", errors.Join(err, removeTree(tmp))
	}
	if err := os.Rename(tmp, entry); err != nil {
		return "", fmt.Errorf("cannot keep %s in the cache: %w", name, err)
	}
	return entry, nil
}

// lockFile takes the exclusive lock on path, which it creates. Closing the file, or the process's end, releases it.
func lockFile(ctx context.Context, path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := unixfs.TryLock(f)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		if err := sleep(ctx, lockPoll); err != nil {
			f.Close()
			return nil, fmt.Errorf("waiting for the lock %s: %w", path, err)
		}
	}
}

// sleep waits for d or for ctx, whose cause it then returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// removeTree is os.RemoveAll that refuses to cross into a mounted file system: nothing should be mounted in
// what the lab removes, and if something is, it is not the lab's to delete.
func removeTree(path string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(mounts)) {
		if f := strings.Fields(line); len(f) > 4 && (f[4] == abs || strings.HasPrefix(f[4], abs+"/")) {
			return fmt.Errorf("cannot remove %s: something is mounted at %s", path, f[4])
		}
	}
	if err := os.RemoveAll(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
