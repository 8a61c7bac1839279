//go:build lab && linux

package lab

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// RequireRoot skips the test where it does not run as root. Where CI is set it fails instead: a run in which nothing was
// tested must not look like one in which all was well.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root: namespaces and loop devices (CI is set, so this is a failure)")
	}
	t.Skip("needs root: namespaces and loop devices")
}

// UpT is Up for a test, which is skipped without root. The lab is closed at the test's end; one that does not close
// cleanly fails the test.
func UpT(t testing.TB) *Lab {
	t.Helper()
	RequireRoot(t)
	l, err := Up(t.Context(), Options{Log: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// StartT starts a host for a test and waits until it has booted. When the test fails, the end of the host's journal goes
// to the test's log.
func StartT(t testing.TB, l *Lab, o HostOptions) *Host {
	t.Helper()
	began := time.Now()
	h, err := l.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the lab's own, which stops the host
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		journal, err := h.Journal(ctx, "")
		t.Logf("journal of %s (error: %v):\n%s", o.Name, err, strings.ReplaceAll(lastLines([]byte(journal), 40), " | ", "\n"))
	})
	if err := h.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("host %s booted in %.1f s", o.Name, time.Since(began).Seconds())
	return h
}

// mountEnv names the test that the process was started for, within a mount namespace of its own.
const mountEnv = "CKS_LAB_MOUNT_TEST"

// InMountNamespace reports whether the test runs in a private mount namespace. When it does not, it runs the test again in
// one: the mounts end with that process. It needs root, as RequireRoot says.
func InMountNamespace(t *testing.T) bool {
	t.Helper()
	if os.Getenv(mountEnv) == t.Name() {
		return true
	}
	RequireRoot(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), mountEnv+"="+t.Name())
	// Unshareflags, unlike Cloneflags, makes the copied mounts private.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+t.Name()) {
		t.Fatalf("in a mount namespace: %v\n%s", err, out)
	}
	t.Logf("%s", out)
	return false
}

// MountT mounts a new file system on a new directory until the test's end, and returns its path.
func MountT(t testing.TB, fstype string, flags uintptr, data string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount(fstype, dir, fstype, flags, data); err != nil {
		t.Fatalf("mount %s: %v", fstype, err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}
