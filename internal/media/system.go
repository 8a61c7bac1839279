package media

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
)

// Errors with which a system says that there is nothing to read. Any other
// error means that it cannot be told what is there.
var (
	errNoMedium = errors.New("no medium")
	errNoDevice = errors.New("no device")
)

// A system is the machine the finder looks at.
type system interface {
	// devices lists the block devices that have a node, each once, by path.
	devices() ([]device, error)

	// openDevice opens d for reading. It fails with errNoMedium when the drive
	// is empty, and with errNoDevice when the node is gone, has no device
	// behind it or is another device by now.
	openDevice(d device) (disk, error)

	// mounts lists the mounted ISO 9660 file systems.
	mounts() ([]mount, error)

	// openMount opens the root directory of m. It fails with errNoDevice when
	// m is not what its mount point shows by now.
	openMount(m mount) (tree, error)
}

// A devnum is a device number.
type devnum struct{ major, minor uint32 }

func (n devnum) String() string { return fmt.Sprintf("%d:%d", n.major, n.minor) }

// A device is a block device with a node.
type device struct {
	path  string
	num   devnum
	drive bool // takes media: an optical drive, or removable by what sysfs says
}

// A disk is an open block device. Its reads fail with errNoMedium when the
// medium is gone, and with the system's error number otherwise.
type disk interface {
	io.ReaderAt
	io.Closer
	size() int64    // bytes; -1 when unknown
	session() int64 // sector where the last session begins; 0 when nothing says otherwise
}

// A mount is a mounted ISO 9660 file system.
type mount struct {
	point string
	num   devnum // of the device, or of the anonymous one of a FUSE file system
}

// A tree is the open root directory of a mounted file system.
type tree interface {
	fs.StatFS
	io.Closer
}
