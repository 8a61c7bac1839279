//go:build lab && linux

package lab

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"

	"golang.org/x/sys/unix"
)

// drive is a block device of a host whose medium can be changed while it is in use: one loop device for its whole life,
// read-only, of which the backing file is exchanged. An empty drive is backed by an empty file: it can be opened, its
// size is 0 and a read is at the end at once. (A real empty drive fails to open with ENOMEDIUM; nothing that the lab can
// make does.)
//
// The loop device is marked to clear itself when it is closed for the last time, and loop is the descriptor that keeps
// it: should this process die, the device is free.
type drive struct {
	node  string
	loop  *os.File
	minor uint32
	blank *os.File // the backing file of the empty drive, in the host's directory
	full  bool     // a medium is in
	size  int64    // of the medium's backing file
}

var nodeName = regexp.MustCompile(`^[a-z][a-z0-9]{0,14}$`)

// AddDrive gives the host an empty drive, seen as /dev/NODE: "sr0", "vdb". A drive of that name that is there already
// is left as it is.
func (h *Host) AddDrive(node string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := h.drive(node)
	return err
}

// InsertCD puts an image into the host's drive, in place of the medium that is in it, if any. The drive is added when it
// is not there. The image file must not be changed while it is in.
func (h *Host) InsertCD(node, image string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.drive(node)
	if err != nil {
		return err
	}
	f, err := os.Open(image)
	if err != nil {
		return err
	}
	defer f.Close() // the loop device holds it now
	if err := d.insert(f); err != nil {
		return fmt.Errorf("cannot insert %s into %s of host %s: %w", image, node, h.name, err)
	}
	return nil
}

// InsertDamagedCD is InsertCD of a copy of the image, of which every read at or past offset good (a multiple of 4096)
// fails with EIO.
func (h *Host) InsertDamagedCD(node, image string, good int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d, err := h.drive(node)
	if err != nil {
		return err
	}
	f, err := unnamedCopy(image, h.dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := d.insert(f); err != nil {
		return fmt.Errorf("cannot insert %s into %s of host %s: %w", image, node, h.name, err)
	}
	// The device keeps its size; what the file has no longer cannot be read.
	if err := f.Truncate(good); err != nil {
		return err
	}
	d.size = good
	return d.dropCaches()
}

// EjectCD takes the medium out of the drive, at once, whoever has it open: a reader finds the end of the device.
// The drive and its node stay.
func (h *Host) EjectCD(node string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.drives[node]
	if d == nil {
		return fmt.Errorf("host %s has no drive %s", h.name, node)
	}
	if err := d.eject(); err != nil {
		return fmt.Errorf("cannot eject %s of host %s: %w", node, h.name, err)
	}
	return nil
}

// RemoveDrive takes the drive and its node away.
func (h *Host) RemoveDrive(node string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.drives[node]
	if d == nil {
		return fmt.Errorf("host %s has no drive %s", h.name, node)
	}
	delete(h.drives, node)
	var err error
	if !h.down() {
		err = os.Remove(h.nodePath(node))
	}
	return errors.Join(err, d.eject(), d.close())
}

// nodePath is a device node of the running host as this machine reaches it. Called with h.mu held.
func (h *Host) nodePath(node string) string {
	return fmt.Sprintf("/proc/%d/root/dev/%s", h.task.cmd.Process.Pid, node)
}

// drive returns the drive of that name, new if need be. Called with h.mu held.
func (h *Host) drive(node string) (*drive, error) {
	if d := h.drives[node]; d != nil {
		return d, nil
	}
	if !nodeName.MatchString(node) {
		return nil, fmt.Errorf("%q is no name for a device node", node)
	}
	if h.down() {
		return nil, ErrHostDown
	}
	d, err := newDrive(node, h.dir)
	if err != nil {
		return nil, fmt.Errorf("cannot add drive %s to host %s: %w", node, h.name, err)
	}
	if err := d.makeNode(h.nodePath(node)); err != nil {
		return nil, errors.Join(err, d.close())
	}
	h.drives[node] = d
	return d, nil
}

// remakeNodes makes the drives' nodes after a boot: /dev is new.
func (h *Host) remakeNodes() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.drives {
		if err := d.makeNode(h.nodePath(d.node)); err != nil {
			return err
		}
	}
	return nil
}

// loopMajor is the major number of loop devices (Linux, Documentation/admin-guide/devices.txt).
const loopMajor = 7

