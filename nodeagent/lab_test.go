//go:build lab

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
)

// labInit is the lab's hook at the start of a test binary.
func labInit() { lab.Init() }

const (
	agentPath = "/usr/bin/etcd-nodeagent"
	etcdPath  = "/opt/bin/etcd"
	unitPath  = "/etc/systemd/system/etcd.service"
)

// A kit is what the hosts of one test share: the agent, and a Kubernetes ISO
// with a real etcd.
type kit struct {
	lab     *lab.Lab
	dir     string
	agent   string
	archive string // the real release archive
	iso     string // the ISO that holds it
}

func newKit(t *testing.T) *kit {
	t.Helper()
	k := &kit{lab: lab.UpT(t), dir: t.TempDir()}
	k.agent = k.path("etcd-nodeagent")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", k.agent, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	k.archive = k.path("etcd.tar.gz")
	k.do(t, lab.EtcdArchive(t.Context(), k.archive, lab.ArchiveOptions{}))
	k.iso = k.kubernetesISO(t, "good", k.archive)
	return k
}

func (k *kit) path(name string) string { return filepath.Join(k.dir, name) }

func (k *kit) do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// kubernetesISO builds an ISO with the archive in the named file; "" for none.
func (k *kit) kubernetesISO(t *testing.T, name, archive string) string {
	t.Helper()
	out := k.path(name + ".iso")
	k.do(t, lab.KubernetesISO(t.Context(), out, lab.KubernetesOptions{Etcd: archive}))
	return out
}

// isoWith builds an ISO whose archive has these bytes.
func (k *kit) isoWith(t *testing.T, name string, archive []byte) string {
	t.Helper()
	p := k.path(name + ".tar.gz")
	k.do(t, os.WriteFile(p, archive, 0o644))
	return k.kubernetesISO(t, name, p)
}

// isoOf builds an ISO with an archive as the options say.
func (k *kit) isoOf(t *testing.T, name string, o lab.ArchiveOptions) string {
	t.Helper()
	p := k.path(name + ".tar.gz")
	k.do(t, lab.EtcdArchive(t.Context(), p, o))
	return k.kubernetesISO(t, name, p)
}

// isoRunning builds an ISO whose etcd is a Go program with this body of main.
func (k *kit) isoRunning(t *testing.T, name, imports, body string) string {
	t.Helper()
	src := "package main\n\nimport (\n\t\"os\"\n\t\"fmt\"\n" + imports + ")\n\nfunc main() {\n" +
		"\tif len(os.Args) > 1 && os.Args[1] == \"--version\" { fmt.Println(\"etcd Version: 3.5.21\"); return }\n" + body + "\n}\n"
	prog, err := lab.GoProgram(t.Context(), "", src)
	k.do(t, err)
	return k.isoOf(t, name, lab.ArchiveOptions{Version: "3.5.21", Binaries: map[string]string{"etcd": prog}})
}

// A node is a host with the agent and with CloudStack's own unit for a cluster
// of one member.
type node struct {
	*lab.Host
	k *kit
}

func (k *kit) node(t *testing.T, name string, files ...lab.File) *node {
	t.Helper()
	ip, err := k.lab.ReserveIP()
	k.do(t, err)
	text := lab.UpstreamUnit(name, ip, []lab.Member{{Name: name, IP: ip}})
	files = append([]lab.File{{Path: unitPath, Data: []byte(text), Mode: 0o755}}, files...)
	n := &node{k: k}
	// After StartT's own cleanup, which asks the host for its journal. Hosts that
	// nobody needs any more hold inotify instances, of which a machine has few.
	t.Cleanup(func() {
		if n.Host != nil {
			n.Kill()
		}
	})
	n.Host = lab.StartT(t, k.lab, lab.HostOptions{Name: name, IP: ip, Files: files})
	k.do(t, n.CopyIn(k.agent, agentPath))
	return n
}

// setup runs the agent and waits for it.
func (n *node) setup(t *testing.T, args ...string) lab.Result {
	t.Helper()
	p := n.begin(t, args...)
	res, err := p.Wait()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("exit status %d\n%s", res.Exit, res.Stderr)
	return res
}

