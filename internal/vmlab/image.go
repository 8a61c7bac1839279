//go:build lab && vm && linux

package vmlab

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
)

// diskSize is the root disk's: what a small template has, and room for etcd's write-ahead log (2 x 64 MiB).
const diskSize = 1500 << 20

// Image is what VMs boot from. It has no name and is gone with the process; a VM writes to it, so it serves one.
type Image struct {
	kernel string
	initrd string
	disk   *os.File
}

// ImageOptions say what an image holds beyond Debian.
type ImageOptions struct {
	Dir   string       // an empty directory for what is needed while it is in use
	Debs  []string     // packages that are installed with dpkg
	Files []lab.File   // and more files
	Log   func(string) // told of what takes long
}

// NewImage makes an image. The first call on a machine makes the root file system, which takes 2 to 3 minutes; the rest
// takes seconds.
func NewImage(ctx context.Context, o ImageOptions) (_ *Image, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot make a VM's image: %w", err)
		}
	}()
	base, err := root(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	kernel, release, err := base.kernel()
	if err != nil {
		return nil, err
	}
	modules, err := base.modules(release)
	if err != nil {
		return nil, err
	}
	guest := filepath.Join(o.Dir, "guest")
	if err := lab.BuildStatic(ctx, guest, "cks-etcd/internal/vmlab/guest", "vm"); err != nil {
		return nil, err
	}
	m := &Image{kernel: kernel, initrd: filepath.Join(o.Dir, "initrd")}
	if err := writeInitrd(m.initrd, guest, modules); err != nil {
		return nil, err
	}
	program, err := os.ReadFile(guest)
	if err != nil {
		return nil, err
	}
	files := append(systemFiles(), lab.File{Path: guestPath, Data: program, Mode: 0o755})
	m.disk, err = makeDisk(ctx, base, append(files, o.Files...), o.Debs, o.Dir)
	return m, err
}

// Close lets go of the image.
func (m *Image) Close() error { return m.disk.Close() }

// diskScript mounts, and so runs where nothing of that outlives it. $1 is the root file
// system, $2 an empty directory, the rest are packages; a tar archive of files is its input, the disk is descriptor 3. The
// packages are installed as an image builder does it in a chroot: no service manager runs there.
const diskScript = `set -e
base=$1 work=$2
shift 2
mount -t tmpfs -o mode=755 tmpfs "$work"
mkdir "$work/upper" "$work/work" "$work/root"
root=$work/root
mount -t overlay overlay -o "lowerdir=$base,upperdir=$work/upper,workdir=$work/work" "$root"
tar -x -C "$root" --keep-directory-symlink
if [ $# -gt 0 ]; then
	mkdir "$root/packages"
	cp -- "$@" "$root/packages"
	mount -t proc proc "$root/proc"
	mount -t tmpfs tmpfs "$root/dev"
	mknod -m 666 "$root/dev/null" c 1 3
	chroot "$root" sh -c 'env DEBIAN_FRONTEND=noninteractive dpkg --install /packages/*.deb' >&2
	umount "$root/dev" "$root/proc"
	rm -r "$root/packages"
fi
mke2fs -q -F -t ext4 -L root -E lazy_itable_init=1 -d "$root" /proc/self/fd/3
`

// makeDisk makes a disk without a name, of a base system, files and packages.
func makeDisk(ctx context.Context, base rootDir, files []lab.File, debs []string, dir string) (_ *os.File, err error) {
	if strings.ContainsAny(string(base)+dir, ",:\\") {
		return nil, errors.New("an overlay's directories may not hold any of \",:\\\"")
	}
	fd, err := unix.Open(filepath.Dir(string(base)), unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	disk := os.NewFile(uintptr(fd), "disk")
	defer func() {
		if err != nil {
			disk.Close()
		}
	}()
	if err := disk.Truncate(diskSize); err != nil {
		return nil, err
	}
	work := filepath.Join(dir, "work")
	if err := os.Mkdir(work, 0o700); err != nil {
		return nil, err
	}
	archive, err := pack(files)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", diskScript, "sh", string(base), work}, debs...)...)
	cmd.Stdin = bytes.NewReader(archive)
	cmd.ExtraFiles = []*os.File{disk}
	if _, err := lab.RunPrivately(cmd); err != nil {
		return nil, err
	}
	return disk, nil
}

// pack makes a tar archive of files. A file with ModeSymlink is a link to what Data says.
func pack(files []lab.File) ([]byte, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), Size: int64(len(f.Data)), Format: tar.FormatGNU}
		if f.Mode&os.ModeSymlink != 0 {
			h.Typeflag, h.Linkname, h.Size = tar.TypeSymlink, string(f.Data), 0
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if h.Size > 0 {
			if _, err := w.Write(f.Data); err != nil {
				return nil, err
			}
		}
	}
	err := w.Close()
	return buf.Bytes(), err
}
