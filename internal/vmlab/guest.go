//go:build lab && vm && linux

package vmlab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/vmlab/wire"
)

// ErrGone is returned for a VM whose channel is closed.
var ErrGone = errors.New("the VM is gone")

// guest is the channel to the program in the VM.
type guest struct {
	conn io.ReadWriteCloser
	done chan struct{} // closed when nothing can come any more

	mu      sync.Mutex // guards what follows, and writing to conn
	nextID  int
	waiting map[int]chan wire.Reply
	boot    string        // the boot id of the program that spoke last, "" before the first
	booted  chan struct{} // closed, and replaced, when one says that it has started
}

func newGuest(conn io.ReadWriteCloser) *guest {
	g := &guest{conn: conn, done: make(chan struct{}), waiting: make(map[int]chan wire.Reply), booted: make(chan struct{})}
	go g.read()
	return g
}

// read hands out replies until the channel is closed.
func (g *guest) read() {
	defer close(g.done)
	in := json.NewDecoder(g.conn)
	for {
		var r wire.Reply
		if in.Decode(&r) != nil {
			return
		}
		g.mu.Lock()
		if r.ID == 0 {
			g.boot = r.Boot
			close(g.booted)
			g.booted = make(chan struct{})
		} else if c := g.waiting[r.ID]; c != nil {
			delete(g.waiting, r.ID)
			c <- r // has room
		}
		g.mu.Unlock()
	}
}

// ask sends a request and waits for the reply.
func (g *guest) ask(ctx context.Context, q wire.Request) (wire.Reply, error) {
	c := make(chan wire.Reply, 1)
	g.mu.Lock()
	g.nextID++
	q.ID = g.nextID
	g.waiting[q.ID] = c
	err := json.NewEncoder(g.conn).Encode(q)
	g.mu.Unlock()
	if err != nil {
		return wire.Reply{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	select {
	case r := <-c:
		if r.Err != "" {
			return r, errors.New(r.Err)
		}
		return r, nil
	case <-g.done:
		return wire.Reply{}, ErrGone
	case <-ctx.Done():
		return wire.Reply{}, context.Cause(ctx)
	}
}

// WaitBoot waits until the VM has booted so far that it can be asked, in another boot than the one with the id before, and
// returns this boot's id.
func (v *VM) WaitBoot(ctx context.Context, before string) (string, error) {
	g := v.guest
	for {
		g.mu.Lock()
		boot, booted := g.boot, g.booted
		g.mu.Unlock()
		if boot != "" && boot != before {
			return boot, nil
		}
		select {
		case <-booted:
		case <-g.done:
			return "", ErrGone
		case <-ctx.Done():
			return "", fmt.Errorf("waiting for the VM to boot: %w", context.Cause(ctx))
		}
	}
}

// execPatience bounds a program in the VM. The agent's whole setup is among them.
const execPatience = 5 * time.Minute

// Exec runs a program in the VM, as root.
func (v *VM) Exec(ctx context.Context, args ...string) (wire.Output, error) {
	r, err := v.guest.ask(ctx, wire.Request{Exec: &wire.Exec{Args: args, Timeout: execPatience}})
	if err != nil {
		return wire.Output{}, fmt.Errorf("cannot run %s: %w", strings.Join(args, " "), err)
	}
	return *r.Exec, nil
}

// Await waits until a path exists in the VM.
func (v *VM) Await(ctx context.Context, path string, patience time.Duration) error {
	_, err := v.guest.ask(ctx, wire.Request{Await: &wire.Await{Path: path, Timeout: patience}})
	return err
}

// Drive asks the VM's kernel about a drive.
func (v *VM) Drive(ctx context.Context, q wire.Drive) (wire.DriveState, error) {
	r, err := v.guest.ask(ctx, wire.Request{Drive: &q})
	if err != nil {
		return wire.DriveState{}, fmt.Errorf("cannot ask the drive %s: %w", q.Path, err)
	}
	return *r.Drive, nil
}

// List lists a directory of the VM with all files' sums.
func (v *VM) List(ctx context.Context, dir string) ([]wire.File, error) {
	r, err := v.guest.ask(ctx, wire.Request{List: &wire.List{Path: dir}})
	return r.List, err
}

// Events returns the kernel's events about drives since the VM booted.
func (v *VM) Events(ctx context.Context) ([]wire.Event, error) {
	r, err := v.guest.ask(ctx, wire.Request{Events: &wire.Events{}})
	return r.Events, err
}

// Uptime returns how long the VM's kernel has run, in seconds.
func (v *VM) Uptime(ctx context.Context) (float64, error) {
	r, err := v.guest.ask(ctx, wire.Request{Events: &wire.Events{}})
	return r.Uptime, err
}
