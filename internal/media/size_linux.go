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

// A multisession is struct cdrom_multisession of linux/cdrom.h.
type multisession struct {
	lba        int32 // of union cdrom_addr
	xa         uint8 // lba is that of the last session
	addrFormat uint8
}

const (
	cdromMultisession = 0x5310 // CDROMMULTISESSION
	cdromLBA          = 1      // CDROM_LBA
)

// lastSession returns the sector where the last session of the disc in fd
// begins, which is the one that Linux mounts (fs/isofs/inode.c,
// isofs_get_last_session). It is 0 where nobody says otherwise: a disk has no
// sessions, and its driver does not know the question.
func lastSession(fd int) int64 {
	ms := multisession{addrFormat: cdromLBA}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), cdromMultisession, uintptr(unsafe.Pointer(&ms)))
	if errno != 0 || ms.xa == 0 || ms.lba < 0 {
		return 0
	}
	return int64(ms.lba)
}