func (n *node) begin(t *testing.T, args ...string) *lab.Proc {
	t.Helper()
	p, err := n.Start(t.Context(), lab.Command{Args: append([]string{agentPath, "setup"}, args...)})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (n *node) state(t *testing.T) marker.State {
	t.Helper()
	b, err := n.ReadFile(setup.DefaultState)
	if err != nil {
		t.Fatal(err)
	}
	s, err := marker.ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// ended checks what a setup left: with Ready, no marker and an active etcd; with
// any other code, one line of reason, the same in the state file, no stage.
func (n *node) ended(t *testing.T, res lab.Result, code reason.Code) marker.State {
	t.Helper()
	if want := reason.Lookup(code).Exit; res.Exit != want {
		t.Errorf("exit status %d, want %d", res.Exit, want)
	}
	s := n.state(t)
	if s.Code != code {
		t.Errorf("code %s (%s), want %s", s.Code, s.Message, code)
	}
	line, err := n.ReadFile(setup.DefaultMarker)
	if code == reason.Ready {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("there is a marker: %q, %v", line, err)
		}
		if out, err := n.Exec(t.Context(), "systemctl", "is-active", "etcd"); err != nil || out.Exit != 0 {
			t.Errorf("etcd: %+v, %v", out, err)
		}
		if out, err := n.Exec(t.Context(), "systemctl", "is-enabled", "etcd"); err != nil || out.Exit != 0 {
			t.Errorf("etcd: %+v, %v", out, err)
		}
	} else {
		if err != nil {
			t.Fatal(err)
		}
		if got, want := string(line), s.Message+"\n"; got != want || s.Hint == "" {
			t.Errorf("marker %q, want %q; hint %q", got, want, s.Hint)
		}
		t.Logf("marker: %s", line)
	}
	if left, err := n.Must(t.Context(), "find", "/opt", "-name", ".etcd-nodeagent*"); err != nil || left != "" {
		t.Errorf("left behind: %s, %v", left, err)
	}
	return s
}

func (n *node) digest(t *testing.T, path string) string {
	t.Helper()
	b, err := n.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func (n *node) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := n.Must(t.Context(), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestLabReady: CloudStack's unit unchanged, the ISO 5 s after the agent's
// start; then once more, which changes nothing; with the figures.
func TestLabReady(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "ready")
	k.do(t, n.AddDrive("sr0"))
	var log lineTimes
	p, err := n.Start(t.Context(), lab.Command{Args: []string{agentPath, "setup"}, Stderr: &log})
	k.do(t, err)
	time.Sleep(5 * time.Second)
	inserted := time.Now()
	k.do(t, n.InsertCD("sr0", k.iso))
	peak := watchMemory(p)
	res, err := p.Wait()
	k.do(t, err)
	t.Logf("exit status %d\n%s", res.Exit, res.Stderr)
	s := n.ended(t, res, reason.Ready)
	if s.Archive == nil || s.Archive.Where != "/dev/sr0" || s.Archive.Names != "Rock Ridge" {
		t.Errorf("archive %+v", s.Archive)
	}
	if staged := log.at(" verify "); staged.Sub(inserted) > 3*time.Second {
		t.Errorf("staged %v after the medium's appearance, want under 3 s", staged.Sub(inserted))
	} else {
		t.Logf("figure: staged %.2f s after the medium's appearance", staged.Sub(inserted).Seconds())
	}
	if m := <-peak; m == 0 || m > 40<<20 {
		t.Errorf("peak memory %d bytes, want under 40 MiB", m)
	} else {
		t.Logf("figure: peak memory %.1f MiB", float64(m)/(1<<20))
	}
	if fi, err := os.Stat(k.agent); err != nil || fi.Size() > 12<<20 {
		t.Errorf("the agent's binary: %v, %v, want under 12 MB", fi, err)
	} else {
		t.Logf("figure: binary %.1f MB", float64(fi.Size())/1e6)
	}

	before := n.must(t, "systemctl", "show", "-p", "InvocationID,NRestarts,MainPID", "etcd")
	took := time.Hour
	for range 5 { // the best of a few: other tests run at the same time
		began := time.Now()
		res = n.setup(t)
		took = min(took, time.Since(began))
		n.ended(t, res, reason.Ready)
	}
	if after := n.must(t, "systemctl", "show", "-p", "InvocationID,NRestarts,MainPID", "etcd"); after != before {
		t.Errorf("a second setup changed the service:\n%s\n%s", before, after)
	}
	t.Logf("figure: a second setup took %.3f s", took.Seconds())
	if took > 200*time.Millisecond {
		t.Errorf("a second setup took %v, want under 0.2 s", took)
	}
	// Nothing holds the drive: the medium can be taken out.
	k.do(t, n.EjectCD("sr0"))

	// The agent's own view, as a user asks for it.
	var parsed map[string]any
	if err := json.Unmarshal([]byte(n.must(t, agentPath, "status", "-o", "json")), &parsed); err != nil || parsed["result"] != "ready" {
		t.Errorf("status: %v, %v", parsed["result"], err)
	}
}

// lineTimes keeps when each line of a log came.
type lineTimes struct {
	lines []string
	times []time.Time
}

func (l *lineTimes) Write(p []byte) (int, error) {
	for line := range bytes.Lines(p) {
		l.lines = append(l.lines, string(line))
		l.times = append(l.times, time.Now())
	}
	return len(p), nil
}

func (l *lineTimes) at(part string) time.Time {
	for i, line := range l.lines {
		if strings.Contains(line, part) {
			return l.times[i]
		}
	}
	return time.Time{}.Add(1 << 62)
}

// watchMemory sends the most memory that p was seen to have when it has ended.
func watchMemory(p *lab.Proc) <-chan int64 {
	out := make(chan int64, 1)
	go func() {
		var most int64
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-p.Done():
				out <- most
				return
			case <-tick.C:
				if m, err := p.PeakMemory(); err == nil {
					most = max(most, m)
				}
			}
		}
	}()
	return out
}

