package media

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// Whatever this machine's own devices are, they can be listed: each once, and
// each a block device's node.
func TestDevicesOfThisMachine(t *testing.T) {
	list, err := host{dev: "/dev", sys: "/sys"}.devices()
	if err != nil {
		t.Fatal(err)
	}
	seen := make(map[devnum]string)
	for _, d := range list {
		if other := seen[d.num]; other != "" {
			t.Errorf("%s and %s are both %s", d.path, other, d.num)
		}
		seen[d.num] = d.path
		i, err := os.Lstat(d.path)
		if err != nil || i.Mode().Type() != fs.ModeDevice {
			t.Errorf("%s: %v, %v", d.path, i, err)
		}
	}
}

func TestDevicesSkipsWhatIsNone(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"file": "x", "disk/by-id/file": "x"})
	if err := unix.Mkfifo(dir+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/dev/null", "loop", "/dev/loop0"} {
		if err := os.Symlink(target, filepath.Join(dir, fmt.Sprintf("link%d", len(target)))); err != nil {
			t.Fatal(err)
		}
	}
	list, err := host{dev: dir, sys: "/sys"}.devices()
	if len(list) > 0 || err != nil {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := (host{dev: dir + "/absent"}).devices(); err == nil {
		t.Error("no error without a device directory")
	}
}

func TestBetterName(t *testing.T) {
	for _, test := range []struct{ better, worse string }{
		{"/dev/sr0", "/dev/loop7"},
		{"/dev/cdrom", "/dev/vd"},
		{"/dev/dm-0", "/dev/mapper/root"},
		{"/dev/sda", "/dev/sdb"},
	} {
		if !betterName(device{path: test.better}, device{path: test.worse}) || betterName(device{path: test.worse}, device{path: test.better}) {
			t.Errorf("%s is not better than %s", test.better, test.worse)
		}
	}
}

func TestRemovable(t *testing.T) {
	sys := t.TempDir()
	writeTree(t, sys, map[string]string{"dev/block/8:16/removable": "1\n", "dev/block/8:0/removable": "0\n", "dev/block/8:1/partition": "1\n"})
	h := host{sys: sys}
	for n, want := range map[devnum]bool{{8, 16}: true, {8, 0}: false, {8, 1}: false, {7, 7}: false} {
		if got := h.removable(n); got != want {
			t.Errorf("%v: got %v", n, got)
		}
	}
}

func TestMountTable(t *testing.T) {
	for _, test := range []struct {
		name, table string
		want        []mount
	}{
		{"none", "26 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n", nil},
		{"kernel", "40 26 11:0 / /mnt/k8sdisk ro,relatime shared:1 - iso9660 /dev/sr0 ro,nojoliet\n", []mount{{"/mnt/k8sdisk", devnum{11, 0}}}},
		{"fuse", "41 26 0:52 / /mnt/etcddisk ro - fuse.fuseiso fuseiso ro\n", []mount{{"/mnt/etcddisk", devnum{0, 52}}}},
		{"escaped", `42 26 11:0 / /media/K8s\040ISO ro - iso9660 /dev/sr0 ro` + "\n", []mount{{"/media/K8s ISO", devnum{11, 0}}}},
		{"a part of it", "43 26 11:0 /etcd /mnt ro - iso9660 /dev/sr0 ro\n", nil},
		{"twice", "44 26 11:0 / /a ro - iso9660 /dev/sr0 ro\n45 26 11:0 / /b ro - iso9660 /dev/sr0 ro\n", []mount{{"/a", devnum{11, 0}}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "mountinfo")
			if err := os.WriteFile(name, []byte(test.table), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := host{mountInfo: name}.mounts()
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(mount{}, devnum{})); diff != "" || err != nil {
				t.Errorf("%v (-want +got):\n%s", err, diff)
			}
		})
	}
}

// A mount point that shows another file system by now is not read.
func TestOpenMount(t *testing.T) {
	dir := t.TempDir()
	writeTree(t, dir, map[string]string{"etcd/a": "x"})
	if err := os.Symlink("/etc/passwd", dir+"/etcd/outside"); err != nil {
		t.Fatal(err)
	}
	var st syscall.Stat_t
	if err := syscall.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	num := numOf(uint64(st.Dev))
	tr, err := host{}.openMount(mount{dir, num})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if _, err := tr.Stat("etcd/a"); err != nil {
		t.Error(err)
	}
	if _, err := tr.Stat("etcd/outside"); err == nil {
		t.Error("a link out of the file system was followed")
	}
	for _, m := range []mount{{dir, devnum{num.major, num.minor + 1}}, {dir + "/absent", num}} {
		if _, err := (host{}).openMount(m); err == nil || !isNoDevice(err) {
			t.Errorf("%v: %v", m, err)
		}
	}
}

func isNoDevice(err error) bool { return failed(&openError{err}).kind == noDevice }

// listen turns block events, and nothing else, into hints.
func TestListen(t *testing.T) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	kernel := os.NewFile(uintptr(pair[1]), "kernel")
	defer kernel.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	hints := listen(ctx, os.NewFile(uintptr(pair[0]), "uevents"))
	send := func(event string) {
		t.Helper()
		if _, err := kernel.Write([]byte(event)); err != nil {
			t.Fatal(err)
		}
	}
	limit := time.After(10 * time.Second)
	send("add@/devices/net\x00ACTION=add\x00SUBSYSTEM=net\x00")
	for range 20 {
		send("change@/devices/pci/block/sr0\x00ACTION=change\x00SUBSYSTEM=block\x00DISK_MEDIA_CHANGE=1\x00")
	}
	select {
	case _, ok := <-hints:
		if !ok {
			t.Fatal("closed")
		}
	case <-limit:
		t.Fatal("no hint")
	}
	// Unread ones are merged: at most one more waits, and the end comes.
	cancel()
	for {
		select {
		case _, ok := <-hints:
			if !ok {
				return
			}
		case <-limit:
			t.Fatal("not closed after its context")
		}
	}
}
