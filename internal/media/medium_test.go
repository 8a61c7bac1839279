package media

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/reason"
)

// one returns the only medium of a machine with a drive that holds image.
func one(t *testing.T, sys *fakeSystem, image string) (*Medium, *fakeDrive) {
	t.Helper()
	d := sys.add("/dev/sr0", image)
	media, err := newFinder(Options{}, sys).Find(t.Context())
	if err != nil || len(media) != 1 {
		t.Fatalf("found %v, %v", media, err)
	}
	return media[0], d
}

func TestMediumRead(t *testing.T) {
	im := buildImages(t)
	sys := newFakeSystem()
	m, _ := one(t, sys, im.full)
	if m.Where != "/dev/sr0" || m.VolumeID != "CDROM" || m.Names != "Rock Ridge" {
		t.Errorf("medium = %q, %q, %q", m.Where, m.VolumeID, m.Names)
	}
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(got, etcdArchive) {
		t.Errorf("read %d of %d bytes, %v", len(got), len(etcdArchive), err)
	}
	if n, err := r.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("read at the end = %d, %v", n, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after Close = %v", err)
	}
	if n := sys.openCount(); n != 0 {
		t.Errorf("%d devices open after the reader was closed", n)
	}
	// A reader nobody closed is closed with the medium.
	if r, err = m.Open(); err != nil {
		t.Fatal(err)
	}
	m.Close()
	m.Close()
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read after Medium.Close = %v", err)
	}
	if n := sys.openCount(); n != 0 {
		t.Errorf("%d devices open after Close", n)
	}
}

func TestSidecar(t *testing.T) {
	im := buildImages(t)
	m, d := one(t, newFakeSystem(), im.full)
	defer m.Close()
	got, err := m.ReadSidecar("SHA256SUMS")
	if want := "0123  etcd-linux-amd64.tar.gz\n"; string(got) != want || err != nil {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
	if _, err := m.ReadSidecar("etcd-linux-amd64.tar.gz.sha256"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("absent: %v", err)
	}
	if _, err := m.ReadSidecar("large"); err == nil || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("too large: %v", err)
	}
	for _, name := range []string{"../k8s/kubeadm", "", ".", "/etc/passwd"} {
		if _, err := m.ReadSidecar(name); !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
	d.eioAt = 1
	if _, err := m.ReadSidecar("absent"); err == nil || errors.Is(err, fs.ErrNotExist) || !errors.Is(err, syscall.EIO) {
		t.Errorf("unreadable: %v", err)
	}
}

func TestMediumChanges(t *testing.T) {
	im := buildImages(t)
	for _, test := range []struct {
		name    string
		change  func(s *fakeSystem, d *fakeDrive)
		changed bool // Open fails with errChanged
	}{
		{"another medium", func(_ *fakeSystem, d *fakeDrive) { d.image = im.full2 }, true},
		{"cut short", func(_ *fakeSystem, d *fakeDrive) { d.image = truncated(t, im.full, 0.9) }, true},
		{"taken out", func(_ *fakeSystem, d *fakeDrive) { d.image = "" }, true},
		{"unplugged", func(s *fakeSystem, _ *fakeDrive) { delete(s.drives, "/dev/sr0") }, true},
		{"another drive under the name", func(_ *fakeSystem, d *fakeDrive) { d.num.minor++ }, true},
		{"read errors", func(_ *fakeSystem, d *fakeDrive) { d.eioAt = 1 }, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			sys := newFakeSystem()
			m, d := one(t, sys, im.full)
			defer m.Close()
			if !m.Unchanged(t.Context()) {
				t.Fatal("changed before it did")
			}
			sys.change(func() { test.change(sys, d) })
			if m.Unchanged(t.Context()) {
				t.Error("unchanged")
			}
			_, err := m.Open()
			if reason.Of(err) != reason.ArchiveUnreadable || errors.Is(err, errChanged) != test.changed {
				t.Errorf("Open = %v", err)
			}
			if n := sys.openCount(); n != 0 {
				t.Errorf("%d devices still open", n)
			}
		})
	}
}

