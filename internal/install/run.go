//go:build linux

package install

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

const (
	// runTimeout bounds one Run. etcd prints its version in milliseconds; a cold
	// and emulated machine may need seconds.
	runTimeout = 20 * time.Second

	// outputLimit is how much of each of a program's outputs is kept. A version
	// is under 200 bytes; the rest of a flood is read and thrown away, so that the
	// program does not hang on a full pipe.
	outputLimit = 64 << 10

	// pipeWait is how long outputs are read on after the program and its process
	// group are dead, in case a process that left the group holds them open.
	pipeWait = time.Second

	// busyAttempts and busyPause bound the wait for ETXTBSY to go away: a child
	// that another goroutine is about to start holds every descriptor of this
	// process, also those for writing, between its fork and its exec.
	busyAttempts = 20
	busyPause    = 10 * time.Millisecond

	// maxInterp is the longest path of a dynamic loader that is named in a
	// message; the kernel's own limit is PATH_MAX.
	maxInterp = 4096
)

// Run runs the staged binary name and returns what it printed on its standard
// output, at most 64 KiB. It finds out what only an attempt can: a directory
// mounted noexec, a security module, a missing loader, a CPU too old.
//
// The program runs in the stage directory with an environment of its own (no
// ETCD_ variable of the caller's, no LD_PRELOAD), in its own process group, which is
// killed when the program ends, when ctx ends, after 20 s, and when this process
// dies. ETCD_UNSUPPORTED_ARCH is set: whether etcd likes the architecture is
// for the unit to settle, which may set it too.
//
// Codes: bin-noexec when the kernel forbids the program, bin-cannot-run when it
// cannot be loaded, exits with another status than 0, dies of a signal or does not end in time.
func (s *Stage) Run(ctx context.Context, name string, args ...string) (stdout string, err error) {
	f := s.files[name]
	if f == nil {
		return "", reason.New(reason.InstallFailed, "cannot run %s: it is not staged", name)
	}
	if err := f.complete(); err != nil {
		return "", err
	}
	what := strings.Join(append([]string{name}, args...), " ")
	own, cancel := context.WithTimeout(ctx, s.timeout)
	defer cancel()

	var out, errs head
	status, err := s.start(own, name, args, &out, &errs)
	switch {
	case err != nil && own.Err() == nil:
		return "", f.cannotStart(what, err)
	case errors.Is(ctx.Err(), context.Canceled):
		return "", stopped(ctx, "run "+what)
	case own.Err() != nil:
		return "", reason.New(reason.BinCannotRun, "%s did not end in time%s", what, said(&errs, &out))
	case status.Signaled():
		return "", reason.New(reason.BinCannotRun, "%s was killed by %s%s", what, signalName(status.Signal()), said(&errs, &out))
	case status.ExitStatus() != 0:
		return "", reason.New(reason.BinCannotRun, "%s ended with exit status %d%s", what, status.ExitStatus(), said(&errs, &out))
	}
	return string(out.b), nil
}

// start runs the program to its end. An error means that it did not start;
// when ctx ends its process group is killed.
func (s *Stage) start(ctx context.Context, name string, args []string, stdout, stderr io.Writer) (syscall.WaitStatus, error) {
	// Pdeathsig is sent when the thread that forked ends, not the process.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	var cmd *exec.Cmd
	for attempt := 1; ; attempt++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		cmd = &exec.Cmd{
			Path:        filepath.Join(s.Dir(), name),
			Args:        append([]string{name}, args...),
			Dir:         s.Dir(),
			Env:         []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C", "HOME=/", "ETCD_UNSUPPORTED_ARCH=" + runtime.GOARCH},
			Stdout:      stdout,
			Stderr:      stderr,
			WaitDelay:   pipeWait,
			SysProcAttr: &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL},
		}
		err := cmd.Start()
		if err == nil {
			break
		}
		if !errors.Is(err, unix.ETXTBSY) || attempt >= busyAttempts {
			return 0, err
		}
		select {
		case <-ctx.Done():
		case <-time.After(busyPause):
		}
	}

	// The group is only killed while its leader is not reaped: until then its
	// number cannot belong to anybody else.
	killGroup := func() { unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { killGroup(); close(killed) })
	awaitExit(cmd.Process.Pid)
	if !stop() {
		<-killed
	}
	killGroup() // what the program left behind

	err := cmd.Wait()
	if cmd.ProcessState == nil {
		return 0, err
	}
	// A failed copy of the output (exec.ErrWaitDelay) does not change how the
	// program ended.
	status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus)
	return status, nil
}

