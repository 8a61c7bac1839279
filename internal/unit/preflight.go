//go:build linux

package unit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
	"cks-etcd/internal/unixfs"
)

// walSpace is what a new member needs at once on the file system of its data
// directory, in bytes: etcd preallocates a write-ahead log file of 64 MB and
// prepares the next one.
const walSpace = 2 * 64 << 20

// A Preflight looks before the start for what will keep etcd from running. The
// zero value looks at this machine; the fields let tests move it.
type Preflight struct {
	root   string                            // prefix of /proc, /sys and the data directory; "" for none
	addrs  func() ([]netip.Addr, error)      // this machine's addresses; nil: those of its interfaces
	statfs func(dir string) (fsSpace, error) // what a file system offers; nil: statfs(2)
	bind   func(netip.AddrPort) error        // listens for a moment; nil: bind(2) and listen(2)
}

// fsSpace is what statfs(2) says about a file system.
type fsSpace struct {
	freeRoot uint64 // bytes free for root
	freeUser uint64 // bytes free for others
	readOnly bool
}

// Check judges the unit that st describes. The error has the code port-in-use,
// address-not-local, stale-data, data-dir-denied or no-space and is given only
// for what is certain to stop etcd or to give it the data of another member;
// what could not be looked at, or may be meant so, is a warning. A unit that is
// active already is past all of this, and nothing is looked at.
func (p Preflight) Check(ctx context.Context, st Status) (warnings []string, err error) {
	if st.state() == stability.Active {
		return nil, nil
	}
	c, ok := parseEtcd(st)
	if !ok {
		return []string{fmt.Sprintf("%s does not run etcd itself: its ports, addresses and data directory were not checked", st.Name)}, nil
	}
	for _, u := range c.unsure {
		warnings = append(warnings, u+": not all of ports, addresses and data directory were checked")
	}
	checks := []func(Status, etcdConfig) ([]string, error){p.addresses, p.ports, p.data, p.space}
	for _, check := range checks {
		if ctx.Err() != nil {
			return warnings, reason.New(reason.Interrupted, "checking before the start: %w", ctx.Err())
		}
		w, err := check(st, c)
		for i := range w {
			w[i] = reason.Line(w[i])
		}
		if warnings = append(warnings, w...); err != nil {
			return warnings, err
		}
	}
	return warnings, nil
}

// at places an absolute path below Root.
func (p Preflight) at(name string) string { return filepath.Join("/", p.root, name) }

// addresses finds a listen address that is not on this machine (B102).
func (p Preflight) addresses(st Status, c etcdConfig) (warnings []string, err error) {
	have := p.addrs
	if have == nil {
		have = interfaceAddrs
	}
	local, err := have()
	if err != nil {
		return []string{fmt.Sprintf("cannot list this machine's addresses: %v", err)}, nil
	}
	for _, raw := range slices.Concat(c.listenPeer, c.listenClnt) {
		ap, ok := endpoint(raw)
		if !ok {
			warnings = append(warnings, fmt.Sprintf("listen URL %s was not checked: its address is not an IP", raw))
			continue
		}
		ip := ap.Addr()
		if ip.IsUnspecified() || ip.IsLoopback() || slices.Contains(local, ip) {
			continue
		}
		if p.nonlocalBind(ip) {
			warnings = append(warnings, fmt.Sprintf("%s is not on this machine, but ip_nonlocal_bind allows it", ip))
			continue
		}
		return warnings, reason.New(reason.AddressNotLocal, "%s shall listen on %s, this machine has %s", st.Name, raw, addrList(local))
	}
	return warnings, nil
}

// nonlocalBind reports whether the kernel lets programs bind foreign addresses.
func (p Preflight) nonlocalBind(ip netip.Addr) bool {
	family := "ipv4"
	if ip.Is6() {
		family = "ipv6"
	}
	b, err := os.ReadFile(p.at("/proc/sys/net/" + family + "/ip_nonlocal_bind"))
	return err == nil && strings.TrimSpace(string(b)) == "1"
}

func addrList(addrs []netip.Addr) string {
	var out []string
	for _, a := range addrs {
		if !a.IsLoopback() && !a.IsLinkLocalUnicast() {
			out = append(out, a.String())
		}
	}
	if len(out) == 0 {
		return "none but loopback addresses"
	}
	return strings.Join(out, ", ")
}

// interfaceAddrs lists the addresses of this machine's interfaces.
func interfaceAddrs() ([]netip.Addr, error) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok {
			if ip, ok := netip.AddrFromSlice(n.IP); ok {
				out = append(out, ip.Unmap())
			}
		}
	}
	return out, nil
}

// ports finds a listen port that a process other than the unit's holds.
func (p Preflight) ports(st Status, c etcdConfig) (warnings []string, err error) {
	bind := p.bind
	if bind == nil {
		bind = listen
	}
	for _, raw := range slices.Concat(c.listenPeer, c.listenClnt) {
		ap, ok := endpoint(raw)
		// The tables give the name; whether the kernel refuses, only the kernel
		// can tell (IPV6_V6ONLY and SO_REUSEPORT do not stand in them).
		if !ok || !errors.Is(bind(ap), unix.EADDRINUSE) {
			continue
		}
		w, err := p.holder(st, ap)
		if err != nil {
			return warnings, err
		}
		warnings = append(warnings, w...)
	}
	return warnings, nil
}

// tableReads is how often the table of sockets is read for one that holds a
// port: the kernel gives it out in pieces, and sockets that come and go
// meanwhile make it leave out others.
const tableReads = 5