func (d *drive) makeNode(path string) error {
	const cdromGroup = 24 // in every Debian: base-passwd
	if err := unix.Mknod(path, unix.S_IFBLK|0o600, int(unix.Mkdev(loopMajor, d.minor))); err != nil {
		return fmt.Errorf("cannot make the device node %s: %w", d.node, err)
	}
	return errors.Join(os.Chown(path, 0, cdromGroup), os.Chmod(path, 0o660)) // whatever the umask is
}

func newDrive(node, dir string) (*drive, error) {
	blank, err := os.CreateTemp(dir, "drive-"+node+"-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(blank.Name()); err != nil {
		return nil, errors.Join(err, blank.Close())
	}
	loop, minor, err := attachLoop(blank)
	if err != nil {
		return nil, errors.Join(err, blank.Close())
	}
	return &drive{node: node, loop: loop, minor: minor, blank: blank}, nil
}

// attachLoop binds a free loop device to the backing file.
func attachLoop(backing *os.File) (*os.File, uint32, error) {
	control, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, 0, err
	}
	defer control.Close()
	for {
		n, err := unix.IoctlRetInt(int(control.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, 0, fmt.Errorf("no free loop device: %w", err)
		}
		loop, err := openLoop(n)
		if err != nil {
			return nil, 0, err
		}
		c := unix.LoopConfig{Fd: uint32(backing.Fd())}
		c.Info.Flags = unix.LO_FLAGS_READ_ONLY | unix.LO_FLAGS_AUTOCLEAR
		err = unix.IoctlLoopConfigure(int(loop.Fd()), &c)
		if err == nil {
			return loop, uint32(n), nil
		}
		loop.Close()
		if !errors.Is(err, unix.EBUSY) { // EBUSY: another process was quicker
			return nil, 0, fmt.Errorf("cannot set up a loop device: %w", err)
		}
	}
}

// openLoop opens loop device n, whose node it makes where nobody does (a container without devtmpfs).
func openLoop(n int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if !errors.Is(err, os.ErrNotExist) {
		return f, err
	}
	if err := unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(loopMajor, uint32(n)))); err != nil {
		return nil, err
	}
	return os.OpenFile(path, os.O_RDONLY, 0)
}

// insert makes f the medium. The kernel exchanges the file behind a loop device (LOOP_CHANGE_FD) only for one of the
// same size; so the empty file first grows to that size, which nobody sees until LOOP_SET_CAPACITY says to look.
func (d *drive) insert(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Size() < 512 {
		return errors.New("it is smaller than a block")
	}
	if err := d.eject(); err != nil {
		return err
	}
	if err := d.blank.Truncate(fi.Size()); err != nil {
		return err
	}
	if err := d.exchange(f); err != nil {
		return errors.Join(err, d.blank.Truncate(0))
	}
	d.full, d.size = true, fi.Size()
	return d.setCapacity()
}

// eject undoes insert, the other way round: a hole of the medium's size takes its place, then shrinks to nothing.
func (d *drive) eject() error {
	if !d.full {
		return nil
	}
	if err := d.blank.Truncate(d.size); err != nil {
		return err
	}
	if err := d.exchange(d.blank); err != nil {
		return err
	}
	d.full = false
	if err := d.blank.Truncate(0); err != nil {
		return err
	}
	return d.setCapacity()
}

// loopChangeFD is LOOP_CHANGE_FD of linux/loop.h, which x/sys lacks.
const loopChangeFD = 0x4C06

func (d *drive) exchange(f *os.File) error {
	if err := unix.IoctlSetInt(int(d.loop.Fd()), loopChangeFD, int(f.Fd())); err != nil {
		return fmt.Errorf("cannot exchange the medium: %w", err)
	}
	return d.dropCaches()
}

func (d *drive) setCapacity() error {
	if err := unix.IoctlSetInt(int(d.loop.Fd()), unix.LOOP_SET_CAPACITY, 0); err != nil {
		return fmt.Errorf("cannot set the device's size: %w", err)
	}
	return d.dropCaches()
}

// dropCaches makes the next read of the device a read of the medium.
func (d *drive) dropCaches() error {
	if err := unix.IoctlSetInt(int(d.loop.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("cannot drop the device's cache: %w", err)
	}
	return nil
}

// close frees the loop device as soon as nobody else has it open.
func (d *drive) close() error { return errors.Join(d.loop.Close(), d.blank.Close()) }

// unnamedCopy copies a file into one without a name in dir, which is gone when it is closed.
func unnamedCopy(path, dir string) (_ *os.File, err error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer src.Close()
	dst, err := os.OpenFile(filepath.Clean(dir), unix.O_TMPFILE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(dst, src); err != nil {
		return nil, errors.Join(err, dst.Close())
	}
	return dst, nil
}