// TestLabFailures has a row for each way to end that a node can be brought to.
func TestLabFailures(t *testing.T) {
	k := newKit(t)
	good, err := os.ReadFile(k.archive)
	k.do(t, err)
	arm, err := lab.GoProgram(t.Context(), "arm64", "package main\n\nfunc main() {}\n")
	k.do(t, err)
	insert := func(iso string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) { k.do(t, n.InsertCD("sr0", iso)) }
	}
	then := func(steps ...func(*testing.T, *node)) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			for _, s := range steps {
				s(t, n)
			}
		}
	}
	do := func(args ...string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) { n.must(t, args...) }
	}
	// editUnit changes the unit that CloudStack wrote.
	editUnit := func(old, new string) func(*testing.T, *node) {
		return func(t *testing.T, n *node) {
			b, err := n.ReadFile(unitPath)
			k.do(t, err)
			if !bytes.Contains(b, []byte(old)) {
				t.Fatalf("the unit has no %q", old)
			}
			k.do(t, n.WriteFile(unitPath, bytes.ReplaceAll(b, []byte(old), []byte(new)), 0o755))
		}
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)/2] ^= 0x10
	config := k.path("config.iso")
	k.do(t, lab.BuildISO(t.Context(), config, lab.ISOOptions{Label: "config-2", Files: map[string]lab.Source{"openstack/latest/user_data": lab.Text("x")}}))
	listener, err := lab.GoProgram(t.Context(), "", `package main

import "net"

func main() {
	l, err := net.Listen("tcp", "127.0.0.1:2379")
	if err != nil {
		panic(err)
	}
	for {
		l.Accept()
	}
}
`)
	k.do(t, err)

	for i, tt := range []struct {
		name   string
		prep   func(*testing.T, *node)
		args   []string
		code   reason.Code
		text   string
		within time.Duration
		after  func(*testing.T, *node)
	}{
		{name: "no drive ever", args: []string{"--iso-wait", "3s"}, code: reason.ISONoDrive},
		{name: "no ISO ever", prep: func(t *testing.T, n *node) { k.do(t, n.AddDrive("sr0")) }, args: []string{"--iso-wait", "3s"}, code: reason.ISONotFound, text: "/dev/sr0 empty"},
		{name: "config drive first, ISO second", prep: func(t *testing.T, n *node) {
			k.do(t, n.InsertCD("sr0", config))
			k.do(t, n.InsertCD("sr1", k.iso))
		}, code: reason.Ready},
		{name: "only a config drive", prep: insert(config), args: []string{"--iso-wait", "3s"}, code: reason.ISONotFound, text: "config-2"},
		{name: "ISO as a plain disk", prep: func(t *testing.T, n *node) { k.do(t, n.InsertCD("vdb", k.iso)) }, code: reason.Ready},
		{name: "ISO without etcd", prep: insert(k.kubernetesISO(t, "without", "")), code: reason.ArchiveMissing, text: "etcd/etcd-linux-amd64.tar.gz", within: 3 * time.Second},
		{name: "archive empty", prep: insert(k.isoWith(t, "empty", nil)), code: reason.ArchiveEmpty, within: 3 * time.Second},
		{name: "archive is HTML", prep: insert(k.isoWith(t, "html", []byte("<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head></html>\n"))), code: reason.ArchiveNotGzip, text: "HTML", within: 3 * time.Second},
		{name: "archive truncated", prep: insert(k.isoWith(t, "truncated", good[:len(good)/3])), code: reason.ArchiveTruncated},
		{name: "archive bit-flipped", prep: insert(k.isoWith(t, "flipped", flipped)), code: reason.ArchiveChecksum},
		{name: "arm64 binaries", prep: insert(k.isoOf(t, "arm", lab.ArchiveOptions{Version: "3.5.21", Arch: "arm64", Binaries: map[string]string{"etcd": arm}})), code: reason.ArchiveWrongArch, text: "arm64"},
		{name: "archive without etcd", prep: insert(k.isoOf(t, "noetcd", lab.ArchiveOptions{Without: []string{"etcd"}})), code: reason.ArchiveNoEtcd},
		{name: "medium fails while it is read", prep: func(t *testing.T, n *node) { k.do(t, n.InsertDamagedCD("sr0", k.iso, 8<<20)) }, code: reason.ArchiveUnreadable, text: "input/output error"},
		{name: "damaged ISO, intact ISO", prep: func(t *testing.T, n *node) {
			k.do(t, n.InsertCD("sr0", k.isoWith(t, "broken-twin", good[:len(good)/3])))
			k.do(t, n.InsertCD("sr1", k.iso))
		}, code: reason.Ready},
		{name: "full disk", prep: then(insert(k.iso), func(t *testing.T, n *node) {
			k.do(t, n.MountTmpfs(t.Context(), "/opt/bin", 8<<20))
		}), code: reason.NoSpace, text: "/opt/bin"},
		{name: "no space for etcd's data", prep: then(insert(k.iso), func(t *testing.T, n *node) {
			k.do(t, n.MountTmpfs(t.Context(), "/"+n.Name()+".etcd", 16<<20))
		}), code: reason.NoSpace, text: ".etcd"},
		{name: "noexec", prep: then(insert(k.iso), func(t *testing.T, n *node) {
			k.do(t, n.MountTmpfs(t.Context(), "/opt", 0, "noexec"))
		}), code: reason.BinNoExec, text: "noexec"},
		{name: "read-only binaries directory", prep: then(insert(k.iso), do("mkdir", "-p", "/opt/bin"), func(t *testing.T, n *node) {
			k.do(t, n.Remount(t.Context(), "/opt/bin", "ro"))
		}), code: reason.BinDirReadOnly, text: "/opt/bin"},
		{name: "unit missing", prep: then(insert(k.iso), do("rm", unitPath)), code: reason.UnitMissing, text: "etcd.service"},
		{name: "unit masked", prep: then(insert(k.iso), do("rm", unitPath), do("systemctl", "mask", "etcd")), code: reason.UnitMasked, text: "etcd.service"},
		{name: "unit with a bad setting", prep: then(insert(k.iso), editUnit("ExecStart=/opt/bin/etcd", "ExecStart=opt/bin/etcd")), code: reason.UnitBadSetting, text: "etcd.service"},
		{name: "etcd exits at once", prep: insert(k.isoRunning(t, "exits", "", "os.Exit(3)")), code: reason.UnitFlapping, text: "restart"},
		{name: "etcd exits after 3 s", prep: insert(k.isoRunning(t, "exits3", "\t\"time\"\n", "time.Sleep(3 * time.Second); os.Exit(1)")), code: reason.UnitFlapping, text: "restart"},
		{name: "etcd exits and is not restarted", prep: then(editUnit("Restart=on-failure", "Restart=no"), insert(k.isoRunning(t, "exits", "", "os.Exit(3)"))), code: reason.UnitFailed, text: "status 3"},
		{name: "flag removed in 3.6", prep: then(insert(k.iso), editUnit("--initial-cluster-state new", "--initial-cluster-state new --enable-v2")), code: reason.FlagRemoved, text: "enable-v2"},
		{name: "data of another member", prep: then(insert(k.iso), func(t *testing.T, n *node) {
			etcd, err := lab.Etcd(t.Context())
			k.do(t, err)
			k.do(t, n.CopyIn(filepath.Join(etcd, "etcd"), "/tmp/etcd"))
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			n.Exec(ctx, "/tmp/etcd", "--name", "other", "--data-dir", "/"+n.Name()+".etcd", "--listen-client-urls", "http://127.0.0.1:12379", "--advertise-client-urls", "http://127.0.0.1:12379",
				"--listen-peer-urls", "http://127.0.0.1:12380", "--initial-advertise-peer-urls", "http://127.0.0.1:12380", "--initial-cluster", "other=http://127.0.0.1:12380")
			n.must(t, "test", "-d", "/"+n.Name()+".etcd/member/wal")
		}), code: reason.StaleData, text: ".etcd"},
		{name: "port taken", prep: then(insert(k.iso), func(t *testing.T, n *node) {
			k.do(t, n.CopyIn(listener, "/usr/local/bin/squatter"))
			n.must(t, "systemd-run", "--unit", "squatter", "/usr/local/bin/squatter")
			n.must(t, "sh", "-c", "until ss -ltn 2>/dev/null | grep -q :2379; do sleep 0.1; done")
		}), code: reason.PortInUse, text: "squatter"},
		{name: "address of another machine", prep: then(insert(k.iso), editUnit("--listen-peer-urls http://10.", "--listen-peer-urls http://11.")), code: reason.AddressNotLocal},
		{name: "D-Bus gone", prep: then(insert(k.iso), do("systemctl", "stop", "dbus.socket", "dbus.service"), do("mv", "/run/systemd/private", "/run/systemd/private.gone"), do("rm", "-f", "/run/dbus/system_bus_socket")), code: reason.BusUnreachable},
		{name: "symlink at the marker's path", prep: then(insert(k.kubernetesISO(t, "without", "")), do("sh", "-c", "echo keep >/etc/precious; ln -s /etc/precious "+setup.DefaultMarker)), code: reason.ArchiveMissing,
			after: func(t *testing.T, n *node) {
				if got := n.must(t, "cat", "/etc/precious"); got != "keep\n" {
					t.Errorf("the link's target was written: %q", got)
				}
				if fi, err := n.Lstat(setup.DefaultMarker); err != nil || !fi.Mode().IsRegular() || fi.Mode().Perm() != 0o644 {
					t.Errorf("marker %v, %v", fi, err)
				}
			}},
		{name: "stale marker", prep: then(insert(k.iso), do("sh", "-c", "echo old >"+setup.DefaultMarker)), code: reason.Ready},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := k.node(t, fmt.Sprintf("f%d", i))
			if tt.prep != nil {
				tt.prep(t, n)
			}
			began := time.Now()
			res := n.setup(t, tt.args...)
			took := time.Since(began)
			s := n.ended(t, res, tt.code)
			if !strings.Contains(s.Message, tt.text) {
				t.Errorf("the reason %q does not name %q", s.Message, tt.text)
			}
			if tt.within != 0 && took > tt.within {
				t.Errorf("took %v, want under %v", took, tt.within)
			}
			if tt.after != nil {
				tt.after(t, n)
			}
		})
	}
}

