//go:build unix

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/poll"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/sshnode/sshtest"
)

const (
	manyNodes  = 1000
	fewerNodes = 200 // with -short and under the race detector, which makes a key exchange ten times as dear

	// activeTimeout is not reached: the run ends with the last verdict.
	activeTimeout = 2 * time.Minute
	// faultyTimeout is how long the run with faulty nodes takes, since nodes that
	// stall have their verdict at the deadline. It is long enough for what needs
	// 30 s: that a login stays refused, or that a shell never gives an answer.
	faultyTimeout = 40 * time.Second
)

// TestScaleActive looks at a thousand active nodes: every verdict is right, two
// checks cost one connection, handshake and login a node, and no goroutine is
// left.
func TestScaleActive(t *testing.T) {
	s := newScale(t)
	var nodes []*scaleNode
	for range s.size {
		nodes = append(nodes, s.start(sshtest.Config{Command: s.active()}))
	}
	before := s.measure()
	r := s.run(nodes, activeTimeout)
	s.figures("active", before, r, nodes)

	if r.Exit != reason.ExitYes {
		t.Errorf("exit status %d: %s", r.Exit, r.Summary)
	}
	for i, n := range r.Nodes {
		if got, want := verdictOf(n), (verdict{poll.StateActive, reason.Ready}); got != want {
			t.Errorf("%s: got %v, want %v: %s", n.Node, got, want, n.Message)
		}
		accepted, logins, commands := nodes[i].server.Stats()
		if n.Checks != 2 || n.Probes != 2 || n.Handshakes != 1 || accepted != 1 || logins != 1 || commands != 2 {
			t.Errorf("%s: %d checks in %d looks cost %d handshakes; the server saw %d connections, %d logins, %d commands",
				n.Node, n.Checks, n.Probes, n.Handshakes, accepted, logins, commands)
		}
	}
	if known, err := os.ReadFile(s.knownHosts()); err != nil || bytes.Count(known, []byte("\n")) != s.size {
		t.Errorf("%d host keys were kept, want %d: %v", bytes.Count(known, []byte("\n")), s.size, err)
	}
	s.client(nodes)
}

// A fault is one way in which a node is not active, and the verdict it must get.
type fault struct {
	name  string
	start func(*scale) *scaleNode
	want  verdict
	says  string // part of the message
}

