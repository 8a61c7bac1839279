//go:build vm && linux

package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/vmlab/wire"
)

// Requests of linux/cdrom.h and their arguments.
const (
	cdromDriveStatus  = 0x5326
	cdromMultisession = 0x5310
	cdslCurrent       = 1<<31 - 1
	cdromLBA          = 1
)

// A multisession is struct cdrom_multisession.
type multisession struct {
	lba            int32
	xa, addrFormat uint8
}

// drive asks the kernel all it has to say about a drive. Reading through a descriptor that was opened before the medium
// was changed comes last, since opening is what makes the kernel look.
func (s *server) drive(q wire.Drive) (*wire.DriveState, error) {
	var d wire.DriveState
	if fd, err := unix.Open(q.Path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
		d.Open = errName(err)
	} else {
		unix.Close(fd)
	}
	if fd, err := unix.Open(q.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_EXCL|unix.O_CLOEXEC, 0); err != nil {
		d.Exclusive = errName(err)
	} else {
		unix.Close(fd)
	}
	fd, err := unix.Open(q.Path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		d.Nonblock = errName(err)
		return &d, nil
	}
	f := os.NewFile(uintptr(fd), q.Path)
	ask(fd, &d)
	d.Volume, d.Sum, err = volume(fd)
	d.Read = errName(err)

	s.mu.Lock()
	if held := s.held[q.Path]; held != nil {
		_, d.Held, err = volume(int(held.Fd()))
		d.HeldErr = errName(err)
		if !q.Hold {
			held.Close()
			delete(s.held, q.Path)
		}
	}
	if q.Hold && s.held[q.Path] == nil {
		s.held[q.Path] = f
	} else {
		defer f.Close()
	}
	s.mu.Unlock()

	size, err := os.ReadFile(filepath.Join("/sys/class/block", filepath.Base(q.Path), "size"))
	if err != nil {
		return nil, err
	}
	d.SysfsSize = strings.TrimSpace(string(size))
	d.Holders, d.MountPoints, err = users(q.Path)
	return &d, err
}

// ask makes the requests that need no medium.
func ask(fd int, d *wire.DriveState) {
	status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cdromDriveStatus, cdslCurrent)
	d.Status, d.StatusErr = int(status), errnoName(errno)
	var size uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); errno == 0 {
		d.Size = size
	}
	ms := multisession{addrFormat: cdromLBA}
	_, _, errno = unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cdromMultisession, uintptr(unsafe.Pointer(&ms)))
	d.Session, d.SessionXA, d.SessionErr = ms.lba, ms.xa != 0, errnoName(errno)
}

// volume reads the first volume descriptor (ECMA-119, 8.4): the volume id, "" where there is none, and the sector's sum.
func volume(fd int) (id, sum string, err error) {
	b := make([]byte, 2048)
	n, err := unix.Pread(fd, b, 16*2048)
	if err != nil {
		return "", "", err
	}
	if n == len(b) && bytes.Equal(b[1:6], []byte("CD001")) {
		id = strings.TrimSpace(string(b[40:72]))
	}
	return id, fmt.Sprintf("%.12x", sha256.Sum256(b[:n])), nil
}

func errnoName(e unix.Errno) string {
	if e == 0 {
		return ""
	}
	return unix.ErrnoName(e)
}

func errName(err error) string {
	var e unix.Errno
	switch {
	case err == nil:
		return ""
	case errors.As(err, &e):
		return errnoName(e)
	}
	return err.Error()
}

// users returns the programs that have a device open, but this one, and where it is mounted.
func users(path string) (programs, mounts []string, err error) {
	var want unix.Stat_t
	if err := unix.Stat(path, &want); err != nil {
		return nil, nil, err
	}
	fds, err := filepath.Glob("/proc/[0-9]*/fd/*")
	if err != nil {
		return nil, nil, err
	}
	for _, fd := range fds {
		var st unix.Stat_t
		if unix.Stat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFBLK || st.Rdev != want.Rdev {
			continue // or it was closed meanwhile
		}
		process := filepath.Dir(filepath.Dir(fd))
		comm, err := os.ReadFile(filepath.Join(process, "comm"))
		if err == nil && filepath.Base(process) != "self" && !isSelf(process) {
			programs = append(programs, strings.TrimSpace(string(comm)))
		}
	}
	table, err := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == path {
			mounts = append(mounts, f[1])
		}
	}
	return programs, mounts, err
}

func isSelf(process string) bool {
	self, err := os.Readlink("/proc/self")
	return err == nil && self == filepath.Base(process)
}
