//go:build lab && linux

package cloudinittest

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
)

const markerPath = "/home/cloud/etcd-setup-failed"

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// TestLabCloudInitTemplate boots hosts with the user data that CloudStack would give them and, as it does, inserts the
// ISO later.
func TestLabCloudInitTemplate(t *testing.T) {
	l := lab.UpT(t)
	ctx := t.Context()
	dir := t.TempDir()
	agent := filepath.Join(dir, "etcd-nodeagent")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "cks-etcd/nodeagent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	archive := filepath.Join(dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(ctx, archive, lab.ArchiveOptions{}); err != nil {
		t.Fatal(err)
	}
	iso := func(t *testing.T, name, archive string) string {
		t.Helper()
		out := filepath.Join(dir, name+".iso")
		if err := lab.KubernetesISO(ctx, out, lab.KubernetesOptions{Etcd: archive}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	n := &node{lab: l, program: packageFile(t, agent, "/usr/bin/etcd-nodeagent", 0o755)}
	for from, to := range map[string]string{
		"systemd/etcd-nodeagent.service":        "/usr/lib/systemd/system/etcd-nodeagent.service",
		"systemd/etcd-nodeagent-failed.service": "/usr/lib/systemd/system/etcd-nodeagent-failed.service",
		"packaging/etc/etcd-nodeagent.tmpfiles": "/usr/lib/tmpfiles.d/etcd-nodeagent.conf",
	} {
		n.units = append(n.units, packageFile(t, filepath.Join("..", "..", from), to, 0o644))
	}
	with, without := iso(t, "with", archive), iso(t, "without", "")
	for _, tt := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"etcd", func(t *testing.T) { n.etcd(t, with) }},
		{"ISO without etcd", func(t *testing.T) { n.without(t, without) }},
		{"program alone", func(t *testing.T) { n.alone(t, with) }},
		{"agent killed", n.killed},
		{"no agent", n.noAgent},
		{"used template", func(t *testing.T) { n.used(t, with) }},
		{"agent that does not run", n.foreign},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.run(t)
		})
	}
}

// packageFile is a file as the package installs it.
func packageFile(t *testing.T, from, to string, mode os.FileMode) lab.File {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	return lab.File{Path: to, Data: b, Mode: mode}
}

// A node makes hosts of the template.
type node struct {
	lab     *lab.Lab
	program lab.File
	units   []lab.File // the rest of the package
}

// with is the package with these files instead of the program, in a list of its own: the hosts start side by side.
func (n *node) with(files ...lab.File) []lab.File { return slices.Concat(n.units, files) }

// start starts a host that has these files, and returns it at once.
func (n *node) start(t *testing.T, name string, files ...lab.File) *lab.Host {
	t.Helper()
	ip, err := n.lab.ReserveIP()
	if err != nil {
		t.Fatal(err)
	}
	v := Defaults(n.lab.PublicKey(), Member{Name: name, IP: ip})
	v.KeyPair = clusterKey
	o := lab.HostOptions{Name: strings.ToLower(name), IP: ip, UserData: Render(template(t), v), Files: files}
	h, err := n.lab.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out, _ := h.ReadFile("/var/log/cloud-init-output.log")
			t.Logf("cloud-init's output:\n%s", out)
		}
		h.Kill()
	})
	if err := h.AddDrive("sr0"); err != nil {
		t.Fatal(err)
	}
	return h
}

// finished waits for cloud-init's end and returns what it says of itself.
func finished(t *testing.T, h *lab.Host) string {
	t.Helper()
	began := time.Now()
	await(t, h, "/run/dbus/system_bus_socket")
	r, err := h.Exec(t.Context(), "cloud-init", "status", "--wait", "--long")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("cloud-init ended after %.1f s", time.Since(began).Seconds())
	return r.Stdout
}

// await waits until a path exists on a host.
func await(t *testing.T, h *lab.Host, path string) {
	t.Helper()
	for end := time.Now().Add(2 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if _, err := h.Lstat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not appear", path)
		}
	}
}

