//go:build lab && vm && linux

package vmlab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"cks-etcd/internal/lab"
)

// rootScript adds to the hosts' root file system what a VM needs beyond: udev, kmod, and Debian's cloud kernel, the one
// with few drivers. This machine's apt does it, with its proxies, but with the sources of the root file system. The kernel is
// only unpacked: installed, it wants a generator of initial RAM disks, and that takes a minute.
const rootScript = `set -e
cp -a "$1" "$2"
mount -t tmpfs -o mode=755 tmpfs "$2/dev"
mknod -m 666 "$2/dev/null" c 1 3
mount -t proc proc "$2/proc"
apt() {
	tool=$1
	shift
	DEBIAN_FRONTEND=noninteractive "$tool" -qq -o Dir="$root" -o DPkg::Chroot-Directory="$root" -o APT::Sandbox::User=root \
		-o APT::Install-Recommends=false -o Dpkg::Options::=--force-unsafe-io -o Dpkg::Use-Pty=false "$@"
}
root=$2
apt apt-get update
apt apt-get install -y udev kmod </dev/null
k=$(apt apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
cd "$root/tmp"
apt apt-get download "$k"
dpkg-deb --fsys-tarfile "$k"_*.deb | tar -x -C "$root" --exclude=./usr/share --keep-directory-symlink
chroot "$root" depmod "${k#linux-image-}"
rm "$k"_*.deb
cd /
apt apt-get clean
rm -rf "$root"/var/lib/apt/lists/*
umount "$root/dev" "$root/proc"
`

// root returns the root file system of the VMs, with a kernel.
func root(ctx context.Context, log func(string)) (rootDir, error) {
	dir, err := lab.RootFrom(ctx, "vm", rootScript, log)
	return rootDir(dir), err
}

// rootDir is a VM's root file system on this machine.
type rootDir string

// kernel returns the path of the kernel and its release.
func (r rootDir) kernel() (path, release string, err error) {
	found, err := filepath.Glob(filepath.Join(string(r), "boot", "vmlinuz-*"))
	if err != nil || len(found) != 1 {
		return "", "", fmt.Errorf("cannot find the VMs' kernel: %d of them in %s", len(found), r)
	}
	return found[0], filepath.Base(found[0])[len("vmlinuz-"):], nil
}

// bootModules are the drivers that are needed before udev is there: the disk's, the drives', so that cloud-init's search
// for its seed, which does not wait for udev, finds it, and the channel's.
var bootModules = []string{"virtio_pci", "virtio_blk", "ata_piix", "sr_mod", "isofs", "virtio_console"}

// modules returns the files of bootModules and of what they need, in the order to load them.
func (r rootDir) modules(release string) ([]string, error) {
	dir := filepath.Join(string(r), "lib", "modules", release)
	b, err := os.ReadFile(filepath.Join(dir, "modules.dep"))
	if err != nil {
		return nil, err
	}
	needs := parseDependencies(string(b))
	var order []string
	seen := map[string]bool{}
	for _, name := range bootModules {
		files, ok := needs[name]
		if !ok {
			return nil, fmt.Errorf("kernel %s has no module %s", release, name)
		}
		for _, f := range files {
			if !seen[f] {
				seen[f] = true
				order = append(order, filepath.Join(dir, f))
			}
		}
	}
	return order, nil
}
