//go:build lab && linux

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// File is a file a host has when it boots. Missing directories on its path are made, mode 0755.
type File struct {
	Path string // absolute, as the host sees it
	Data []byte
	Mode os.FileMode
}

// HostOptions say what host to start. Only Name is needed.
type HostOptions struct {
	Name string // a DNS label, unique in the lab
	IP   string // one of [Lab.ReserveIP]; "": the next free one
	// UserData is what CloudStack would hand to cloud-init, which then sets the host up, the user cloud included. Without
	// it cloud-init does not run, and there is a user cloud (home /home/cloud, sudo, the lab's key) from the start.
	UserData string
	Files    []File // what the host boots with beyond its root file system
}

// Host is one machine: systemd as PID 1 in namespaces of its own. It runs until Stop, Kill, Lab.Close, or until it is
// halted from within.
type Host struct {
	lab  *Lab
	name string
	ip   string
	dir  string
	plan plan

	mu     sync.Mutex // guards what follows
	task   *task      // PID 1
	pidfd  int        // of PID 1, -1 when there is none
	cgroup *os.File   // where Exec's processes go
	drives map[string]*drive
}

// ErrHostDown is returned for a host that is stopped.
var ErrHostDown = errors.New("host is down")

var hostName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// Start boots a host and returns once its systemd has taken over; [Host.WaitReady] waits for the end of the boot.
func (l *Lab) Start(ctx context.Context, o HostOptions) (*Host, error) {
	h, err := l.newHost(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("cannot start host %q: %w", o.Name, err)
	}
	if err := h.boot(ctx); err != nil {
		err = errors.Join(err, h.close(ctx))
		l.mu.Lock()
		delete(l.hosts, o.Name)
		l.mu.Unlock()
		return nil, fmt.Errorf("cannot start host %q: %w", o.Name, err)
	}
	return h, nil
}

// newHost enters a host into the lab and makes its directory.
func (l *Lab) newHost(ctx context.Context, o HostOptions) (*Host, error) {
	if !hostName.MatchString(o.Name) {
		return nil, errors.New("its name is not a DNS label")
	}
	if o.IP == "" {
		var err error
		if o.IP, err = l.ReserveIP(); err != nil {
			return nil, err
		}
	}
	if a, err := netip.ParseAddr(o.IP); err != nil || !a.Is4() {
		return nil, fmt.Errorf("%q is no IPv4 address", o.IP)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errors.New("the lab is closed")
	}
	if l.hosts[o.Name] != nil {
		return nil, errors.New("there is one of that name")
	}
	h := &Host{
		lab: l, name: o.Name, ip: o.IP, pidfd: -1,
		dir:    filepath.Join(l.dir, "hosts", o.Name),
		drives: make(map[string]*drive),
	}
	if err := h.prepare(ctx, o); err != nil {
		return nil, errors.Join(err, removeTree(h.dir))
	}
	l.hosts[o.Name] = h
	return h, nil
}

// prepare makes the host's directory and its plan, which serves every boot.
func (h *Host) prepare(ctx context.Context, o HostOptions) error {
	layers := filepath.Join(h.lab.dir, "layers")
	h.plan = plan{
		Hostname: h.name,
		Root:     filepath.Join(h.dir, "root"),
		Lower:    []string{filepath.Join(layers, "common"), h.lab.rootfs},
		Upper:    filepath.Join(h.dir, "upper"),
		Work:     filepath.Join(h.dir, "work"),
		BootID:   filepath.Join(h.dir, "boot_id"),
		Files: []File{
			{Path: "/etc/hostname", Data: []byte(h.name + "\n"), Mode: 0o644},
			{Path: "/etc/hosts", Data: fmt.Appendf(nil, "127.0.0.1 localhost\n%s %s\n", h.ip, h.name), Mode: 0o644},
			{Path: "/etc/machine-id", Data: fmt.Appendf(nil, "%016x%016x\n", rand.Uint64()|1, rand.Uint64()), Mode: 0o444},
		},
	}
	if o.UserData != "" {
		h.plan.Files = append(h.plan.Files, seed(h.name, h.lab.id, o.UserData)...)
	} else {
		h.plan.Lower = slices.Insert(h.plan.Lower, 0, filepath.Join(layers, "user"))
	}
	for _, d := range []string{h.plan.Root, h.plan.Upper, h.plan.Work} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if o.UserData == "" { // cloud-init makes one otherwise
		key := filepath.Join(h.dir, "hostkey")
		pub, err := newKey(ctx, key, h.name)
		if err != nil {
			return err
		}
		private, err := os.ReadFile(key)
		if err != nil {
			return err
		}
		h.plan.Files = append(h.plan.Files,
			File{Path: "/etc/ssh/ssh_host_ed25519_key", Data: private, Mode: 0o600},
			File{Path: "/etc/ssh/ssh_host_ed25519_key.pub", Data: []byte(pub), Mode: 0o644})
	}
	h.plan.Files = append(h.plan.Files, o.Files...)
	return nil
}

