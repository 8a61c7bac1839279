package media

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// blockSize returns the size of the block device fd in bytes (BLKGETSIZE64).
// The ioctl writes 64 bits on every architecture, whatever the size of an int.
func blockSize(fd int) (uint64, error) {
	var size uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return 0, errno
	}
	return size, nil
}