func must(t *testing.T, h *lab.Host, args ...string) string {
	t.Helper()
	out, err := h.Must(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// stateOf returns what systemd says of etcd.service: the two words of is-enabled and is-active.
func stateOf(t *testing.T, h *lab.Host) (enabled, active string) {
	t.Helper()
	for what, to := range map[string]*string{"is-enabled": &enabled, "is-active": &active} {
		r, err := h.Exec(t.Context(), "systemctl", what, "etcd.service")
		if err != nil {
			t.Fatal(err)
		}
		*to = strings.TrimSpace(r.Stdout)
	}
	return enabled, active
}

func (n *node) etcd(t *testing.T, iso string) {
	name := NodeName("Prod_Cluster.1", "", 1, created)
	h := n.start(t, name, n.with(n.program)...)
	await(t, h, "/var/lib/etcd-nodeagent/state.json") // it waits
	if env := must(t, h, "cat", "/run/etcd-nodeagent.env"); env != "ETCD_NODEAGENT_ISO_WAIT=1500s" {
		t.Errorf("the service's environment is %q", env)
	}
	if err := h.InsertCD("sr0", iso); err != nil {
		t.Fatal(err)
	}
	if status := finished(t, h); !strings.Contains(status, "status: done") {
		t.Errorf("cloud-init status:\n%s", status)
	}
	if b, err := h.ReadFile(markerPath); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("there is a marker: %q, %v", b, err)
	}
	pid := must(t, h, "systemctl", "show", "-p", "MainPID", "--value", "etcd")
	if user := must(t, h, "ps", "-o", "user=", "-p", pid); user != "etcd" {
		t.Errorf("etcd runs as %q", user)
	}
	if got := must(t, h, "stat", "-c", "%U %a", "/var/lib/etcd"); got != "etcd 700" {
		t.Errorf("/var/lib/etcd: %s, want etcd 700", got)
	}
	must(t, h, "test", "-d", "/var/lib/etcd/member")
	n.wantEtcd(t, h, name)
	if journal := must(t, h, "journalctl", "-b", "--no-pager", "-u", "etcd"); strings.Contains(journal, "executable") {
		t.Errorf("systemd does not like the unit: %s", journal)
	}
	// cloud-init does not wait for sshd, which may refuse a moment longer on a busy machine.
	var r lab.Result
	var err error
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Second) {
		if r, err = n.lab.SSH(t.Context(), h, "sudo", "id", "-u"); err == nil && r.Stdout == "0\n" {
			break
		}
	}
	if err != nil || r.Stdout != "0\n" {
		t.Errorf("ssh as cloud, then sudo: %+v, %v\n%s", r, err, must(t, h, "systemctl", "status", "--no-pager", "--lines=20", "ssh"))
	}
	if keys := must(t, h, "cat", "/home/cloud/.ssh/authorized_keys"); strings.Count(keys, "ssh-ed25519") != 2 {
		t.Errorf("authorized keys:\n%s\nwant the management server's and the cluster's", keys)
	}
	n.schema(t, h)
}

