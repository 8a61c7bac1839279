//go:build linux

package marker

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

// wantMarker checks the marker's content, kind, mode and owner.
func wantMarker(t *testing.T, path, want string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		t.Fatal(err)
	}
	if st.Mode != unix.S_IFREG|0o644 || int(st.Uid) != os.Geteuid() || st.Nlink != 1 {
		t.Errorf("got mode %#o, uid %d, %d links, want a regular file of ours with 0644", st.Mode, st.Uid, st.Nlink)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(b) != want+"\n" {
		t.Errorf("got %q, want %q and a line break", b, want)
	}
	if got, err := Read(path); err != nil || got != want {
		t.Errorf("Read: got %q, %v, want %q", got, err, want)
	}
}

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// obstacles are things that may sit at the marker's path.
var obstacles = []struct {
	name  string
	place func(path, victim string) error
	aside bool // it is moved aside, not replaced
}{
	{"nothing", func(path, _ string) error { return nil }, false},
	{"old marker", func(path, _ string) error { return os.WriteFile(path, []byte("long ago\n"), 0o600) }, false},
	{"read-only file", func(path, _ string) error { return os.WriteFile(path, nil, 0) }, false},
	{"link to a file", func(path, victim string) error { return os.Symlink(victim, path) }, false},
	{"hard link", func(path, victim string) error { return os.Link(victim, path) }, false},
	{"link to a directory", func(path, victim string) error { return os.Symlink(filepath.Dir(victim), path) }, false},
	{"dangling link", func(path, victim string) error { return os.Symlink(victim+"-new", path) }, false},
	{"link to itself", func(path, _ string) error { return os.Symlink(path, path) }, false},
	{"fifo", func(path, _ string) error { return unix.Mkfifo(path, 0o666) }, false},
	{"socket", func(path, _ string) error {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			return err
		}
		l.SetUnlinkOnClose(false)
		return l.Close()
	}, false},
	{"empty directory", func(path, _ string) error { return os.Mkdir(path, 0) }, true},
	{"full directory", func(path, _ string) error { return os.MkdirAll(filepath.Join(path, "a", "b"), 0o755) }, true},
}

func TestWriteOverObstacles(t *testing.T) {
	for _, tt := range obstacles {
		t.Run(tt.name, func(t *testing.T) {
			dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			path := filepath.Join(dir, "etcd-setup-failed")
			if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := tt.place(path, victim); err != nil {
				t.Fatal(err)
			}
			umask := unix.Umask(0o777) // the mode does not depend on it
			err := Write(path, "etcd archive missing:\n /dev/sr0 ")
			unix.Umask(umask)
			if err != nil {
				t.Fatal(err)
			}
			wantMarker(t, path, "etcd archive missing: /dev/sr0")
			wantVictim(t, victim)
			left := names(t, dir)
			if tt.aside {
				if len(left) != 2 || !strings.HasPrefix(left[1], "etcd-setup-failed"+asideInfix) {
					t.Errorf("got %q, want the marker and what was moved aside", left)
				}
			} else if diff := cmp.Diff([]string{"etcd-setup-failed"}, left); diff != "" {
				t.Errorf("directory (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRemoveObstacles(t *testing.T) {
	for _, tt := range obstacles {
		t.Run(tt.name, func(t *testing.T) {
			dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			path := filepath.Join(dir, "etcd-setup-failed")
			if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := tt.place(path, victim); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time it is absent
				if err := Remove(path); err != nil {
					t.Fatal(err)
				}
				if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("got %v, want that nothing is there", err)
				}
			}
			wantVictim(t, victim)
			if left := names(t, dir); tt.aside != (len(left) == 1) {
				t.Errorf("got %q left, want something only where it was moved aside", left)
			}
		})
	}
	if err := Remove(filepath.Join(t.TempDir(), "no", "such", "marker")); err != nil {
		t.Errorf("in a missing directory: %v", err)
	}
}

func TestReadObstacles(t *testing.T) {
	readable := map[string]string{"old marker": "long ago", "hard link": "precious", "read-only file": ""}
	for _, tt := range obstacles {
		t.Run(tt.name, func(t *testing.T) {
			dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
			path := filepath.Join(dir, "etcd-setup-failed")
			if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
				t.Fatal(err)
			}
			if err := tt.place(path, victim); err != nil {
				t.Fatal(err)
			}
			if tt.name == "read-only file" {
				os.Chmod(path, 0o444)
			}
			got, err := Read(path)
			want, ok := readable[tt.name]
			if got != want || (err == nil) != ok {
				t.Errorf("Read: got %q, %v, want %q", got, err, want)
			}
			if absent := errors.Is(err, fs.ErrNotExist); absent != (tt.name == "nothing") {
				t.Errorf("Read: got %v, want fs.ErrNotExist only where nothing is", err)
			}
			if _, err := ReadState(path); err == nil {
				t.Error("ReadState: got no error")
			} else if absent := errors.Is(err, fs.ErrNotExist); absent != (tt.name == "nothing") {
				t.Errorf("ReadState: got %v, want fs.ErrNotExist only where nothing is", err)
			}
		})
	}
}

func TestReadIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "huge")
	if err := os.WriteFile(path, []byte("why\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil { // sparse
		t.Fatal(err)
	}
	if got, err := Read(path); err != nil || got != "why" {
		t.Errorf("Read: got %q, %v, want why", got, err)
	}
	if _, err := ReadState(path); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("ReadState: got %v, want that it is too large", err)
	}
}

