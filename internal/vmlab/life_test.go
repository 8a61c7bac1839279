//go:build lab && vm && linux

package vmlab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
	"cks-etcd/internal/vmlab/wire"
)

// Answers to CDROM_DRIVE_STATUS (linux/cdrom.h).
const (
	noDisc   = 1
	trayOpen = 2
	discOK   = 4
)

// emptyDrive waits for the boot and looks at the drive before anything was in it.
func (v *vmTest) emptyDrive(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var err error
	if v.boot, err = v.vm.WaitBoot(ctx, ""); err != nil {
		t.Fatal(err)
	}
	uptime, err := v.vm.Uptime(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("figure: the VM answers %.1f s after its start, %.1f s after its kernel's", v.vm.Age().Seconds(), uptime)
	v.wantEmpty(t)
	if d := v.drive(t, wire.Drive{Path: seedNode}); d.Volume != "cidata" || d.Status != discOK {
		t.Errorf("cloud-init's seed: %+v", d)
	}
}

// setUp inserts the ISO while the agent waits for it, and expects what CloudStack's cluster needs.
func (v *vmTest) setUp(t *testing.T) {
	ctx := t.Context()
	v.await(t, setup.DefaultState)
	t.Logf("figure: the agent waits %.1f s after the VM's start", v.vm.Age().Seconds())
	if err := pause(ctx, max(2*time.Second, afterBoot-v.vm.Age())); err != nil {
		t.Fatal(err)
	}
	if s := v.state(t); s.Step != "find" {
		t.Errorf("the agent is at step %q before the ISO is there", s.Step)
	}
	began := time.Now()
	inserted := v.insert(t, "with")
	v.await(t, "/run/cloud-init/result.json")
	t.Logf("figure: cloud-init ended %.1f s after the ISO came, %.1f s after the VM's start", time.Since(began).Seconds(), v.vm.Age().Seconds())
	if status := v.try(t, "cloud-init", "status", "--long"); !strings.Contains(status.Stdout, "status: done") {
		t.Errorf("cloud-init status: %s", status.Stdout)
	}
	v.wantEtcd(t)
	changes := v.mediaChanges(t, inserted)
	if len(changes) == 0 {
		t.Error("the kernel told nobody that the medium changed")
	} else {
		t.Logf("figure: the kernel's event came %.2f s after the medium", changes[0]-inserted)
	}
	for _, s := range v.state(t).Steps {
		t.Logf("figure: step %s: %.1f s", s.Name, s.Seconds)
	}
	t.Logf("agent's journal:\n%s", v.must(t, "journalctl", "--boot", "--no-pager", "--output=cat", "--unit=etcd-nodeagent"))
	if unit := v.property(t, "etcd", "FragmentPath"); unit != "/etc/systemd/system/etcd.service" || v.property(t, "etcd", "Type") != "notify" {
		t.Errorf("etcd's unit is %s", unit)
	}
	if user := v.must(t, "ps", "-o", "user=", "-p", v.property(t, "etcd", "MainPID")); user != "etcd" {
		t.Errorf("etcd runs as %s", user)
	}
	if failed := v.must(t, "systemctl", "list-units", "--failed", "--plain", "--no-legend"); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
	v.fleetSees(t)
	v.node = v.result(t)
}

// fleetSees looks at the node as an operator does: from outside, over SSH, as the user that cloud-init made.
func (v *vmTest) fleetSees(t *testing.T) {
	t.Helper()
	fleet := filepath.Join(v.dir, "fleet")
	if err := lab.BuildStatic(t.Context(), fleet, "cks-etcd/fleet", ""); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	cmd := exec.CommandContext(t.Context(), fleet, "nodes", "wait", "--health", "--timeout", "3m", "--identity", v.key, v.vm.SSHAddr())
	cmd.Env = append(os.Environ(), "XDG_STATE_HOME="+v.dir, "HOME="+v.dir, "SSH_AUTH_SOCK=")
	out, err := cmd.CombinedOutput()
	t.Logf("figure: etcd-fleet nodes wait: %.1f s\n%s", time.Since(began).Seconds(), out)
	if err != nil {
		t.Errorf("etcd-fleet nodes wait: %v", err)
	}
}

// eject takes the ISO out, as the cloud does once the cluster runs. Whoever held the drive would keep it in.
func (v *vmTest) eject(t *testing.T) {
	fi, err := os.Stat(v.isos["with"])
	if err != nil {
		t.Fatal(err)
	}
	d := v.drive(t, wire.Drive{Path: isoNode})
	if len(d.Holders)+len(d.MountPoints) > 0 || d.Exclusive != "" {
		t.Errorf("the drive is held by %q, mounted at %q, exclusive open: %q", d.Holders, d.MountPoints, d.Exclusive)
	}
	if d.Open != "" || d.Status != discOK || d.Size != uint64(fi.Size()) || d.Volume != "CDROM" || d.SessionErr != "" || d.Session != 0 {
		t.Errorf("the drive with the ISO: %+v; want a disc of %d bytes with one session", d, fi.Size())
	}
	v.takeOut(t)
	v.wantEmpty(t)
	if err := v.vm.CloseTray(t.Context()); err != nil {
		t.Fatal(err)
	}
	v.wantEmpty(t)
	v.wantEtcd(t)
}

// wantEmpty checks what the agent tells an empty drive by. Whether the kernel calls it open or without a disc changes with
// the drive's events, so either will do.
func (v *vmTest) wantEmpty(t *testing.T) {
	t.Helper()
	d := v.drive(t, wire.Drive{Path: isoNode})
	if d.Open != "ENOMEDIUM" || d.Nonblock != "" || d.Status != trayOpen && d.Status != noDisc || d.Read == "" {
		t.Errorf("the empty drive: %+v; want ENOMEDIUM from open, status %d or %d with O_NONBLOCK, and nothing to read", d, noDisc, trayOpen)
	}
}

// reboot checks that etcd comes back by itself, without an ISO, and that the agent has no part in it.
func (v *vmTest) reboot(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	v.must(t, "systemctl", "--no-block", "reboot")
	if _, err := v.vm.WaitBoot(ctx, v.boot); err != nil {
		t.Fatal(err)
	}
	t.Logf("figure: down and up again: %.1f s", time.Since(began).Seconds())
	v.await(t, "/run/cloud-init/result.json")
	if state := strings.TrimSpace(v.try(t, "systemctl", "is-system-running", "--wait").Stdout); state != "running" {
		t.Errorf("the system is %s: %s", state, v.must(t, "systemctl", "list-units", "--failed", "--plain", "--no-legend"))
	}
	v.wantEtcd(t)
	if us, err := strconv.ParseFloat(v.property(t, "etcd", "ActiveEnterTimestampMonotonic"), 64); err == nil {
		t.Logf("figure: etcd is active %.1f s after the kernel's start", us/1e6)
	}
	if ran := v.property(t, "etcd-nodeagent", "ExecMainStartTimestampMonotonic"); ran != "0" {
		t.Errorf("etcd-nodeagent.service ran in the second boot, at %s us", ran)
	}
	if met := v.property(t, "etcd-nodeagent", "ConditionResult"); met != "no" {
		t.Errorf("etcd-nodeagent.service's conditions are met: %s", met)
	}
	if got := v.result(t); got != v.node {
		t.Errorf("after the reboot: %+v, want %+v", got, v.node)
	}
	began = time.Now()
	out := v.try(t, "etcd-nodeagent", "setup")
	t.Logf("figure: a second setup: %.2f s", time.Since(began).Seconds())
	if out.Exit != 0 || !strings.Contains(out.Stderr, "nothing to do") {
		t.Errorf("a second setup: %+v", out)
	}
	if got := v.result(t); got != v.node {
		t.Errorf("after a second setup: %+v, want %+v", got, v.node)
	}
}

// forget makes the node one that was never set up.
func (v *vmTest) forget(t *testing.T) {
	t.Helper()
	v.must(t, "systemctl", "disable", "--now", "etcd")
	v.must(t, "sh", "-c", "rm -rf /opt/bin/etcd /opt/bin/etcdctl /var/lib/etcd/member /var/lib/etcd-nodeagent/* /run/etcd-nodeagent.env")
}

// without runs the node's user data once more, on a node that was never set up. Another ISO is no reason to end the wait;
// a Kubernetes ISO without etcd is, and cloud-init must say that it failed.
func (v *vmTest) without(t *testing.T) {
	v.forget(t)
	type ended struct {
		out wire.Output
		err error
	}
	done := make(chan ended, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		out, err := v.vm.Exec(ctx, "/bin/sh", "/var/lib/cloud/instance/scripts/runcmd")
		done <- ended{out, err}
	}()
	v.await(t, setup.DefaultState)
	v.insert(t, "other")
	v.awaitSeen(t, `ISO "CDROM"`)
	// Somebody who keeps the drive open, so that its pages stay in the cache.
	before := v.drive(t, wire.Drive{Path: isoNode, Hold: true})
	select {
	case e := <-done:
		t.Fatalf("the setup did not wait on: %+v", e)
	default:
	}
	v.takeOut(t)
	began := time.Now()
	v.insert(t, "without")
	e := <-done
	if e.err != nil {
		t.Fatal(e.err)
	}
	t.Logf("figure: the reason came %.1f s after the ISO without etcd", time.Since(began).Seconds())
	if e.out.Exit != 1 {
		t.Errorf("the user data's commands ended with status %d, want 1: %s", e.out.Exit, e.out.Stderr)
	}
	v.wantReason(t, reason.ArchiveMissing, "etcd/etcd-linux-amd64.tar.gz is not on the ISO in /dev/sr0")
	if exit := v.property(t, "etcd-nodeagent", "ExecMainStatus"); exit != "1" {
		t.Errorf("the agent's exit status is %s, want 1", exit)
	}
	d := v.drive(t, wire.Drive{Path: isoNode})
	if d.Volume != before.Volume || d.Size != before.Size || d.Sum == before.Sum {
		t.Errorf("the media cannot be told apart by label or size, but by content: %+v, then %+v", before, d)
	}
	t.Logf("who has kept the drive open reads the old medium: %t", d.Held == before.Sum)
	v.takeOut(t)
}

// awaitSeen waits until the running agent has seen a medium.
func (v *vmTest) awaitSeen(t *testing.T, what string) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		log := v.must(t, "journalctl", "--boot", "--no-pager", "--output=cat", "--unit=etcd-nodeagent")
		if strings.Contains(log, what) {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the agent does not see %s:\n%s", what, log)
		}
		if err := pause(t.Context(), time.Second); err != nil {
			t.Fatal(err)
		}
	}
}

