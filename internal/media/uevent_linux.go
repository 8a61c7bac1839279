package media

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// maxUevent is the size of the kernel's buffer for one event
// (UEVENT_BUFFER_SIZE, include/linux/kobject.h), with room for its header.
const maxUevent = 4 << 10

// kernelGroup is the multicast group of the kernel's own events. udev's, in
// group 2, come later and only where udev runs.
const kernelGroup = 1

// uevents yields a value after each kernel event of a block device, until ctx
// ends; values that nobody takes are merged into one. The events are hints
// that something may have changed: nothing in them is used, and a lost one is
// made up for by the re-scan. The channel is closed when no more can come.
func uevents(ctx context.Context) (<-chan struct{}, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return nil, fmt.Errorf("cannot open a socket for kernel events: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("cannot listen for kernel events: %w", err)
	}
	return listen(ctx, os.NewFile(uintptr(fd), "uevents")), nil
}

// listen reads events from f, which it closes when ctx ends or reading fails.
func listen(ctx context.Context, f *os.File) <-chan struct{} {
	hints := make(chan struct{}, 1)
	stop := context.AfterFunc(ctx, func() { f.SetReadDeadline(time.Unix(1, 0)) })
	go func() {
		defer close(hints)
		defer f.Close()
		defer stop()
		buf := make([]byte, maxUevent)
		for ctx.Err() == nil {
			n, err := f.Read(buf)
			switch {
			case errors.Is(err, unix.ENOBUFS):
				// The socket overran: what was lost may have been ours.
			case err != nil:
				return
			case !bytes.Contains(buf[:n], []byte("\x00SUBSYSTEM=block\x00")):
				continue
			}
			select {
			case hints <- struct{}{}:
			default:
			}
		}
	}()
	return hints
}
