//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Options of Up. The zero value is useful.
type Options struct {
	Log func(string) // told of what takes long; nil: nobody
}

// Lab is a set of hosts on one bridge, in a network namespace of its own without a way out. Its methods may be
// called from several goroutines at once.
type Lab struct {
	id      string
	dir     string
	lock    *os.File
	rootfs  string
	pubKey  string
	subnet  int // the third byte of the lab's addresses, 10.77.N.0/24
	net     *netns
	cgroups *cgroups

	mu     sync.Mutex
	hosts  map[string]*Host
	nextIP int
	nextIf int
	closed bool
}

// The last byte of the addresses in a lab's /24: the bridge's own, the first host's and the last host's.
const (
	gatewayByte = 1
	firstByte   = 11
	lastByte    = 250
)

// Up makes an empty lab, after removing what labs of dead processes left. The first call on a machine builds the
// hosts' root file system, which takes minutes; ctx ends that, and nothing after Up has returned.
func Up(ctx context.Context, o Options) (_ *Lab, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("cannot start a lab: not root")
	}
	if o.Log == nil {
		o.Log = func(string) {}
	}
	if strings.ContainsAny(CacheDir(), ",:\\") {
		return nil, fmt.Errorf("cannot use %s as the lab's cache: an overlay's directories may not hold any of \",:\\\"", CacheDir())
	}
	if err := Sweep(ctx); err != nil {
		return nil, err
	}
	l := &Lab{
		id:     fmt.Sprintf("%08x", rand.Uint32()),
		subnet: rand.IntN(256),
		hosts:  make(map[string]*Host),
		nextIP: firstByte,
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.rootfs, err = rootfs(ctx, o.Log); err != nil {
		return nil, err
	}
	if err := l.claim(ctx); err != nil {
		return nil, err
	}
	if l.pubKey, err = newKey(ctx, l.KeyFile(), "lab"); err != nil {
		return nil, err
	}
	if err := writeLayers(filepath.Join(l.dir, "layers"), l.rootfs, l.pubKey); err != nil {
		return nil, fmt.Errorf("cannot write the hosts' configuration: %w", err)
	}
	if l.cgroups, err = openCgroups(); err != nil {
		return nil, err
	}
	if err := os.Mkdir(l.cgroups.path(l.cgroup()), 0o755); err != nil {
		return nil, fmt.Errorf("cannot make the lab's cgroup: %w", err)
	}
	if l.net, err = newNetns(); err != nil {
		return nil, err
	}
	err = ip(ctx, l.net.enter,
		"link set lo up",
		"link add br0 type bridge",
		fmt.Sprintf("addr add %s/24 dev br0", l.Gateway()),
		"link set br0 up")
	if err != nil {
		return nil, err
	}
	return l, nil
}

// claim makes the lab's directory and takes the lock that says its owner lives.
func (l *Lab) claim(ctx context.Context) error {
	if err := os.MkdirAll(labsDir(), 0o755); err != nil {
		return err
	}
	all, err := lockFile(ctx, filepath.Join(labsDir(), sweepLock))
	if err != nil {
		return err
	}
	defer all.Close()
	dir := filepath.Join(labsDir(), l.id)
	if l.lock, err = lockFile(ctx, dir+".lock"); err != nil {
		return err
	}
	fmt.Fprintln(l.lock, os.Getpid()) // for whoever wonders whose it is; the lock alone decides
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	l.dir = dir
	return nil
}

func (l *Lab) cgroup() string { return cgroupPrefix + l.id }

// Gateway returns the address of the lab's bridge, where [Lab.Listen] can be reached by hosts.
func (l *Lab) Gateway() string { return l.addr(gatewayByte) }

func (l *Lab) addr(last int) string { return fmt.Sprintf("10.77.%d.%d", l.subnet, last) }

// ReserveIP returns an address that no host has, for [HostOptions.IP]: etcd members must know each other's addresses
// before they are started.
func (l *Lab) ReserveIP() (string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.nextIP > lastByte {
		return "", errors.New("the lab's subnet is used up")
	}
	l.nextIP++
	return l.addr(l.nextIP - 1), nil
}

// KeyFile returns the path of the private key (ed25519, no passphrase) with which hosts without user data let the
// user cloud in.
func (l *Lab) KeyFile() string { return filepath.Join(l.dir, "id_ed25519") }

// PublicKey returns the key's authorized_keys line, for user data.
func (l *Lab) PublicKey() string { return strings.TrimSpace(l.pubKey) }