// afterChange sets the node up from the next ISO, of the same label and size as the one before.
func (v *vmTest) afterChange(t *testing.T) {
	v.insert(t, "with")
	if out := v.try(t, "/opt/bin/setup-etcd-node"); out.Exit != 0 {
		t.Fatalf("setup-etcd-node: %+v", out)
	}
	v.wantEtcd(t)
	if d := v.drive(t, wire.Drive{Path: isoNode}); len(d.Holders)+len(d.MountPoints) > 0 {
		t.Errorf("the drive is held by %q, mounted at %q", d.Holders, d.MountPoints)
	}
}

// remove takes the package off a node that runs: nothing of it stays but its configuration, and after a purge nothing.
func (v *vmTest) remove(t *testing.T) {
	pid := v.property(t, "etcd", "MainPID")
	files := strings.Fields(v.must(t, "dpkg", "--listfiles", "etcd-nodeagent"))
	v.must(t, "dpkg", "--remove", "etcd-nodeagent")
	script := []string{"sh", "-c", `for f; do [ -d "$f" ] || ! [ -e "$f" ] || echo "$f"; done`, "sh"}
	if left := v.must(t, append(script, files...)...); left != "/etc/default/etcd-nodeagent" {
		t.Errorf("a removal leaves %q, want the configuration", left)
	}
	v.must(t, "dpkg", "--purge", "etcd-nodeagent")
	for _, pattern := range []string{"/etc/default/etcd-nodeagent*", "/var/lib/etcd-nodeagent*", "/run/etcd-nodeagent.lock", "/usr/share/etcd-nodeagent",
		"/etc/systemd/system/*/etcd-nodeagent*", "/usr/lib/*/*/etcd-nodeagent*", "/usr/bin/etcd-nodeagent", "/var/lib/systemd/deb-systemd-helper-enabled/*etcd-nodeagent*"} {
		if out := v.try(t, "sh", "-c", "ls -d "+pattern); out.Exit == 0 {
			t.Errorf("a purge leaves %s", out.Stdout)
		}
	}
	v.wantEtcd(t)
	if got := v.property(t, "etcd", "MainPID"); got != pid {
		t.Errorf("etcd is process %s, was %s", got, pid)
	}
	if failed := v.must(t, "systemctl", "list-units", "--failed", "--plain", "--no-legend"); failed != "" {
		t.Errorf("failed units: %s", failed)
	}
	// The user data on a template without the package.
	v.forget(t)
	if out := v.try(t, "/bin/sh", "/var/lib/cloud/instance/scripts/runcmd"); out.Exit != 1 || !strings.Contains(out.Stderr, "etcd-nodeagent is not installed") {
		t.Errorf("the user data's commands without the package: %+v", out)
	}
	if line := v.must(t, "cat", setup.DefaultMarker); !strings.HasPrefix(line, "etcd-nodeagent is not installed") || strings.Contains(line, "\n") {
		t.Errorf("marker %q", line)
	}
	if got := strings.TrimSpace(v.try(t, "systemctl", "is-enabled", "etcd").Stdout); got != "disabled" {
		t.Errorf("etcd.service is %s", got)
	}
}
