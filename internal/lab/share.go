//go:build lab && linux

package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// What internal/vmlab, the other half of the lab, takes from here: the cache, the recipe of a root file system, and
// processes that end with this one.

// RootFrom returns a directory with the hosts' root file system and what a shell script makes of it: $1 is that of the
// hosts, not to be touched, $2 does not exist yet. It runs as RunPrivately does, when the cache has none for this script.
func RootFrom(ctx context.Context, what, script string, log func(string)) (string, error) {
	base, err := rootfs(ctx, log)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(script))
	return cached(ctx, what+"-"+filepath.Base(base)+"-"+hex.EncodeToString(sum[:6]), func(ctx context.Context, tmp string) error {
		log("building the root file system of " + what + "s (once)")
		_, err := RunPrivately(exec.CommandContext(ctx, "sh", "-c", script, "sh", base, tmp))
		return err
	})
}

// How a machine's cloud-init is set up: its configuration and that of ds-identify, which else may switch it off.
const (
	CloudConfig   = cloudConfig
	CloudIdentify = cloudIdentify
)

// BuildStatic builds one of this module's main packages, with that build tag, as a static program for this machine.
func BuildStatic(ctx context.Context, out, pkg, tag string) error {
	_, err := goTool(ctx, "", staticBuild(runtime.GOARCH), "build", "-tags", tag, "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, pkg)
	return err
}

// RunPrivately runs cmd, made by exec.CommandContext, with mounts of its own: those it makes nobody else sees, and they
// end with it. It returns the first 16 MiB of its output; the error of a command that failed has the output's last lines.
// The command does not outlive this process.
func RunPrivately(cmd *exec.Cmd) (string, error) {
	var out limitedBuffer
	enter := func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return err
		}
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	}
	if err := runFrom(enter, cmd, &out); err != nil {
		return "", fmt.Errorf("%s: %w: %s", cmd.Args[0], err, lastLines(out.b, 5))
	}
	return string(out.b), nil
}

// Child is a process that the kernel kills when this one ends.
type Child struct{ t *task }

// Spawn starts cmd, whose SysProcAttr must have Pdeathsig set, on a thread that lives as long as the process does.
func Spawn(cmd *exec.Cmd) (*Child, error) {
	t, err := spawn(cmd, stay)
	if err != nil {
		return nil, err
	}
	return &Child{t}, nil
}

// Done is closed when the process has ended.
func (c *Child) Done() <-chan struct{} { return c.t.done }

// Err returns how the process ended, as exec.Cmd.Wait does. It waits for that.
func (c *Child) Err() error {
	<-c.t.done
	return c.t.err
}
