//go:build vm && linux

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/vmlab/wire"
)

// recorder keeps the kernel's events about optical drives.
type recorder struct {
	mu   sync.Mutex
	seen []wire.Event
}

// kernelGroup is the multicast group of the kernel's own events; udev's are in group 2.
const kernelGroup = 1

func (r *recorder) start() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
	if err != nil {
		return fmt.Errorf("cannot listen to the kernel's events: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: kernelGroup}); err != nil {
		unix.Close(fd)
		return fmt.Errorf("cannot listen to the kernel's events: %w", err)
	}
	go func() { // lives as long as the program
		buf := make([]byte, 16<<10)
		for {
			n, _, err := unix.Recvfrom(fd, buf, 0)
			if err != nil {
				continue // ENOBUFS: some are lost
			}
			r.take(string(buf[:n]))
		}
	}()
	return nil
}

// take keeps a message, "action@devpath" and then variables, each ended by a NUL byte, if it is about a drive.
func (r *recorder) take(msg string) {
	vars := map[string]string{}
	for _, f := range strings.Split(msg, "\x00") {
		if k, v, ok := strings.Cut(f, "="); ok {
			vars[k] = v
		}
	}
	if vars["SUBSYSTEM"] != "block" || !strings.HasPrefix(vars["DEVNAME"], "sr") {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, wire.Event{Uptime: uptime(), Vars: vars})
}

func (r *recorder) all() []wire.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := slices.Clone(r.seen)
	for i := range out {
		out[i].Vars = maps.Clone(out[i].Vars)
	}
	return out
}
