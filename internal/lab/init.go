//go:build lab && linux

package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// initName is the argv[0] by which a copy of this program knows that it is to become a host's PID 1.
const initName = "cks-lab-init"

// The file descriptors a host's PID 1 inherits besides the standard ones.
const (
	planFD   = 3 // the plan, JSON, then EOF: it comes when the network interface is in place
	answerFD = 4 // an error's text; closed without a word when systemd has taken over
)

// plan is what a host's PID 1 needs to know to build its root. Paths are the machine's.
type plan struct {
	Hostname string
	Root     string   // an empty directory, where the root gets mounted
	Lower    []string // overlay layers, uppermost first
	Upper    string
	Work     string
	BootID   string // a file that stands in for the kernel's boot_id
	Files    []File
}

// Init must be called first in main or TestMain of every program that uses this package. It returns at once, except in
// the copy of the program that a starting host's PID 1 is: that one builds its root and becomes systemd.
func Init() {
	if len(os.Args) == 0 || os.Args[0] != initName {
		return
	}
	answer := os.NewFile(answerFD, "answer")
	unix.CloseOnExec(answerFD)
	err := becomeHost(os.NewFile(planFD, "plan"))
	fmt.Fprint(answer, err)
	os.Exit(1)
}

// becomeHost returns only if it fails.
func becomeHost(in *os.File) error {
	var p plan
	if err := json.NewDecoder(in).Decode(&p); err != nil {
		return fmt.Errorf("cannot read the plan: %w", err)
	}
	in.Close()
	// CLONE_NEWCGROUP would take the parent's cgroup for the namespace's root, not the one clone puts the child
	// into; hence unshare, which acts on this thread: the one that calls exec below and becomes the process.
	runtime.LockOSThread()
	// The parent-death signal set at the clone belongs to the process's first thread, and does not outlive an exec
	// that another one calls.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("cannot bind its life to the lab's: %w", err)
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("cannot make a cgroup namespace: %w", err)
	}
	unix.Umask(0)
	if err := p.mountRoot(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
		return fmt.Errorf("cannot set the host name: %w", err)
	}
	if err := pivot(p.Root); err != nil {
		return err
	}
	unix.Umask(0o022)
	if err := p.writeFiles(); err != nil {
		return err
	}
	// container= tells systemd and cloud-init that this is not a whole machine.
	env := []string{"container=lab", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TERM=linux"}
	return fmt.Errorf("cannot start systemd: %w", syscall.Exec("/sbin/init", []string{"/sbin/init"}, env))
}

// mountRoot mounts the overlay and, in it, what a booting Linux finds.
func (p *plan) mountRoot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make the mounts private: %w", err)
	}
	overlay := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", strings.Join(p.Lower, ":"), p.Upper, p.Work)
	const nosuid = unix.MS_NOSUID
	steps := []struct {
		kind, at string
		flags    uintptr
		data     string
	}{
		{"overlay", "/", 0, overlay},
		{"proc", "/proc", nosuid | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", nosuid | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_RDONLY, ""},
		{"cgroup2", "/sys/fs/cgroup", nosuid | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"tmpfs", "/dev", nosuid, "mode=755,size=4m"},
		{"devpts", "/dev/pts", nosuid | unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620,gid=5"},
		{"tmpfs", "/dev/shm", nosuid | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", nosuid | unix.MS_NODEV, "mode=755,size=64m"},
		{"tmpfs", "/tmp", nosuid | unix.MS_NODEV, "mode=1777"},
	}
	for _, s := range steps {
		at := filepath.Join(p.Root, s.at)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(s.kind, at, s.kind, s.flags, s.data); err != nil {
			return fmt.Errorf("cannot mount %s at %s: %w", s.kind, s.at, err)
		}
	}
	if err := p.makeDevices(); err != nil {
		return err
	}
	return p.guardProc()
}

// makeDevices fills /dev. The console is a node of the host's own: were it the machine's /dev/null, bound here,
// systemd's chmod of its console would change the machine's.
func (p *plan) makeDevices() error {
	dev := filepath.Join(p.Root, "dev")
	nodes := []struct {
		name         string
		mode         uint32
		major, minor uint32
	}{
		{"null", 0o666, 1, 3}, {"zero", 0o666, 1, 5}, {"full", 0o666, 1, 7}, {"random", 0o666, 1, 8}, {"urandom", 0o666, 1, 9},
		{"tty", 0o666, 5, 0}, {"fuse", 0o666, 10, 229}, {"console", 0o600, 1, 3},
	}
	for _, n := range nodes {
		if err := unix.Mknod(filepath.Join(dev, n.name), unix.S_IFCHR|n.mode, int(unix.Mkdev(n.major, n.minor))); err != nil {
			return fmt.Errorf("cannot make the device node %s: %w", n.name, err)
		}
	}
	links := [][2]string{{"pts/ptmx", "ptmx"}, {"/proc/self/fd", "fd"}, {"fd/0", "stdin"}, {"fd/1", "stdout"}, {"fd/2", "stderr"}}
	for _, l := range links {
		if err := os.Symlink(l[0], filepath.Join(dev, l[1])); err != nil {
			return err
		}
	}
	return nil
}

// guardProc makes the kernel-wide knobs read-only, as they are the machine's too, and gives the host its own boot_id.
func (p *plan) guardProc() error {
	for _, name := range []string{"sys", "sysrq-trigger"} {
		at := filepath.Join(p.Root, "proc", name)
		if _, err := os.Lstat(at); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := bindReadOnly(at, at); err != nil {
			return err
		}
	}
	return bindReadOnly(p.BootID, filepath.Join(p.Root, "proc/sys/kernel/random/boot_id"))
}

func bindReadOnly(from, to string) error {
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("cannot bind %s: %w", to, err)
	}
	if err := unix.Mount("", to, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("cannot make %s read-only: %w", to, err)
	}
	return nil
}

// pivot makes root the root of the mount namespace and lets go of the old one.
func pivot(root string) error {
	if err := os.Chdir(root); err != nil {
		return err
	}
	// Both names the same: the old root ends up mounted over the new one, and is then detached (pivot_root(2), NOTES).
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot change the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot detach the old root: %w", err)
	}
	return os.Chdir("/")
}

// writeFiles writes the files the host is to boot with. It runs in the host's root, so that symbolic links lead
// where they lead in the host.
func (p *plan) writeFiles() error {
	for _, f := range p.Files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(f.Path, f.Data, f.Mode.Perm()); err != nil {
			return err
		}
		if err := os.Chmod(f.Path, f.Mode); err != nil {
			return err
		}
	}
	return nil
}
