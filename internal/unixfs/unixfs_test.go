//go:build unix

package unixfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRetry(t *testing.T) {
	calls := 0
	err := Retry(func() error {
		if calls++; calls < 3 {
			return &os.PathError{Op: "read", Path: "x", Err: unix.EINTR}
		}
		return unix.EIO
	})
	if calls != 3 || !errors.Is(err, unix.EIO) {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

func TestTryLock(t *testing.T) {
	name := filepath.Join(t.TempDir(), "lock")
	open := func() *os.File {
		f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	first, second := open(), open()
	if err := TryLock(first); err != nil {
		t.Fatal(err)
	}
	if err := TryLock(second); !errors.Is(err, unix.EWOULDBLOCK) {
		t.Errorf("a lock that is held: %v", err)
	}
	first.Close()
	if err := TryLock(second); err != nil {
		t.Errorf("a lock that was released: %v", err)
	}
}

func TestMakeDirs(t *testing.T) {
	defer unix.Umask(unix.Umask(0o077))
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	for range 2 { // the second time it is there
		if err := MakeDirs(dir); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if fi, err := os.Stat(d); err != nil || fi.Mode() != fs.ModeDir|dirMode {
			t.Errorf("%s: %v, %v", d, fi, err)
		}
	}

	link := filepath.Join(top, "link")
	if err := os.Symlink("nowhere", link); err != nil {
		t.Fatal(err)
	}
	err := MakeDirs(filepath.Join(link, "x"))
	if err == nil || !strings.Contains(err.Error(), "link is a link to nowhere") {
		t.Errorf("below a dangling link: %v", err)
	}
	file := filepath.Join(top, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MakeDirs(filepath.Join(file, "x")); !errors.Is(err, unix.ENOTDIR) {
		t.Errorf("below a file: %v", err)
	}
}

func TestRandomHex(t *testing.T) {
	a, b := RandomHex(8), RandomHex(8)
	if len(a) != 16 || a == b {
		t.Errorf("got %q and %q", a, b)
	}
}

func TestStatfs(t *testing.T) {
	if st, err := Statfs(t.TempDir()); err != nil || st.Bsize <= 0 {
		t.Errorf("got %+v, %v", st, err)
	}
	if _, err := Statfs("/absent"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
}
