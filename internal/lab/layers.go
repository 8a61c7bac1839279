//go:build lab && linux

package lab

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// maskedUnits make no sense on a shared kernel without hardware of its own, or would do periodic work in a host
// that lives for a minute.
var maskedUnits = []string{
	"systemd-udevd.service", "systemd-udevd-kernel.socket", "systemd-udevd-control.socket", "systemd-udev-trigger.service",
	"systemd-modules-load.service", "modprobe@.service", "kmod-static-nodes.service", "systemd-sysctl.service",
	"systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount",
	"sys-kernel-debug.mount", "sys-kernel-tracing.mount", "sys-fs-fuse-connections.mount", "dev-hugepages.mount", "dev-mqueue.mount", "systemd-remount-fs.service",
	"console-getty.service", "getty.target", "getty@tty1.service",
	"systemd-networkd.service", "systemd-networkd.socket", "systemd-networkd-wait-online.service",
	"systemd-pstore.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "systemd-tmpfiles-clean.timer", "cloud-init-hotplugd.socket",
	// Each takes one of the inotify instances that all hosts share (fs.inotify.max_user_instances, 128 by default),
	// and the user manager takes three for everybody who logs in.
	"systemd-ask-password-console.path", "systemd-ask-password-wall.path", "user@.service",
}

// mountISO9660 lets mount -t iso9660 work where the kernel has no such file system. The fuse daemon runs as a unit
// of its own, so that it outlives the service or session that mounts. (mount(2) called directly still fails.)
const mountISO9660 = `#!/bin/sh
exec systemd-run -q --service-type=forking fuseiso "$1" "$2" -o allow_other,ro
`

// cloudConfig makes cloud-init take the seed directory only and run those modules that CloudStack's user data for
// etcd nodes needs: python start-up is most of a host's boot.
const cloudConfig = `datasource_list: [ NoCloud, None ]
network: {config: disabled}
manage_etc_hosts: localhost
ssh_genkeytypes: [ed25519]
cloud_init_modules: [write-files, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [runcmd]
cloud_final_modules: [scripts-user, final-message]
`

// cloudIdentify keeps ds-identify from switching cloud-init off where it finds no data source that it knows.
const cloudIdentify = "policy: search,found=all,maybe=all,notfound=enabled\n"

// writeLayers writes the two read-only configuration layers that lie above the root file system: "common" below
// every host, "user" below those that have no user data and so nobody to make the user cloud for them.
func writeLayers(dir, rootfs, publicKey string) error {
	common, user := filepath.Join(dir, "common"), filepath.Join(dir, "user")
	files := []layerFile{
		{common, "etc/fstab", "", 0o644},
		{common, "etc/resolv.conf", "", 0o644},
		{common, "usr/sbin/mount.iso9660", mountISO9660, 0o755},
		{common, "etc/cloud/ds-identify.cfg", cloudIdentify, 0o644},
		{common, "etc/cloud/cloud.cfg.d/99-lab.cfg", cloudConfig, 0o644},
		{user, "etc/cloud/cloud-init.disabled", "", 0o644},
		{user, "etc/sudoers.d/cloud", "cloud ALL=(ALL) NOPASSWD:ALL\n", 0o440},
		{user, "home/cloud/.ssh/authorized_keys", publicKey, 0o600},
	}
	for name, line := range map[string]string{
		"etc/passwd": "cloud:x:1000:1000::/home/cloud:/bin/bash\n",
		"etc/group":  "cloud:x:1000:\n",
		"etc/shadow": "cloud:*:19000:0:99999:7:::\n", // "*": no password, but not locked, which sshd would refuse
	} {
		old, err := os.ReadFile(filepath.Join(rootfs, name))
		if err != nil {
			return fmt.Errorf("cannot read the hosts' root file system: %w", err)
		}
		mode := os.FileMode(0o644)
		if name == "etc/shadow" {
			mode = 0o640
		}
		files = append(files, layerFile{user, name, string(old) + line, mode})
	}
	for _, f := range files {
		if err := f.write(); err != nil {
			return err
		}
	}
	for _, u := range maskedUnits {
		if err := symlink("/dev/null", filepath.Join(common, "etc/systemd/system", u)); err != nil {
			return err
		}
	}
	if err := symlink("/lib/systemd/system/multi-user.target", filepath.Join(common, "etc/systemd/system/default.target")); err != nil {
		return err
	}
	for _, layer := range []string{common, user} {
		if err := openDirectories(layer); err != nil {
			return err
		}
	}
	for name, mode := range map[string]os.FileMode{"home/cloud": 0o755, "home/cloud/.ssh": 0o700, "home/cloud/.ssh/authorized_keys": 0o600} {
		p := filepath.Join(user, name)
		if err := os.Chown(p, 1000, 1000); err != nil {
			return err
		}
		if err := os.Chmod(p, mode); err != nil {
			return err
		}
	}
	return nil
}

// openDirectories gives a layer's directories mode 0755, whatever the umask is: a directory's mode in the upper layer
// is what the host sees.
func openDirectories(layer string) error {
	return filepath.WalkDir(layer, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return os.Chmod(p, 0o755)
	})
}

// layerFile is one file of a layer.
type layerFile struct {
	layer, name, text string
	mode              os.FileMode
}

func (f layerFile) write() error {
	p := filepath.Join(f.layer, f.name)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(p, []byte(f.text), f.mode); err != nil {
		return err
	}
	return os.Chmod(p, f.mode) // whatever the umask is
}

func symlink(target, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.Symlink(target, path)
}

// newKey makes an ed25519 key pair without passphrase at path and path.pub and returns the public line.
func newKey(ctx context.Context, path, comment string) (string, error) {
	var out limitedBuffer
	if err := run(exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path), &out); err != nil {
		return "", fmt.Errorf("cannot make an ssh key: %w: %s", err, lastLines(out.b, 2))
	}
	pub, err := os.ReadFile(path + ".pub")
	return string(pub), err
}

// seed returns the files of cloud-init's NoCloud seed. The instance id is what makes cloud-init run once a host.
func seed(host, id, userData string) []File {
	const dir = "/var/lib/cloud/seed/nocloud/"
	meta := fmt.Sprintf("instance-id: %s-%s\nlocal-hostname: %s\n", host, id, host)
	return []File{
		{Path: dir + "meta-data", Data: []byte(meta), Mode: 0o644},
		{Path: dir + "user-data", Data: []byte(strings.TrimLeft(userData, "\n")), Mode: 0o600},
	}
}
