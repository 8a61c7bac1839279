//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// victimEnv makes the test program a lab's owner that waits to be killed.
const victimEnv = "LAB_TEST_VICTIM"

func TestMain(m *testing.M) {
	Init()
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	os.Exit(m.Run())
}

// TestHosts walks through what a test of the product does with a lab, and then checks that nothing of it is left.
func TestLabHosts(t *testing.T) {
	RequireRoot(t)
	ctx := t.Context()
	mountsBefore := mounts(t)
	l, err := Up(ctx, Options{Log: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // where the test ends early; twice does no harm

	var a, b *Host
	var wg sync.WaitGroup
	began := time.Now()
	for _, h := range []struct {
		name string
		host **Host
	}{{"a", &a}, {"b", &b}} {
		wg.Go(func() {
			host, err := l.Start(ctx, HostOptions{Name: h.name})
			if err == nil {
				err = host.WaitReady(ctx)
			}
			if err != nil {
				t.Error(err)
			}
			*h.host = host
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	t.Logf("two hosts up after %.1f s", time.Since(began).Seconds())
	left := leftOvers(t, l, a, b)

	if _, err := a.Must(ctx, "ping", "-c", "1", "-W", "5", b.IP()); err != nil {
		t.Error(err)
	}
	if r, err := l.SSH(ctx, b, "sudo", "id", "-u"); err != nil || r.Stdout != "0\n" {
		t.Errorf("sudo id -u over ssh = %+v, %v; want 0", r, err)
	}
	bootIDs := map[string]bool{readT(t, a, bootIDFile): true, readT(t, b, bootIDFile): true, readMachine(t, bootIDFile): true}
	if len(bootIDs) != 3 {
		t.Errorf("boot ids of two hosts and the machine: got %d different ones, want 3", len(bootIDs))
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	left()
	if got := mounts(t); got != mountsBefore {
		t.Errorf("mounts after Close:\n%s\nwant those before Up:\n%s", got, mountsBefore)
	}
	if _, err := a.Exec(ctx, "true"); !errors.Is(err, ErrHostDown) {
		t.Errorf("Exec after Close = %v, want ErrHostDown", err)
	}
	if _, err := l.Start(ctx, HostOptions{Name: "late"}); err == nil {
		t.Error("Start after Close = nil, want an error")
	}
}

// leftOvers notes what the lab holds now and returns the check that all of it is gone.
func leftOvers(t *testing.T, l *Lab, hosts ...*Host) func() {
	t.Helper()
	cg, err := openCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(cg.path(l.cgroup())); err != nil {
		t.Fatal(err)
	}
	var pids []int
	nets := map[string]bool{}
	for _, h := range hosts {
		if err := h.AddDrive("sr0"); err != nil {
			t.Fatal(err)
		}
		pids = append(pids, h.PID())
		nets[nsOf(t, h.PID())] = true
	}
	if err := hosts[0].InsertCD("sr0", readmeISO(t)); err != nil {
		t.Fatal(err)
	}
	loops := map[uint32]string{}
	for _, h := range hosts {
		minor := h.drives["sr0"].minor
		if loops[minor] = backing(t, minor); loops[minor] == "" {
			t.Fatalf("loop%d is bound to nothing", minor)
		}
	}
	return func() {
		t.Helper()
		defer cg.close()
		for _, pid := range pids {
			if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
				t.Errorf("a host's PID 1 (%d) is still there", pid)
			}
		}
		for minor, file := range loops {
			if backing(t, minor) == file {
				t.Errorf("loop%d is still bound to %s", minor, file)
			}
		}
		if _, err := os.Stat(cg.path(l.cgroup())); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the lab's cgroup is still there (%v)", err)
		}
		for _, p := range []string{l.dir, l.dir + ".lock"} {
			if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s is still there (%v)", p, err)
			}
		}
		processes, err := filepath.Glob("/proc/[0-9]*/ns/net")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range processes {
			if ns, err := os.Readlink(p); err == nil && nets[ns] {
				t.Errorf("%s is a host's network namespace", p)
			}
		}
	}
}

func nsOf(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// backing returns what a loop device is bound to, "" if to nothing. A device that is free again may have been taken by
// another lab of this machine, so that only a file of one's own tells.
func backing(t *testing.T, minor uint32) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/loop/backing_file", minor))
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENODEV) {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

func mounts(t *testing.T) string {
	t.Helper()
	var points []string
	for line := range strings.Lines(readMachine(t, "/proc/self/mountinfo")) {
		f := strings.Fields(line)
		points = append(points, f[4])
	}
	return strings.Join(points, "\n")
}

const bootIDFile = "/proc/sys/kernel/random/boot_id"

func readMachine(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func readT(t *testing.T, h *Host, path string) string {
	t.Helper()
	b, err := h.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// victim starts a lab with a host and a CD, says so, and waits for its end.
func victim() {
	ctx := context.Background()
	fail := func(err error) {
		fmt.Println("victim:", err)
		os.Exit(1)
	}
	l, err := Up(ctx, Options{})
	if err != nil {
		fail(err)
	}
	h, err := l.Start(ctx, HostOptions{Name: "v"})
	if err == nil {
		err = h.WaitReady(ctx)
	}
	if err == nil {
		err = h.InsertCD("sr0", os.Getenv(victimEnv))
	}
	if err != nil {
		fail(err)
	}
	fmt.Printf("%s %d %d\n", l.id, h.PID(), h.drives["sr0"].minor)
	select {}
}

func TestLabKilledOwner(t *testing.T) {
	RequireRoot(t)
	ctx := t.Context()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, exe, "-test.run=^$")
	iso := readmeISO(t)
	cmd.Env = append(os.Environ(), victimEnv+"="+iso)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var id string
	var pid int
	var minor uint32
	if _, err := fmt.Fscan(out, &id, &pid, &minor); err != nil {
		t.Fatalf("the victim did not come up: %v", err)
	}
	dir := filepath.Join(labsDir(), id)
	if got := backing(t, minor); got != iso {
		t.Fatalf("loop%d is bound to %q, want %q", minor, got, iso)
	}

	if err := Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Fatalf("Sweep took the directory of a lab that lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()

	// The kernel does this part, unasked: within the moment it takes to kill a few processes.
	deadline, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for unix.Kill(pid, 0) == nil || backing(t, minor) == iso {
		if err := sleep(deadline, 10*time.Millisecond); err != nil {
			t.Fatalf("10 s after its owner's death: host lives %v, CD is in %v", unix.Kill(pid, 0) == nil, backing(t, minor) == iso)
		}
	}
	if err := Sweep(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Sweep: %s is there (%v)", dir, err)
	}
	cg, err := openCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cg.close()
	if _, err := os.Stat(cg.path(cgroupPrefix + id)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Sweep: the cgroup is there (%v)", err)
	}
}

func TestLabReboot(t *testing.T) {
	l := UpT(t)
	ctx := t.Context()
	h := StartT(t, l, HostOptions{Name: "h", Files: []File{{Path: "/etc/mark", Data: []byte("first\n"), Mode: 0o600}}})
	other := StartT(t, l, HostOptions{Name: "other"})
	if _, err := other.Must(ctx, "ping", "-c", "1", "-W", "5", h.IP()); err != nil {
		t.Fatal(err)
	}
	before := readT(t, h, bootIDFile)
	if err := h.InsertCD("sr0", readmeISO(t)); err != nil {
		t.Fatal(err)
	}
	if err := h.WriteFile("/etc/mark", []byte("second\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	bounded, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if err := h.Stop(bounded); err != nil {
		t.Fatal(err)
	}
	if bounded.Err() != nil {
		t.Error("the host did not halt by itself within 30 s")
	}
	t.Logf("halted in %.1f s", time.Since(began).Seconds())
	if _, err := h.Lstat("/"); !errors.Is(err, ErrHostDown) {
		t.Errorf("Lstat of a stopped host = %v, want ErrHostDown", err)
	}
	if err := h.Boot(ctx); err != nil {
		t.Fatal(err)
	}
	if err := h.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := other.Must(ctx, "ping", "-c", "1", "-W", "5", h.IP()); err != nil {
		t.Errorf("another host that knew it before: %v", err)
	}
	if got := readT(t, h, "/etc/mark"); got != "second\n" {
		t.Errorf("a file changed before the reboot = %q, want %q", got, "second\n")
	}
	if readT(t, h, bootIDFile) == before {
		t.Error("the boot_id is that of the boot before")
	}
	if got := readCD(t, h, "sr0"); !strings.Contains(got, "CD001") {
		t.Error("the CD is not in its drive any more")
	}
}

func TestLabCloudInit(t *testing.T) {
	l := UpT(t)
	ctx := t.Context()
	h := StartT(t, l, HostOptions{Name: "h", UserData: `#cloud-config
users:
  - {name: cloud, sudo: 'ALL=(ALL) NOPASSWD:ALL', shell: /bin/bash, ssh_authorized_keys: ['` + l.PublicKey() + `']}
write_files:
  - {path: /opt/bin/hello, permissions: '0755', content: "#!/bin/sh\necho hello >/run/hello\n"}
runcmd:
  - /opt/bin/hello
`})
	if out, err := h.Must(ctx, "cloud-init", "status", "--wait"); err != nil || !strings.Contains(out, "status: done") {
		t.Fatalf("cloud-init status = %q, %v; want done", out, err)
	}
	if got := readT(t, h, "/run/hello"); got != "hello\n" {
		t.Errorf("what runcmd wrote = %q, want hello", got)
	}
	if r, err := l.SSH(ctx, h, "whoami"); err != nil || r.Stdout != "cloud\n" {
		t.Errorf("whoami over ssh = %+v, %v; want cloud", r, err)
	}
}

func TestLabEtcdService(t *testing.T) {
	l := UpT(t)
	ctx := t.Context()
	dir, err := Etcd(ctx)
	if err != nil {
		t.Fatal(err)
	}
	h := StartT(t, l, HostOptions{Name: "etcd-1"})
	unitText := UpstreamUnit("etcd-1", h.IP(), []Member{{"etcd-1", h.IP()}})
	if err := h.WriteFile(UnitPath, []byte(unitText), UnitMode); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"etcd", "etcdctl"} {
		if err := h.CopyIn(filepath.Join(dir, name), "/opt/bin/"+name); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.Must(ctx, "systemctl", "enable", "--now", "etcd"); err != nil {
		t.Fatal(err)
	}
	// From outside the host, through its network: the deadline covers the election of the one member.
	r, err := l.Run(ctx, nil, filepath.Join(dir, "etcdctl"), "--endpoints=http://"+h.IP()+":2379", "--command-timeout=30s", "endpoint", "health")
	if err != nil || r.Exit != 0 {
		journal, _ := h.Journal(ctx, "etcd")
		t.Fatalf("etcdctl endpoint health = %+v, %v; journal:\n%s", r, err, journal)
	}
	if _, err := h.Lstat("/etcd-1.etcd/member"); err != nil {
		t.Errorf("the data directory is not where upstream's unit has it: %v", err)
	}
	journal, err := h.Journal(ctx, "etcd")
	if err != nil || !strings.Contains(journal, "systemd[1]: Started etcd.service") {
		t.Errorf("journal (error %v) does not hold the unit's start:\n%s", err, journal)
	}
	conn, err := l.Dial(ctx, "tcp", h.IP()+":2379")
	if err != nil {
		t.Errorf("Dial of the member: %v", err)
	} else {
		conn.Close()
	}
}

func TestLabListen(t *testing.T) {
	l := UpT(t)
	h := StartT(t, l, HostOptions{Name: "h"})
	ln, err := l.Listen(t.Context(), "tcp", l.Gateway()+":8080")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		if c, err := ln.Accept(); err == nil {
			c.Write([]byte("hello\n"))
			c.Close()
		}
	}()
	got, err := h.Must(t.Context(), "bash", "-c", "cat </dev/tcp/"+l.Gateway()+"/8080")
	if err != nil || got != "hello\n" {
		t.Errorf("what the host read from the gateway = %q, %v; want hello", got, err)
	}
}

func TestLabTwoLabs(t *testing.T) {
	a, b := UpT(t), UpT(t)
	h := StartT(t, a, HostOptions{Name: "same"})
	StartT(t, b, HostOptions{Name: "same"})
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Must(t.Context(), "true"); err != nil {
		t.Errorf("after the other lab's Close: %v", err)
	}
	if _, err := a.Start(t.Context(), HostOptions{Name: "same"}); err == nil {
		t.Error("a second host of the same name was started")
	}
	if _, err := a.Start(t.Context(), HostOptions{Name: "../x"}); err == nil {
		t.Error("a host was started under a name that is none")
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.Start(cancelled, HostOptions{Name: "late"}); !errors.Is(err, context.Canceled) {
		t.Errorf("Start with a cancelled context = %v, want context.Canceled", err)
	}
	if got := a.Host("late"); got != nil {
		t.Error("a host that was not started is listed")
	}
}

// TestLabSweepSurvivor: should a process outlive its lab after all, Sweep finds it by the lab's cgroup.
func TestLabSweepSurvivor(t *testing.T) {
	RequireRoot(t)
	t.Setenv("CKS_LAB_CACHE", t.TempDir())
	cg, err := openCgroups()
	if err != nil {
		t.Fatal(err)
	}
	defer cg.close()
	id := fmt.Sprintf("test%08x", rand.Uint32())
	dir := filepath.Join(labsDir(), id)
	if err := os.MkdirAll(filepath.Join(dir, "hosts/h/upper"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+".lock", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	top, err := makeCgroup(cg.path(cgroupPrefix + id))
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	inner, err := makeCgroup(cg.path(cgroupPrefix+id, "h"))
	if err != nil {
		t.Fatal(err)
	}
	defer inner.Close()
	cmd := exec.CommandContext(t.Context(), "sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(inner.Fd())}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := Sweep(t.Context()); err != nil {
		t.Error(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Errorf("the survivor's end = %v, want SIGKILL", err)
	}
	for _, p := range []string{dir, dir + ".lock", cg.path(cgroupPrefix + id)} {
		if _, err := os.Lstat(p); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is there (%v)", p, err)
		}
	}
}
