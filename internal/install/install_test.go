//go:build linux

package install

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

func TestCommit(t *testing.T) {
	ctx := context.Background()
	// The directory and its parent are missing: B108, "install fails when the
	// target directory does not exist". Nor may a umask hide what is placed.
	defer unix.Umask(unix.Umask(0o077))
	dir := filepath.Join(t.TempDir(), "opt", "bin")
	s := begin(t, dir)
	etcd, etcdctl := program("etcd", 1, 300<<10), program("etcdctl", 1, 10)
	mustPut(t, s, "etcd", etcd)
	mustPut(t, s, "etcdctl", etcdctl)
	mustNotExist(t, filepath.Join(dir, "etcd"))

	got, err := s.Commit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"etcdctl", "etcd"}, got); diff != "" {
		t.Errorf("names placed (-want +got):\n%s", diff)
	}
	wantFile(t, filepath.Join(dir, "etcd"), etcd)
	wantFile(t, filepath.Join(dir, "etcdctl"), etcdctl)
	for _, d := range []string{dir, filepath.Dir(dir)} {
		if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o755 {
			t.Errorf("%s: got %v (%v), want mode 0755", d, info.Mode(), err)
		}
	}
	for range 2 {
		if err := s.Discard(); err != nil {
			t.Errorf("Discard: %v", err)
		}
	}
	if left := stages(t, dir); left != nil {
		t.Errorf("got left-overs %q, want none", left)
	}
}

func TestCommitLeavesIdenticalBinaries(t *testing.T) {
	etcd, etcdctl := program("etcd", 1, 300<<10), program("etcdctl", 1, 10)
	other := bytes.Clone(etcd)
	other[len(other)-1] ^= 1
	tests := []struct {
		name  string
		spoil func(dir string) error
		want  []string
	}{
		{"same", func(string) error { return nil }, nil},
		{"one missing", func(dir string) error { return os.Remove(filepath.Join(dir, "etcdctl")) }, []string{"etcdctl"}},
		{"last byte differs", func(dir string) error { return os.WriteFile(filepath.Join(dir, "etcd"), other, 0o755) }, []string{"etcd"}},
		{"shorter", func(dir string) error { return os.Truncate(filepath.Join(dir, "etcd"), 100) }, []string{"etcd"}},
		{"not executable", func(dir string) error { return os.Chmod(filepath.Join(dir, "etcd"), 0o644) }, []string{"etcd"}},
		{"writable for all", func(dir string) error { return os.Chmod(filepath.Join(dir, "etcd"), 0o777) }, []string{"etcd"}},
		{"link to the same bytes", func(dir string) error {
			if err := os.Rename(filepath.Join(dir, "etcd"), filepath.Join(dir, "etcd-v3")); err != nil {
				return err
			}
			return os.Symlink("etcd-v3", filepath.Join(dir, "etcd"))
		}, []string{"etcd"}},
		{"fifo", func(dir string) error {
			if err := os.Remove(filepath.Join(dir, "etcd")); err != nil {
				return err
			}
			return unix.Mkfifo(filepath.Join(dir, "etcd"), 0o755)
		}, []string{"etcd"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			for pass := range 2 {
				s := begin(t, dir)
				mustPut(t, s, "etcd", etcd)
				mustPut(t, s, "etcdctl", etcdctl)
				if pass == 0 {
					if _, err := s.Commit(context.Background()); err != nil {
						t.Fatal(err)
					}
					if err := s.Discard(); err != nil {
						t.Fatal(err)
					}
					if err := tt.spoil(dir); err != nil {
						t.Fatal(err)
					}
					continue
				}
				before := inode(t, filepath.Join(dir, "etcd"))
				got, err := s.Commit(context.Background())
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(tt.want, got); diff != "" {
					t.Errorf("names placed (-want +got):\n%s", diff)
				}
				if after := inode(t, filepath.Join(dir, "etcd")); tt.want == nil && after != before {
					t.Errorf("got another etcd, want the one that was there untouched")
				}
				wantFile(t, filepath.Join(dir, "etcd"), etcd)
				wantFile(t, filepath.Join(dir, "etcdctl"), etcdctl)
				if err := s.Discard(); err != nil {
					t.Error(err)
				}
				if left := stages(t, dir); left != nil {
					t.Errorf("got left-overs %q, want none", left)
				}
			}
		})
	}
}

