package unit

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"cks-etcd/internal/reason"
)

// A listener is a TCP socket in state LISTEN.
type listener struct {
	addr  netip.AddrPort
	inode string
}

// tcpListen is TCP_LISTEN as /proc/net/tcp prints it.
const tcpListen = "0A"

// maxTCPTable bounds what is read of one table, in bytes: 150 a socket.
const maxTCPTable = 16 << 20

// listeners reads net/tcp and net/tcp6 below proc.
func listeners(proc string) ([]listener, error) {
	var out []listener
	for _, name := range []string{"tcp", "tcp6"} {
		f, err := os.Open(filepath.Join(proc, "net", name))
		if errors.Is(err, fs.ErrNotExist) && name == "tcp6" {
			continue // a kernel without IPv6
		} else if err != nil {
			return nil, err
		}
		ls, err := parseTCP(io.LimitReader(f, maxTCPTable))
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		out = append(out, ls...)
	}
	return out, nil
}

// parseTCP reads the format of /proc/net/tcp and tcp6 (proc_net(5)): after a
// heading, fields "sl local rem st tx:rx tr:tm retr uid timeout inode ...".
func parseTCP(r io.Reader) ([]listener, error) {
	var out []listener
	sc := bufio.NewScanner(r)
	for first := true; sc.Scan(); first = false {
		f := strings.Fields(sc.Text())
		if first || len(f) < 10 || f[3] != tcpListen {
			continue
		}
		ap, err := parseHexAddr(f[1])
		if err != nil {
			return nil, err
		}
		out = append(out, listener{addr: ap, inode: f[9]})
	}
	return out, sc.Err()
}

// parseHexAddr reads "0100007F:094B": words of 32 bits in the machine's byte
// order, and the port as a number.
func parseHexAddr(s string) (netip.AddrPort, error) {
	bad := fmt.Errorf("not an address: %q", s)
	host, port, ok := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	if !ok || err != nil || len(b) != 4 && len(b) != 16 {
		return netip.AddrPort{}, bad
	}
	n, err := strconv.ParseUint(port, 16, 16)
	if err != nil {
		return netip.AddrPort{}, bad
	}
	for i := 0; i < len(b); i += 4 {
		binary.BigEndian.PutUint32(b[i:], binary.NativeEndian.Uint32(b[i:]))
	}
	ip, _ := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(ip, uint16(n)), nil
}

// blocks reports whether l keeps another process from listening on ap. A
// wildcard blocks, and is blocked by, every address; [::] takes IPv4 with it.
func (l listener) blocks(ap netip.AddrPort) bool {
	if l.addr.Port() != ap.Port() {
		return false
	}
	have, want := l.addr.Addr(), ap.Addr()
	if have.Is6() && have.IsUnspecified() || want.Is6() && want.IsUnspecified() {
		return true
	}
	have, want = have.Unmap(), want.Unmap()
	if have.Is4() != want.Is4() {
		return false
	}
	return have == want || have.IsUnspecified() || want.IsUnspecified()
}

// A holder is a process that holds a socket.
type holder struct {
	pid    int
	comm   string
	cgroup string // content of /proc/PID/cgroup
}

// belongsTo reports whether the process is one of the unit's.
func (h holder) belongsTo(st Status) bool {
	if st.MainPID != 0 && h.pid == st.MainPID {
		return true
	}
	for _, l := range strings.Split(h.cgroup, "\n") {
		if i := strings.LastIndexByte(l, ':'); i >= 0 {
			p := path.Clean("/" + l[i+1:])
			if st.ControlGroup != "" && (p == st.ControlGroup || strings.HasPrefix(p, st.ControlGroup+"/")) || path.Base(p) == st.Name {
				return true
			}
		}
	}
	return false
}

// holderOf finds the process that has the socket open. Found is false when none
// can be seen: it may be another user's, or in another PID namespace.
func holderOf(proc, inode string) (h holder, found bool) {
	pids, err := os.ReadDir(proc)
	if err != nil {
		return h, false
	}
	for _, d := range pids {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		dir := filepath.Join(proc, d.Name())
		fds, err := os.ReadDir(filepath.Join(dir, "fd"))
		if err != nil {
			continue // gone, or not ours to see
		}
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "socket:["+inode+"]" {
				comm, _ := os.ReadFile(filepath.Join(dir, "comm"))
				cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
				return holder{pid: pid, comm: reason.Line(string(comm)), cgroup: string(cgroup)}, true
			}
		}
	}
	return h, false
}