// boot starts PID 1 and waits until it is systemd.
func (h *Host) boot(ctx context.Context) error {
	bootID := fmt.Sprintf("%08x-%04x-4%03x-8%03x-%012x\n", rand.Uint32(), rand.IntN(1<<16), rand.IntN(1<<12), rand.IntN(1<<12), rand.Uint64N(1<<48))
	if err := os.WriteFile(h.plan.BootID, []byte(bootID), 0o444); err != nil {
		return err
	}
	planR, planW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer planR.Close()
	defer planW.Close()
	answerR, answerW, err := os.Pipe()
	if err != nil {
		return err
	}
	defer answerR.Close()
	defer answerW.Close()

	cgroup := filepath.Join(h.lab.cgroup(), h.name)
	own, err := makeCgroup(h.lab.cgroups.path(cgroup))
	if err != nil {
		return err
	}
	defer own.Close()
	execs, err := makeCgroup(h.lab.cgroups.path(cgroup, "lab"))
	if err != nil {
		return err
	}
	cmd := &exec.Cmd{
		Path: self, Args: []string{initName}, Env: []string{}, Dir: "/",
		ExtraFiles: []*os.File{planR, answerW}, // planFD, answerFD
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:    true,
			Pdeathsig: syscall.SIGKILL, // the kernel then kills the whole PID namespace
			Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS |
				unix.CLONE_NEWIPC | unix.CLONE_NEWNET,
			UseCgroupFD: true, CgroupFD: int(own.Fd()),
		},
	}
	t, err := spawn(cmd, stay)
	if err != nil {
		execs.Close()
		return fmt.Errorf("cannot make its namespaces: %w", err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	h.mu.Lock()
	h.task, h.pidfd, h.cgroup = t, pidfd, execs
	h.mu.Unlock()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, h.Kill)
	defer stop()
	planR.Close()
	answerW.Close()
	if err := h.plugIn(ctx, cmd.Process.Pid); err != nil {
		return err
	}
	if err := json.NewEncoder(planW).Encode(h.plan); err != nil {
		return err
	}
	planW.Close()
	answer, err := io.ReadAll(answerR)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return err
	case len(answer) > 0:
		return errors.New(string(answer))
	}
	return h.remakeNodes()
}

// plugIn connects the host to the bridge. Its hardware address follows from its IP address, so that it survives a
// reboot: the other hosts remember it. The bridge's end has a name of its own every time, because the kernel takes a
// dead namespace's interfaces away at its leisure.
func (h *Host) plugIn(ctx context.Context, pid int) error {
	addr := netip.MustParseAddr(h.ip).As4()
	h.lab.mu.Lock()
	iface := fmt.Sprintf("v%d", h.lab.nextIf)
	h.lab.nextIf++
	h.lab.mu.Unlock()
	err := ip(ctx, h.lab.net.enter,
		fmt.Sprintf("link add %s type veth peer name eth0 address 02:00:%02x:%02x:%02x:%02x netns %d", iface, addr[0], addr[1], addr[2], addr[3], pid),
		fmt.Sprintf("link set %s master br0 up", iface))
	if err != nil {
		return err
	}
	return ip(ctx, func() error { return unix.Setns(h.pidfd, unix.CLONE_NEWNET) },
		"link set lo up",
		fmt.Sprintf("addr add %s/24 dev eth0", h.ip),
		"link set eth0 up",
		"route add default via "+h.lab.Gateway())
}

func makeCgroup(path string) (*os.File, error) {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("cannot make the host's cgroup: %w", err)
	}
	return os.Open(path)
}

// Name returns the host's name.
func (h *Host) Name() string { return h.name }

// IP returns the host's address on the lab's network.
func (h *Host) IP() string { return h.ip }

