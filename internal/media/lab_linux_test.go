//go:build lab

package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/reason"

	"golang.org/x/sys/unix"
)

// loopBench is a machine whose drives are loop devices under other names: a
// node sr0 with the number of a loop device, in a device directory of its own.
// That is how a CD looks in a container, too.
type loopBench struct {
	sys   host
	loops map[string]int    // loop number by node
	files map[string]string // backing file by node
}

func newLoopBench(t *testing.T) *loopBench {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("must be root")
		}
		t.Skip("needs root for loop devices")
	}
	need(t, "losetup")
	return &loopBench{host{t.TempDir(), "/sys", "/proc/self/mountinfo"}, make(map[string]int), make(map[string]string)}
}

func (b *loopBench) system() system { return b.sys }
func (b *loopBench) dir() string    { return b.sys.dev }

// firstLoop is far above what the machine itself and other programs use.
const firstLoop = 120

func (b *loopBench) node(t *testing.T, name string) {
	t.Helper()
	control, err := unix.Open("/dev/loop-control", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	n := firstLoop
	for ; ; n++ {
		if err = unix.IoctlSetInt(control, unix.LOOP_CTL_ADD, n); !errors.Is(err, unix.EEXIST) {
			break
		}
	}
	if err != nil {
		t.Fatalf("cannot add loop%d: %v", n, err)
	}
	t.Cleanup(func() {
		exec.Command("losetup", "-d", loopNode(n)).Run() // not bound any more, as a rule
		for range 100 {
			if err = unix.IoctlSetInt(control, unix.LOOP_CTL_REMOVE, n); !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(20 * time.Millisecond) // the kernel lets go of it in its own time
		}
		if err != nil {
			t.Errorf("cannot remove loop%d: %v", n, err)
		}
		unix.Close(control)
	})
	b.loops[name] = n
	if err := unix.Mknod(b.path(name), unix.S_IFBLK|0o600, int(unix.Mkdev(7, uint32(n)))); err != nil {
		t.Fatal(err)
	}
}

func loopNode(n int) string { return fmt.Sprintf("/dev/loop%d", n) }

func (b *loopBench) path(name string) string { return filepath.Join(b.sys.dev, name) }

func (b *loopBench) losetup(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("losetup", args...).CombinedOutput(); err != nil {
		t.Fatalf("losetup %v: %v\n%s", args, err, out)
	}
}

func (b *loopBench) insert(t *testing.T, name, image string) {
	t.Helper()
	data, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	b.files[name] = filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(b.files[name], data, 0o600); err != nil {
		t.Fatal(err)
	}
	b.losetup(t, "-r", loopNode(b.loops[name]), b.files[name])
}

// eject makes sure that nothing holds the medium: a loop device in use stays
// bound until its last user lets go.
func (b *loopBench) eject(t *testing.T, name string) {
	t.Helper()
	b.losetup(t, "-d", loopNode(b.loops[name]))
	if _, err := os.Stat(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", b.loops[name])); err == nil {
		t.Errorf("something holds %s", name)
	}
}

func (b *loopBench) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(b.path(name)); err != nil {
		t.Fatal(err)
	}
}

// cut takes away what is behind the device: the kernel answers EIO there.
func (b *loopBench) cut(t *testing.T, name string, at int64) {
	t.Helper()
	if err := os.Truncate(b.files[name], at); err != nil {
		t.Fatal(err)
	}
}

