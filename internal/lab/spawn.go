//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// commandGrace is how long a cancelled command may take to clean up after itself before it is killed, and how long
// a dead one's pipes are read on when a child of its own still holds them.
const commandGrace = 10 * time.Second

// task is a command started from a thread of its own. Namespaces belong to threads, and so does the parent-death
// signal: the thread enters what it needs, starts the command, and lives exactly as long as the command does.
type task struct {
	cmd  *exec.Cmd
	done chan struct{} // closed once the command has been waited for
	err  error         // of cmd.Wait, valid after done
}

// spawn runs enter, then starts cmd, on a new thread. The thread ends with the command and is never used for
// anything else, so enter may change whatever belongs to it.
func spawn(cmd *exec.Cmd, enter func() error) (*task, error) {
	t := &task{cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	onThread(func() {
		if err := enter(); err != nil {
			started <- err
			return
		}
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		started <- nil
		t.err = cmd.Wait()
		close(t.done)
	})
	if err := <-started; err != nil {
		return nil, err
	}
	return t, nil
}

// stay is the enter function of commands that run where this program does.
func stay() error { return nil }

// inThread runs f on a thread that ends afterwards, so f may change the thread's namespaces.
func inThread(f func() error) error {
	done := make(chan error, 1)
	onThread(func() { done <- f() })
	return <-done
}

// onThread runs f on a thread that ends with it, and returns at once. It is never the process's first thread, which Go
// cannot end, and whose namespaces are what /proc/self, and so /proc/net, shows to all others.
func onThread(f func()) {
	go func() {
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			f() // never unlocked: the thread ends with the goroutine
			return
		}
		defer runtime.UnlockOSThread()
		done := make(chan struct{})
		go func() { // on another thread, since this one is taken
			defer close(done)
			runtime.LockOSThread()
			f()
		}()
		<-done
	}()
}

// run runs cmd, made by exec.CommandContext, on this machine, with both its outputs to out. When its context is
// cancelled it gets SIGTERM and time to clean up (mmdebstrap); when this process dies it gets SIGTERM too.
func run(cmd *exec.Cmd, out io.Writer) error {
	return runFrom(stay, cmd, out)
}

func runFrom(enter func() error, cmd *exec.Cmd, out io.Writer) error {
	cmd.Stdout, cmd.Stderr = out, out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = commandGrace
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	t, err := spawn(cmd, enter)
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("%w (internal/lab/deps.sh installs it)", err)
	}
	if err != nil {
		return err
	}
	<-t.done
	return t.err
}

// netns is a network namespace without a name. It is gone when its last process and this descriptor are.
type netns struct{ fd int }

// newNetns makes a network namespace in which only the loopback interface exists, down.
func newNetns() (*netns, error) {
	n := &netns{fd: -1}
	err := inThread(func() (err error) {
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return err
		}
		n.fd, err = unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return n, nil
}

// enter moves the calling thread into the namespace.
func (n *netns) enter() error {
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("cannot enter the lab's network namespace: %w", err)
	}
	return nil
}

// ip runs iproute2's ip with one command a line in the namespace of the calling thread after enter.
func ip(ctx context.Context, enter func() error, commands ...string) error {
	var out limitedBuffer
	cmd := exec.CommandContext(ctx, "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if err := runFrom(enter, cmd, &out); err != nil {
		return fmt.Errorf("cannot set up the lab's network: %w: %s", err, lastLines(out.b, 2))
	}
	return nil
}

func (n *netns) close() error { return unix.Close(n.fd) }

// outputLimit bounds what is kept of a command's output. No test looks at more; a runaway one must not eat the machine.
const outputLimit = 16 << 20

// limitedBuffer keeps the first outputLimit bytes written to it and takes the rest without an error.
type limitedBuffer struct{ b []byte }

func (l *limitedBuffer) Write(p []byte) (int, error) {
	l.b = append(l.b, p[:min(len(p), outputLimit-len(l.b))]...)
	return len(p), nil
}

// self is the program that runs now, also when its file has been replaced or removed (go test does).
const self = "/proc/self/exe"