// schema lets cloud-init judge the template with names that YAML might take for something else.
func (n *node) schema(t *testing.T, h *lab.Host) {
	t.Helper()
	for _, cluster := range []string{"prod", "null", "1e5", "--"} {
		v := Defaults(managementKey, Member{NodeName(cluster, "", 1, created), "10.1.1.11"})
		v.KeyPair = clusterKey
		if err := h.WriteFile("/run/user-data", []byte(Render(template(t), v)), 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := h.Exec(t.Context(), "cloud-init", "schema", "--config-file", "/run/user-data", "--annotate")
		if err != nil || r.Exit != 0 || !strings.Contains(r.Stdout, "Valid cloud-config") {
			t.Errorf("cloud-init schema, cluster %q: %+v, %v", cluster, r, err)
		}
	}
}

// wantEtcd checks that etcd is enabled, active and a healthy member of that name.
func (n *node) wantEtcd(t *testing.T, h *lab.Host, name string) {
	t.Helper()
	if enabled, active := stateOf(t, h); enabled != "enabled" || active != "active" {
		t.Errorf("etcd.service is %s and %s, want enabled and active", enabled, active)
	}
	health := must(t, h, "/opt/bin/etcdctl", "--endpoints=http://"+h.IP()+":2379", "endpoint", "health")
	members := must(t, h, "/opt/bin/etcdctl", "member", "list")
	if !strings.Contains(health, "is healthy") || !strings.Contains(members, name) {
		t.Errorf("etcdctl: %s; %s", health, members)
	}
}

func (n *node) without(t *testing.T, iso string) {
	h := n.start(t, NodeName("without", "", 1, created), n.with(n.program)...)
	if err := h.InsertCD("sr0", iso); err != nil {
		t.Fatal(err)
	}
	n.failed(t, h, "etcd/etcd-linux-amd64.tar.gz is not on the ISO")
}

// alone is a template into which somebody has copied the program and nothing else.
func (n *node) alone(t *testing.T, iso string) {
	name := NodeName("alone", "", 1, created)
	h := n.start(t, name, n.program)
	if err := h.InsertCD("sr0", iso); err != nil {
		t.Fatal(err)
	}
	if status := finished(t, h); !strings.Contains(status, "status: done") {
		t.Errorf("cloud-init status:\n%s", status)
	}
	n.wantEtcd(t, h, name)
}

// killed: the agent cannot say why it ended, and the node says so all the same.
func (n *node) killed(t *testing.T) {
	h := n.start(t, NodeName("killed", "", 1, created), n.with(n.program)...)
	await(t, h, "/var/lib/etcd-nodeagent/state.json")
	must(t, h, "systemctl", "kill", "--signal=KILL", "etcd-nodeagent.service")
	n.failed(t, h, "the setup was killed")
}

func (n *node) noAgent(t *testing.T) {
	h := n.start(t, NodeName("noagent", "", 1, created))
	n.failed(t, h, "etcd-nodeagent is not installed")
}

// used is a template made of a node that was set up, from which etcd was taken: the service does not run there.
func (n *node) used(t *testing.T, iso string) {
	name := NodeName("used", "", 1, created)
	h := n.start(t, name, n.with(n.program, lab.File{Path: "/var/lib/etcd-nodeagent/ready", Mode: 0o644})...)
	if err := h.InsertCD("sr0", iso); err != nil {
		t.Fatal(err)
	}
	if status := finished(t, h); !strings.Contains(status, "status: done") {
		t.Errorf("cloud-init status:\n%s", status)
	}
	n.wantEtcd(t, h, name)
}

// foreign is a package for other machines: not even the hook can say so.
func (n *node) foreign(t *testing.T) {
	program := n.program
	program.Data = []byte("\x7fELF of another architecture")
	h := n.start(t, NodeName("foreign", "", 1, created), n.with(program)...)
	n.failed(t, h, "etcd-nodeagent failed and could not say why")
}

// failed checks that a node ended with that reason in its marker, in one line, and without etcd.
func (n *node) failed(t *testing.T, h *lab.Host, reason string) {
	t.Helper()
	if status := finished(t, h); !strings.Contains(status, "status: error") {
		t.Errorf("cloud-init hides the failure: %s", status)
	}
	b, err := h.ReadFile(markerPath)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("marker: %s", b)
	if !strings.Contains(string(b), reason) || strings.Count(string(b), "\n") != 1 {
		t.Errorf("marker %q, want one line with %q", b, reason)
	}
	if got := must(t, h, "stat", "-c", "%U %a", markerPath); got != "root 644" {
		t.Errorf("the marker is %s, want root 644", got)
	}
	if enabled, active := stateOf(t, h); enabled != "disabled" || active != "inactive" {
		t.Errorf("etcd.service is %s and %s, want disabled and inactive", enabled, active)
	}
}
