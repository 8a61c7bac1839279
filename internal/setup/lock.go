package setup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

// lockRetry is how often a held lock is tried again: flock(2) cannot wait
// under a deadline.
const lockRetry = 200 * time.Millisecond

// acquire takes the lock, waiting for another setup as long as that one may
// take itself. The kernel releases the lock when its holder dies, however it
// dies, so a lock file that was left behind is no obstacle.
func (r *run) acquire(ctx context.Context) (release func(), err error) {
	f, err := os.OpenFile(r.Lock, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		code := reason.InstallFailed
		if errors.Is(err, fs.ErrPermission) {
			code = reason.NotPermitted
		}
		return nil, reason.New(code, "cannot open the lock: %w", err)
	}
	deadline := time.Now().Add(r.ISOWait + r.StartTimeout)
	for said := false; ; said = true {
		err := unixfs.TryLock(f)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, reason.New(reason.InstallFailed, "cannot lock %s: %w", r.Lock, err)
		}
		if !said {
			r.log.Info("lock", "detail", "waiting for another setup, "+holder(f))
		}
		if time.Now().After(deadline) {
			defer f.Close()
			return nil, reason.New(reason.SetupRunning, "%s is still held by %s", r.Lock, holder(f))
		}
		select {
		case <-ctx.Done():
			defer f.Close()
			return nil, reason.New(reason.Interrupted, "%w while waiting for another setup, %s", context.Cause(ctx), holder(f))
		case <-time.After(lockRetry):
		}
	}
	// Who holds the lock is a help for the one that waits, not part of the lock.
	if err := f.Truncate(0); err == nil {
		fmt.Fprintf(io.NewOffsetWriter(f, 0), "process %d since %s\n", os.Getpid(), time.Now().Format(time.RFC3339))
	}
	return func() { f.Close() }, nil
}

// holder reads what the holder of the lock wrote of itself.
func holder(f *os.File) string {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 200))
	if s := reason.Line(string(b)); err == nil && strings.TrimSpace(s) != "" {
		return s
	}
	return "a process that did not say who it is"
}
