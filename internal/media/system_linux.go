package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/unixfs"
)

const (
	// maxDevices bounds the device nodes that are looked at, and with them
	// the threads that hanging reads can hold. A node has some tens at most;
	// where there are more, drives go first.
	maxDevices = 256

	// maxSize is the largest size that is believed. An empty drive, or one
	// between two media, may report any number.
	maxSize = 1 << 50

	// staleFrom and staleLen is the part of a device whose cached pages are
	// dropped at open: volume descriptors and, on most images, directories.
	staleFrom, staleLen = 32 << 10, 1 << 20

	// Major numbers of Documentation/admin-guide/devices.txt.
	majorFloppy = 2
	majorSCSICD = 11 // sr
)

// opticalName matches the names of optical drives. They count besides the
// major number because a container's /dev/sr0 may be any block device.
var opticalName = regexp.MustCompile(`^(sr|scd|cdrom|dvd)[0-9]*$`)

// A host is the Linux machine this program runs on.
type host struct{ dev, sys, mountInfo string }

// devices walks the nodes below /dev rather than the devices of sysfs: what has
// no node cannot be opened, and in a container the two do not agree on names.
// Directories that are file systems of their own (pts, shm) hold no devices.
// Floppies are left out: the ISO does not fit, and an absent drive takes many
// seconds to say so.
func (h host) devices() ([]device, error) {
	var top unix.Stat_t
	if err := unix.Stat(h.dev, &top); err != nil {
		return nil, fmt.Errorf("cannot list block devices: %w", &fs.PathError{Op: "stat", Path: h.dev, Err: err})
	}
	byNum := make(map[devnum]device)
	err := filepath.WalkDir(h.dev, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			if p == h.dev {
				return err
			}
			return nil // vanished, or not ours to read
		}
		if !e.IsDir() && e.Type()&fs.ModeType != fs.ModeDevice {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		switch {
		case !ok:
			return nil
		case e.IsDir() && uint64(st.Dev) != uint64(top.Dev):
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		num := numOf(uint64(st.Rdev))
		if num.major == majorFloppy {
			return nil
		}
		d := device{path: p, num: num}
		if have, ok := byNum[num]; !ok || betterName(d, have) {
			byNum[num] = d
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list block devices: %w", err)
	}
	list := make([]device, 0, len(byNum))
	for _, d := range byNum {
		d.drive = d.optical() || h.removable(d.num)
		list = append(list, d)
	}
	byPath := func(a, b device) int { return strings.Compare(a.path, b.path) }
	slices.SortFunc(list, func(a, b device) int {
		if a.drive != b.drive {
			if a.drive {
				return -1
			}
			return +1
		}
		return byPath(a, b)
	})
	list = list[:min(len(list), maxDevices)]
	slices.SortFunc(list, byPath)
	return list, nil
}

func numOf(dev uint64) devnum { return devnum{unix.Major(dev), unix.Minor(dev)} }

func (d device) optical() bool {
	return d.num.major == majorSCSICD || opticalName.MatchString(path.Base(d.path))
}

// betterName reports whether a is the name of the two that a person would know
// the device by.
func betterName(a, b device) bool {
	if ao, bo := opticalName.MatchString(path.Base(a.path)), opticalName.MatchString(path.Base(b.path)); ao != bo {
		return ao
	}
	if len(a.path) != len(b.path) {
		return len(a.path) < len(b.path)
	}
	return a.path < b.path
}

// removable reads the attribute of that name (Documentation/ABI/stable/sysfs-block).
// Without it, as in a container or for a partition, the device takes no media.
func (h host) removable(n devnum) bool {
	b, err := os.ReadFile(filepath.Join(h.sys, "dev/block", n.String(), "removable"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

// openDevice opens with O_NONBLOCK, so that an empty drive opens too, its tray
// is not pulled in, and its door is not locked while it is read. The kernel
// checks for a changed medium at each open of a drive and drops what it had
// cached of the last one. Other devices keep their cache while anybody has
// them open, so the part that identifies the medium is dropped here.
func (h host) openDevice(d device) (disk, error) {
	var fd int
	err := unixfs.Retry(func() (err error) {
		fd, err = unix.Open(d.path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ENOMEDIUM):
		return nil, errNoMedium
	case errors.Is(err, unix.ENXIO), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ELOOP):
		return nil, fmt.Errorf("%w: %w", errNoDevice, err)
	case err != nil:
		return nil, &fs.PathError{Op: "open", Path: d.path, Err: err}
	}
	b := &blockDisk{fd: fd}
	if err := b.check(d); err != nil {
		b.Close()
		return nil, err
	}
	b.start = lastSession(fd)
	// A hint: where it fails, the kernel's own rules hold.
	_ = unix.Fadvise(fd, staleFrom, staleLen, unix.FADV_DONTNEED)
	return b, nil
}

type blockDisk struct {
	fd    int
	bytes int64
	start int64 // sector of the last session
}

// Answers to CDROM_DRIVE_STATUS (linux/cdrom.h).
const (
	cdromDriveStatus = 0x5326
	cdslCurrent      = 1<<31 - 1 // CDSL_CURRENT: the slot in use
	cdsNoDisc        = 1
	cdsTrayOpen      = 2
	cdsNotReady      = 3 // a medium is being taken in
)

// check makes sure that b is d and has a medium, and finds its size. The drive
// is asked for its status first: without a disc, its size is nonsense and its
// reads fail with EIO like those of a bad one.
func (b *blockDisk) check(d device) error {
	var st unix.Stat_t
	if err := unix.Fstat(b.fd, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: d.path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFBLK || numOf(uint64(st.Rdev)) != d.num {
		return fmt.Errorf("%w: %s is another one now", errNoDevice, d.path)
	}
	if d.drive {
		status, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(b.fd), cdromDriveStatus, cdslCurrent)
		if errno == 0 && (status == cdsNoDisc || status == cdsTrayOpen || status == cdsNotReady) {
			return errNoMedium
		}
	}
	size, err := blockSize(b.fd)
	switch {
	case errors.Is(err, unix.ENOMEDIUM):
		return errNoMedium
	case errors.Is(err, unix.ENXIO):
		return errNoDevice
	case err != nil, size > maxSize:
		b.bytes = -1
	case size == 0:
		return errNoMedium
	default:
		b.bytes = int64(size)
	}
	return nil
}

func (b *blockDisk) size() int64    { return b.bytes }
func (b *blockDisk) session() int64 { return b.start }

func (b *blockDisk) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		var m int
		err := unixfs.Retry(func() (err error) {
			m, err = unix.Pread(b.fd, p[n:], off+int64(n))
			return err
		})
		switch {
		case errors.Is(err, unix.ENOMEDIUM):
			return n, errNoMedium
		case err != nil:
			return n, err
		case m == 0:
			return n, io.EOF
		}
		n += m
	}
	return n, nil
}

func (b *blockDisk) Close() error { return unix.Close(b.fd) }

// mounts lists the iso9660 file systems of the kernel and of fuseiso that are
// mounted with their root directory, one for each device.
func (h host) mounts() ([]mount, error) {
	f, err := os.Open(h.mountInfo)
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	defer f.Close()
	infos, err := mountinfo.GetMountsFromReader(f, func(i *mountinfo.Info) (skip, stop bool) {
		iso := i.FSType == "iso9660" || i.FSType == "fuse.fuseiso" || i.FSType == "fuse.iso9660"
		return !iso || i.Root != "/", false
	})
	if err != nil {
		return nil, fmt.Errorf("cannot list mounts: %w", err)
	}
	var list []mount
	for _, i := range infos {
		m := mount{point: i.Mountpoint, num: devnum{uint32(i.Major), uint32(i.Minor)}}
		known := slices.ContainsFunc(list, func(o mount) bool { return o.num == m.num })
		if !known && len(list) < maxDevices {
			list = append(list, m)
		}
	}
	return list, nil
}

type mountTree struct {
	fs.StatFS
	root *os.Root
}

func (t mountTree) Close() error { return t.root.Close() }

func (h host) openMount(m mount) (tree, error) {
	root, err := os.OpenRoot(m.point)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errNoDevice, err)
	}
	if err != nil {
		return nil, err
	}
	info, err := root.Stat(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || numOf(uint64(st.Dev)) != m.num {
		root.Close()
		return nil, fmt.Errorf("%w: %s shows another file system", errNoDevice, m.point)
	}
	tr, ok := root.FS().(fs.StatFS)
	if !ok {
		root.Close()
		return nil, fmt.Errorf("cannot read %s: %w", m.point, errors.ErrUnsupported)
	}
	return mountTree{tr, root}, nil
}