// awaitExit returns when the child pid has ended, and leaves it to be reaped.
func awaitExit(pid int) {
	// Whatever else Waitid says, there is nothing to wait for.
	_ = unixfs.Retry(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
}

// cannotStart says why the kernel did not run the binary.
func (f *File) cannotStart(what string, err error) error {
	dir := f.stage.binDir
	var pe *fs.PathError
	switch {
	case errors.As(err, &pe) && pe.Path == os.DevNull: // the program's standard input
		return reason.New(reason.InstallFailed, "cannot run %s: %w", what, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		if st, err := unixfs.Statfs(f.stage.Dir()); err == nil && st.Flags&unix.ST_NOEXEC != 0 {
			return reason.New(reason.BinNoExec, "%s is on a file system mounted noexec", dir)
		}
		return reason.New(reason.BinNoExec, "cannot run %s in %s: %w, though its file system allows programs: a security module (SELinux, AppArmor, fapolicyd) may forbid it", what, dir, errnoOf(err))
	case errors.Is(err, unix.ENOENT):
		if loader := f.loader(); loader != "" {
			return reason.New(reason.BinCannotRun, "%s needs the dynamic loader %s, which is missing", what, loader)
		}
		if _, err := f.stage.dir.Lstat(f.name); err != nil {
			return reason.New(reason.InstallFailed, "cannot run %s: the staged file is gone", what)
		}
		return reason.New(reason.BinCannotRun, "the dynamic loader or interpreter of %s is missing", what)
	case errors.Is(err, unix.ENOEXEC):
		return reason.New(reason.BinCannotRun, "%s is not a program for this machine (%s): %w", what, runtime.GOARCH, unix.ENOEXEC)
	case errors.Is(err, unix.ELIBBAD), errors.Is(err, unix.EINVAL):
		return reason.New(reason.BinCannotRun, "%s is a damaged program, or its dynamic loader %s is: %w", what, f.loader(), errnoOf(err))
	}
	// A lack of memory, processes or descriptors says nothing about the binary.
	return reason.New(reason.InstallFailed, "cannot run %s: %w", what, errnoOf(err))
}

// loader returns the path in the binary's PT_INTERP segment (System V ABI,
// "Program Interpreter"), or "" when it has none.
func (f *File) loader() string {
	e, err := elf.NewFile(f)
	if err != nil {
		return ""
	}
	for _, p := range e.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz <= maxInterp {
			b, err := io.ReadAll(p.Open())
			if err != nil {
				return ""
			}
			return reason.Line(strings.TrimRight(string(b), "\x00"))
		}
	}
	return ""
}

// signalName names a signal, with what it means for a program that should only
// print its version.
func signalName(sig syscall.Signal) string {
	name := unix.SignalName(sig)
	if name == "" {
		name = fmt.Sprintf("signal %d", int(sig))
	}
	switch sig {
	case unix.SIGILL:
		return name + ": it uses an instruction that this CPU does not have"
	case unix.SIGSYS:
		return name + ": a seccomp filter forbids a system call it makes"
	case unix.SIGKILL:
		return name + ": out of memory?"
	}
	return name
}

// said returns ": " and the first line that a program printed, on its error
// output if it printed there, or "".
func said(outputs ...*head) string {
	for _, o := range outputs {
		for line := range strings.Lines(string(o.b)) {
			if line = reason.Line(line); line != "" {
				return ": " + line
			}
		}
	}
	return ""
}

// head keeps the first outputLimit bytes that are written to it.
type head struct{ b []byte }

func (h *head) Write(p []byte) (int, error) {
	h.b = append(h.b, p[:min(len(p), outputLimit-len(h.b))]...)
	return len(p), nil
}
