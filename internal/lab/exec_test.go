//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestLabExec(t *testing.T) {
	l := UpT(t)
	h := StartT(t, l, HostOptions{Name: "h"})
	ctx := t.Context()

	t.Run("result", func(t *testing.T) {
		var stream bytes.Buffer
		r, err := h.Run(ctx, Command{
			Args:  []string{"sh", "-c", `cat; pwd; echo $X; echo oops >&2; exit 3`},
			Env:   []string{"X=y"},
			Dir:   "/etc",
			Stdin: strings.NewReader("in\n"), Stdout: &stream,
		})
		want := Result{Stdout: "in\n/etc\ny\n", Stderr: "oops\n", Exit: 3}
		if err != nil || r != want {
			t.Errorf("Run = %+v, %v; want %+v", r, err, want)
		}
		if stream.String() != want.Stdout {
			t.Errorf("streamed %q, want %q", stream.String(), want.Stdout)
		}
	})

	t.Run("own namespaces", func(t *testing.T) {
		out, err := h.Must(ctx, "sh", "-c", "hostname; cat /proc/1/comm; ls /sys/class/net; tr '\\0' '\\n' </proc/self/environ")
		want := "h\nsystemd\neth0\nlo\nPATH=" + hostPath + "\nHOME=/root\n"
		if err != nil || out != want {
			t.Errorf("Must = %q, %v; want %q", out, err, want)
		}
	})

	t.Run("not there", func(t *testing.T) {
		for _, name := range []string{"no-such-program", "/no/such/program"} {
			if _, err := h.Exec(ctx, name); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("Exec(%s) = %v, want fs.ErrNotExist", name, err)
			}
		}
		if _, err := h.Must(ctx, "sh", "-c", "echo why >&2; exit 1"); err == nil || !strings.Contains(err.Error(), "why") {
			t.Errorf("Must of a failure = %v, want an error that says why", err)
		}
	})

	t.Run("signal", func(t *testing.T) {
		p, err := h.Start(ctx, Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		// Right after its start it has few of its pages.
		var n int64
		for deadline := time.Now().Add(10 * time.Second); n < 100<<10 && time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			if n, err = p.PeakMemory(); err != nil {
				t.Fatal(err)
			}
		}
		if n < 100<<10 || n > 100<<20 {
			t.Errorf("PeakMemory of sleep = %d", n)
		}
		if err := p.Kill(syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		r, err := p.Wait()
		if err != nil || r.Signal != syscall.SIGKILL || r.Exit != 137 {
			t.Errorf("Wait = %+v, %v; want SIGKILL, 137", r, err)
		}
	})

	t.Run("context", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, err := h.Exec(short, "sh", "-c", "sleep 7654 & sleep 7654")
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Exec past its deadline = %v, want context.DeadlineExceeded", err)
		}
		// The shell was waited for; its child has the same signal, and a moment to die of it.
		gone := "for i in $(seq 100); do pgrep -fx 'sleep 7654' || exit 0; sleep 0.1; done; exit 1"
		if r, err := h.Exec(ctx, "sh", "-c", gone); err != nil || r.Exit != 0 {
			t.Errorf("what it started is still there: %+v, %v", r, err)
		}
	})

	t.Run("host dies", func(t *testing.T) {
		other := StartT(t, l, HostOptions{Name: "other"})
		p, err := other.Start(ctx, Command{Args: []string{"sleep", "1000"}})
		if err != nil {
			t.Fatal(err)
		}
		other.Kill()
		if r, err := p.Wait(); err != nil || r.Signal != syscall.SIGKILL {
			t.Errorf("Wait = %+v, %v; want SIGKILL", r, err)
		}
		if err := other.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
}

func TestLabFiles(t *testing.T) {
	l := UpT(t)
	h := StartT(t, l, HostOptions{Name: "h"})
	ctx := t.Context()

	if err := h.WriteFile("/opt/new/dir/x", []byte("text"), 0o640); err != nil {
		t.Fatal(err)
	}
	if got := readT(t, h, "/opt/new/dir/x"); got != "text" {
		t.Errorf("ReadFile = %q, want text", got)
	}
	if fi, err := h.Lstat("/opt/new/dir/x"); err != nil || fi.Mode() != 0o640 {
		t.Errorf("Lstat = %v, %v; want mode 0640", fi, err)
	}
	if _, err := h.ReadFile("/no/such"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("ReadFile of nothing = %v, want fs.ErrNotExist", err)
	}
	// An absolute link leads to the host's file, not to the machine's.
	if _, err := h.Must(ctx, "ln", "-s", "/etc/hostname", "/opt/link"); err != nil {
		t.Fatal(err)
	}
	if got := readT(t, h, "/opt/link"); got != "h\n" {
		t.Errorf("ReadFile through a link = %q, want the host's name", got)
	}
	if fi, err := h.Lstat("/opt/link"); err != nil || fi.Mode().Type() != fs.ModeSymlink {
		t.Errorf("Lstat of a link = %v, %v", fi, err)
	}
	if err := h.WriteFile("/opt/link", []byte("own"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got := readT(t, h, "/etc/hostname"); got != "h\n" {
		t.Errorf("WriteFile went through a link: its target holds %q", got)
	}
	if _, err := h.Must(ctx, "mkfifo", "/opt/fifo"); err != nil {
		t.Fatal(err)
	}
	if got, err := h.ReadFile("/opt/fifo"); err != nil || len(got) > 0 {
		t.Errorf("ReadFile of a FIFO = %q, %v; want nothing", got, err)
	}

	if err := h.MountTmpfs(ctx, "/opt/small", 1<<20); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/opt/small/big", make([]byte, 2<<20), 0o644); err == nil || !strings.Contains(err.Error(), "No space left") {
		t.Errorf("2 MiB on a tmpfs of 1 MiB: %v, want no space left", err)
	}
	if err := h.Unmount(ctx, "/opt/small"); err != nil {
		t.Error(err)
	}
	if err := h.Remount(ctx, "/opt/new", "ro"); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/opt/new/dir/y", nil, 0o644); err == nil || !strings.Contains(err.Error(), "Read-only") {
		t.Errorf("writing below a read-only mount: %v", err)
	}
	if err := h.MountTmpfs(ctx, "/opt/noexec", 0, "noexec"); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/opt/noexec/run", []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Exec(ctx, "/opt/noexec/run"); !errors.Is(err, unix.EACCES) {
		t.Errorf("running from a noexec mount: %v, want EACCES", err)
	}
}

func TestLabFreeze(t *testing.T) {
	l := UpT(t)
	h := StartT(t, l, HostOptions{Name: "h"})
	if err := h.Freeze(); err != nil {
		t.Fatal(err)
	}
	// sshd cannot greet while it is frozen; the kernel still takes the connection.
	conn, err := l.Dial(t.Context(), "tcp", h.IP()+":22")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	banner := make([]byte, 4)
	conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	if n, err := conn.Read(banner); err == nil {
		t.Errorf("a frozen host answered %q", banner[:n])
	}
	if err := h.Thaw(); err != nil {
		t.Fatal(err)
	}
	conn.SetReadDeadline(time.Now().Add(30 * time.Second))
	if _, err := conn.Read(banner); err != nil || string(banner) != "SSH-" {
		t.Errorf("a thawed host answered %q, %v; want SSH-", banner, err)
	}
}
