//go:build lab && vm && linux

package vmlab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/vmlab/wire"
)

// Options of Start.
type Options struct {
	Image    *Image
	Dir      string // an empty directory for what is needed while it runs
	Name     string // of the instance
	UserData string // for cloud-init
}

// VM is a running virtual machine.
type VM struct {
	child   *lab.Child // qemu
	pid     int        // of qemu
	monitor *qmp
	guest   *guest
	console *console
	tray    tray
	sshAddr string
	began   time.Time
	close   []func() error
}

// qemu is the program that is the machine.
const qemu = "qemu-system-x86_64"

// Sizes of a VM. etcd and cloud-init's Python fit in; more processors than the machine has make it slower.
const (
	memory     = "768"
	processors = "2"
)

// kernelArgs keep names and output plain, and leave out what is slow without KVM: mitigations that flush caches, and
// checks that expect a steady clock.
const kernelArgs = "console=ttyS0 quiet net.ifnames=0 mitigations=off no_timer_check tsc=reliable audit=0 apparmor=0 selinux=0 random.trust_cpu=on"

// Start starts a VM, and returns once qemu runs.
func Start(ctx context.Context, o Options) (_ *VM, err error) {
	vm := &VM{tray: tray{moved: make(chan struct{})}}
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot start a VM: %w", errors.Join(err, vm.Close()))
		}
	}()
	seed, err := writeSeed(ctx, o)
	if err != nil {
		return nil, err
	}
	if vm.sshAddr, err = freeAddr(); err != nil {
		return nil, err
	}
	// qemu opens a disk for reading first; a descriptor for both is not good enough for that.
	reading, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", o.Image.disk.Fd()))
	if err != nil {
		return nil, err
	}
	defer reading.Close()
	files := []*os.File{o.Image.disk, reading} // descriptors 3 and 4, as the arguments below say
	var ends [3]net.Conn
	for i := range ends {
		ours, theirs, err := socketPair()
		if err != nil {
			return nil, err
		}
		defer theirs.Close() // where it ends early; twice does no harm
		vm.close = append(vm.close, ours.Close)
		ends[i], files = ours, append(files, theirs)
	}
	// i440fx with IDE, as libvirt's default and so CloudStack's VMs have it: the ISO's drive is hdc, the seed's hdd.
	cmd := exec.Command(qemu, "-name", o.Name, "-nodefaults", "-no-user-config", "-display", "none",
		"-machine", "pc,usb=off,vmport=off,hpet=off", "-accel", "tcg,thread=multi,tb-size=256",
		"-cpu", "Nehalem", // x86-64-v2; with more features the guest loads more drivers
		"-smp", processors, "-m", memory,
		"-kernel", o.Image.kernel, "-initrd", o.Image.initrd, "-append", kernelArgs,
		"-add-fd", "fd=3,set=1", "-add-fd", "fd=4,set=1",
		"-drive", "file=/dev/fdset/1,if=virtio,format=raw,cache=unsafe,file.locking=off",
		"-device", "ide-cd,bus=ide.1,unit=0,id="+isoDrive,
		"-drive", "if=none,id=seed,media=cdrom,readonly=on,format=raw,file="+escape(seed),
		"-device", "ide-cd,bus=ide.1,unit=1,drive=seed",
		"-netdev", "user,id=net,restrict=on,hostfwd=tcp:"+vm.sshAddr+"-:22", "-device", "virtio-net-pci,netdev=net,romfile=",
		"-device", "virtio-rng-pci",
		"-chardev", "socket,id=monitor,fd=5", "-mon", "chardev=monitor,mode=control",
		"-chardev", "socket,id=console,fd=6", "-serial", "chardev:console",
		"-chardev", "socket,id=guest,fd=7", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=guest,name="+wire.Port)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	vm.began = time.Now()
	if vm.child, err = lab.Spawn(cmd); err != nil {
		return nil, fmt.Errorf("%w (internal/lab/deps-vm.sh installs it)", err)
	}
	vm.pid = cmd.Process.Pid
	vm.close = append([]func() error{func() error {
		_ = cmd.Process.Kill() // fails only for one that has ended
		<-vm.child.Done()
		return nil
	}}, vm.close...)
	for _, theirs := range files[2:] { // so that the end of qemu's is the end
		if err := theirs.Close(); err != nil {
			return nil, err
		}
	}
	vm.console = newConsole(ends[1])
	vm.guest = newGuest(ends[2])
	if vm.monitor, err = newQMP(ctx, ends[0], vm.tray.take); err != nil {
		_ = cmd.Process.Kill()
		return nil, fmt.Errorf("%w: %v: %s", err, vm.child.Err(), bytes.TrimSpace(said.Bytes()))
	}
	return vm, nil
}

// Close ends the VM as a power cut would.
func (v *VM) Close() error {
	var errs []error
	for _, f := range v.close {
		errs = append(errs, f())
	}
	v.close = nil
	return errors.Join(errs...)
}

// SSHAddr is the address on this machine at which the VM's port 22 can be reached.
func (v *VM) SSHAddr() string { return v.sshAddr }

// Console returns what was written to the serial console so far.
func (v *VM) Console() string { return v.console.text() }

// Age is how long ago the VM was started.
func (v *VM) Age() time.Duration { return time.Since(v.began) }

// writeSeed makes the medium from which cloud-init takes its user data (NoCloud).
func writeSeed(ctx context.Context, o Options) (string, error) {
	out := filepath.Join(o.Dir, "seed.iso")
	meta := fmt.Sprintf("instance-id: %s\nlocal-hostname: %s\n", o.Name, strings.ToLower(o.Name))
	return out, lab.BuildISO(ctx, out, lab.ISOOptions{Label: "cidata", Files: map[string]lab.Source{
		"meta-data": lab.Text(meta), "user-data": lab.Text(o.UserData)}})
}

// escape doubles the commas of a file name among qemu's options.
func escape(path string) string { return strings.ReplaceAll(path, ",", ",,") }

// freeAddr finds a free port of the loopback interface. Nobody keeps it until qemu takes it.
func freeAddr() (string, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer ln.Close()
	return ln.Addr().String(), nil
}

// socketPair returns two connected sockets: one for this program, one to hand to another.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	conn, err := net.FileConn(ours) // a copy, with deadlines
	if err != nil {
		theirs.Close()
		return nil, nil, err
	}
	return conn, theirs, nil
}

// consoleLimit is what is kept of the console: a boot writes a few KiB.
const consoleLimit = 1 << 20

// console keeps what a VM writes to its serial port.
type console struct {
	mu  sync.Mutex
	buf []byte
}

func newConsole(conn net.Conn) *console {
	c := &console{}
	go func() { // until the connection is closed
		b := make([]byte, 4096)
		for {
			n, err := conn.Read(b)
			c.mu.Lock()
			c.buf = append(c.buf, b[:min(n, consoleLimit-len(c.buf))]...)
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return c
}

func (c *console) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return string(c.buf)
}
