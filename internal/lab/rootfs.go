//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// suite is the Debian release the hosts run: the one the product is packaged for.
const suite = "bookworm"

// hostPackages is what a host holds beyond Debian's essential packages.
var hostPackages = []string{
	"systemd", "systemd-sysv", "dbus", // PID 1 and the bus
	"openssh-server", "sudo", "cloud-init", // how CloudStack's nodes are set up and reached
	"iproute2", "iputils-ping", "netbase", "procps", "util-linux", "eject", "tar", "gzip",
	"fuseiso", // mounts ISO images where the kernel has no iso9660
	"curl",    // asks the daemon
}

// rootfsArgs are mmdebstrap's arguments before suite, target and mirrors.
func rootfsArgs() []string {
	return []string{
		"--mode=root", "--variant=minbase", "--format=directory",
		"--include=" + strings.Join(hostPackages, ","),
		"--aptopt=APT::Install-Recommends \"false\"",
		"--dpkgopt=force-unsafe-io", // a build that a power cut spoils is simply made again
		"--dpkgopt=path-exclude=/usr/share/man/*",
		"--dpkgopt=path-exclude=/usr/share/doc/*",
		"--dpkgopt=path-exclude=/usr/share/locale/*",
		// Each host gets keys and a machine id of its own.
		`--customize-hook=rm -f "$1"/etc/ssh/ssh_host_*`,
		`--customize-hook=: >"$1/etc/machine-id"`,
	}
}

// rootfs returns the directory of the hosts' root file system, building it when the cache has none for this recipe
// (2 to 3 minutes).
func rootfs(ctx context.Context, log func(string)) (string, error) {
	args := rootfsArgs()
	sum := sha256.Sum256([]byte(suite + "\x00" + runtime.GOARCH + "\x00" + strings.Join(args, "\x00")))
	name := "rootfs-" + suite + "-" + hex.EncodeToString(sum[:6])
	return cached(ctx, name, func(ctx context.Context, tmp string) error {
		log("building the hosts' root file system (once, 2 to 3 minutes)")
		mirrors, err := aptMirrors(ctx)
		if err != nil {
			return err
		}
		args = append(args, suite, tmp)
		args = append(args, mirrors...)
		// Privately: the /proc and /sys that it mounts there must not stay behind when it is killed.
		if _, err := RunPrivately(exec.CommandContext(ctx, "mmdebstrap", args...)); err != nil {
			return fmt.Errorf("cannot build the root file system: %w", err)
		}
		return nil
	})
}

// aptMirrors returns sources.list lines for suite as this machine's own apt has them. None are returned where apt
// knows no source of that suite: mmdebstrap then takes its default.
func aptMirrors(ctx context.Context) ([]string, error) {
	var out bytes.Buffer
	err := run(exec.CommandContext(ctx, "apt-get", "indextargets",
		"--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages"), &out)
	if err != nil {
		return nil, fmt.Errorf("cannot ask apt for its sources: %w: %s", err, lastLines(out.Bytes(), 3))
	}
	var lines []string
	for line := range strings.Lines(out.String()) {
		f := strings.Fields(line)
		if len(f) != 3 || f[2] != "main" {
			continue
		}
		switch f[1] {
		case suite, suite + "-updates", suite + "-security":
			lines = append(lines, "deb "+strings.Join(f, " "))
		}
	}
	return lines, nil
}

// lastLines returns the last n lines of a tool's output, joined, for an error message.
func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// labsDir is the directory that holds one directory a running lab.
func labsDir() string { return filepath.Join(CacheDir(), "labs") }