func (b *loopBench) options(t *testing.T) Options {
	return Options{Dev: b.sys.dev, MountInfo: os.DevNull, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

func TestLabSystem(t *testing.T) {
	testSystem(t, func(t *testing.T) bench { return newLoopBench(t) })
}

// One device with two nodes is one device, under the name people know; a file
// system mounted below the device directory is left alone.
func TestLabDevices(t *testing.T) {
	b := newLoopBench(t)
	b.node(t, "sr0")
	shm := b.path("shm")
	if err := os.MkdirAll(b.path("block"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(shm, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", shm, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(shm, 0); err != nil {
			t.Error(err)
		}
	})
	n := b.loops["sr0"]
	for _, node := range []struct {
		path         string
		major, minor uint32
	}{{"loop9", 7, uint32(n)}, {"block/7:9", 7, uint32(n)}, {"shm/vda", 7, uint32(n) + 1}, {"fd0", majorFloppy, 0}} {
		if err := unix.Mknod(b.path(node.path), unix.S_IFBLK|0o600, int(unix.Mkdev(node.major, node.minor))); err != nil {
			t.Fatal(err)
		}
	}
	got, err := b.sys.devices()
	want := []device{{path: b.path("sr0"), num: devnum{7, uint32(n)}, drive: true}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

func TestLabFind(t *testing.T) {
	im := buildImages(t)
	b := newLoopBench(t)
	b.node(t, "sr0")
	b.node(t, "sr1")
	b.node(t, "vda")
	b.insert(t, "sr0", im.config)
	b.insert(t, "vda", im.plain)
	f := New(b.options(t))

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := f.Find(ctx)
	want := fmt.Sprintf(`no Kubernetes ISO: waited 1s; seen: %s config drive "config-2", %s empty, %s no ISO 9660`, b.path("sr0"), b.path("sr1"), b.path("vda"))
	if reason.Of(err) != reason.ISONotFound || err.Error() != want {
		t.Errorf("message\n got %v\nwant %s", err, want)
	}

	// The ISO arrives while Find waits. Nothing holds it afterwards: it can be
	// taken out, and the one that follows is not mistaken for it.
	time.AfterFunc(300*time.Millisecond, func() { b.insert(t, "sr1", im.full) })
	start := time.Now()
	media, err := f.Find(t.Context())
	if err != nil || len(media) != 1 || media[0].Where != b.path("sr1") {
		t.Fatalf("found %v, %v", media, err)
	}
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("found after %v", took)
	}
	m := media[0]
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !slices.Equal(got, etcdArchive) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	if !m.Unchanged(t.Context()) {
		t.Error("changed")
	}
	m.Close()
	b.eject(t, "sr1")
	if m.Unchanged(t.Context()) {
		t.Error("unchanged after it was ejected")
	}
	b.insert(t, "sr1", im.full2)
	if m.Unchanged(t.Context()) {
		t.Error("unchanged with another medium")
	}

	b.eject(t, "sr1")
	b.insert(t, "sr1", im.without)
	start = time.Now()
	_, err = f.Find(t.Context())
	if reason.Of(err) != reason.ArchiveMissing || time.Since(start) > 3*time.Second {
		t.Errorf("after %v: %v", time.Since(start), err)
	}
	b.eject(t, "sr1")
	noDescriptors(t, b.sys.dev)
}

func TestLabReadErrors(t *testing.T) {
	im := buildImages(t)
	b := newLoopBench(t)
	b.node(t, "sr0")
	b.insert(t, "sr0", im.full)
	f := New(b.options(t))
	media, err := f.Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m := media[0]
	defer m.Close()
	// Directories are read, the archive is not.
	i, err := os.Stat(im.full)
	if err != nil {
		t.Fatal(err)
	}
	b.cut(t, "sr0", i.Size()-2*chunk)
	r, err := m.Open()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, r); !errors.Is(err, syscall.EIO) {
		t.Errorf("read = %v, want %v", err, syscall.EIO)
	}
	r.Close()
	b.cut(t, "sr0", 0)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = f.Find(ctx)
	if reason.Of(err) != reason.ISOUnreadable || !strings.Contains(err.Error(), "input/output error") {
		t.Errorf("Find = %v", err)
	}
	noDescriptors(t, b.sys.dev)
}

// The kernel tells of a medium that comes: no re-scan is needed.
func TestLabUevents(t *testing.T) {
	im := buildImages(t)
	b := newLoopBench(t)
	b.node(t, "sr0")
	o := b.options(t)
	o.Rescan = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	time.AfterFunc(time.Second, func() { b.insert(t, "sr0", im.full) })
	start := time.Now()
	media, err := New(o).Find(ctx)
	if err != nil || len(media) != 1 {
		t.Fatalf("found %v, %v after %v", media, err, time.Since(start))
	}
}

func TestLabFUSEMount(t *testing.T) {
	im := buildImages(t)
	b := newLoopBench(t)
	need(t, "fuseiso")
	need(t, "fusermount")
	point := filepath.Join(t.TempDir(), "k8s disk")
	if err := os.Mkdir(point, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("fuseiso", im.full, point).CombinedOutput(); err != nil {
		t.Fatalf("fuseiso: %v\n%s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("fusermount", "-u", point).CombinedOutput(); err != nil {
			t.Errorf("fusermount: %v\n%s", err, out)
		}
	})
	o := b.options(t)
	o.MountInfo = ""
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	media, err := New(o).Find(ctx)
	if err != nil || len(media) != 1 || media[0].Where != point {
		t.Fatalf("found %v, %v", media, err)
	}
	r, err := media[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); err != nil || !slices.Equal(got, etcdArchive) {
		t.Errorf("read %d bytes, %v", len(got), err)
	}
	media[0].Close()
	noDescriptors(t, point)
}

// noDescriptors fails the test when this process has something open whose
// path has part in it.
func noDescriptors(t *testing.T, part string) {
	t.Helper()
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range dir {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.Contains(to, part) {
			t.Errorf("%s is still open", to)
		}
	}
}