func TestReadFails(t *testing.T) {
	im := buildImages(t)
	m, d := one(t, newFakeSystem(), im.full)
	defer m.Close()
	i, err := os.Stat(im.full)
	if err != nil {
		t.Fatal(err)
	}
	d.eioAt = i.Size() / 2
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, syscall.EIO) {
		t.Errorf("read = %v, want %v", err, syscall.EIO)
	}
}

func TestReadHangs(t *testing.T) {
	im := buildImages(t)
	i, err := os.Stat(im.full)
	if err != nil {
		t.Fatal(err)
	}
	setUp := func(t *testing.T) (*fakeSystem, *Medium, io.ReadCloser, chan struct{}) {
		sys := newFakeSystem()
		m, d := one(t, sys, im.full)
		d.hang, d.hangAt = make(chan struct{}), i.Size()/2
		r, err := m.Open()
		if err != nil {
			t.Fatal(err)
		}
		return sys, m, r, d.hang
	}
	t.Run("bounded", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			sys, m, r, hang := setUp(t)
			start := time.Now()
			_, err := io.Copy(io.Discard, r)
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("read = %v", err)
			}
			if took := time.Since(start); took != defaultReadTimeout {
				t.Errorf("took %v", took)
			}
			if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("next read = %v", err)
			}
			// Nothing else is sent after the stuck read.
			opens := sys.opens["/dev/sr0"]
			if m.Unchanged(t.Context()) {
				t.Error("unchanged")
			}
			if _, err := m.Open(); !errors.Is(err, os.ErrDeadlineExceeded) || reason.Of(err) != reason.ArchiveUnreadable {
				t.Errorf("Open = %v", err)
			}
			if got := sys.opens["/dev/sr0"]; got != opens {
				t.Errorf("opened %d times more", got-opens)
			}
			m.Close()
			close(hang)
			synctest.Wait()
			if n := sys.openCount(); n != 0 {
				t.Errorf("%d devices still open after the read came back", n)
			}
		})
	})
	t.Run("closed meanwhile", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			sys, m, r, hang := setUp(t)
			time.AfterFunc(3*time.Second, m.Close)
			start := time.Now()
			if _, err := io.Copy(io.Discard, r); !errors.Is(err, os.ErrClosed) {
				t.Errorf("read = %v", err)
			}
			if took := time.Since(start); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
			close(hang)
			synctest.Wait()
			if n := sys.openCount(); n != 0 {
				t.Errorf("%d devices still open", n)
			}
		})
	})
	t.Run("context ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			sys := newFakeSystem()
			m, d := one(t, sys, im.full)
			d.hang = make(chan struct{})
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			if m.Unchanged(ctx) || time.Since(start) != time.Second {
				t.Errorf("unchanged, or not after %v", time.Since(start))
			}
			// Given up before its turn came: nothing is left behind.
			time.AfterFunc(time.Second, m.Close)
			if _, err := m.Open(); !errors.Is(err, os.ErrClosed) {
				t.Errorf("Open = %v", err)
			}
			close(d.hang)
			synctest.Wait()
			if n := sys.openCount(); n != 0 {
				t.Errorf("%d devices still open", n)
			}
		})
	})
}

func TestMountedMedium(t *testing.T) {
	sys := newFakeSystem()
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{DefaultArchive: "archive", "etcd/SHA256SUMS": "sums"})
	sys.points["/mnt/k8s"] = fakeMount{devnum{0, 44}, dir}
	media, err := newFinder(Options{}, sys).Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := media[0]
	defer m.Close()
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "archive" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
	if got, err := m.ReadSidecar("SHA256SUMS"); string(got) != "sums" || err != nil {
		t.Errorf("sidecar = %q, %v", got, err)
	}
	if !m.Unchanged(t.Context()) {
		t.Error("changed")
	}
	writeTree(t, dir, map[string]string{DefaultArchive: "another"})
	if err := os.Chtimes(dir+"/"+DefaultArchive, time.Time{}, time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if m.Unchanged(t.Context()) {
		t.Error("another archive is unchanged")
	}
	sys.change(func() { clear(sys.points) })
	if _, err := m.Open(); !errors.Is(err, errChanged) {
		t.Errorf("Open after unmount = %v", err)
	}
}