func TestCommitReplacesLinkItself(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "target")
	if err := os.WriteFile(outside, []byte("not ours"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(dir, "etcd")); err != nil {
		t.Fatal(err)
	}
	s := begin(t, dir)
	etcd := program("etcd", 1, 10)
	mustPut(t, s, "etcd", etcd)
	if _, err := s.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(dir, "etcd"), etcd)
	if got, err := os.ReadFile(outside); err != nil || string(got) != "not ours" {
		t.Errorf("the link's target: got %q, %v, want it untouched", got, err)
	}
}

func TestCommitRefusesDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "etcd"), 0o755); err != nil {
		t.Fatal(err)
	}
	s := begin(t, dir)
	mustPut(t, s, "etcd", program("etcd", 1, 10))
	mustPut(t, s, "etcdctl", program("etcdctl", 1, 10))
	changed, err := s.Commit(context.Background())
	wantCode(t, err, reason.InstallFailed)
	if want := filepath.Join(dir, "etcd"); !strings.Contains(err.Error(), want) {
		t.Errorf("got %q, want it to name %s", err, want)
	}
	if changed != nil {
		t.Errorf("got %q placed, want nothing", changed)
	}
	mustNotExist(t, filepath.Join(dir, "etcdctl"))
}

func TestCommitCancelled(t *testing.T) {
	dir := t.TempDir()
	s := begin(t, dir)
	mustPut(t, s, "etcd", program("etcd", 1, 10))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Commit(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want context.Canceled", err)
	}
	mustNotExist(t, filepath.Join(dir, "etcd"))
}

func TestStageMisuse(t *testing.T) {
	tests := []struct {
		name string
		do   func(s *Stage) error
	}{
		{"nothing staged", func(s *Stage) error { _, err := s.Commit(context.Background()); return err }},
		{"still open", func(s *Stage) error {
			if _, err := s.Create("etcd", 0); err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			_, err := s.Commit(context.Background())
			return err
		}},
		{"run while open", func(s *Stage) error {
			if _, err := s.Create("etcd", 0); err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			_, err := s.Run(context.Background(), "etcd")
			return err
		}},
		{"run of what is not staged", func(s *Stage) error { _, err := s.Run(context.Background(), "etcd"); return err }},
		{"too short", func(s *Stage) error {
			f, err := s.Create("etcd", 5)
			if err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			io.WriteString(f, "four")
			f.Close()
			_, err = s.Commit(context.Background())
			return err
		}},
		{"too long", func(s *Stage) error {
			f, err := s.Create("etcd", 3)
			if err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			_, err = io.WriteString(f, "four")
			return err
		}},
		{"write after close", func(s *Stage) error {
			f, err := s.Create("etcd", -1)
			if err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			f.Close()
			_, err = io.WriteString(f, "x")
			return err
		}},
		{"twice", func(s *Stage) error {
			if _, err := s.Create("etcd", 0); err != nil {
				return fmt.Errorf("unexpected: %w", err)
			}
			_, err := s.Create("etcd", 0)
			return err
		}},
		{"parent", func(s *Stage) error { _, err := s.Create("..", 0); return err }},
		{"path", func(s *Stage) error { _, err := s.Create("a/b", 0); return err }},
		{"self", func(s *Stage) error { _, err := s.Create(".", 0); return err }},
		{"empty", func(s *Stage) error { _, err := s.Create("", 0); return err }},
		{"after discard", func(s *Stage) error { s.Discard(); _, err := s.Create("etcd", 0); return err }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			wantCode(t, tt.do(begin(t, t.TempDir())), reason.InstallFailed)
		})
	}
}

