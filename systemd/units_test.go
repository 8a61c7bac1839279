//go:build lab && linux

// Package systemd_test holds the unit files to their limits, and runs those of the
// node agent on real hosts.
package systemd_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
)

func TestMain(m *testing.M) {
	lab.Init()
	os.Exit(m.Run())
}

// units has the exposure that systemd-analyze(1) may find in each unit, from 0 to
// 10, and the warnings that may stand.
var units = []struct {
	name     string
	program  string // that it runs
	exposure float64
	warnings *regexp.Regexp
}{
	{name: "etcd-nodeagent.service", program: "/usr/bin/etcd-nodeagent", exposure: 2.5},
	{name: "etcd-nodeagent-failed.service", program: "/usr/bin/etcd-nodeagent", exposure: 1.5},
	{name: "etcd-fleet-watch.service", program: "/usr/bin/etcd-fleet", exposure: 1.5},
	// Older than 254, systemd does not know the backoff.
	{name: "etcd.service", program: "/opt/bin/etcd", exposure: 1.5,
		warnings: regexp.MustCompile(`Unknown key( name)? 'Restart(Steps|MaxDelaySec)'`)},
}

// TestLabUnits verifies every unit in a root of its own, where the programs are,
// and measures its exposure. Every unit file has its row.
func TestLabUnits(t *testing.T) {
	lab.RequireRoot(t)
	files, err := filepath.Glob("*.service")
	if err != nil || len(files) != len(units) {
		t.Fatalf("%d unit files, %d rows: %v, %v", len(files), len(units), files, err)
	}
	root := unitRoot(t)
	for _, u := range units {
		t.Run(u.name, func(t *testing.T) {
			out, err := exec.CommandContext(t.Context(), "systemd-analyze", "verify", "--man=no", "--root="+root, u.name).CombinedOutput()
			if err != nil {
				t.Errorf("verify: %v", err)
			}
			for line := range strings.Lines(string(out)) {
				if u.warnings == nil || !u.warnings.MatchString(line) {
					t.Errorf("verify: %s", line)
				}
			}
			// Not offline from a root: it would read the drop-ins of this machine.
			out, err = exec.CommandContext(t.Context(), "systemd-analyze", "security", "--no-pager", "--offline=true", u.name).CombinedOutput()
			m := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindSubmatch(out)
			if err != nil || m == nil {
				t.Fatalf("security: %v: %s", err, out)
			}
			got, err := strconv.ParseFloat(string(m[1]), 64)
			if err != nil || got > u.exposure {
				t.Errorf("exposure %v, want at most %v\n%s", got, u.exposure, out)
			}
			t.Logf("figure: exposure of %s %v", u.name, got)
		})
	}
}