// holder says who keeps the unit from ap, which the kernel refuses: nobody if
// it is the unit itself.
func (p Preflight) holder(st Status, ap netip.AddrPort) (warnings []string, err error) {
	for range tableReads {
		socks, err := listeners(p.at("/proc"))
		if err != nil {
			return []string{fmt.Sprintf("cannot list the ports in use: %v", err)}, nil
		}
		own := false
		for _, s := range socks {
			if !s.blocks(ap) {
				continue
			}
			h, found := holderOf(p.at("/proc"), s.inode)
			switch {
			case !found:
				return nil, reason.New(reason.PortInUse, "%s needs %s, held by a process that cannot be named", st.Name, ap)
			case !h.belongsTo(st):
				return nil, reason.New(reason.PortInUse, "%s needs %s, held by process %d (%s)", st.Name, ap, h.pid, h.comm).
					WithHint(fmt.Sprintf("stop process %d (%s), which holds the port", h.pid, h.comm))
			}
			own = true
		}
		if own {
			return nil, nil
		}
	}
	return []string{fmt.Sprintf("%s is in use, but nobody listens on it: a connection from that port may be about to end", ap)}, nil
}

// listen tries to take ap, and lets go of it at once.
func listen(ap netip.AddrPort) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(ap))
	if err != nil {
		return err
	}
	return l.Close()
}

// data finds a data directory that cannot be one, or holds another member's data.
//
// etcd itself never compares: with a WAL present it takes name, token and peers
// from there and ignores the unit's --initial-*. So the IDs in the WAL are
// compared with those that etcd would compute from the unit. Only these are
// certain: the WAL of another member of the unit's own list (a copied disk), and,
// where a new cluster is to be made, the WAL of neither this member nor this
// cluster. A member that was replaced at runtime has an ID that cannot be
// foretold but the cluster's ID; one whose cluster has grown has its own ID and
// another cluster's: neither is refused.
func (p Preflight) data(_ Status, c etcdConfig) (warnings []string, err error) {
	if c.dataDir == "" {
		return nil, nil
	}
	dir := p.at(c.dataDir)
	fi, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case errors.Is(err, unix.ENOTDIR):
		return nil, reason.New(reason.DataDirDenied, "%s: a parent is not a directory", c.dataDir)
	case err != nil:
		return []string{fmt.Sprintf("data directory %s was not checked: %v", c.dataDir, err)}, nil
	case !fi.IsDir():
		return nil, reason.New(reason.DataDirDenied, "%s is not a directory", c.dataDir)
	}
	o, err := readOwner(p.at(c.walDir))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return []string{fmt.Sprintf("data directory %s: cannot tell whose it is: %v", c.dataDir, err)}, nil
	}
	if c.token == "" || c.name == "" || len(c.unsure) > 0 {
		return nil, nil // foretelling needs every setting
	}
	want := foretell(c)
	if o.member == want.own {
		if o.cluster != want.cluster {
			warnings = append(warnings, fmt.Sprintf("data directory %s holds this member of a cluster with other members (cluster %x) than --initial-cluster lists (cluster %x)", c.dataDir, o.cluster, want.cluster))
		}
		return warnings, nil
	}
	if other, ok := want.members[o.member]; ok {
		return nil, reason.New(reason.StaleData, "%s holds the data of member %s (%x), this is %s (%x)", c.dataDir, other, o.member, c.name, want.own)
	}
	if c.state == "new" && o.cluster != want.cluster {
		return nil, reason.New(reason.StaleData, "%s holds member %x of cluster %x, the unit describes member %x of cluster %x", c.dataDir, o.member, o.cluster, want.own, want.cluster)
	}
	return nil, nil
}

// space finds a file system that cannot take a new member's write-ahead log.
func (p Preflight) space(st Status, c etcdConfig) (warnings []string, err error) {
	if c.walDir == "" {
		return nil, nil
	}
	if _, err := firstWAL(p.at(c.walDir)); err == nil {
		return nil, nil // it has its files
	}
	dir := existing(p.at(c.walDir))
	look := p.statfs
	if look == nil {
		look = statfs
	}
	s, err := look(dir)
	if err != nil {
		return []string{fmt.Sprintf("cannot tell the free space for %s: %v", c.walDir, err)}, nil
	}
	if s.readOnly {
		return nil, reason.New(reason.DataDirDenied, "%s: its file system is read-only", c.walDir)
	}
	free := s.freeUser
	if st.User == "" || st.User == "root" || st.User == "0" {
		free = s.freeRoot
	}
	if free < walSpace {
		return nil, reason.New(reason.NoSpace, "%s: etcd needs %d MiB for its first files, %d MiB are free", c.walDir, uint64(walSpace)>>20, free>>20)
	}
	return nil, nil
}

// existing returns dir or its nearest parent that exists.
func existing(dir string) string {
	for dir != "/" {
		if _, err := os.Stat(dir); err == nil {
			break
		}
		dir = path.Dir(dir)
	}
	return dir
}

// statfs asks the kernel about the file system of dir as systemd sees it, which
// starts etcd: to the agent's own service most of it is read-only.
func statfs(dir string) (fsSpace, error) {
	real, err := filepath.EvalSymlinks(dir) // a link with an absolute target would lead back to what the agent sees
	if err != nil {
		real = dir
	}
	s, err := unixfs.Statfs("/proc/1/root" + real)
	seen := err == nil
	if !seen { // not permitted
		s, err = unixfs.Statfs(dir)
	}
	if err != nil {
		return fsSpace{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := uint64(s.Frsize) // blocks are counted in fragments; very old kernels leave it 0
	if unit == 0 {
		unit = uint64(s.Bsize)
	}
	return fsSpace{freeRoot: s.Bfree * unit, freeUser: s.Bavail * unit, readOnly: seen && s.Flags&unix.ST_RDONLY != 0}, nil
}