func TestFileReadsBack(t *testing.T) {
	s := begin(t, t.TempDir())
	f, err := s.Create("etcd", 10)
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(f, "hello")
	b := make([]byte, 10)
	// Reserved space is not content.
	if n, err := f.ReadAt(b, 0); n != 5 || err != io.EOF || string(b[:n]) != "hello" {
		t.Errorf("before the end: got %q, %v, want hello and io.EOF", b[:n], err)
	}
	io.WriteString(f, "world")
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	if n, err := f.ReadAt(b, 5); string(b[:n]) != "world" || err != io.EOF {
		t.Errorf("after Close: got %q, %v, want world", b[:n], err)
	}
	if info, err := os.Stat(s.Dir()); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("stage: got %v, %v, want mode 0700", info.Mode(), err)
	}
}

func TestBeginRemovesOnlyItsOwnLeftovers(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	keep := filepath.Join(outside, "precious")
	if err := os.WriteFile(keep, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	mkdir := func(name string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Join(path, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(path, "link")); err != nil {
			t.Fatal(err)
		}
		return path
	}
	gone := []string{mkdir(stagePrefix + "0123456789abcdef"), mkdir(stagePrefix + "ffffffffffffffff")}
	stay := []string{
		keep,
		mkdir(stagePrefix + "0123456789abcde"),   // too short
		mkdir(stagePrefix + "0123456789abcdef0"), // too long
		mkdir(stagePrefix + "0123456789ABCDEF"),  // not as it is written
		mkdir(stagePrefix + "0123456789abcdeg"),
		mkdir("etcd-v3.5.0-linux-amd64"),
		filepath.Join(dir, stagePrefix+"1111111111111111"),
		filepath.Join(dir, stagePrefix+"2222222222222222"),
		filepath.Join(dir, stagePrefix+"4444444444444444"),
	}
	// A link that stays in the directory is no more followed than one that leaves.
	if err := os.Symlink("etcd-v3.5.0-linux-amd64", stay[8]); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, stay[6]); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(stay[7], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		foreign := mkdir(stagePrefix + "3333333333333333")
		if err := os.Chown(foreign, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		stay = append(stay, foreign)
	}
	live := begin(t, dir)
	stay = append(stay, live.Dir())
	begin(t, dir)
	for _, path := range gone {
		mustNotExist(t, path)
	}
	for _, path := range stay {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("got %v, want that it stays", err)
		}
	}
	mustPut(t, live, "etcd", program("etcd", 1, 1))
}

func TestBeginFails(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	dangling := filepath.Join(t.TempDir(), "dangling")
	if err := os.Symlink("nowhere", dangling); err != nil {
		t.Fatal(err)
	}
	closed := t.TempDir()
	if err := os.Chmod(closed, 0o555); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name, dir string
		asUser    bool
		want      reason.Code
	}{
		{"a file has the name", file, false, reason.InstallFailed},
		{"a file is the parent", filepath.Join(file, "bin"), false, reason.InstallFailed},
		{"dangling link", dangling, false, reason.InstallFailed},
		{"not writable", closed, true, reason.BinDirReadOnly},
		{"parent not writable", filepath.Join(closed, "opt", "bin"), true, reason.BinDirReadOnly},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var err error
			as := func(f func()) { f() }
			if tt.asUser {
				as = func(f func()) { asNobody(t, f) }
			}
			as(func() {
				var s *Stage
				if s, err = Begin(tt.dir); err == nil {
					s.Discard()
				}
			})
			wantCode(t, err, tt.want)
			if !strings.Contains(err.Error(), tt.dir) || tt.dir == dangling && !strings.Contains(err.Error(), "link to nowhere") {
				t.Errorf("got %q, want it to name %s", err, tt.dir)
			}
		})
	}
}

func TestBeginThroughLink(t *testing.T) {
	// A directory that an administrator made a link is used as it is.
	real := t.TempDir()
	link := filepath.Join(t.TempDir(), "bin")
	if err := os.Symlink(real, link); err != nil {
		t.Fatal(err)
	}
	s := begin(t, link)
	etcd := program("etcd", 1, 1)
	mustPut(t, s, "etcd", etcd)
	if _, err := s.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
	wantFile(t, filepath.Join(real, "etcd"), etcd)
}

