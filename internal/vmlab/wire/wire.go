// Package wire is what goes over the channel between a test and the program that runs for it in a VM: one JSON value after
// the other, requests in, replies out, in any order.
package wire

import "time"

// Port is the channel's name, which qemu gives the virtio port.
const Port = "cks.lab"

// Request is one thing to do in the VM. Exactly one of the pointers is set.
type Request struct {
	ID     int
	Exec   *Exec   `json:",omitempty"`
	Await  *Await  `json:",omitempty"`
	Drive  *Drive  `json:",omitempty"`
	List   *List   `json:",omitempty"`
	Events *Events `json:",omitempty"`
}

// Reply is the answer to the request with that ID. A reply with ID 0 is sent once each time the program starts.
type Reply struct {
	ID     int
	Err    string `json:",omitempty"`
	Boot   string `json:",omitempty"` // the boot id, in a reply with ID 0
	Exec   *Output
	Drive  *DriveState
	List   []File
	Events []Event
	Uptime float64 // of the VM when it was sent, in seconds
}

// Exec runs a program as root with no input.
type Exec struct {
	Args    []string
	Timeout time.Duration
}

// Output of a program that has ended.
type Output struct {
	Stdout, Stderr string
	Exit           int // -1: it could not be run, or a signal ended it
}

// Await waits until a path exists.
type Await struct {
	Path    string
	Timeout time.Duration
}

// Drive asks a drive about itself. With Hold it stays open afterwards; what Held of later answers says was read through
// that descriptor.
type Drive struct {
	Path string
	Hold bool
}

// DriveState is what the kernel says of a drive. Errors are names like "ENOMEDIUM", "" for none.
type DriveState struct {
	Open        string // of open(2) for reading
	Nonblock    string // of open(2) with O_NONBLOCK; what follows is through that descriptor
	Exclusive   string // of open(2) with O_NONBLOCK and O_EXCL: EBUSY when it is mounted
	Status      int    // CDROM_DRIVE_STATUS
	StatusErr   string
	Size        uint64 // BLKGETSIZE64, in bytes
	Session     int32  // CDROMMULTISESSION: sector of the last session
	SessionXA   bool
	SessionErr  string
	Read        string // of reading sector 16
	Volume      string // the volume id there
	Sum         string // of that sector
	Held        string // the same through the descriptor held since an earlier request
	HeldErr     string
	Holders     []string // programs that have it open, but the one that asks
	SysfsSize   string   // size of /sys/class/block, in sectors of 512 bytes
	MountPoints []string
}

// List walks a directory.
type List struct{ Path string }

// File is one file of a List.
type File struct {
	Path string // relative to the list's
	Type string // "file", "dir", "link", "other"
	Size int64  // of a file
	Sum  string // SHA-256 of a file's content
	Link string
	Mode uint32 // permissions
}

// Events asks for the kernel's events about drives since the program started.
type Events struct{}

// Event is an event of the kernel's.
type Event struct {
	Uptime float64 // when it was received, in seconds
	Vars   map[string]string
}
