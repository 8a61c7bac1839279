//go:build linux && lab

package answers

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
)

// fill leaves free bytes of the file system of dir.
func fill(t *testing.T, dir string, free int) (filler string) {
	t.Helper()
	filler = filepath.Join(dir, "filler")
	f, err := os.OpenFile(filler, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	block := make([]byte, os.Getpagesize())
	for {
		if _, err = f.Write(block); err != nil {
			break
		}
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	info, err := f.Stat()
	if err == nil {
		err = f.Truncate(max(info.Size()-int64(free), 0))
	}
	if err != nil {
		t.Fatal(err)
	}
	return filler
}

// TestLabFullDisk fills the disk to within some pages, so that writes fail at
// different steps. What was kept stays readable, by this process and by others,
// and once there is space again all goes on.
func TestLabFullDisk(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	refused := 0
	for free := range 24 {
		dir := lab.MountT(t, "tmpfs", 0, "size=2m")
		path := filepath.Join(dir, "etcd-fleet", "answers.db")
		s := open(t, path, Options{})
		kept := 0
		for ; kept < 100; kept++ {
			put(t, s, included(kept))
		}
		filler := fill(t, dir, free*os.Getpagesize())
		for {
			batch := []Answer{included(kept), included(kept + 1), included(kept + 2)}
			err := s.Put(t.Context(), batch...)
			if err == nil {
				kept += len(batch)
				if kept > 10000 {
					t.Fatal("the disk is not full")
				}
				continue
			}
			wantCode(t, err, reason.AnswersUnwritable)
			refused++
			break
		}
		for range 5 { // more tries do no harm
			if err := s.Put(t.Context(), included(kept)); err == nil {
				kept++
			} else {
				wantCode(t, err, reason.AnswersUnwritable)
			}
			if err := s.Fail(t.Context(), failed(0)); err != nil {
				wantCode(t, err, reason.AnswersUnwritable)
			}
			for _, s := range []*Store{s, open(t, path, Options{Rebuild: true})} {
				answers, _, err := s.All(t.Context())
				if err != nil || len(answers) != kept || s.SetAside() != "" {
					t.Fatalf("%d pages free: got %d answers, %v, want %d", free, len(answers), err, kept)
				}
			}
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		put(t, s, included(kept))
		if answers, _, err := s.All(t.Context()); err != nil || len(answers) != kept+1 {
			t.Errorf("%d pages free, space again: got %d answers, %v, want %d", free, len(answers), err, kept+1)
		}
	}
	t.Logf("%d disks were full", refused)
	if refused == 0 {
		t.Error("no write was refused")
	}
}

// TestLabFullDiskAtFirst has no space for the file itself.
func TestLabFullDiskAtFirst(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	for free := range 10 {
		dir := lab.MountT(t, "tmpfs", 0, "size=256k")
		path := filepath.Join(dir, "etcd-fleet", "answers.db")
		if err := os.Mkdir(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		filler := fill(t, dir, free*os.Getpagesize())
		s := open(t, path, Options{})
		err := s.Put(t.Context(), included(1))
		if err != nil {
			wantCode(t, err, reason.AnswersUnwritable)
			if answers, _, err := s.All(t.Context()); err != nil || len(answers) != 0 {
				t.Errorf("%d pages free: got %d answers, %v", free, len(answers), err)
			}
		}
		entries, readErr := os.ReadDir(filepath.Dir(path))
		if readErr != nil || len(entries) > 1 || len(entries) == 1 && entries[0].Name() != filepath.Base(path) {
			t.Errorf("%d pages free: got %v, %v, want the file or nothing", free, entries, readErr)
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		put(t, s, included(2))
	}
}

func TestLabReadOnlyMount(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	dir := lab.MountT(t, "tmpfs", 0, "size=2m")
	path := filepath.Join(dir, "answers.db")
	put(t, open(t, path, Options{}), included(1))
	damagedPath := filepath.Join(dir, "damaged.db")
	if err := os.WriteFile(damagedPath, nil, 0o640); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	readsOnly(t, path)
	readsOnly(t, filepath.Join(dir, "absent.db"))
	readsOnly(t, filepath.Join(dir, "absent", "answers.db"))
	_, err := Open(t.Context(), damagedPath, Options{Rebuild: true})
	wantCode(t, err, reason.AnswersUnwritable)
	if !errors.Is(err, unix.EROFS) {
		t.Errorf("got %v, want the cause", err)
	}
}

// readsOnly checks that the file at path, or its absence, can be read, and
// that a write says why not.
func readsOnly(t *testing.T, path string) {
	t.Helper()
	if err := tryReadOnly(t.Context(), path); err != nil {
		t.Errorf("%s: %v", path, err)
	}
}

// TestLabOtherUser has a user who may read the file of root, or not even that.
func TestLabOtherUser(t *testing.T) {
	if !lab.InMountNamespace(t) {
		return
	}
	const nobody = 65534
	dir := lab.MountT(t, "tmpfs", 0, "size=2m,mode=0755")
	path := filepath.Join(dir, "etcd-fleet", "answers.db")
	put(t, open(t, path, Options{}), included(1))
	if err := os.Chown(filepath.Dir(path), 0, nobody); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, 0, nobody); err != nil {
		t.Fatal(err)
	}
	asNobody := func(job string) error {
		// The kernel opens the program by this name whoever may enter its directory.
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), childEnv+"="+job+":0 "+path)
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	if os.Chmod(filepath.Dir(dir), 0o755) != nil || os.Chmod(filepath.Dir(filepath.Dir(dir)), 0o755) != nil {
		t.Fatal("cannot open the way to the file")
	}
	if err := asNobody("readonly"); err != nil {
		t.Error(err)
	}
	for _, p := range []string{path, filepath.Dir(path)} {
		if err := os.Chmod(p, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := asNobody("denied"); err != nil {
			t.Error(err)
		}
	}
}

// TestLabRootForDaemon: a file that root makes in the directory of another user
// is that user's.
func TestLabRootForDaemon(t *testing.T) {
	lab.RequireRoot(t)
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, 65533); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "answers.db")
	put(t, open(t, path, Options{}), included(1))
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); st.Uid != 65534 || st.Gid != 65533 {
		t.Errorf("the file is of %d:%d, want 65534:65533", st.Uid, st.Gid)
	}
}
