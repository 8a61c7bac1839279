package watch

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"cks-etcd/internal/reason"
)

func listenAt(t *testing.T, path string) (*listener, error) {
	t.Helper()
	l, err := listen(t.Context(), Address{"unix", path}, new(atomic.Pointer[tls.Config]))
	if err == nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

func TestUnixSocketMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	if _, err := listenAt(t, path); err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := info.Mode(), os.ModeSocket|0o660; got != want {
		t.Errorf("mode %v, want %v", got, want)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(entries) != 1 {
		t.Errorf("something was left beside the socket: %v, %v", entries, err)
	}
}

func TestUnixSocketRemoved(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	l, err := listenAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("the socket is there after Close: %v", err)
	}
}

// TestUnixSocketStale: what a killed daemon left behind is replaced.
func TestUnixSocketStale(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	old, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	if _, err := listenAt(t, path); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

func TestUnixSocketInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	if _, err := listenAt(t, path); err != nil {
		t.Fatal(err)
	}
	_, err := listenAt(t, path)
	if reason.Of(err) != reason.ListenFailed || !strings.Contains(err.Error(), "another process listens there") {
		t.Errorf("got %v, want listen-failed", err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the first daemon cannot be reached any more: %v", err)
	} else {
		c.Close()
	}
}

// TestUnixSocketRace: of many that begin at once on a stale socket, one gets it.
func TestUnixSocketRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	old, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	old.Close()
	const n = 20
	results := make(chan error, n)
	for range n {
		go func() {
			l, err := listen(t.Context(), Address{"unix", path}, new(atomic.Pointer[tls.Config]))
			if err == nil {
				t.Cleanup(func() { l.Close() })
			}
			results <- err
		}()
	}
	won := 0
	for range n {
		err := <-results
		switch {
		case err == nil:
			won++
		case reason.Of(err) != reason.ListenFailed:
			t.Errorf("got %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d daemons listen, want 1", won)
	}
}

func TestUnixSocketLeavesOthersAlone(t *testing.T) {
	dir := t.TempDir()
	file, target := filepath.Join(dir, "file"), filepath.Join(dir, "link")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, target); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, target, dir} {
		if _, err := listenAt(t, path); reason.Of(err) != reason.ListenFailed {
			t.Errorf("%s: got %v, want listen-failed", path, err)
		}
	}
	if b, err := os.ReadFile(target); err != nil || string(b) != "mine" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	// One that another daemon put there later is not removed.
	path := filepath.Join(dir, "w.sock")
	l, err := listenAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := listenAt(t, path); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the other daemon's socket is gone: %v", err)
	} else {
		c.Close()
	}
}

func TestListenFails(t *testing.T) {
	if _, err := listenAt(t, filepath.Join(t.TempDir(), "none", "w.sock")); reason.Of(err) != reason.ListenFailed {
		t.Errorf("missing directory: got %v, want listen-failed", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, err = listen(t.Context(), Address{"tcp", taken.Addr().String()}, new(atomic.Pointer[tls.Config]))
	if reason.Of(err) != reason.ListenFailed {
		t.Errorf("address in use: got %v, want listen-failed", err)
	}
}

// TestConnectionsBounded: past the limit a connection waits, and gets its turn
// when another one ends.
func TestConnectionsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "w.sock")
	l, err := listenAt(t, path)
	if err != nil {
		t.Fatal(err)
	}
	l.slots = make(chan struct{}, 1)
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	for range 2 {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	first := <-accepted
	select {
	case <-accepted:
		t.Error("a second connection was accepted")
	default:
	}
	first.Close()
	first.Close() // frees one slot, not two
	second := <-accepted
	l.Close()
	if _, more := <-accepted; more {
		t.Error("accepted after Close")
	}
	second.Close()
}
