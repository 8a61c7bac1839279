//go:build lab && vm && linux

package vmlab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// isoDrive is the id of the drive that takes the Kubernetes ISO.
const isoDrive = "iso"

// doorPatience bounds the wait for a guest that has locked the door. It is told that somebody pressed the button, and opens
// the door itself, as soon as it has looked at what is in.
const doorPatience = 30 * time.Second

// tray is the drive's tray, which the guest moves too.
type tray struct {
	mu    sync.Mutex
	moved chan struct{} // closed, and replaced, when it moves
}

// take learns of the tray's moves from qemu's events.
func (t *tray) take(r qmpReply) {
	if r.Event != "DEVICE_TRAY_MOVED" {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	close(t.moved)
	t.moved = make(chan struct{})
}

// next is closed at the next move.
func (t *tray) next() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.moved
}

// Insert puts an image into the drive in place of what is in, and returns how often the guest refused it first.
func (v *VM) Insert(ctx context.Context, image string) (refused int, err error) {
	refused, err = v.door(ctx, "blockdev-change-medium",
		map[string]any{"id": isoDrive, "filename": image, "format": "raw", "read-only-mode": "read-only"})
	if err != nil {
		err = fmt.Errorf("cannot insert %s: %w", image, err)
	}
	return refused, err
}

// Eject takes the medium out, without force, and returns how often the guest refused that first. The tray stays open.
func (v *VM) Eject(ctx context.Context) (refused int, err error) {
	refused, err = v.door(ctx, "eject", map[string]any{"id": isoDrive})
	if err != nil {
		err = fmt.Errorf("cannot eject: %w", err)
	}
	return refused, err
}

// CloseTray closes the tray of the empty drive.
func (v *VM) CloseTray(ctx context.Context) error {
	return v.monitor.do(ctx, "blockdev-close-tray", map[string]any{"id": isoDrive})
}

// door runs a command that needs the tray open. Where the guest has locked it, the command is tried again when the tray has
// moved, and not earlier: each try is a press of the button, and the guest answers each.
func (v *VM) door(ctx context.Context, command string, args any) (refused int, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, doorPatience, fmt.Errorf("the guest does not open the door within %v", doorPatience))
	defer cancel()
	for ; ; refused++ {
		moved := v.tray.next()
		err := v.monitor.do(ctx, command, args)
		no, said := errors.AsType[*qmpError](err)
		if !said || !strings.Contains(no.Desc, "locked") {
			return refused, err
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return refused, context.Cause(ctx)
		}
	}
}
