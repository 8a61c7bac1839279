//go:build lab

package source_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
)

// frozenMount mounts dir's content by fuseiso, a FUSE server that can be frozen,
// as the server of an NFS mount can. It returns the mount point and the server.
func frozenMount(t *testing.T, dir string) (string, *os.Process) {
	t.Helper()
	genisoimage, fuseiso := tool(t, "genisoimage"), tool(t, "fuseiso")
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("mounting needs root")
		}
		t.Skip("mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "outer.iso")
	if b, err := exec.Command(genisoimage, "-quiet", "-R", "-o", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("genisoimage: %v\n%s", err, b)
	}
	point := t.TempDir()
	cmd := exec.Command(fuseiso, image, point, "-f")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGCONT)
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
			t.Errorf("cannot unmount %s: %v", point, err)
		}
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	for range 200 {
		if list, err := os.ReadDir(point); err == nil && len(list) > 0 {
			return point, cmd.Process
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatal("fuseiso has not mounted the image")
	return "", nil
}

// stopped reports whether no thread of the process runs any more: state T of
// proc_pid_stat(5).
func stopped(t *testing.T, pid int) bool {
	t.Helper()
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range threads {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
			return false
		}
	}
	return len(threads) > 0
}

// TestLabHungMount freezes the server of a mount in the middle: reads, opens and
// stats of files there end in time, others go on, and when the server comes back
// nothing is lost.
func TestLabHungMount(t *testing.T) {
	dir := t.TempDir()
	names := []string{"a.iso", "b.iso", "c.iso", "d.iso", "e.iso", "f.iso", "g.iso", "h.iso"}
	for _, name := range names {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 8<<20), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	point, server := frozenMount(t, dir)
	const timeout = 500 * time.Millisecond
	o := newOpener(t, source.Options{Timeout: timeout})
	open, err := o.Open(t.Context(), filepath.Join(point, "a.iso"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open.ReadAt(make([]byte, 2048), 32<<10); err != nil {
		t.Fatal(err)
	}
	time.Sleep(1500 * time.Millisecond) // what the kernel keeps of attributes and names is good for 1 s
	if err := server.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for i := 0; !stopped(t, server.Pid); i++ { // a busy machine takes its time
		if i == 400 {
			t.Fatal("the server of the mount has not stopped")
		}
		time.Sleep(25 * time.Millisecond)
	}

	within := func(what string, err error, start time.Time, limit time.Duration) {
		t.Helper()
		wantCode(t, err, reason.SourceStalled)
		if d := time.Since(start); d > limit {
			t.Errorf("%s took %v", what, d)
		}
	}
	start := time.Now()
	_, err = open.ReadAt(make([]byte, 2048), 6<<20)
	within("reading", err, start, 4*timeout)
	start = time.Now()
	within("closing", open.Close(), start, 4*timeout)
	start = time.Now()
	_, err = o.Identify(t.Context(), filepath.Join(point, "b.iso"))
	within("identifying", err, start, 4*timeout)
	start = time.Now()
	for _, name := range names {
		_, err := o.Open(t.Context(), filepath.Join(point, name))
		wantCode(t, err, reason.SourceStalled)
	}
	within("opening all", err, start, 4*timeout) // two of them wait, the rest is refused at once
	if got := o.Lost(); got != 4 {
		t.Errorf("got %d lost workers, want 4", got)
	}
	other := filepath.Join(dir, "a.iso")
	s, err := o.Open(t.Context(), other)
	if err != nil {
		t.Fatalf("a file elsewhere: %v", err)
	}
	if _, err := s.ReadAt(make([]byte, 2048), 1<<20); err != nil {
		t.Errorf("a file elsewhere: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	if err := server.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for i := 0; o.Lost() > 0; i++ {
		if i == 200 {
			t.Fatalf("%d workers have not come back", o.Lost())
		}
		time.Sleep(25 * time.Millisecond)
	}
	s, err = o.Open(t.Context(), filepath.Join(point, "a.iso"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.ReadAt(make([]byte, 2048), 6<<20); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestLabBlockDevice reads a loop device.
func TestLabBlockDevice(t *testing.T) {
	losetup := tool(t, "losetup")
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("a loop device needs root")
		}
		t.Skip("a loop device needs root")
	}
	iso := cloudStackISO(t, 3, 4096, "-J", "-R", "-l")
	b, err := exec.Command(losetup, "--find", "--show", "--read-only", iso).Output()
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("losetup: %v", err)
		}
		t.Skipf("no loop device to be had: %v", err)
	}
	dev := string(b[:len(b)-1])
	defer exec.Command(losetup, "--detach", dev).Run()
	info, err := os.Stat(iso)
	if err != nil {
		t.Fatal(err)
	}
	o := newOpener(t, source.Options{})
	s, err := o.Open(t.Context(), dev)
	if err != nil {
		t.Fatal(err)
	}
	if s.Size() != info.Size() {
		t.Errorf("got %d bytes, want %d", s.Size(), info.Size())
	}
	p := make([]byte, 5)
	if _, err := s.ReadAt(p, 32<<10+1); err != nil || string(p) != "CD001" {
		t.Errorf("read %q, error %v", p, err)
	}
	id, err := o.Identify(t.Context(), dev)
	if err != nil || id != s.Identity() || id.Kind != source.KindDevice || id.Key() != "" {
		t.Errorf("Identify: got %+v and error %v, want %+v", id, err, s.Identity())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestLabDownloadFullDisk: what cannot fit is not begun, and what does not fit in
// the end leaves nothing.
func TestLabDownloadFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("mounting needs root")
		}
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/told.iso" {
			w.Header().Set("Content-Length", "4194304")
		}
		for range 64 {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	for _, name := range []string{"/told.iso", "/untold.iso"} {
		var written int64
		o := newOpener(t, source.Options{Download: true, TempDir: dir, Progress: func(_ string, n, _ int64) { written = n }})
		_, err := o.Open(t.Context(), server.URL+name)
		wantCode(t, err, reason.DownloadUnwritable)
		if name == "/told.iso" && written > 0 {
			t.Errorf("%d bytes were written of what does not fit", written)
		}
		st, err := os.ReadDir(dir)
		if err != nil || len(st) > 0 {
			t.Errorf("left: %v, error %v", st, err)
		}
		var free unix.Statfs_t
		if err := unix.Statfs(dir, &free); err != nil || free.Bfree != free.Blocks {
			t.Errorf("%d of %d blocks are free, error %v", free.Bfree, free.Blocks, err)
		}
	}
}
