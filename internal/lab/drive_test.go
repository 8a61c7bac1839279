//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// readmeISO is a small image.
func readmeISO(t testing.TB) string { return isoOf(t, "README", 1) }

// isoOf makes an image with the given volume id that is about kib KiB larger than it need be.
func isoOf(t testing.TB, label string, kib int) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), label+".iso")
	files := map[string]Source{"README": Text("hello\n"), "fill": {Data: bytes.Repeat([]byte("x"), kib<<10)}}
	if err := BuildISO(t.Context(), out, ISOOptions{Files: files, Label: label}); err != nil {
		t.Fatal(err)
	}
	return out
}

// readCD returns the first 40 KiB of a drive as a process of the host reads them: they hold the volume descriptor.
func readCD(t *testing.T, h *Host, node string) string {
	t.Helper()
	out, err := h.Must(t.Context(), "dd", "if=/dev/"+node, "bs=4096", "count=10", "status=none")
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestLabDrive(t *testing.T) {
	l := UpT(t)
	h := StartT(t, l, HostOptions{Name: "h"})
	ctx := t.Context()
	first, second := isoOf(t, "FIRST", 100), isoOf(t, "SECOND", 3000)

	if err := h.AddDrive("sr0"); err != nil {
		t.Fatal(err)
	}
	if got := readCD(t, h, "sr0"); got != "" {
		t.Errorf("an empty drive gave %d bytes", len(got))
	}
	fi, err := h.Lstat("/dev/sr0")
	if err != nil || fi.Mode() != os.ModeDevice|0o660 {
		t.Errorf("the node of an empty drive: %v, %v; want a block device, mode 0660", fi, err)
	}

	events := listenUevents(t, h)
	if err := h.InsertCD("sr0", first); err != nil {
		t.Fatal(err)
	}
	if !waitUevent(events) {
		t.Error("no kernel event told the host of the new medium")
	}
	if got := readCD(t, h, "sr0"); !strings.Contains(got, "CD001") || !strings.Contains(got, "FIRST") {
		t.Errorf("the drive does not hold the first image")
	}
	if out, err := h.Must(ctx, "blockdev", "--getsize64", "/dev/sr0"); err != nil || strings.TrimSpace(out) != sizeOf(t, first) {
		t.Errorf("size of the drive = %q, %v; want %s", out, err, sizeOf(t, first))
	}
	if r, err := h.Exec(ctx, "dd", "if=/dev/zero", "of=/dev/sr0", "bs=512", "count=1"); err != nil || r.Exit == 0 {
		t.Errorf("writing to a CD: %+v, %v; want a failure", r, err)
	}

	if err := h.InsertCD("sr0", second); err != nil {
		t.Fatal(err)
	}
	if got := readCD(t, h, "sr0"); !strings.Contains(got, "SECOND") {
		t.Errorf("the drive does not hold the second image")
	}
	image, err := os.ReadFile(second)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := h.Must(ctx, "cat", "/dev/sr0"); err != nil || out != string(image) {
		t.Errorf("the drive's %d bytes are not the image's %d (error %v)", len(out), len(image), err)
	}

	// mount(8) works whether the kernel knows iso9660 or not.
	if out, err := h.Must(ctx, "sh", "-ec", "mount -t iso9660 /dev/sr0 /mnt; cat /mnt/README; umount /mnt"); err != nil || out != "hello\n" {
		t.Errorf("README on the mounted CD = %q, %v; want hello", out, err)
	}

	// A medium that goes while somebody reads.
	f, err := os.OpenFile(h.nodePath("sr0"), os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 2048)
	if _, err := f.ReadAt(b, 32768); err != nil {
		t.Fatal(err)
	}
	if err := h.EjectCD("sr0"); err != nil {
		t.Fatal(err)
	}
	if n, err := f.ReadAt(b, 32768); err == nil {
		t.Errorf("%d bytes of a medium that is gone", n)
	}
	f.Close()
	if got := readCD(t, h, "sr0"); got != "" {
		t.Errorf("an ejected drive gave %d bytes", len(got))
	}
	if err := h.EjectCD("sr0"); err != nil {
		t.Errorf("ejecting an empty drive: %v", err)
	}

	// Two drives, of which one is damaged.
	if err := h.InsertDamagedCD("vdb", second, 65536); err != nil {
		t.Fatal(err)
	}
	if got := readCD(t, h, "vdb"); !strings.Contains(got, "SECOND") {
		t.Error("the damaged medium's good part does not read")
	}
	bad, err := os.OpenFile(h.nodePath("vdb"), os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := bad.ReadAt(b, 131072); !errors.Is(err, unix.EIO) {
		t.Errorf("reading the damaged part: %v, want EIO", err)
	}
	bad.Close()
	if err := h.InsertCD("vdb", first); err != nil {
		t.Fatal(err)
	}
	if got := readCD(t, h, "vdb"); !strings.Contains(got, "FIRST") {
		t.Error("the drive does not hold the image that replaced the damaged one")
	}

	if err := h.RemoveDrive("vdb"); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Lstat("/dev/vdb"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after RemoveDrive: %v, want no node", err)
	}
	for _, bad := range []string{"", "../x", "SR0"} {
		if err := h.InsertCD(bad, first); err == nil {
			t.Errorf("InsertCD into %q: want an error", bad)
		}
	}
}

func sizeOf(t *testing.T, path string) string {
	t.Helper()
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(fi.Size(), 10)
}

// listenUevents opens the kernel's device event socket in the host's network namespace.
func listenUevents(t *testing.T, h *Host) int {
	t.Helper()
	var fd int
	err := inThread(func() (err error) {
		if err := unix.Setns(h.pidfd, unix.CLONE_NEWNET); err != nil {
			return err
		}
		fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, unix.NETLINK_KOBJECT_UEVENT)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: 1})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func waitUevent(fd int) bool {
	tv := unix.NsecToTimeval(int64(3 * time.Second))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return false
	}
	buf := make([]byte, 8192)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return false
		}
		if bytes.HasPrefix(buf[:n], []byte("change@")) && bytes.Contains(buf[:n], []byte("/block/loop")) {
			return true
		}
	}
}

