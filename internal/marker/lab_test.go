//go:build linux && lab

package marker

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
)

func TestLabReadOnlyHome(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "size=64k")
	path := filepath.Join(dir, "etcd-setup-failed")
	if err := Write(path, "old"); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"Write":                    Write(path, "new"),
		"Remove":                   Remove(path),
		"WriteState":               WriteState(filepath.Join(dir, "state.json"), failed()),
		"WriteState, no directory": WriteState(filepath.Join(dir, "sub", "state.json"), failed()),
	} {
		if !errors.Is(err, unix.EROFS) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%s: got %v, want EROFS with the path", what, err)
		}
	}
	wantMarker(t, path, "old")
	// Nothing to remove is success, also where nothing could be removed.
	if err := Remove(filepath.Join(dir, "absent")); err != nil {
		t.Errorf("Remove of what is absent: %v", err)
	}
}

// TestLabFullHome: a disk that is full keeps the old content, whole, and no
// temporary file.
func TestLabFullHome(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "size=16k")
	path := filepath.Join(dir, "state.json")
	if err := WriteState(path, failed()); err != nil {
		t.Fatal(err)
	}
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, bytes.Repeat([]byte("x"), 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("got %v, want a full disk", err)
	}
	ready := failed()
	ready.Result, ready.Code = ResultReady, ""
	if err := WriteState(path, ready); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want ENOSPC", err)
	}
	got, err := ReadState(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(failed(), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"filler", "state.json"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

// TestLabMarkerIsMount: what is mounted at the marker's path cannot be replaced,
// and says so instead of being written to.
func TestLabMarkerIsMount(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "marker")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(victim, path, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	if err := Write(path, "why"); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Write: got %v, want EBUSY", err)
	}
	if err := Remove(path); !errors.Is(err, unix.EBUSY) {
		t.Errorf("Remove: got %v, want EBUSY", err)
	}
	wantVictim(t, victim)
	if diff := cmp.Diff([]string{"marker"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}
