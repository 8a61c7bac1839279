//go:build lab

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

// A frozenStore is secondary storage on a FUSE mount, whose server can be frozen
// as that of an NFS mount can.
type frozenStore struct {
	t      *testing.T
	point  string
	server *os.Process
}

// mountStore mounts what is below dir.
func mountStore(t *testing.T, dir string) *frozenStore {
	t.Helper()
	for _, tool := range []string{"genisoimage", "fuseiso"} {
		if _, err := exec.LookPath(tool); err != nil {
			skipFor(t, err.Error())
		}
	}
	if os.Geteuid() != 0 {
		skipFor(t, "mounting needs root")
	}
	image := filepath.Join(t.TempDir(), "outer.iso")
	if b, err := exec.Command("genisoimage", "-quiet", "-R", "-o", image, dir).CombinedOutput(); err != nil {
		t.Fatalf("genisoimage: %v\n%s", err, b)
	}
	s := &frozenStore{t: t, point: t.TempDir()}
	cmd := exec.Command("fuseiso", image, s.point, "-f")
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	s.server = cmd.Process
	t.Cleanup(func() {
		s.server.Signal(syscall.SIGCONT)
		if err := unix.Unmount(s.point, unix.MNT_DETACH); err != nil {
			t.Errorf("cannot unmount %s: %v", s.point, err)
		}
		s.server.Signal(syscall.SIGTERM)
		cmd.Wait()
	})
	s.until("fuseiso has mounted the image", func() bool {
		list, err := os.ReadDir(s.point)
		return err == nil && len(list) > 0
	})
	return s
}

// skipFor skips a test for what the machine lacks, but not in CI.
func skipFor(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// until waits until something is so.
func (s *frozenStore) until(what string, ok func() bool) {
	s.t.Helper()
	for end := time.Now().Add(60 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			s.t.Fatalf("it has not come about that %s", what)
		}
	}
}