// faults are ten ways to be faulty.
var faults = []fault{
	{"connection refused", (*scale).refusing, verdict{poll.StateUnreachable, reason.NodeUnreachable}, "refused"},
	{"accepts and says nothing", broken(sshtest.Silent), verdict{poll.StateUnreachable, reason.SSHHandshake}, "no SSH banner"},
	{"stalls in the key exchange", broken(sshtest.StallKex), verdict{poll.StateUnreachable, reason.SSHHandshake}, "did not finish the key exchange"},
	{"stalls in the login", broken(sshtest.StallAuth), verdict{poll.StateUnreachable, reason.SSHHandshake}, "no answer to the login"},
	{"refuses the login", (*scale).lockedOut, verdict{poll.StateAuthRefused, reason.SSHAuthRefused}, "is not accepted"},
	{"another host key is known", (*scale).swapped, verdict{poll.StateHostKeyChanged, reason.SSHHostKeyChanged}, "is known"},
	{"failure marker", answering(func(v *sshtest.Values, _ int64) { v.Marker = new("etcd archive missing: not on the ISO\n") }),
		verdict{poll.StateFailed, reason.SetupFailed}, "etcd archive missing: not on the ISO"},
	{"unit failed", answering(func(v *sshtest.Values, _ int64) {
		maps.Copy(v.Unit, map[string]string{"ActiveState": "failed", "SubState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "1", "MainPID": "0"})
	}), verdict{poll.StateFailed, reason.UnitFailed}, "failed"},
	{"unit restarts before every look", answering(func(v *sshtest.Values, look int64) {
		v.Unit = sshtest.Active(fmt.Sprintf("%032x", look), int(1000+look), int(look))
	}), verdict{poll.StateFlapping, reason.UnitFlapping}, "restarted"},
	{"restricted shell", (*scale).restricted, verdict{poll.StateUnknown, reason.ProbeUnreadable}, "rbash: exec: restricted"},
}

// TestScaleFaulty looks at a thousand nodes a tenth of which is faulty, in ten
// ways: every node gets its own verdict, and the deadline is kept.
func TestScaleFaulty(t *testing.T) {
	s := newScale(t)
	var nodes []*scaleNode
	var want []*fault // nil: active
	for i := range s.size {
		// Every tenth node is faulty, so that faulty and active ones mix in the
		// order of connections.
		if i%10 != 3 {
			nodes, want = append(nodes, s.start(sshtest.Config{Command: s.active()})), append(want, nil)
			continue
		}
		f := &faults[i/10%len(faults)]
		nodes, want = append(nodes, f.start(s)), append(want, f)
	}
	before := s.measure()
	r := s.run(nodes, faultyTimeout)
	s.figures("a tenth faulty", before, r, nodes)

	if r.Exit != reason.ExitNo {
		t.Errorf("exit status %d: %s", r.Exit, r.Summary)
	}
	right := make(map[string]int)
	for i, n := range r.Nodes {
		f := want[i]
		if f == nil {
			f = &fault{name: "active", want: verdict{poll.StateActive, reason.Ready}}
		}
		got := verdictOf(n)
		switch {
		case got != f.want:
			t.Errorf("%s (%s): got %v, want %v: %s", n.Node, f.name, got, f.want, n.Message)
		case !strings.Contains(n.Message, f.says):
			t.Errorf("%s (%s): the message %q does not say %q", n.Node, f.name, n.Message, f.says)
		case got.code == reason.Ready && n.Handshakes != 1:
			t.Errorf("%s: two checks cost %d handshakes", n.Node, n.Handshakes)
		default:
			right[f.name]++
		}
		if late := n.Ended.Sub(*r.Deadline); late > time.Second {
			t.Errorf("%s (%s): its verdict came %s after the deadline", n.Node, f.name, late)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(right)) {
		t.Logf("figure: right verdicts: %4d %s", right[name], name)
	}
}

// A verdict is what a node's result says in two words.
type verdict struct {
	state poll.State
	code  reason.Code
}

func verdictOf(n report.NodeResult) verdict { return verdict{poll.State(n.State), n.Code} }

// A scaleNode is one simulated node.
type scaleNode struct {
	addr   string
	server *sshtest.Server // nil: nothing listens
}

// A scale is a fleet of simulated nodes, all servers of this process.
type scale struct {
	*testing.T
	size   int
	home   string
	serial atomic.Int64
}

// newScale makes a home directory with a key. Everything ends with the test.
func newScale(t *testing.T) *scale {
	s := &scale{T: t, size: manyNodes, home: t.TempDir()}
	if testing.Short() || raceDetector() {
		s.size = fewerNodes
		t.Logf("%d nodes instead of %d: -short or the race detector", s.size, manyNodes)
	}
	t.Setenv("HOME", s.home)
	t.Setenv("XDG_STATE_HOME", "")
	s.descriptors()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(s.identity(), pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *scale) identity() string   { return filepath.Join(s.home, "id") }
func (s *scale) knownHosts() string { return filepath.Join(s.home, "known_hosts") }

// raceDetector reports whether this program was built with it.
func raceDetector() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// descriptors raises the soft limit of open files to what the nodes need: a
// listener and both ends of a connection each.
func (s *scale) descriptors() {
	need := uint64(3*s.size + 200)
	var l syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l); err != nil {
		s.Fatal(err)
	}
	if uint64(l.Cur) >= need {
		return
	}
	old := l
	l.Cur = l.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &l); err != nil || uint64(l.Cur) < need {
		s.Fatalf("%d open files are needed, and the hard limit is %d (%v); raise it with 'ulimit -Hn'", need, l.Max, err)
	}
	s.Cleanup(func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) })
}

// start starts a node, with one ed25519 host key and the cheapest of the usual
// key exchanges.
func (s *scale) start(cfg sshtest.Config) *scaleNode {
	s.Helper()
	cfg.Crypto.KeyExchanges = []string{ssh.KeyExchangeCurve25519}
	server, err := sshtest.Start(cfg)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { server.Close() })
	return &scaleNode{server.Addr(), server}
}

// values are those of the next node, which is active.
func (s *scale) values() sshtest.Values {
	i := s.serial.Add(1)
	return sshtest.Values{
		BootID: fmt.Sprintf("2c5e7a04-5d57-4b7c-9be9-%012x", i), Hostname: fmt.Sprintf("etcd-%d", i), CloudInit: "done",
		Unit: sshtest.Active(fmt.Sprintf("%032x", i), int(1000+i), 0),
	}
}

