//go:build lab && vm && linux

package vmlab

import (
	"os"

	"cks-etcd/internal/lab"
)

// guestPath is where the guest program is in a VM.
const guestPath = "/usr/local/sbin/cks-lab-guest"

// guestUnit runs it from early on, through the shutdown.
const guestUnit = `[Unit]
Description=The lab's hand
DefaultDependencies=no
[Service]
ExecStart=` + guestPath + `
Restart=always
StandardError=journal+console
`

// network takes what qemu's DHCP server gives, always the address IP.
const network = `[Match]
Name=eth0
[Network]
DHCP=ipv4
LinkLocalAddressing=no
IPv6AcceptRA=no
`

// IP is the address of each VM on the network it has for itself.
const IP = "10.0.2.15"

// masked units do periodic work in a VM that lives for a minute, or serve somebody at a console.
var masked = []string{
	"apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service",
	"fstrim.timer", "systemd-tmpfiles-clean.timer", "getty@tty1.service", "serial-getty@ttyS0.service",
	"systemd-pstore.service", "systemd-binfmt.service", "systemd-update-utmp.service", "systemd-update-utmp-runlevel.service",
	"cloud-init-hotplugd.socket",
}

// systemFiles make Debian's packages a system that boots here.
func systemFiles() []lab.File {
	const units = "/etc/systemd/system/"
	file := func(path, text string) lab.File { return lab.File{Path: path, Data: []byte(text), Mode: 0o644} }
	link := func(path, target string) lab.File {
		return lab.File{Path: path, Data: []byte(target), Mode: os.ModeSymlink | 0o777}
	}
	files := []lab.File{
		file("/etc/fstab", "/dev/vda / ext4 defaults,noatime 0 0\n"),
		file("/etc/hostname", "vm\n"),
		file("/etc/hosts", "127.0.0.1 localhost\n"),
		file("/etc/resolv.conf", ""),
		file("/etc/machine-id", ""),
		file("/etc/systemd/network/10-lab.network", network),
		file("/etc/cloud/cloud.cfg.d/99-lab.cfg", lab.CloudConfig),
		file("/etc/cloud/ds-identify.cfg", lab.CloudIdentify),
		file(units+"cks-lab-guest.service", guestUnit),
		link(units+"sysinit.target.wants/cks-lab-guest.service", units+"cks-lab-guest.service"),
		link(units+"multi-user.target.wants/systemd-networkd.service", "/lib/systemd/system/systemd-networkd.service"),
		link(units+"network-online.target.wants/systemd-networkd-wait-online.service", "/lib/systemd/system/systemd-networkd-wait-online.service"),
		link(units+"default.target", "/lib/systemd/system/multi-user.target"),
	}
	for _, u := range masked {
		files = append(files, link(units+u, "/dev/null"))
	}
	return files
}