// Dial connects from the lab's network namespace, where the hosts are. addr must be numeric.
func (l *Lab) Dial(ctx context.Context, network, addr string) (conn net.Conn, err error) {
	// A socket stays in the namespace it was made in; with a numeric address net makes it on the calling thread.
	err = inThread(func() error {
		if err := l.net.enter(); err != nil {
			return err
		}
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, addr)
		return err
	})
	return conn, err
}

// Listen listens in the lab's network namespace. addr must be numeric.
func (l *Lab) Listen(ctx context.Context, network, addr string) (ln net.Listener, err error) {
	err = inThread(func() error {
		if err := l.net.enter(); err != nil {
			return err
		}
		var c net.ListenConfig
		ln, err = c.Listen(ctx, network, addr)
		return err
	})
	return ln, err
}

// Run runs a program of this machine in the lab's network namespace, with its files and everything else as they are
// here, and returns what it wrote and its exit status. extraEnv is added to the environment.
func (l *Lab) Run(ctx context.Context, extraEnv []string, args ...string) (Result, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), extraEnv...)
	p, err := start(ctx, cmd, l.net.enter, nil, nil)
	if err != nil {
		return Result{}, fmt.Errorf("cannot run %s in the lab's network: %w", args[0], err)
	}
	return p.Wait()
}

// SSH runs a command on a host as the user cloud, as a management server would: over the network.
func (l *Lab) SSH(ctx context.Context, h *Host, args ...string) (Result, error) {
	ssh := []string{"ssh", "-q", "-F", "none", "-i", l.KeyFile(), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes",
		"-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "ConnectTimeout=5", "cloud@" + h.IP(), "--"}
	return l.Run(ctx, []string{"SSH_AUTH_SOCK="}, append(ssh, args...)...)
}

// Host returns the running or stopped host of that name, nil if there is none.
func (l *Lab) Host(name string) *Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hosts[name]
}

// closePatience bounds how long Close lets the hosts shut down before it kills them. Nothing in them is kept.
const closePatience = 3 * time.Second

// Close stops the hosts and removes all that the lab made. It is not bound to any context: it must work when the
// one that the lab was used with has ended. Calling it again does nothing.
func (l *Lab) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	hosts := make([]*Host, 0, len(l.hosts))
	for _, h := range l.hosts {
		hosts = append(hosts, h)
	}
	l.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for i, h := range hosts {
		wg.Go(func() { errs[i] = h.close(ctx) })
	}
	wg.Wait()
	if l.cgroups != nil {
		errs = append(errs, l.cgroups.remove(context.Background(), l.cgroup()), l.cgroups.close())
	}
	if l.net != nil {
		errs = append(errs, l.net.close())
	}
	if l.dir != "" {
		errs = append(errs, removeTree(l.dir))
	}
	if l.lock != nil {
		errs = append(errs, os.Remove(l.lock.Name()), l.lock.Close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("cannot clean up the lab: %w", err)
	}
	return nil
}

// sweepLock is held while labs are made known or looked through, so that Sweep does not see one half made.
const sweepLock = "sweep.lock"

// Sweep removes what is left of labs whose owner is dead: directories and cgroups, and whatever process should
// have survived in those. Labs that live, of this process or others, are left alone.
func Sweep(ctx context.Context) error {
	if err := os.MkdirAll(labsDir(), 0o755); err != nil {
		return fmt.Errorf("cannot create the lab's cache: %w", err)
	}
	all, err := lockFile(ctx, filepath.Join(labsDir(), sweepLock))
	if err != nil {
		return err
	}
	defer all.Close()
	locks, err := filepath.Glob(filepath.Join(labsDir(), "*.lock"))
	if err != nil || len(locks) == 1 { // the sweep's own
		return err
	}
	cg, err := openCgroups()
	if err != nil {
		return err
	}
	defer cg.close()
	var errs []error
	for _, path := range locks {
		if filepath.Base(path) == sweepLock {
			continue
		}
		if err := sweepOne(ctx, cg, path); err != nil {
			errs = append(errs, fmt.Errorf("cannot remove a dead lab: %w", err))
		}
	}
	return errors.Join(errs...)
}

func sweepOne(ctx context.Context, cg *cgroups, lockPath string) error {
	lock, err := os.OpenFile(lockPath, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil // closed meanwhile
	}
	if err != nil {
		return err
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return nil // its owner lives
	}
	dir := strings.TrimSuffix(lockPath, ".lock")
	if err := cg.remove(ctx, cgroupPrefix+filepath.Base(dir)); err != nil {
		return err
	}
	if err := removeTree(dir); err != nil {
		return err
	}
	return os.Remove(lockPath)
}