// command answers as a node with the values of v at its n-th look.
func command(v func(n int64) sshtest.Values) func(context.Context, sshtest.Command) sshtest.Reply {
	return func(_ context.Context, c sshtest.Command) sshtest.Reply {
		now := v(c.N)
		now.Clock = fmt.Sprintf("%.9f", float64(time.Now().UnixNano())/1e9)
		return sshtest.Reply{Stdout: sshtest.ProbeOutput(now)}
	}
}

// active answers as a node that is active.
func (s *scale) active() func(context.Context, sshtest.Command) sshtest.Reply {
	v := s.values()
	return command(func(int64) sshtest.Values { return v })
}

// answering starts nodes that differ from an active one by change.
func answering(change func(v *sshtest.Values, look int64)) func(*scale) *scaleNode {
	return func(s *scale) *scaleNode {
		v := s.values()
		return s.start(sshtest.Config{Command: command(func(n int64) sshtest.Values {
			now := v
			now.Unit = maps.Clone(v.Unit)
			change(&now, n)
			return now
		})})
	}
}

// broken starts nodes whose server misbehaves.
func broken(f sshtest.Fault) func(*scale) *scaleNode {
	return func(s *scale) *scaleNode { return s.start(sshtest.Config{Fault: f, Command: s.active()}) }
}

// lockedOut starts a node that lets another key in only.
func (s *scale) lockedOut() *scaleNode {
	other, err := sshtest.NewKey("ed25519")
	if err != nil {
		s.Fatal(err)
	}
	return s.start(sshtest.Config{Authorized: []ssh.PublicKey{other.PublicKey()}, Command: s.active()})
}

// restricted starts a node with a login shell that runs nothing.
func (s *scale) restricted() *scaleNode {
	return s.start(sshtest.Config{Command: func(context.Context, sshtest.Command) sshtest.Reply {
		return sshtest.Reply{Stdout: "Welcome!\x1b[2J\n", Stderr: "rbash: exec: restricted\n", Status: 1}
	}})
}

// swapped starts a node for whose address another host key is known.
func (s *scale) swapped() *scaleNode {
	n := s.start(sshtest.Config{Command: s.active()})
	old, err := sshtest.NewKey("ed25519")
	if err != nil {
		s.Fatal(err)
	}
	f, err := os.OpenFile(s.knownHosts(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		s.Fatal(err)
	}
	_, err = fmt.Fprintln(f, knownhosts.Line([]string{knownhosts.Normalize(n.addr)}, old.PublicKey()))
	if err := errors.Join(err, f.Close()); err != nil {
		s.Fatal(err)
	}
	return n
}

// refusing takes a port that nothing listens at, and that nobody else can get.
func (s *scale) refusing() *scaleNode {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() { syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		s.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		s.Fatal(err)
	}
	return &scaleNode{addr: fmt.Sprintf("127.0.0.1:%d", name.(*syscall.SockaddrInet4).Port)}
}

// addrs lists the nodes as arguments.
func addrs(nodes []*scaleNode) []string {
	var list []string
	for _, n := range nodes {
		list = append(list, n.addr)
	}
	return list
}

// run waits for the nodes as 'etcd-fleet nodes wait -o json' does, within this
// process, and checks that nothing it started is left.
func (s *scale) run(nodes []*scaleNode, timeout time.Duration) report.Report {
	s.Helper()
	before := runtime.NumGoroutine()
	var out, log bytes.Buffer
	err := runNodes(s.Context(), nodesOptions{
		args: addrs(nodes), keys: []string{s.identity()}, hostKeys: "accept-new", knownHosts: s.knownHosts(), config: "none",
		dials: poll.DefaultDials, interval: poll.DefaultInterval, checks: 2, output: "json", quiet: true, timeout: timeout,
	}, streams{strings.NewReader(""), &out, &log})
	if told := new(cmdline.Told); err != nil && !errors.As(err, &told) {
		s.Fatalf("%v\n%s", err, log.String())
	}
	if log.Len() > 0 {
		s.Errorf("standard error is not empty: %.2000s", log.String())
	}
	var r report.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		s.Fatal(err)
	}
	if len(r.Nodes) != len(nodes) || r.Deadline == nil {
		s.Fatalf("%d results for %d nodes, deadline %v", len(r.Nodes), len(nodes), r.Deadline)
	}
	// The servers' ends of the connections take a moment to see that the
	// clients' are closed.
	left := runtime.NumGoroutine()
	for end := time.Now().Add(10 * time.Second); left > before && time.Now().Before(end); left = runtime.NumGoroutine() {
		time.Sleep(10 * time.Millisecond)
	}
	if left > before {
		stacks := make([]byte, 64<<10)
		s.Errorf("%d goroutines are left:\n%s", left-before, stacks[:runtime.Stack(stacks, true)])
	}
	return r
}