func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(t.TempDir(), "home")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, path, want string }{
		{"missing directory", filepath.Join(dir, "cloud", "marker"), "no such file or directory"},
		{"linked directory", filepath.Join(link, "marker"), "is a symbolic link"},
		{"directory is a file", filepath.Join(file, "marker"), "not a directory"},
		{"root", "/", "does not name a file"},
		{"dot", ".", "does not name a file"},
		{"empty", "", "does not name a file"},
		{"name too long", filepath.Join(dir, strings.Repeat("x", 256)), "too long"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Write(tt.path, "why")
			if err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), tt.path) {
				t.Errorf("got %v, want %q and the path in it", err, tt.want)
			}
			if strings.Contains(fmt.Sprint(err), tempPrefix) {
				t.Errorf("got %v, want no temporary name in it", err)
			}
		})
	}
	if diff := cmp.Diff([]string{"file"}, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

func TestWriteWithoutReason(t *testing.T) {
	path := filepath.Join(t.TempDir(), "marker")
	if err := Write(path, " \n"); err != nil {
		t.Fatal(err)
	}
	wantMarker(t, path, noReason)
}

func TestWriteWithoutRights(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o555); err != nil {
		t.Fatal(err)
	}
	var err error
	asUser(t, func() { err = Write(filepath.Join(dir, "marker"), "why") })
	if !errors.Is(err, fs.ErrPermission) {
		t.Errorf("got %v, want a permission error", err)
	}
}

func TestLongNameMovedAside(t *testing.T) {
	path := filepath.Join(t.TempDir(), strings.Repeat("x", 255))
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, "why"); err != nil {
		t.Fatal(err)
	}
	wantMarker(t, path, "why")
}

func TestWriteRemovesStaleTemporaries(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * staleAge)
	make := func(name string, at time.Time) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, at, at); err != nil {
			t.Fatal(err)
		}
		return name
	}
	make(tempPrefix+"0123456789abcdef", old)
	want := []string{make(tempPrefix+"0123456789", old), make(tempPrefix+"fedcba9876543210", time.Now()), "marker"}
	if err := Write(filepath.Join(dir, "marker"), "why"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, names(t, dir)); diff != "" {
		t.Errorf("directory (-want +got):\n%s", diff)
	}
}

func TestWriteState(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "var", "lib", "etcd-nodeagent")
	path := filepath.Join(dir, "state.json")
	for _, want := range []State{failed(), failed()} {
		if err := WriteState(path, want); err != nil {
			t.Fatal(err)
		}
		got, err := ReadState(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	for p, want := range map[string]fs.FileMode{path: 0o644, dir: fs.ModeDir | 0o755, filepath.Dir(dir): fs.ModeDir | 0o755} {
		if info, err := os.Lstat(p); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want mode %v", p, info.Mode(), err, want)
		}
	}
	if err := WriteState(path, State{}); err == nil {
		t.Error("a state without a result: got no error")
	}
	if got, err := ReadState(path); err != nil || got.Code != reason.UnitFlapping {
		t.Errorf("got %v, %v, want the old state kept", got.Code, err)
	}
	if err := WriteState(filepath.Join(path, "x", "state.json"), failed()); err == nil {
		t.Error("below a file: got no error")
	}
}

