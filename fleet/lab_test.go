//go:build lab

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

// labInit is the lab's hook at the start of a test binary.
func labInit() { lab.Init() }

// A fleet is a lab with the program.
type fleet struct {
	*lab.Lab
	dir, program string
}

func newFleet(t *testing.T) *fleet {
	t.Helper()
	f := &fleet{Lab: lab.UpT(t), dir: t.TempDir()}
	f.program = filepath.Join(f.dir, "etcd-fleet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", f.program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return f
}

// run runs the program where the hosts are, and returns its report.
func (f *fleet) run(t *testing.T, args ...string) report.Report {
	t.Helper()
	command := append([]string{f.program, args[0], args[1], "-o", "json", "--ssh-config", "none", "-i", f.KeyFile(),
		"--known-hosts", filepath.Join(f.dir, "known_hosts")}, args[2:]...)
	res, err := f.Lab.Run(t.Context(), []string{"HOME=" + f.dir}, command...)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s\nexit status %d\n%s", strings.Join(args, " "), res.Exit, res.Stderr)
	var r report.Report
	if err := json.Unmarshal([]byte(res.Stdout), &r); err != nil {
		t.Fatalf("%v: %s", err, res.Stdout)
	}
	if r.Exit != res.Exit {
		t.Errorf("the report says exit status %d, the program's was %d", r.Exit, res.Exit)
	}
	return r
}

// service is an etcd.service that runs a shell command.
func service(command, restart string) []lab.File {
	text := "[Unit]\nStartLimitIntervalSec=0\n[Service]\nType=exec\nExecStart=/bin/sh -c '" + command + "'\n" + restart + "\n[Install]\nWantedBy=multi-user.target\n"
	return []lab.File{{Path: "/etc/systemd/system/etcd.service", Data: []byte(text), Mode: 0o644}}
}

// enable lets etcd run now and after a reboot, where there is a unit.
func enable(t *testing.T, h *lab.Host, files []lab.File) {
	t.Helper()
	if len(files) == 0 {
		return
	}
	for _, args := range [][]string{{"systemctl", "enable", "etcd"}, {"systemctl", "start", "--no-block", "etcd"}} {
		if _, err := h.Must(t.Context(), args...); err != nil {
			t.Error(err)
		}
	}
}

// TestLabVerdicts looks at a fleet with one node of every kind, in one run.
func TestLabVerdicts(t *testing.T) {
	const (
		wait = 95 * time.Second // what is undecided stays so
		late = 60 * time.Second
	)
	f := newFleet(t)
	steady := service("exec sleep infinity", "")
	sh := func(script string) func(*testing.T, *lab.Host) {
		return func(t *testing.T, h *lab.Host) {
			if _, err := h.Must(t.Context(), "sh", "-c", script); err != nil {
				t.Error(err)
			}
		}
	}
	type node struct {
		name   string
		files  []lab.File
		prep   func(*testing.T, *lab.Host)                  // before the run
		during func(context.Context, *testing.T, *lab.Host) // while it runs
		late   bool                                         // starts while it runs
		code   reason.Code
		text   *regexp.Regexp
		host   *lab.Host
		ip     string
	}
	later := func(after time.Duration, do func(*testing.T, *lab.Host)) func(context.Context, *testing.T, *lab.Host) {
		return func(ctx context.Context, t *testing.T, h *lab.Host) {
			select {
			case <-time.After(after):
				do(t, h)
			case <-ctx.Done():
			}
		}
	}
	nodes := []*node{
		{name: "good", files: steady, code: reason.Ready},
		{name: "marker", files: steady, prep: sh("echo 'etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO in /dev/sr0' >/home/cloud/etcd-setup-failed"),
			code: reason.SetupFailed, text: regexp.MustCompile("etcd/etcd-linux-amd64.tar.gz is not on the ISO")},
		{name: "flaps5", files: service("sleep 1; exit 1", "Restart=on-failure\nRestartSec=5"), code: reason.UnitFlapping, text: regexp.MustCompile(`restarted \d+ times`)},
		{name: "flaps4", files: service("sleep 4; exit 1", "Restart=on-failure\nRestartSec=4"), code: reason.UnitFlapping, text: regexp.MustCompile(`restarted \d+ times`)},
		{name: "stopped", files: steady, prep: sh("systemctl stop etcd"), code: reason.UnitNotActive, text: regexp.MustCompile("inactive")},
		{name: "masked", prep: sh("systemctl mask etcd"), code: reason.UnitMasked},
		{name: "no-unit", code: reason.NotSetUp},
		{name: "failed", files: service("exit 7", "Restart=no"), code: reason.UnitFailed, text: regexp.MustCompile("7")},
		{name: "reboots", files: steady, code: reason.Ready, during: later(3*time.Second, func(t *testing.T, h *lab.Host) {
			h.Kill()
			if err := h.Stop(t.Context()); err != nil {
				t.Error(err)
			}
			if err := h.Boot(t.Context()); err != nil {
				t.Error(err)
			}
		})},
		{name: "sshd-later", files: steady, prep: sh("systemctl stop ssh.service ssh.socket"), code: reason.Ready, during: later(15*time.Second, sh("systemctl start ssh.service"))},
		{name: "nologin", files: steady, prep: sh("echo 'System is booting up.' >/run/nologin"), code: reason.Ready, during: later(12*time.Second, sh("rm /run/nologin"))},
		{name: "new-keys", files: steady, code: reason.SSHHostKeyChanged, text: regexp.MustCompile("SHA256:.*known_hosts")},
		{name: "late", files: steady, late: true, code: reason.Ready},
		{name: "frozen", files: steady, prep: sh("systemctl kill -s STOP ssh.service"), code: reason.SSHHandshake, text: regexp.MustCompile("sent no SSH banner")},
		{name: "cut", files: steady, code: reason.NodeUnreachable, during: later(3*time.Second, sh("ip link set eth0 down"))},
		{name: "password", files: steady, prep: sh("printf 'PubkeyAuthentication no\\nPasswordAuthentication yes\\n' >/etc/ssh/sshd_config.d/00-test.conf; systemctl restart ssh"),
			code: reason.SSHAuthRefused, text: regexp.MustCompile("password")},
		{name: "other-key", files: steady, prep: sh("rm /home/cloud/.ssh/authorized_keys"), code: reason.SSHAuthRefused, text: regexp.MustCompile("id_ed25519")},
	}
	for _, n := range nodes {
		var err error
		if n.ip, err = f.ReserveIP(); err != nil {
			t.Fatal(err)
		}
		if n.late {
			continue
		}
		n.host = lab.StartT(t, f.Lab, lab.HostOptions{Name: n.name, IP: n.ip, Files: n.files})
		enable(t, n.host, n.files)
		if n.prep != nil {
			n.prep(t, n.host)
		}
	}
	for _, n := range nodes {
		if n.name == "new-keys" {
			if r := f.run(t, "nodes", "status", n.ip); r.Nodes[0].Code != reason.Ready {
				t.Fatalf("%+v", r.Nodes[0])
			}
			sh("rm /etc/ssh/ssh_host_*; ssh-keygen -A; systemctl restart ssh")(t, n.host)
		}
	}

	ctx, cancel := context.WithCancel(t.Context())
	var during sync.WaitGroup
	for _, n := range nodes {
		switch {
		case n.late:
			during.Go(func() {
				later(late, func(t *testing.T, _ *lab.Host) {
					h, err := f.Start(t.Context(), lab.HostOptions{Name: n.name, IP: n.ip, Files: n.files})
					if err == nil {
						err = h.WaitReady(t.Context())
					}
					if err != nil {
						t.Error(err)
						return
					}
					enable(t, h, n.files)
				})(ctx, t, nil)
			})
		case n.during != nil:
			during.Go(func() { n.during(ctx, t, n.host) })
		}
	}
	args := []string{"nodes", "wait", "--timeout", wait.String()}
	for _, n := range nodes {
		args = append(args, n.ip)
	}
	began := time.Now()
	r := f.run(t, args...)
	took := time.Since(began)
	cancel()
	during.Wait()
	if took > wait+time.Second {
		t.Errorf("took %v with a timeout of %v", took, wait)
	}
	if r.Exit != reason.ExitNo {
		t.Errorf("exit status %d, want 1", r.Exit)
	}
	for i, n := range nodes {
		got := r.Nodes[i]
		t.Logf("%-10s %-16s %s", n.name, got.State, got.Message)
		if got.Code != n.code {
			t.Errorf("%s: %s %s: %s, want %s", n.name, got.State, got.Code, got.Message, n.code)
		}
		if n.text != nil && !n.text.MatchString(got.Message) {
			t.Errorf("%s: the reason %q does not match %q", n.name, got.Message, n.text)
		}
		if n.name == "good" && got.Handshakes != 1 {
			t.Errorf("two checks took %d handshakes, want 1", got.Handshakes)
		}
	}
}

// TestLabCluster: a real three-member cluster, first through ssh directly and
// with etcd asked itself, then through a jump host, then with a member down and
// under packet loss.
func TestLabCluster(t *testing.T) {
	f := newFleet(t)
	etcd, err := lab.Etcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var members []lab.Member
	for i := range 3 {
		ip, err := f.ReserveIP()
		if err != nil {
			t.Fatal(err)
		}
		members = append(members, lab.Member{Name: fmt.Sprintf("etcd-%d", i+1), IP: ip})
	}
	var hosts []*lab.Host
	var addrs []string
	for _, m := range members {
		unit := lab.UpstreamUnit(m.Name, m.IP, members)
		h := lab.StartT(t, f.Lab, lab.HostOptions{Name: m.Name, IP: m.IP, Files: []lab.File{{Path: "/etc/systemd/system/etcd.service", Data: []byte(unit), Mode: 0o755}}})
		if err := h.CopyIn(filepath.Join(etcd, "etcd"), "/opt/bin/etcd"); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Must(t.Context(), "systemctl", "enable", "--now", "etcd"); err != nil {
			t.Fatal(err)
		}
		hosts, addrs = append(hosts, h), append(addrs, m.IP)
	}
	wait := func(args ...string) report.Report {
		t.Helper()
		return f.run(t, append(append([]string{"nodes", "wait", "--timeout", "60s"}, args...), addrs...)...)
	}

	r := wait("--health")
	if r.Exit != 0 || r.Health == nil || r.Health.Verdict != "healthy" || r.Health.MembersFound != 3 || r.Health.Leader == "" || r.Health.ClusterID == "" {
		t.Errorf("exit status %d, health %+v", r.Exit, r.Health)
	}
	if r = wait("--health", "--health-members", "5"); r.Exit != 1 || r.Health.Code != reason.HealthMemberCount {
		t.Errorf("with five members wanted: exit status %d, health %+v", r.Exit, r.Health)
	}

	jump := lab.StartT(t, f.Lab, lab.HostOptions{Name: "jump"})
	if r = wait("--jump", "cloud@"+jump.IP()); r.Exit != 0 || r.Nodes[0].Handshakes != 2 {
		t.Errorf("through a jump host: exit status %d, %d handshakes, want 0 and 2: %+v", r.Exit, r.Nodes[0].Handshakes, r.Nodes[0])
	}

	// A third of all packets is lost, in bursts: not every kernel has netem.
	const lossy = "for i in $(seq 20); do ip link set eth0 down; sleep 1; ip link set eth0 up; sleep 2; done"
	var links []*lab.Proc
	for _, h := range hosts {
		p, err := h.Start(t.Context(), lab.Command{Args: []string{"sh", "-c", lossy}})
		if err != nil {
			t.Fatal(err)
		}
		links = append(links, p)
	}
	if r = wait(); r.Exit != 0 {
		t.Errorf("under packet loss: exit status %d: %+v", r.Exit, r.Folded)
	}
	for i, p := range links {
		p.Kill(syscall.SIGKILL)
		p.Wait()
		if _, err := hosts[i].Must(t.Context(), "ip", "link", "set", "eth0", "up"); err != nil {
			t.Fatal(err)
		}
	}

	if _, err := hosts[2].Must(t.Context(), "systemctl", "stop", "etcd"); err != nil {
		t.Fatal(err)
	}
	r = f.run(t, append([]string{"nodes", "status", "--health"}, addrs...)...)
	if r.Exit != 1 || r.Nodes[2].Code != reason.UnitNotActive || r.Nodes[0].Code != reason.Ready {
		t.Errorf("with a member stopped: exit status %d, %+v", r.Exit, r.Nodes)
	}
}
