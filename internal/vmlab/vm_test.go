//go:build lab && vm && linux

package vmlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/cloudinittest"
	"cks-etcd/internal/lab"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
	"cks-etcd/internal/vmlab/wire"
)

// The drives as the VM sees them. CloudStack's VMs have them in this order.
const (
	isoNode  = "/dev/sr0"
	seedNode = "/dev/sr1"
)

// afterBoot is how long after a VM's start the cloud attaches the ISO, at the earliest.
const afterBoot = 20 * time.Second

// patience bounds each wait for the VM: minutes, as it runs without KVM on a machine that has other things to do.
const patience = 6 * time.Minute

// TestVM takes one VM through the life of an etcd node: from a template with the package to a node that lost it.
func TestVM(t *testing.T) {
	v := newVMTest(t)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"boots with an empty drive", v.emptyDrive},
		{"ISO comes, etcd starts", v.setUp},
		{"ISO goes, nobody holds it", v.eject},
		{"etcd is back after a reboot", v.reboot},
		{"other ISO, then one without etcd", v.without},
		{"then one with etcd", v.afterChange},
		{"Linux sees the names that isofs reads", v.names},
		{"package goes, etcd stays", v.remove},
	} {
		began := time.Now()
		if !t.Run(step.name, step.do) {
			return // what comes next builds on it
		}
		t.Logf("figure: %s: %.1f s", step.name, time.Since(began).Seconds())
	}
}

// vmTest is the VM, and what its steps tell each other.
type vmTest struct {
	dir   string
	vm    *VM
	key   string // file of the private key that cloud's login takes
	name  string // of the etcd member
	isos  map[string]string
	trees []treeImage

	boot string      // id of the first boot
	node setupResult // what the first setup left
}

// setupResult is what must not change while nobody sets the node up again.
type setupResult struct{ state, etcd string }