// PID returns the process id, as this machine sees it, of the host's PID 1; 0 when the host is down.
func (h *Host) PID() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.down() {
		return 0
	}
	return h.task.cmd.Process.Pid
}

// down is called with h.mu held.
func (h *Host) down() bool {
	if h.task == nil {
		return true
	}
	select {
	case <-h.task.done:
		return true
	default:
		return false
	}
}

// readyPoll is how often a booting host is looked at until its system bus is there. A look is one stat.
const readyPoll = 20 * time.Millisecond

// WaitReady waits until the host has booted: the system bus answers, and systemd says that all jobs of the boot are
// done. A boot that ended with failed units is an error that names them.
func (h *Host) WaitReady(ctx context.Context) error {
	for {
		if _, err := h.Lstat("/run/dbus/system_bus_socket"); err == nil {
			r, err := h.Exec(ctx, "systemctl", "is-system-running", "--wait")
			if err != nil {
				return err
			}
			switch state := strings.TrimSpace(r.Stdout); state {
			case "running":
				return nil
			case "degraded":
				r, err := h.Exec(ctx, "systemctl", "list-units", "--failed", "--plain", "--no-legend")
				return errors.Join(fmt.Errorf("host %s booted with failed units: %s", h.name, strings.TrimSpace(r.Stdout)), err)
			}
		} else if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if err := sleep(ctx, readyPoll); err != nil {
			return fmt.Errorf("waiting for host %s to boot: %w", h.name, err)
		}
	}
}

// haltSignal asks systemd as PID 1 to halt: SIGRTMIN+3 (systemd(1)), SIGRTMIN being 34 as in the C library.
const haltSignal = syscall.Signal(34 + 3)

// Stop halts the host in good order, and kills it when ctx ends first; that is no error. What it wrote to its disk
// stays until the lab is closed, and [Host.Boot] starts it again.
func (h *Host) Stop(ctx context.Context) error {
	h.mu.Lock()
	t := h.task
	h.mu.Unlock()
	if t == nil {
		return nil
	}
	if err := t.cmd.Process.Signal(haltSignal); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot halt host %s: %w", h.name, err)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		h.Kill()
		<-t.done
	}
	return h.bury()
}

// Kill ends the host and all its processes at once, as a power cut would. [Host.Stop] after it waits for the end.
func (h *Host) Kill() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.task != nil {
		_ = h.task.cmd.Process.Kill() // fails only for one that has ended
	}
}

// Boot starts a stopped host again, on the same disk, with a new boot_id; its drives still hold their media. Together
// with Stop it is a reboot.
func (h *Host) Boot(ctx context.Context) error {
	if h.PID() != 0 {
		return fmt.Errorf("cannot boot host %s: it runs", h.name)
	}
	if err := h.bury(); err != nil {
		return err
	}
	h.plan.Files = nil // they are on its disk, perhaps changed since
	if err := h.boot(ctx); err != nil {
		h.Kill()
		return fmt.Errorf("cannot boot host %s: %w", h.name, err)
	}
	return nil
}

// bury lets go of what belonged to a PID 1 that has ended.
func (h *Host) bury() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.task == nil {
		return nil
	}
	<-h.task.done
	var errs []error
	if h.pidfd >= 0 {
		errs = append(errs, unix.Close(h.pidfd))
	}
	errs = append(errs, h.cgroup.Close(), h.lab.cgroups.remove(context.Background(), filepath.Join(h.lab.cgroup(), h.name)))
	h.task, h.pidfd, h.cgroup = nil, -1, nil
	return errors.Join(errs...)
}

// close stops the host for good.
func (h *Host) close(ctx context.Context) error {
	errs := []error{h.Stop(ctx)}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range h.drives {
		errs = append(errs, d.close())
	}
	clear(h.drives)
	return errors.Join(append(errs, removeTree(h.dir))...)
}

// Freeze stops every process of the host where it is, as a hypervisor's pause would; Thaw lets them go on. Exec must
// not be used in between: its process would freeze too.
func (h *Host) Freeze() error { return h.setFrozen("1") }

// Thaw undoes Freeze.
func (h *Host) Thaw() error { return h.setFrozen("0") }

func (h *Host) setFrozen(v string) error {
	path := h.lab.cgroups.path(h.lab.cgroup(), h.name, "cgroup.freeze")
	if err := os.WriteFile(path, []byte(v), 0); err != nil {
		return fmt.Errorf("cannot freeze or thaw host %s: %w", h.name, err)
	}
	return nil
}
