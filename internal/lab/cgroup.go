//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// cgroupPrefix starts the name of every lab's top-level cgroup; the lab's id follows.
const cgroupPrefix = "cks-lab-"

// cgroupPatience bounds the wait for a killed cgroup to become empty: the kernel's reaping of a few dozen processes.
const cgroupPatience = 5 * time.Second

// cgroups is the cgroup2 hierarchy, through a mount of our own that is attached to no directory: it works whether
// the machine mounts cgroup2 or not (v1, hybrid, unified), and leaves no mount behind.
type cgroups struct{ root *os.File }

func openCgroups() (*cgroups, error) {
	fail := func(err error) (*cgroups, error) {
		return nil, fmt.Errorf("cannot mount the cgroup2 hierarchy: %w", err)
	}
	fsfd, err := unix.Fsopen("cgroup2", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(fsfd)
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return fail(err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	return &cgroups{os.NewFile(uintptr(fd), "cgroup2")}, nil
}

func (c *cgroups) close() error { return c.root.Close() }

// path names a cgroup of the hierarchy for ordinary file calls.
func (c *cgroups) path(elem ...string) string {
	return filepath.Join(fmt.Sprintf("/proc/self/fd/%d", c.root.Fd()), filepath.Join(elem...))
}

// remove kills whatever runs in the cgroup or below it and removes both.
func (c *cgroups) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, cgroupPatience)
	defer cancel()
	top := c.path(name)
	if _, err := os.Stat(top); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := os.WriteFile(filepath.Join(top, "cgroup.kill"), []byte("1"), 0); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("cannot kill what is left in the cgroup %s: %w", name, err)
	}
	for {
		err := removeCgroupDirs(top)
		if err == nil {
			return nil
		}
		if sleep(ctx, 10*time.Millisecond) != nil {
			return fmt.Errorf("cannot remove the cgroup %s: %w", name, err)
		}
	}
}

func removeCgroupDirs(top string) error {
	var dirs []string
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, p)
		}
		return nil // a directory that went away meanwhile is what we want
	})
	if err != nil {
		return err
	}
	for _, d := range slices.Backward(dirs) {
		if err := unix.Rmdir(d); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