// TestLabReadOnlyHome: where the marker cannot be written, a failure still has
// its exit status and its state, and a setup that works is not stopped.
func TestLabReadOnlyHome(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "rohome")
	k.do(t, n.Remount(t.Context(), "/home/cloud", "ro"))
	k.do(t, n.InsertCD("sr0", k.kubernetesISO(t, "without", "")))
	res := n.setup(t)
	if s := n.state(t); res.Exit != 1 || s.Code != reason.ArchiveMissing {
		t.Errorf("exit status %d, code %s", res.Exit, s.Code)
	}
	if !strings.Contains(res.Stderr, "read-only file system") {
		t.Error("the log does not say why there is no marker")
	}
	k.do(t, n.InsertCD("sr0", k.iso))
	n.ended(t, n.setup(t), reason.Ready)
}

// TestLabSignals: SIGTERM while the agent waits and while it installs leaves
// the reason, status 130, and nothing half done.
func TestLabSignals(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "signals")
	k.do(t, n.AddDrive("sr0"))
	p := n.begin(t)
	time.Sleep(time.Second)
	k.do(t, p.Kill(syscall.SIGTERM))
	res, err := p.Wait()
	k.do(t, err)
	s := n.ended(t, res, reason.Interrupted)
	if !strings.Contains(s.Message, "waiting for the Kubernetes ISO") {
		t.Errorf("message %q", s.Message)
	}

	// Under nohup the terminal may go away.
	p, err = n.Start(t.Context(), lab.Command{Args: []string{"nohup", agentPath, "setup"}})
	k.do(t, err)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGTERM} {
		time.Sleep(time.Second)
		k.do(t, p.Kill(sig))
	}
	res, err = p.Wait()
	k.do(t, err)
	if s := n.ended(t, res, reason.Interrupted); !strings.Contains(s.Message, "terminated") {
		t.Errorf("message %q", s.Message)
	}

	k.do(t, n.InsertCD("sr0", k.iso))
	p = n.begin(t)
	n.must(t, "sh", "-c", "until ls -d /opt/bin/.etcd-nodeagent* >/dev/null 2>&1; do sleep 0.01; done")
	k.do(t, p.Kill(syscall.SIGTERM))
	res, err = p.Wait()
	k.do(t, err)
	n.ended(t, res, reason.Interrupted)
	if got := n.digest(t, etcdPath); got != "" {
		t.Errorf("etcd was placed all the same")
	}
	n.ended(t, n.setup(t), reason.Ready)
}