// freeze stops the server, and returns once no thread of it runs: state T of
// proc_pid_stat(5).
func (s *frozenStore) freeze() {
	s.t.Helper()
	time.Sleep(1500 * time.Millisecond) // what the kernel keeps of attributes and names is good for 1 s
	if err := s.server.Signal(syscall.SIGSTOP); err != nil {
		s.t.Fatal(err)
	}
	s.until("the server of the mount has stopped", func() bool {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", s.server.Pid))
		for _, name := range threads {
			b, _ := os.ReadFile(name)
			if _, state, _ := strings.Cut(string(b), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return err == nil && len(threads) > 0
	})
}

func (s *frozenStore) thaw() {
	s.t.Helper()
	if err := s.server.Signal(syscall.SIGCONT); err != nil {
		s.t.Fatal(err)
	}
}

// TestLabHungMount runs the real program while a mount hangs: it says so of what
// is there, in time, answers for everything else, and loses a bounded number of
// threads.
func TestLabHungMount(t *testing.T) {
	dir := t.TempDir()
	archive, iso := filepath.Join(dir, "etcd.tar.gz"), filepath.Join(dir, "good.iso")
	if err := os.WriteFile(archive, archivetest.Archive("3.5.21", "amd64"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := lab.KubernetesISO(t.Context(), iso, lab.KubernetesOptions{Etcd: archive}); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(iso)
	if err != nil {
		t.Fatal(err)
	}
	put := func(store, template string) {
		t.Helper()
		at := filepath.Join(dir, store, "template/tmpl/1", template)
		name := template + "-1-setup"
		text := fmt.Sprintf("uniquename=%s\niso.filename=%s.iso\niso=true\niso.size=%d\n", name, name, len(content))
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		for file, b := range map[string][]byte{name + ".iso": content, "template.properties": []byte(text)} {
			if err := os.WriteFile(filepath.Join(at, file), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, id := range []string{"203", "204", "205", "206", "207", "208"} {
		put("outer", id)
	}
	put("healthy", "301")
	program := filepath.Join(dir, "etcd-fleet")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	s := mountStore(t, filepath.Join(dir, "outer"))
	d := startWatch(t, program, dir, s.point, filepath.Join(dir, "healthy"))
	s.until("the daemon knows both stores", func() bool {
		return d.admit(t, "203", "hung").Checked && d.admit(t, "301", "healthy").Checked
	})
	s.freeze()

	t.Run("check", func(t *testing.T) { checkHung(t, program, s.point, iso) })
	t.Run("admit", func(t *testing.T) { admitHung(t, program, s.point) })
	t.Run("watch", func(t *testing.T) { watchHung(t, d) })

	s.thaw()
	s.until("all calls have come back", func() bool { return d.lost(t) == 0 })
	s.until("the daemon knows the store again", func() bool { return d.admit(t, "203", "hung").Checked })
}

// checkHung: one answer, and of the others that their storage has not answered.
func checkHung(t *testing.T, program, point, good string) {
	args := []string{"iso", "check", "--no-remember", "--read-timeout", "1s", "-o", "json"}
	hung := []string{point}
	for _, id := range []string{"203", "204", "205", "206", "207", "208"} {
		hung = append(hung, filepath.Join(point, "template/tmpl/1", id, id+"-1-setup.iso"))
	}
	args = append(append(args, hung...), good)
	out, stderr, exit, took := execute(t, program, args...)
	if exit != reason.ExitUnknown {
		t.Errorf("exit status %d, want %d", exit, reason.ExitUnknown)
	}
	if took > 15*time.Second {
		t.Errorf("it took %v", took)
	}
	var r report.ISOReport
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(r.ISOs) != len(hung)+1 {
		t.Fatalf("%d ISOs are in the report, want %d: %s", len(r.ISOs), len(hung)+1, out)
	}
	for i, iso := range r.ISOs {
		name, value, code := good, report.ValueIncluded, reason.Included
		if i < len(hung) {
			name, value, code = hung[i], report.ValueUnknown, reason.SourceStalled
		}
		if iso.ISO != name || iso.Files[0].Value != value || iso.Files[0].Code != code {
			t.Errorf("%s is %s, %s; want %s: %s, %s", iso.ISO, iso.Files[0].Value, iso.Files[0].Code, name, value, code)
		}
	}
	if want := regexp.MustCompile(`\b[4-7] reads have not come back from their storage`); !want.Match(stderr) {
		t.Errorf("standard error does not say that %s:\n%s", want, stderr)
	}
}

// admitHung: allowed in time, and unchecked.
func admitHung(t *testing.T, program, point string) {
	for _, args := range [][]string{
		{"--iso", filepath.Join(point, "template/tmpl/1/203/203-1-setup.iso")},
		{"--iso", "203", "--store", "zone1=" + point, "--zone", "zone1"},
	} {
		const wait = 2 * time.Second
		args = append([]string{"admit", "--etcd-nodes", "3", "--version", "v1.33.1", "--wait", wait.String(),
			"--answers", filepath.Join(t.TempDir(), "answers.db"), "--config", os.DevNull}, args...)
		out, stderr, exit, took := execute(t, program, args...)
		if exit != 0 || !strings.HasPrefix(string(out), "allowed, unchecked: ") {
			t.Errorf("%v: exit status %d, want 0 and allowed, unchecked:\n%s%s", args, exit, out, stderr)
		}
		if took > 5*wait {
			t.Errorf("%v: it took %v, and may take %v", args, took, wait)
		}
	}
}

// execute runs the program to its end.
func execute(t *testing.T, program string, args ...string) (stdout, stderr []byte, exit int, took time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var out, errors bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errors
	start := time.Now()
	err := cmd.Run()
	if _, ended := err.(*exec.ExitError); err != nil && !ended || ctx.Err() != nil {
		t.Fatalf("%v: %v\n%s", args, err, errors.Bytes())
	}
	return out.Bytes(), errors.Bytes(), cmd.ProcessState.ExitCode(), time.Since(start)
}

// A watched is a daemon that was started for a test.
type watched struct {
	pid    int
	client *http.Client
}

// startWatch starts the daemon with two stores, and stops it in the end.
func startWatch(t *testing.T, program, dir, hung, healthy string) *watched {
	t.Helper()
	config, socket := filepath.Join(dir, "watch.yaml"), filepath.Join(dir, "watch.sock")
	text := fmt.Sprintf("stores:\n  - path: %s\n    zone: hung\n  - path: %s\n    zone: healthy\ninterval: 10s\nread_timeout: 1s\nanswers: %s\nlisten: [\"unix:%s\"]\n",
		hung, healthy, filepath.Join(dir, "answers.db"), socket)
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command(program, "watch", "--config", config)
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("the daemon: %v", err)
			}
		case <-time.After(30 * time.Second):
			t.Error("the daemon does not end")
			cmd.Process.Kill()
			<-ended
		}
		if t.Failed() {
			t.Logf("the daemon's log, without requests:\n%s", regexp.MustCompile(`.*"asked about a cluster".*\n`).ReplaceAll(log.Bytes(), nil))
		}
	})
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	d := &watched{cmd.Process.Pid, &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 30 * time.Second}}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		resp, err := d.client.Get("http://watch/healthz")
		if err == nil {
			resp.Body.Close()
			return d
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// get returns the body of a good answer.
func (d *watched) get(t *testing.T, path string) string {
	t.Helper()
	resp, err := d.client.Get("http://watch" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v\n%s", path, resp.Status, err, b)
	}
	return string(b)
}

// A decision is what the daemon says of a request.
type decision struct{ Allow, Checked bool }

func (d *watched) admit(t *testing.T, iso, zone string) decision {
	t.Helper()
	body := fmt.Sprintf(`{"etcd_nodes":3,"iso":%q,"zone":%q,"version":"v1.33.1","wait":"1s"}`, iso, zone)
	resp, err := d.client.Post("http://watch/api/v1/admit", "application/json", strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return decision{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	var v decision
	if err != nil || resp.StatusCode != http.StatusOK || json.Unmarshal(b, &v) != nil {
		t.Errorf("%s: %s, %v\n%s", body, resp.Status, err, b)
	}
	return v
}

// lost returns how many calls have not come back.
func (d *watched) lost(t *testing.T) int { return d.number(t, "etcd_fleet_lost_workers") }

func (d *watched) number(t *testing.T, metric string) int {
	t.Helper()
	m := regexp.MustCompile(`(?m)^` + metric + ` (\d+)$`).FindStringSubmatch(d.get(t, "/metrics"))
	if m == nil {
		t.Fatalf("the metrics have no %s", metric)
	}
	n, err := strconv.Atoi(m[1])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// threads returns how many threads the daemon has.
func (d *watched) threads(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", d.pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// watchHung: for longer than a round takes to come again, the daemon is healthy
// and decides; what hangs is allowed unchecked, what does not is checked.
func watchHung(t *testing.T, d *watched) {
	const (
		askers = 8
		most   = 100 // threads: those that hang at one mount, and a few of the runtime
	)
	var asking sync.WaitGroup
	end := time.Now().Add(15 * time.Second)
	var hung atomic.Int32 // requests
	healthy := 0
	for n := range askers {
		asking.Go(func() {
			for i := n; time.Now().Before(end); i++ {
				time.Sleep(20 * time.Millisecond) // most are answered at once
				id := fmt.Sprint(203 + i%6)
				start := time.Now()
				got := d.admit(t, id, "hung")
				if took := time.Since(start); !got.Allow || got.Checked || took > 10*time.Second {
					t.Errorf("template %s on the hung store: %+v after %v, want it to be allowed unchecked", id, got, took)
				}
				hung.Add(1)
			}
		})
	}
	for ; time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		start := time.Now()
		d.get(t, "/healthz")
		if got := d.admit(t, "301", "healthy"); !got.Allow || !got.Checked {
			t.Errorf("template 301 on the other store: %+v, want it to be allowed and checked", got)
		}
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("/healthz and a decision took %v", took)
		}
		healthy++
	}
	asking.Wait()
	lost, threads := d.lost(t), d.threads(t)
	t.Logf("%d requests about the hung store, %d about the other; %d calls are lost, the daemon has %d threads", hung.Load(), healthy, lost, threads)
	if hung.Load() < askers || healthy < 2 {
		t.Error("hardly any requests were made")
	}
	if lost < 1 || lost > most || threads > most {
		t.Errorf("%d calls are lost, and the daemon has %d threads; want at most %d", lost, threads, most)
	}
}
