package source

import (
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/fscall"
)

// A stat is what stat(2) says.
type stat struct {
	fs.FileInfo
	sys syscall.Stat_t
}

func (s stat) Sys() any { return &s.sys }

// TestNetworkFileSystem: the key of a file there is the same after a reboot, which
// gives the mount another device number, and never that of another file.
func TestNetworkFileSystem(t *testing.T) {
	info, err := os.Stat(writeFile(t, content(10)))
	if err != nil {
		t.Fatal(err)
	}
	key := func(dev uint64, inode uint64, mounts ...fscall.Mount) string {
		s := stat{FileInfo: info}
		s.sys.Dev, s.sys.Ino = dev, inode
		return identify(s, func(dev uint64) (fscall.Mount, bool) {
			for _, m := range mounts {
				if m.Device == dev {
					return m, true
				}
			}
			return fscall.Mount{}, false
		}).Key()
	}
	for _, test := range []struct {
		name string
		m    fscall.Mount
		same bool
	}{
		{"NFS 3", fscall.Mount{Type: "nfs", Source: "server:/export"}, true},
		{"NFS 4", fscall.Mount{Type: "nfs4", Source: "[fd00::1]:/export"}, true},
		{"NFS, a source that does not print", fscall.Mount{Type: "nfs4", Source: "server:/ex port\n\xff"}, true},
		{"NFS, a long source", fscall.Mount{Type: "nfs4", Source: "server:/" + strings.Repeat("x", 1000)}, true},
		{"SMB", fscall.Mount{Type: "cifs", Source: "//server/share", Options: "rw,vers=3.1.1,serverino,soft"}, true},
		{"SMB 3", fscall.Mount{Type: "smb3", Source: "//server/share", Options: "serverino"}, true},
		{"SMB whose client counts inodes", fscall.Mount{Type: "cifs", Source: "//server/share", Options: "rw,noserverino"}, false},
		{"CephFS", fscall.Mount{Type: "ceph", Source: "192.0.2.1:6789:/volumes"}, true},
		{"GlusterFS", fscall.Mount{Type: "fuse.glusterfs", Source: "server:/volume"}, true},
		{"SSHFS, which counts inodes", fscall.Mount{Type: "fuse.sshfs", Source: "user@server:/dir"}, false},
		{"tmpfs", fscall.Mount{Type: "tmpfs", Source: "tmpfs"}, false},
		{"overlay", fscall.Mount{Type: "overlay", Source: "overlay"}, false},
		{"NFS without a source", fscall.Mount{Type: "nfs", Source: "none"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			at := func(dev uint64) fscall.Mount { m := test.m; m.Device = dev; return m }
			first := key(50, 7, at(50))
			if got := key(61, 7, fscall.Mount{Device: 50, Type: "proc", Source: "proc"}, at(61)); got == first != test.same {
				t.Errorf("the key is %q, and after another mount %q; want the same: %v", first, got, test.same)
			}
			if len(first) > maxKey || strings.ContainsFunc(first, func(r rune) bool { return r < ' ' || r > '~' }) {
				t.Errorf("%q is too long or does not print", first)
			}
			other := at(50)
			other.Source += "2"
			for what, got := range map[string]string{"inode": key(50, 8, at(50)), "source": key(50, 7, other)} {
				if got == first && (what == "inode" || test.same) {
					t.Errorf("another %s has the same key %q", what, got)
				}
			}
		})
	}
	if got, want := key(50, 7), key(50, 7, fscall.Mount{Device: 50, Type: "tmpfs", Source: "tmpfs"}); got != want {
		t.Errorf("a file whose mount is not known has the key %q, want %q", got, want)
	}
	// A disk has a number of its own, whatever is said of the mount.
	disk := unix.Mkdev(8, 1)
	if got, want := key(disk, 7, fscall.Mount{Device: disk, Type: "nfs", Source: "server:/export"}), key(disk, 7); got != want {
		t.Errorf("a file on a disk has the key %q, want %q", got, want)
	}
}
