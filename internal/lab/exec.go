//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// hostPath is where programs are looked for in a host, as systemd does for its units.
const hostPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// Command is a program to run in a host, as root, with no terminal, in a session of its own, with an environment that
// holds only PATH, HOME and what Env adds.
type Command struct {
	Args   []string
	Env    []string  // NAME=value
	Dir    string    // "": /
	Stdin  io.Reader // nil: nothing
	Stdout io.Writer // gets the output as it comes, besides Result; may be nil
	Stderr io.Writer
}

// Result is what a finished program left. Of each output the first 16 MiB are kept.
type Result struct {
	Stdout string
	Stderr string
	Exit   int            // exit status; 128 + Signal when a signal ended it, as a shell says it
	Signal syscall.Signal // 0: it exited
}

// Exec runs a program in the host and waits for it. A program that could not be started, or that ctx ended (with all
// its process group), is an error; a non-zero exit status is none.
func (h *Host) Exec(ctx context.Context, args ...string) (Result, error) {
	return h.Run(ctx, Command{Args: args})
}

// Run is Exec with more to say.
func (h *Host) Run(ctx context.Context, c Command) (Result, error) {
	p, err := h.Start(ctx, c)
	if err != nil {
		return Result{}, err
	}
	return p.Wait()
}

// Must is Exec for a program whose failure the caller has no use for: a non-zero exit status is an error that holds
// the last lines of what it wrote. It returns standard output.
func (h *Host) Must(ctx context.Context, args ...string) (string, error) {
	r, err := h.Exec(ctx, args...)
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("host %s: %s: exit status %d: %s", h.name, strings.Join(args, " "), r.Exit, lastLines([]byte(r.Stdout+r.Stderr), 3))
	}
	return r.Stdout, err
}

// Start starts a program in the host. It runs until it ends, ctx does, or the host does.
func (h *Host) Start(ctx context.Context, c Command) (*Proc, error) {
	p, err := h.start(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("cannot run %s in host %s: %w", strings.Join(c.Args, " "), h.name, err)
	}
	return p, nil
}

func (h *Host) start(ctx context.Context, c Command) (*Proc, error) {
	if len(c.Args) == 0 {
		return nil, errors.New("nothing to run")
	}
	h.mu.Lock()
	defer h.mu.Unlock() // until it runs, so that bury does not take the descriptors away
	if h.down() {
		return nil, ErrHostDown
	}
	cmd := exec.CommandContext(ctx, "./"+c.Args[0]) // the path is looked up in the host, below
	cmd.Args, cmd.Stdin, cmd.Dir = c.Args, c.Stdin, c.Dir
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	cmd.Env = append([]string{"PATH=" + hostPath, "HOME=/root"}, c.Env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(h.cgroup.Fd())}
	enter := func() error {
		if err := h.enter(); err != nil {
			return err
		}
		var err error
		cmd.Path, err = lookPath(c.Args[0])
		return err
	}
	return start(ctx, cmd, enter, c.Stdout, c.Stderr)
}

// enter moves the calling thread into the host's namespaces. What it starts from then on runs in the host, as a child
// of this process: with a process id to signal and an exit status to collect.
func (h *Host) enter() error {
	// A thread may enter a mount namespace only when it shares its root and working directory with no other.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return err
	}
	const all = unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWCGROUP
	if err := unix.Setns(h.pidfd, all); err != nil {
		return fmt.Errorf("cannot enter its namespaces: %w", err)
	}
	return nil
}

// lookPath finds a program on hostPath, in the calling thread's root.
func lookPath(name string) (string, error) {
	if strings.Contains(name, "/") {
		return name, nil
	}
	for _, dir := range filepath.SplitList(hostPath) {
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0 {
			return p, nil
		}
	}
	return "", &fs.PathError{Op: "exec", Path: name, Err: fs.ErrNotExist}
}

// Proc is a program that runs in a host.
type Proc struct {
	task           *task
	cause          error // why its context ended it, nil if it did not; valid after task.done
	stdout, stderr limitedBuffer
}

// start spawns cmd, made by exec.CommandContext with ctx, with its output kept and copied to the writers that are not nil.
func start(ctx context.Context, cmd *exec.Cmd, enter func() error, stdout, stderr io.Writer) (*Proc, error) {
	p := &Proc{}
	cmd.Stdout, cmd.Stderr = io.Writer(&p.stdout), io.Writer(&p.stderr)
	if stdout != nil {
		cmd.Stdout = io.MultiWriter(&p.stdout, stdout)
	}
	if stderr != nil {
		cmd.Stderr = io.MultiWriter(&p.stderr, stderr)
	}
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	}
	cmd.Cancel = func() error {
		p.cause = context.Cause(ctx)
		return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // with what it has started
	}
	cmd.WaitDelay = commandGrace
	var err error
	p.task, err = spawn(cmd, enter)
	return p, err
}

// PID returns the program's process id as this machine sees it.
func (p *Proc) PID() int { return p.task.cmd.Process.Pid }

// Kill sends the program, and nothing that it has started, a signal. It returns os.ErrProcessDone when it has ended.
func (p *Proc) Kill(sig syscall.Signal) error { return p.task.cmd.Process.Signal(sig) }

// PeakMemory returns the most resident memory the program has had so far, in bytes. It must still run: getrusage,
// which could be asked afterwards, counts the memory of whoever started it too.
func (p *Proc) PeakMemory() (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kb, err := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(v), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, os.ErrProcessDone
}

// Done is closed when the program has ended.
func (p *Proc) Done() <-chan struct{} { return p.task.done }

// Wait waits for the program's end. It may be called more than once. The error is that of a context that ended it, or
// of an output that could not be copied.
func (p *Proc) Wait() (Result, error) {
	<-p.task.done
	state := p.task.cmd.ProcessState
	r := Result{Stdout: string(p.stdout.b), Stderr: string(p.stderr.b)}
	if state != nil {
		r.Exit = state.ExitCode()
		if ws, ok := state.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			r.Signal = ws.Signal()
			r.Exit = 128 + int(r.Signal)
		}
	}
	err := p.task.err
	if p.cause != nil {
		return r, fmt.Errorf("%s was killed: %w", p.task.cmd.Args[0], p.cause)
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) || errors.Is(err, exec.ErrWaitDelay) {
		err = nil // told by Exit; a child that keeps the output open is no fault of the program's
	}
	return r, err
}

// Journal returns the host's journal of this boot for a unit ("" for all), one "time unit[pid]: message" a line.
func (h *Host) Journal(ctx context.Context, unit string) (string, error) {
	args := []string{"journalctl", "--no-pager", "--quiet", "--boot", "--output=short-precise"}
	if unit != "" {
		args = append(args, "--unit="+unit)
	}
	return h.Must(ctx, args...)
}