func TestImages(t *testing.T) { // needs no root
	if os.Getenv("CI") == "" {
		if _, err := os.Stat("/usr/bin/isoinfo"); err != nil {
			t.Skip("needs isoinfo")
		}
	}
	ctx := t.Context()
	dir := t.TempDir()
	program, err := GoProgram(ctx, "", "package main\n\nfunc main() { println(\"etcd Version: 9.9.9\") }\n")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(dir, "etcd.tar.gz")
	o := ArchiveOptions{Version: "9.9.9", Arch: "amd64", Binaries: map[string]string{"etcd": program, "etcdctl": program}, Without: []string{"etcdctl"}}
	if err := EtcdArchive(ctx, archive, o); err != nil {
		t.Fatal(err)
	}
	want := "etcd-v9.9.9-linux-amd64/\netcd-v9.9.9-linux-amd64/Documentation/\netcd-v9.9.9-linux-amd64/Documentation/README.md\n" +
		"etcd-v9.9.9-linux-amd64/README.md\netcd-v9.9.9-linux-amd64/etcd\n"
	if got := outputOf(t, ctx, "tar", "-tzf", archive); got != want {
		t.Errorf("the archive holds\n%s\nwant\n%s", got, want)
	}
	iso := filepath.Join(dir, "k8s.iso")
	if err := KubernetesISO(ctx, iso, KubernetesOptions{Etcd: archive, Extra: map[string]Source{"empty/": {}}}); err != nil {
		t.Fatal(err)
	}
	list := outputOf(t, ctx, "isoinfo", "-R", "-f", "-i", iso)
	for _, name := range []string{"/" + EtcdPath, "/k8s/kubeadm", "/docker/registry.k8s.io_pause:3.10.tar", "/empty"} {
		if !strings.Contains("\n"+list, "\n"+name+"\n") {
			t.Errorf("the ISO has no %s; it holds\n%s", name, list)
		}
	}
	if got := outputOf(t, ctx, "isoinfo", "-d", "-i", iso); !strings.Contains(got, "Volume id: CDROM\n") {
		t.Errorf("volume id is not the tool's default:\n%s", got)
	}
	if err := BuildISO(ctx, iso, ISOOptions{Files: map[string]Source{"../out": Text("")}}); err == nil {
		t.Error("a path that leads out of the image was taken")
	}
}

func outputOf(t *testing.T, ctx context.Context, name string, args ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(exec.CommandContext(ctx, name, args...), &out); err != nil {
		t.Fatalf("%s: %v: %s", name, err, out.String())
	}
	return out.String()
}