func TestFault(t *testing.T) {
	tests := []struct {
		err  error
		want reason.Code
	}{
		{unix.ENOSPC, reason.NoSpace},
		{unix.EDQUOT, reason.NoSpace},
		{unix.EROFS, reason.BinDirReadOnly},
		{unix.EACCES, reason.BinDirReadOnly},
		{unix.EPERM, reason.BinDirReadOnly},
		{unix.EIO, reason.InstallFailed},
		{unix.EUCLEAN, reason.InstallFailed}, // B105: "structure needs cleaning"
		{io.ErrShortWrite, reason.InstallFailed},
		{reason.New(reason.ArchiveDigest, "x"), reason.ArchiveDigest},
	}
	for _, tt := range tests {
		err := fault("/", 1<<20, "write /opt/bin/etcd", fmt.Errorf("wrapped: %w", &os.PathError{Op: "write", Path: "etcd", Err: tt.err}))
		wantCode(t, err, tt.want)
		if !errors.Is(err, tt.err) {
			t.Errorf("got %v, want it to keep %v", err, tt.err)
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("got %q, want one line", err)
		}
	}
}

func TestCheckSpace(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "no", "such", "dir")
	for _, d := range []string{dir, missing} {
		if err := checkSpace(d, 1); err != nil {
			t.Errorf("one byte in %s: %v", d, err)
		}
		err := checkSpace(d, 1<<62)
		wantCode(t, err, reason.NoSpace)
		for _, want := range []string{d, "needs 4398046511104.0 MiB", "has ", "free"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("got %q, want %q in it", err, want)
			}
		}
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	wantCode(t, checkSpace(filepath.Join(file, "x"), 1), reason.InstallFailed)
}

func TestSize(t *testing.T) {
	tests := []struct {
		n    uint64
		up   bool
		want string
	}{
		{0, false, "0.0 MiB"},
		{1, false, "0.0 MiB"},
		{1, true, "0.1 MiB"},
		{1 << 20, true, "1.0 MiB"},
		{1<<20 + 1, true, "1.1 MiB"},
		{1<<21 - 1, false, "1.9 MiB"},
		{1<<21 - 1, true, "2.0 MiB"},
		{1<<64 - 1, false, "17592186044415.9 MiB"},
		{1<<64 - 1, true, "17592186044416.0 MiB"},
	}
	for _, tt := range tests {
		if got := size(tt.n, tt.up); got != tt.want {
			t.Errorf("size(%d, %v): got %s, want %s", tt.n, tt.up, got, tt.want)
		}
	}
}

func TestAvailable(t *testing.T) {
	tests := []struct {
		name  string
		st    unix.Statfs_t
		want  uint64
		known bool
	}{
		{"ordinary", unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 10, Bavail: 3}, 12288, true},
		{"fragment size counts", unix.Statfs_t{Bsize: 1 << 20, Frsize: 512, Blocks: 10, Bavail: 2}, 1024, true},
		{"no fragment size", unix.Statfs_t{Bsize: 4096, Blocks: 10, Bavail: 1}, 4096, true},
		{"full", unix.Statfs_t{Bsize: 4096, Frsize: 4096, Blocks: 10}, 0, true},
		{"tmpfs without a limit", unix.Statfs_t{Bsize: 4096, Frsize: 4096}, 0, false},
		{"nonsense", unix.Statfs_t{Bsize: 4096, Blocks: 1 << 63, Bavail: 1 << 63}, 1<<64 - 1, true},
	}
	for _, tt := range tests {
		if got, known := available(&tt.st); got != tt.want || known != tt.known {
			t.Errorf("%s: got %d, %v, want %d, %v", tt.name, got, known, tt.want, tt.known)
		}
	}
}

// asNobody runs f, on a thread of its own, with the rights of an unprivileged
// user when the test runs as root: setfsuid(2) is per thread and drops the
// capabilities over files. The thread ends with f.
func asNobody(t *testing.T, f func()) {
	t.Helper()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		var err error
		if os.Geteuid() == 0 {
			const nobody = 65534
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
		t.Fatalf("cannot become an unprivileged user: %v", err)
	}
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}