// TestLabKill9: the agent is killed at random instants of the installation of
// one or the other etcd, over and over. What is in place is always one of the
// two, whole, and the run after it succeeds.
func TestLabKill9(t *testing.T) {
	const kills = 50
	k := newKit(t)
	n := k.node(t, "kill9")
	whole := map[string]string{"": "none"}
	isos := []string{k.iso}
	etcd, err := lab.Etcd(t.Context())
	k.do(t, err)
	first, err := os.ReadFile(filepath.Join(etcd, "etcd"))
	k.do(t, err)
	// The same program, and so one that runs, with other bytes.
	other := append(bytes.Clone(first), "other"...)
	k.do(t, os.WriteFile(k.path("etcd-other"), other, 0o755))
	isos = append(isos, k.isoOf(t, "other", lab.ArchiveOptions{Version: "3.5.99", Binaries: map[string]string{"etcd": k.path("etcd-other")}}))
	for i, b := range [][]byte{first, other} {
		sum := sha256.Sum256(b)
		whole[hex.EncodeToString(sum[:])] = fmt.Sprint(i)
	}
	var seen [3]int
	placed := func() {
		t.Helper()
		d := n.digest(t, etcdPath)
		name, ok := whole[d]
		if !ok {
			t.Fatalf("%s is neither of the two: sha256 %s", etcdPath, d)
		}
		seen[map[string]int{"none": 0, "0": 1, "1": 2}[name]]++
	}
	// How long an installation takes here, to spread the kills over it.
	k.do(t, n.InsertCD("sr0", isos[0]))
	var log lineTimes
	p, err := n.Start(t.Context(), lab.Command{Args: []string{agentPath, "setup"}, Stderr: &log})
	k.do(t, err)
	began := time.Now()
	if res, err := p.Wait(); err != nil || res.Exit != 0 {
		t.Fatalf("%+v, %v", res, err)
	}
	span := log.at(" install ").Sub(began) * 11 / 10
	n.must(t, "systemctl", "stop", "etcd")
	for i := range kills {
		k.do(t, n.WriteFile(setup.DefaultState, []byte("{}"), 0o644)) // forget that it was ready
		k.do(t, n.InsertCD("sr0", isos[i%2]))
		p := n.begin(t)
		time.Sleep(rand.N(span))
		p.Kill(syscall.SIGKILL)
		p.Wait()
		placed()
		if i%10 == 9 {
			n.ended(t, n.setup(t), reason.Ready)
			placed()
			n.must(t, "systemctl", "stop", "etcd")
		}
	}
	t.Logf("figure: %d kills within %v; in place afterwards: none %d, one %d, the other %d times", kills, span.Round(time.Millisecond), seen[0], seen[1], seen[2])
}

