package watch

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
)

// maxSocketPath is the longest path of a Unix socket that every system here
// takes: 103 bytes and a zero byte on macOS, 107 on Linux (sys/un.h).
const maxSocketPath = 103

// An Address is one to listen on.
type Address struct {
	Network string // "tcp" or "unix"
	Addr    string // host:port, or a path
}

// String returns the address as it stands in a configuration.
func (a Address) String() string {
	if a.Network == "unix" {
		return "unix:" + a.Addr
	}
	return a.Addr
}

// Local reports whether only this machine can reach the address: a Unix socket
// or a loopback address. A name other than localhost counts as not local,
// since what it stands for may change.
func (a Address) Local() bool {
	if a.Network == "unix" {
		return true
	}
	host, _, err := net.SplitHostPort(a.Addr)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// overlaps reports whether a system may refuse to listen on both of two addresses
// that are not the same: they have one port, and one host stands for the other's too.
func (a Address) overlaps(b Address) bool {
	if a.Network != "tcp" || b.Network != "tcp" {
		return false
	}
	aHost, aPort, aErr := net.SplitHostPort(a.Addr)
	bHost, bPort, bErr := net.SplitHostPort(b.Addr)
	if aErr != nil || bErr != nil || aPort != bPort || aPort == "0" {
		return false
	}
	wide := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || err == nil && ip.Unmap().IsUnspecified()
	}
	named := aHost == "localhost" || bHost == "localhost"
	return wide(aHost) || wide(bHost) || named && a.Local() && b.Local()
}

// parseAddress reads unix:/PATH or HOST:PORT.
func parseAddress(s string) (Address, error) {
	if p, ok := strings.CutPrefix(s, "unix:"); ok {
		switch {
		case !filepath.IsAbs(p):
			return Address{}, fmt.Errorf("%q: the path of a socket begins with /", s)
		case strings.HasSuffix(p, "/"):
			return Address{}, fmt.Errorf("%q is a directory's name", s)
		case len(p) > maxSocketPath:
			return Address{}, fmt.Errorf("the path of a socket is at most %d bytes long", maxSocketPath)
		}
		return Address{"unix", filepath.Clean(p)}, nil
	}
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return Address{}, fmt.Errorf("%q is neither HOST:PORT nor unix:/PATH", s)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return Address{}, fmt.Errorf("%q: the port is a number from 0 to 65535", s)
	}
	if strings.ContainsAny(host, " /@") {
		return Address{}, fmt.Errorf("%q is neither HOST:PORT nor unix:/PATH", s)
	}
	return Address{"tcp", net.JoinHostPort(host, strconv.FormatUint(n, 10))}, nil
}