func newVMTest(t *testing.T) *vmTest {
	t.Helper()
	requireVM(t)
	ctx := t.Context()
	v := &vmTest{dir: t.TempDir(), isos: map[string]string{}}
	began := time.Now()
	figure := func(what string) {
		t.Logf("figure: %s: %.1f s", what, time.Since(began).Seconds())
		began = time.Now()
	}
	deb := nodeagentDeb(t, v.dir)
	figure("package")
	v.makeISOs(t)
	v.trees = makeTrees(t, v.dir)
	figure("ISO images")
	files := make([]lab.File, 0, len(v.trees))
	for _, tree := range v.trees {
		b, err := os.ReadFile(tree.path)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, lab.File{Path: tree.inVM(), Data: b, Mode: 0o644})
	}
	image, err := NewImage(ctx, ImageOptions{Dir: v.mkdir(t, "image"), Debs: []string{deb}, Files: files, Log: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { image.Close() })
	figure("VM image")
	v.vm, err = Start(ctx, Options{Image: image, Dir: v.mkdir(t, "vm"), Name: "etcd-1", UserData: v.userData(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.vm.Close(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			console := v.vm.Console()
			t.Logf("end of the console:\n%s", console[max(0, len(console)-4096):])
		}
	})
	return v
}

func (v *vmTest) mkdir(t *testing.T, name string) string {
	t.Helper()
	dir := filepath.Join(v.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// userData is what CloudStack would hand the node, with a key that the test has.
func (v *vmTest) userData(t *testing.T) string {
	t.Helper()
	template, err := cloudinittest.Template()
	if err != nil {
		t.Fatal(err)
	}
	v.key = filepath.Join(v.dir, "id_ed25519")
	if out, err := exec.CommandContext(t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "management", "-f", v.key).CombinedOutput(); err != nil {
		t.Fatalf("ssh-keygen: %v: %s", err, out)
	}
	public, err := os.ReadFile(v.key + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	v.name = cloudinittest.NodeName("Prod_Cluster.1", "", 1, 1761845971000)
	return cloudinittest.Render(template, cloudinittest.Defaults(strings.TrimSpace(string(public)), cloudinittest.Member{Name: v.name, IP: IP}))
}

// makeISOs makes the media of the drive: a Kubernetes ISO with etcd, one without, and an ISO of something else. All have
// the same label, and the latter two the size of the first, so that nothing but their content tells them apart.
func (v *vmTest) makeISOs(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	archive := filepath.Join(v.dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(ctx, archive, lab.ArchiveOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"with", "without", "other"} {
		v.isos[name] = filepath.Join(v.dir, name+".iso")
	}
	err := errors.Join(
		lab.KubernetesISO(ctx, v.isos["with"], lab.KubernetesOptions{Etcd: archive}),
		lab.KubernetesISO(ctx, v.isos["without"], lab.KubernetesOptions{}),
		lab.BuildISO(ctx, v.isos["other"], lab.ISOOptions{Files: map[string]lab.Source{"readme.txt": lab.Text("nothing here\n")}}))
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Stat(v.isos["with"])
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Truncate(v.isos["without"], fi.Size()), os.Truncate(v.isos["other"], fi.Size())); err != nil {
		t.Fatal(err)
	}
}

// debEnv names a built package; without it the test builds what is released.
const debEnv = "CKS_ETCD_NODEAGENT_DEB"

// nodeagentDeb returns the package that an image builder installs.
func nodeagentDeb(t *testing.T, dir string) string {
	t.Helper()
	if p := os.Getenv(debEnv); p != "" {
		return p
	}
	dist := filepath.Join(dir, "dist")
	cmd := exec.CommandContext(t.Context(), "go", "-C", filepath.Join("..", "..", "packaging"), "run", ".", "-o", dist)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("cannot build the packages: %v: %s", err, out)
	}
	debs, err := filepath.Glob(filepath.Join(dist, "etcd-nodeagent_*_amd64.deb"))
	if err != nil || len(debs) != 1 {
		t.Fatalf("packages: %v, %v; want one", debs, err)
	}
	return debs[0]
}

// try runs a program in the VM.
func (v *vmTest) try(t *testing.T, args ...string) wire.Output {
	t.Helper()
	out, err := v.vm.Exec(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// must runs a program in the VM that may not fail, and returns its trimmed output.
func (v *vmTest) must(t *testing.T, args ...string) string {
	t.Helper()
	out := v.try(t, args...)
	if out.Exit != 0 {
		t.Fatalf("%s: exit status %d: %s%s", strings.Join(args, " "), out.Exit, out.Stdout, out.Stderr)
	}
	return strings.TrimSpace(out.Stdout)
}

// property returns a property that systemd has of a unit.
func (v *vmTest) property(t *testing.T, unit, name string) string {
	t.Helper()
	return v.must(t, "systemctl", "show", "--property="+name, "--value", unit)
}

func (v *vmTest) await(t *testing.T, path string) {
	t.Helper()
	if err := v.vm.Await(t.Context(), path, patience); err != nil {
		t.Fatal(err)
	}
}

func (v *vmTest) drive(t *testing.T, q wire.Drive) wire.DriveState {
	t.Helper()
	d, err := v.vm.Drive(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %+v", q.Path, d)
	return d
}

// insert puts an ISO into the drive, and returns the VM's uptime just before.
func (v *vmTest) insert(t *testing.T, iso string) (uptime float64) {
	t.Helper()
	uptime, err := v.vm.Uptime(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	refused, err := v.vm.Insert(t.Context(), v.isos[iso])
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("inserted %q; refused %d times", iso, refused)
	return uptime
}

// takeOut ejects without force, as the cloud does; the guest may refuse only for a moment.
func (v *vmTest) takeOut(t *testing.T) {
	t.Helper()
	began := time.Now()
	refused, err := v.vm.Eject(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("ejected after %.1f s; refused %d times", time.Since(began).Seconds(), refused)
}

// state reads what the last setup left.
func (v *vmTest) state(t *testing.T) marker.State {
	t.Helper()
	s, err := marker.ParseState([]byte(v.must(t, "cat", setup.DefaultState)))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantEtcd checks that etcd is enabled, active and healthy, and that no marker says otherwise.
func (v *vmTest) wantEtcd(t *testing.T) {
	t.Helper()
	for what, want := range map[string]string{"is-enabled": "enabled", "is-active": "active"} {
		if got := strings.TrimSpace(v.try(t, "systemctl", what, "etcd").Stdout); got != want {
			t.Errorf("etcd.service %s: %s", what, got)
		}
	}
	health := v.must(t, "/opt/bin/etcdctl", "--endpoints=http://"+IP+":2379", "--command-timeout=60s", "endpoint", "health")
	if !strings.Contains(health, "is healthy") {
		t.Errorf("etcdctl: %s", health)
	}
	if out := v.try(t, "ls", setup.DefaultMarker); out.Exit == 0 {
		t.Errorf("there is a marker: %s", v.must(t, "cat", setup.DefaultMarker))
	}
}

// result reads what the setup left.
func (v *vmTest) result(t *testing.T) setupResult {
	t.Helper()
	return setupResult{
		state: v.must(t, "stat", "-c", "%y %s", setup.DefaultState, "/opt/bin/etcd"),
		etcd:  v.must(t, "sha256sum", setup.DefaultState, "/opt/bin/etcd"),
	}
}

// wantReason checks the end of a setup that could not be: the reason, in one line, and no etcd.
func (v *vmTest) wantReason(t *testing.T, code reason.Code, text string) {
	t.Helper()
	line := v.must(t, "cat", setup.DefaultMarker)
	t.Logf("marker: %s", line)
	if !strings.Contains(line, text) || strings.Contains(line, "\n") {
		t.Errorf("marker %q, want one line with %q", line, text)
	}
	if s := v.state(t); s.Code != code || s.Message != line {
		t.Errorf("state: %s, %q; want %s and the marker's line", s.Code, s.Message, code)
	}
	if owner := v.must(t, "stat", "-c", "%U %a", setup.DefaultMarker); owner != "root 644" {
		t.Errorf("the marker is %s, want root 644", owner)
	}
	for what, want := range map[string]string{"is-enabled": "disabled", "is-active": "inactive"} {
		if got := strings.TrimSpace(v.try(t, "systemctl", what, "etcd").Stdout); got != want {
			t.Errorf("etcd.service %s: %s, want %s", what, got, want)
		}
	}
}

// mediaChanges returns when the kernel said after an uptime that the ISO's drive has another medium.
func (v *vmTest) mediaChanges(t *testing.T, after float64) []float64 {
	t.Helper()
	events, err := v.vm.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var when []float64
	for _, e := range events {
		if e.Uptime > after && e.Vars["DEVNAME"] == filepath.Base(isoNode) && e.Vars["DISK_MEDIA_CHANGE"] == "1" {
			when = append(when, e.Uptime)
		}
	}
	return when
}

// pause waits, while the VM does what it does when nothing happens.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("pausing: %w", context.Cause(ctx))
	}
}