// A cost is what this process has used so far.
type cost struct {
	cpu  time.Duration // user and system
	rss  int64         // resident memory, bytes
	peak int64         // its highest
}

// measure returns what was used so far, and on Linux begins a new peak.
func (s *scale) measure() cost {
	debug.FreeOSMemory() // what tests before this one left
	// Without this, where it cannot be written, the peak is that of the process.
	_ = os.WriteFile("/proc/self/clear_refs", []byte("5"), 0)
	return s.used()
}

func (s *scale) used() cost {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		s.Fatal(err)
	}
	c := cost{cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano())}
	c.rss, c.peak = residentMemory(os.Getpid())
	return c
}

// figures tells what a run cost.
func (s *scale) figures(what string, before cost, r report.Report, nodes []*scaleNode) {
	after := s.used()
	dials, handshakes, looks := int64(0), 0, 0
	for i, n := range r.Nodes {
		handshakes += n.Handshakes
		looks += n.Probes
		if srv := nodes[i].server; srv != nil {
			accepted, _, _ := srv.Stats()
			dials += accepted
		} else {
			dials += int64(n.Probes) // each look at a port that refuses is a dial
		}
	}
	cpu := after.cpu - before.cpu
	s.Logf("figure: %d nodes, %s: wall time %.1f s, checks %s apart", len(nodes), what, r.Seconds, poll.DefaultInterval)
	s.Logf("figure: CPU time of the process, in-process servers included: %.1f s, %.1f ms a node",
		cpu.Seconds(), cpu.Seconds()*1000/float64(len(nodes)))
	if after.peak > 0 {
		s.Logf("figure: peak resident memory of the process, in-process servers included: %d MiB; %d KiB a node more than before the run",
			after.peak>>20, (after.peak-before.rss)>>10/int64(len(nodes)))
	}
	s.Logf("figure: %d dials, %d handshakes, %d looks", dials, handshakes, looks)
}

// client runs the program as a process of its own on the same nodes, for what
// the client's side alone costs.
func (s *scale) client(nodes []*scaleNode) {
	self, err := os.Executable()
	if err != nil {
		s.Fatal(err)
	}
	cmd := exec.CommandContext(s.Context(), self)
	cmd.Args = []string{"etcd-fleet", "nodes", "wait", "-q", "-o", "json", "-i", s.identity(), "--known-hosts", s.knownHosts(),
		"--host-keys", "strict", "--ssh-config", "none", "--timeout", activeTimeout.String(), "-"}
	cmd.Stdin = strings.NewReader(strings.Join(addrs(nodes), "\n"))
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		s.Fatal(err)
	}
	ended, peak := make(chan struct{}), make(chan int64)
	go func() { peak <- watchPeak(cmd.Process.Pid, ended) }()
	err = cmd.Wait()
	close(ended)
	most := <-peak
	if err != nil {
		s.Fatalf("%v\n%s%.2000s", err, log.String(), out.String())
	}
	cpu := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	s.Logf("figure: again, the client as a process of its own, host keys known: wall time %.1f s, CPU time %.1f s, %.1f ms a node",
		time.Since(begin).Seconds(), cpu.Seconds(), cpu.Seconds()*1000/float64(len(nodes)))
	if most > 0 {
		s.Logf("figure: peak resident memory of the client alone: %d MiB, %d KiB a node", most>>20, most>>10/int64(len(nodes)))
	}
}

// watchPeak returns the highest resident memory of a process until ended. What
// getrusage(2) says of a child begins with the size of its parent.
func watchPeak(pid int, ended <-chan struct{}) (peak int64) {
	t := time.NewTicker(50 * time.Millisecond)
	defer t.Stop()
	for {
		if _, p := residentMemory(pid); p > 0 {
			peak = p
		}
		select {
		case <-t.C:
		case <-ended:
			return peak
		}
	}
}

// residentMemory returns the resident memory of a process now and at its
// highest, in bytes; 0 where there is no /proc.
func residentMemory(pid int) (now, peak int64) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "VmHWM: %d kB", &peak)
		_, _ = fmt.Sscanf(line, "VmRSS: %d kB", &now)
	}
	return now << 10, peak << 10
}