// TestConcurrentWriters: a reader sees one writer's line or the other's, whole.
func TestConcurrentWriters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "marker")
	lines := []string{strings.Repeat("a", 900), strings.Repeat("b", 10)}
	if err := Write(path, lines[0]); err != nil {
		t.Fatal(err)
	}
	var writers sync.WaitGroup
	done := make(chan struct{})
	for _, line := range lines {
		writers.Go(func() {
			// Another writer between the rename and the look is a race like any other.
			for range 30 {
				if err := Write(path, line); err != nil && !errors.Is(err, errRaced) {
					t.Error(err)
				}
			}
		})
	}
	go func() { writers.Wait(); close(done) }()
	for reading := true; reading; {
		select {
		case <-done:
			reading = false
		default:
		}
		if got, err := Read(path); err != nil || got != lines[0] && got != lines[1] {
			t.Fatalf("got %q, %v, want one of the lines", got, err)
		}
	}
	if left := names(t, filepath.Dir(path)); len(left) != 1 {
		t.Errorf("got %q, want the marker alone", left)
	}
}

// TestHostileOwner: the directory's owner exchanges the marker and every
// temporary file he sees for links and directories while the marker is written.
func TestHostileOwner(t *testing.T) {
	const rounds = 200
	home, outside := t.TempDir(), t.TempDir()
	victim := filepath.Join(outside, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o640); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		for _, d := range []string{filepath.Dir(home), filepath.Dir(outside)} {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chown(home, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(home, "etcd-setup-failed")

	stop, attacks := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		asUser(t, func() {
			for {
				select {
				case <-stop:
					return
				default:
					n += attack(home, path, victim)
				}
			}
		})
		attacks <- n
	}()
	won, lost := 0, 0
	for range rounds {
		switch err := Write(path, "etcd archive missing"); {
		case err == nil:
			won++
		case errors.Is(err, errRaced):
			lost++
		default:
			t.Errorf("got %v, want success or that somebody interferes", err)
		}
	}
	close(stop)
	n := <-attacks
	t.Logf("%d writes succeeded, %d lost all their attempts, against %d exchanges", won, lost, n)
	if n == 0 {
		t.Error("the attacker never exchanged anything, so nothing was tested")
	}
	wantVictim(t, victim)
	if diff := cmp.Diff([]string{"victim"}, names(t, outside)); diff != "" {
		t.Errorf("outside the directory (-want +got):\n%s", diff)
	}
	// Once he is quiet the marker is there.
	if err := Write(path, "etcd archive missing"); err != nil {
		t.Fatal(err)
	}
	wantMarker(t, path, "etcd archive missing")
}

// attack does what an owner can do to his directory, and returns how many names
// it exchanged.
func attack(home, path, victim string) (exchanged int) {
	os.RemoveAll(path)
	if os.Symlink(victim, path) == nil {
		exchanged++
	}
	d, err := os.Open(home)
	if err != nil {
		return exchanged
	}
	defer d.Close()
	found, _ := d.Readdirnames(-1)
	for i, name := range found {
		full := filepath.Join(home, name)
		switch {
		case strings.HasPrefix(name, tempPrefix) && os.Remove(full) == nil:
			if i%2 == 0 && os.Symlink(victim, full) == nil || i%2 == 1 && os.Mkdir(full, 0o700) == nil {
				exchanged++
			}
		case strings.Contains(name, asideInfix):
			os.RemoveAll(full)
		}
	}
	os.Remove(path)
	if os.Mkdir(path, 0o700) == nil {
		exchanged++
	}
	return exchanged
}

const nobody = 65534

// asUser runs f, on a thread of its own, with the rights of an unprivileged
// user when the test runs as root: setfsuid(2) is per thread and drops the
// capabilities over files. The thread ends with f.
func asUser(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		var err error
		if os.Geteuid() == 0 {
			_, err = unix.SetfsuidRetUid(nobody)
			if now, _ := unix.SetfsuidRetUid(-1); err == nil && now != nobody {
				err = fmt.Errorf("file system uid is %d", now)
			}
		}
		if err == nil {
			f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Errorf("cannot become an unprivileged user: %v", err)
	}
}

func wantVictim(t *testing.T, victim string) {
	t.Helper()
	info, err := os.Lstat(victim)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" || info.Mode() != 0o640 {
		t.Errorf("the link's target: got %q, mode %v, %v, want it untouched", b, info.Mode(), err)
	}
}