// unitRoot makes a directory with this machine's units of systemd, ours, and the
// programs and manual pages that they name.
func unitRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	system := filepath.Join(root, "usr/lib/systemd/system")
	if err := os.CopyFS(system, os.DirFS("/usr/lib/systemd/system")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/usr/bin/etcd-nodeagent", "/usr/bin/etcd-fleet", "/opt/bin/etcd", "/bin/touch", "/bin/kill"} {
		path := filepath.Join(root, p)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, u := range units {
		b, err := os.ReadFile(u.name)
		if err == nil {
			err = os.WriteFile(filepath.Join(system, u.name), b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	envFile   = "/run/etcd-nodeagent.env"
	readyFile = "/var/lib/etcd-nodeagent/ready"
	stateFile = "/var/lib/etcd-nodeagent/state.json"
	markFile  = "/home/cloud/etcd-setup-failed"
	service   = "etcd-nodeagent.service"
)

// TestLabService runs the agent's service, in its sandbox, through what can become
// of it on one etcd node: the failures first, then a setup that works.
func TestLabService(t *testing.T) {
	l := lab.UpT(t)
	dir := t.TempDir()
	agent := filepath.Join(dir, "etcd-nodeagent")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", agent, "cks-etcd/nodeagent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n := newNode(t, l, agent)
	iso := func(name, archive string) string {
		t.Helper()
		out := filepath.Join(dir, name+".iso")
		if err := lab.KubernetesISO(t.Context(), out, lab.KubernetesOptions{Etcd: archive}); err != nil {
			t.Fatal(err)
		}
		return out
	}
	archive := filepath.Join(dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(t.Context(), archive, lab.ArchiveOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := n.AddDrive("sr0"); err != nil {
		t.Fatal(err)
	}

	// Nobody asked for the agent: CloudStack's own script sets this node up.
	n.must(t, "systemctl", "start", service)
	n.is(t, "inactive")
	if _, err := n.ReadFile(stateFile); err == nil {
		t.Error("the agent ran where nobody asked for it")
	}

	ask := func(env string) {
		t.Helper()
		if err := n.WriteFile(envFile, []byte(env+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("killed", func(t *testing.T) {
		ask("ETCD_NODEAGENT_ISO_WAIT=5m")
		n.waiting(t)
		n.must(t, "systemctl", "kill", "-s", "KILL", service)
		n.reason(t, reason.SetupFailed, "killed by SIGKILL while waiting for the Kubernetes ISO")
	})
	t.Run("stopped", func(t *testing.T) {
		n.waiting(t)
		n.must(t, "systemctl", "stop", service)
		n.reason(t, reason.Interrupted, "waiting for the Kubernetes ISO")
	})
	t.Run("bad setting", func(t *testing.T) {
		n.must(t, "rm", stateFile, markFile)
		ask("ETCD_NODEAGENT_ISO_WAIT=long")
		n.start(t, false)
		n.reason(t, reason.SetupFailed, "ended with exit status 2 before it began")
	})
	t.Run("ISO without etcd", func(t *testing.T) {
		ask("")
		if err := n.InsertCD("sr0", iso("without", "")); err != nil {
			t.Fatal(err)
		}
		n.start(t, false)
		n.reason(t, reason.ArchiveMissing, "/dev/sr0")
		if err := n.EjectCD("sr0"); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("port taken by another user", func(t *testing.T) {
		if err := n.InsertCD("sr0", iso("with", archive)); err != nil {
			t.Fatal(err)
		}
		n.must(t, "systemd-run", "--unit=squatter", "--uid=nobody", "/usr/bin/python3", "-c",
			"import socket,time; s=socket.create_server(('127.0.0.1',2379)); time.sleep(3600)")
		n.must(t, "sh", "-c", "until grep -q ':094B .* 0A ' /proc/net/tcp; do sleep 0.1; done")
		n.start(t, false)
		n.reason(t, reason.PortInUse, "(python3)")
		n.must(t, "systemctl", "stop", "squatter")
	})
	t.Run("ready", func(t *testing.T) {
		n.start(t, true)
		n.is(t, "active")
		if s := n.state(t); s.Result != marker.ResultReady {
			t.Errorf("state %+v", s)
		}
		n.must(t, "test", "-e", readyFile, "-a", "!", "-e", markFile)
		n.must(t, "systemctl", "is-active", "etcd.service")
		if err := n.EjectCD("sr0"); err != nil { // nothing holds it
			t.Error(err)
		}
		t.Log(n.must(t, "journalctl", "-o", "cat", "-u", service))
	})
	t.Run("not again", func(t *testing.T) {
		before := n.must(t, "systemctl", "show", "-p", "InvocationID", "etcd.service")
		n.must(t, "systemctl", "restart", service)
		n.is(t, "inactive") // its condition
		if after := n.must(t, "systemctl", "show", "-p", "InvocationID", "etcd.service"); after != before {
			t.Errorf("etcd was touched: %s, %s", before, after)
		}
	})
	t.Run("power cut", func(t *testing.T) {
		n.must(t, "systemctl", "disable", "--now", "etcd.service")
		n.must(t, "sh", "-c", "rm -rf /opt/bin/* /*.etcd "+readyFile)
		n.must(t, "systemctl", "enable", service)
		n.waiting(t)
		if err := n.WriteFile(stateFile, []byte("{"), 0o644); err != nil { // what a disk may make of it
			t.Fatal(err)
		}
		n.Kill()
		if err := n.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := n.Boot(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The boot does not wait for the ISO.
		n.must(t, "sh", "-c", "until systemctl --quiet is-active multi-user.target; do sleep 0.1; done")
		n.is(t, "activating")
		if _, err := n.Lstat(envFile); err == nil {
			t.Error("the request of the boot before is there: this shows nothing")
		}
		if err := n.InsertCD("sr0", iso("again", archive)); err != nil {
			t.Fatal(err)
		}
		n.start(t, true) // it is being started
		n.must(t, "test", "-e", readyFile, "-a", "!", "-e", markFile)
		n.must(t, "systemctl", "is-active", "etcd.service")
		if got := n.must(t, "journalctl", "-b", "-o", "cat", "-u", service); !strings.Contains(got, "cannot read the state file") {
			t.Errorf("the journal says nothing about the state: %s", got)
		}
	})
}

// A node is an etcd node as cloud-init leaves it, with the agent's package.
type node struct{ *lab.Host }

func newNode(t *testing.T, l *lab.Lab, agent string) *node {
	t.Helper()
	ip, err := l.ReserveIP()
	if err != nil {
		t.Fatal(err)
	}
	const name = "service"
	files := []lab.File{{Path: lab.UnitPath, Mode: lab.UnitMode, Data: []byte(lab.UpstreamUnit(name, ip, []lab.Member{{Name: name, IP: ip}}))}}
	for src, dst := range map[string]string{
		"etcd-nodeagent.service":                   "/usr/lib/systemd/system/etcd-nodeagent.service",
		"etcd-nodeagent-failed.service":            "/usr/lib/systemd/system/etcd-nodeagent-failed.service",
		"../packaging/etc/etcd-nodeagent.tmpfiles": "/usr/lib/tmpfiles.d/etcd-nodeagent.conf",
	} {
		b, err := os.ReadFile(src)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, lab.File{Path: dst, Data: b, Mode: 0o644})
	}
	n := &node{lab.StartT(t, l, lab.HostOptions{Name: name, IP: ip, Files: files})}
	if err := n.CopyIn(agent, "/usr/bin/etcd-nodeagent"); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.Must(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// start starts the service and waits for it to end.
func (n *node) start(t *testing.T, well bool) {
	t.Helper()
	res, err := n.Exec(t.Context(), "systemctl", "start", service)
	if err != nil || (res.Exit == 0) != well {
		t.Fatalf("exit status %d, %v: %s", res.Exit, err, n.must(t, "journalctl", "-o", "cat", "-n", "30", "-u", service))
	}
}

// waiting starts the service and returns once it waits for the ISO.
func (n *node) waiting(t *testing.T) {
	t.Helper()
	n.must(t, "systemctl", "start", "--no-block", service)
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if b, err := n.ReadFile(stateFile); err == nil {
			if s, err := marker.ParseState(b); err == nil && s.Result == marker.ResultRunning && s.Step == "find" {
				return
			}
		}
	}
	t.Fatalf("the agent does not wait: %s", n.must(t, "journalctl", "-o", "cat", "-n", "30", "-u", service))
}

// is wants the service in a state.
func (n *node) is(t *testing.T, want string) {
	t.Helper()
	if got := n.must(t, "systemctl", "show", "--value", "-p", "ActiveState", service); got != want {
		t.Errorf("%s is %s, want %s", service, got, want)
	}
}

func (n *node) state(t *testing.T) marker.State {
	t.Helper()
	b, err := n.ReadFile(stateFile)
	if err != nil {
		t.Fatal(err)
	}
	s, err := marker.ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// reason wants the service failed, and marker and state to say why, the same in
// both, once the hook has run.
func (n *node) reason(t *testing.T, code reason.Code, text string) {
	t.Helper()
	n.must(t, "sh", "-c", "until [ $(systemctl show --value -p ActiveState "+service+") = failed ] && "+
		"[ $(systemctl show --value -p ActiveState etcd-nodeagent-failed.service) = inactive ] && "+
		// The hook is inactive before it runs, too.
		"grep -q '\"result\": \"failed\"' "+stateFile+"; do sleep 0.1; done")
	s := n.state(t)
	if s.Result != marker.ResultFailed || s.Code != code || !strings.Contains(s.Message, text) {
		t.Errorf("state: %s, %s, %q; want code %s and %q", s.Result, s.Code, s.Message, code, text)
	}
	b, err := n.ReadFile(markFile)
	if err != nil || string(b) != s.Message+"\n" {
		t.Errorf("marker: %q, %v; want %q", b, err, s.Message)
	}
	t.Logf("marker: %s", b)
}
