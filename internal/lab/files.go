//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// copyPatience bounds the writing of one file into a host.
const copyPatience = time.Minute

// writeScript puts standard input at $1 with mode $2, atomically: a program that runs from there is replaced, not
// written into.
const writeScript = `set -e; mkdir -p "${1%/*}/"; cat >"$1.lab-new"; chmod "$2" "$1.lab-new"; mv -fT "$1.lab-new" "$1"`

// WriteFile writes a file in the host, owned by root, making the directories it needs. An existing file, or symbolic
// link, is replaced.
func (h *Host) WriteFile(path string, data []byte, mode os.FileMode) error {
	return h.write(path, bytes.NewReader(data), mode)
}

// CopyIn copies a file of this machine into the host with its permissions, as WriteFile does.
func (h *Host) CopyIn(src, dst string) error {
	f, err := os.Open(src)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return h.write(dst, f, fi.Mode())
}

func (h *Host) write(path string, r io.Reader, mode os.FileMode) error {
	ctx, cancel := context.WithTimeout(context.Background(), copyPatience)
	defer cancel()
	octal := strconv.FormatUint(uint64(mode.Perm()), 8)
	res, err := h.Run(ctx, Command{Args: []string{"/bin/sh", "-c", writeScript, "sh", path, octal}, Stdin: r})
	if err == nil && res.Exit != 0 {
		err = fmt.Errorf("%s", lastLines([]byte(res.Stderr), 1))
	}
	if err != nil {
		return fmt.Errorf("cannot write %s in host %s: %w", path, h.name, err)
	}
	return nil
}

// readLimit is the most ReadFile returns: nothing that is read from a host is larger, and what claims to be is a mistake.
const readLimit = 64 << 20

// ReadFile reads a file of the host as one of its processes would see it, following its symbolic links within the
// host. It does not block on a FIFO.
func (h *Host) ReadFile(path string) ([]byte, error) {
	f, err := h.open(path, unix.O_RDONLY|unix.O_NONBLOCK)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, readLimit))
}

// Lstat describes a file of the host. It does not follow a symbolic link that is path's last element.
func (h *Host) Lstat(path string) (fs.FileInfo, error) {
	f, err := h.open(path, unix.O_PATH|unix.O_NOFOLLOW)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.Stat()
}

// open opens path below the host's root, from which no symbolic link leads out.
func (h *Host) open(path string, flags uint64) (*os.File, error) {
	pid := h.PID()
	if pid == 0 {
		return nil, &fs.PathError{Op: "open", Path: h.name + ":" + path, Err: ErrHostDown}
	}
	root, err := os.Open(fmt.Sprintf("/proc/%d/root", pid))
	if err != nil {
		return nil, err
	}
	defer root.Close()
	fd, err := unix.Openat2(int(root.Fd()), path, &unix.OpenHow{Flags: flags | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: h.name + ":" + path, Err: err}
	}
	return os.NewFile(uintptr(fd), h.name+":"+path), nil
}

// MountTmpfs mounts an empty tmpfs of that many bytes at path, which it makes. options are mount(8)'s, like "noexec" or
// "ro"; size 0 means no limit.
func (h *Host) MountTmpfs(ctx context.Context, path string, size int64, options ...string) error {
	if _, err := h.Must(ctx, "mkdir", "-p", path); err != nil {
		return err
	}
	opts := "mode=755,size=" + strconv.FormatInt(size, 10)
	for _, o := range options {
		opts += "," + o
	}
	_, err := h.Must(ctx, "mount", "-t", "tmpfs", "-o", opts, "tmpfs", path)
	return err
}

// Remount binds path onto itself with mount(8) options of a bind mount: "ro", "noexec". It hides nothing of what is there.
func (h *Host) Remount(ctx context.Context, path, options string) error {
	if _, err := h.Must(ctx, "mount", "--bind", path, path); err != nil {
		return err
	}
	_, err := h.Must(ctx, "mount", "-o", "remount,bind,"+options, path)
	return err
}

// Unmount undoes the last MountTmpfs or Remount of path, also when it is in use.
func (h *Host) Unmount(ctx context.Context, path string) error {
	_, err := h.Must(ctx, "umount", "--lazy", path)
	return err
}