// TestLabNewEtcdRuns: whatever became of the setup that placed the etcd of a
// new ISO, the next one ends with that etcd running, not the one before.
func TestLabNewEtcdRuns(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "newetcd")
	old := k.isoRunning(t, "old", "\t\"time\"\n", "time.Sleep(time.Hour)")
	running := func(t *testing.T) {
		t.Helper()
		pid := strings.TrimSpace(n.must(t, "systemctl", "show", "-p", "MainPID", "--value", "etcd"))
		if exe := strings.TrimSpace(n.must(t, "readlink", "/proc/"+pid+"/exe")); exe != etcdPath {
			t.Errorf("%s runs", exe)
		}
	}
	// The setup with the new ISO is killed before it starts anything.
	k.do(t, n.InsertCD("sr0", old))
	n.ended(t, n.setup(t), reason.Ready)
	k.do(t, n.WriteFile(setup.DefaultState, []byte("{}"), 0o644)) // forget that it was ready
	before := n.digest(t, etcdPath)
	k.do(t, n.InsertCD("sr0", k.iso))
	p := n.begin(t)
	for n.digest(t, etcdPath) == before {
		time.Sleep(time.Millisecond)
	}
	k.do(t, p.Kill(syscall.SIGKILL))
	p.Wait()
	n.ended(t, n.setup(t), reason.Ready)
	running(t)

	// The old etcd still waits for its peers, as far as systemd knows.
	k.do(t, n.WriteFile(setup.DefaultState, []byte("{}"), 0o644))
	n.must(t, "systemctl", "stop", "etcd")
	n.must(t, "sed", "-i", "s/Type=exec/Type=notify/", unitPath)
	k.do(t, n.InsertCD("sr0", old))
	n.ended(t, n.setup(t, "--start-timeout", "8s"), reason.UnitStartTimeout)
	k.do(t, n.InsertCD("sr0", k.iso))
	n.ended(t, n.setup(t), reason.Ready)
	running(t)
}

// TestLabTwoAgents: two setups at once; the second waits for the first, finds
// everything done, and starts nothing again.
func TestLabTwoAgents(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "twins")
	k.do(t, n.InsertCD("sr0", k.iso))
	a, b := n.begin(t), n.begin(t)
	ra, err := a.Wait()
	k.do(t, err)
	rb, err := b.Wait()
	k.do(t, err)
	n.ended(t, ra, reason.Ready)
	n.ended(t, rb, reason.Ready)
	both := ra.Stderr + rb.Stderr
	if !strings.Contains(both, "waiting for another setup, process ") || strings.Count(both, " watch ") != 1 || !strings.Contains(both, "nothing to do") {
		t.Errorf("the logs do not tell that one waited for the other:\n%s\n%s", ra.Stderr, rb.Stderr)
	}
	if got := n.must(t, "systemctl", "show", "-p", "NRestarts", "--value", "etcd"); got != "0\n" {
		t.Errorf("etcd was restarted %s times", got)
	}
}

// TestLabBusRestart: D-Bus is restarted while the agent watches the unit, as a
// package upgrade by cloud-init does.
func TestLabBusRestart(t *testing.T) {
	k := newKit(t)
	n := k.node(t, "busrestart")
	k.do(t, n.InsertCD("sr0", k.iso))
	var log lineTimes
	p, err := n.Start(t.Context(), lab.Command{Args: []string{agentPath, "setup"}, Stderr: &log})
	k.do(t, err)
	n.must(t, "sh", "-c", "until systemctl is-active -q etcd; do sleep 0.1; done")
	n.must(t, "systemctl", "restart", "dbus.service")
	res, err := p.Wait()
	k.do(t, err)
	t.Logf("%s", res.Stderr)
	n.ended(t, res, reason.Ready)
}
