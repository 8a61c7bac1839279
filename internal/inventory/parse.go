package inventory

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"cks-etcd/internal/reason"
)

// maxArg is the longest argument in bytes: a login name, a host name of 253
// bytes and a port, with room for ranges.
const maxArg = 1024

// maxName is the longest host name in bytes (RFC 1035 2.3.4, without the root
// label).
const maxName = 253

// maxShown is how much of an argument an error shows, in bytes, so that there
// is room for what is wrong with it.
const maxShown = 100

// errPassword keeps a password that was given away from being shown again.
var errPassword = errors.New("it has a password in it, which is not supported: use a key")

// loginName is what a login name may look like. A leading hyphen, white space
// and shell characters have no business in one.
var loginName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.@\\+][A-Za-z0-9_.@\\+$-]{0,127}$`) })

// ParseArg reads a host as it is named on a command line:
//
//	etcd1                         a name, or an alias of ssh_config
//	cloud@203.0.113.10:50000      with login name and port
//	2001:db8::1                   an IPv6 address alone
//	[fe80::1%eth0]:22             an IPv6 address with a zone and a port
//	ssh://cloud@etcd1.example:22  a URL without a path
//	etcd[1-3,5].example:22        a node set in clustershell's form
//	203.0.113.10:[50000-50002]    the same over ports
//	a[1-2],b[01-10]               several of them
//
// What ends like a port but has no brackets around its IPv6 address, such as
// 2001:db8::1:22, is an address. Each host keeps its own text as Name; a
// URL is shown without its scheme and escapes.
func ParseArg(s string) ([]Host, error) {
	hosts, err := parseHosts(s)
	if err != nil {
		return nil, reason.New(reason.Usage, "%w", err)
	}
	return hosts, nil
}

// parseHosts is ParseArg with a plain error.
func parseHosts(s string) ([]Host, error) {
	if len(s) > maxArg {
		return nil, fmt.Errorf("cannot use a host of %d bytes: at most %d are allowed", len(s), maxArg)
	}
	names, err := expand(s)
	if err != nil {
		return nil, hostError(s, err)
	}
	hosts := make([]Host, len(names))
	for i, name := range names {
		if hosts[i], err = parseHost(name); err != nil {
			return nil, hostError(name, err)
		}
	}
	return hosts, nil
}

// hostError names the host, unless it has something in it that is not to be
// shown.
func hostError(s string, err error) error {
	if errors.Is(err, errPassword) {
		return fmt.Errorf("cannot use a host: %w", err)
	}
	// It failed early, and what is before an @ and has a colon may yet hold a password.
	if user, host, ok := cutLast(s, "@"); ok && strings.Contains(trimScheme(user), ":") {
		s = "...@" + host
	}
	if len(s) > maxShown {
		s = s[:maxShown] + "..."
	}
	return fmt.Errorf("cannot use host %q: %w", s, err)
}

// parseHost reads one host that is not a node set.
func parseHost(s string) (Host, error) {
	if s == "" {
		return Host{}, errors.New("it is empty")
	}
	for _, r := range s {
		if unicode.IsSpace(r) || !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return Host{}, errors.New("it has white space or characters in it that cannot be printed")
		}
	}
	rest := trimScheme(s)
	isURL := rest != s
	if isURL {
		rest = strings.TrimSuffix(rest, "/")
	} else if strings.Contains(s, "://") {
		return Host{}, errors.New("only ssh:// is supported")
	}
	h := Host{Name: rest}
	if user, host, ok := cutLast(rest, "@"); ok {
		if strings.Contains(user, ":") {
			return Host{}, errPassword
		}
		if isURL {
			var err error
			if user, err = url.PathUnescape(user); err != nil {
				return Host{}, fmt.Errorf("login name: %w", err)
			}
		}
		if !loginName().MatchString(user) {
			return Host{}, fmt.Errorf("%q is not a login name", user)
		}
		h.User, rest = user, host
	}
	if isURL {
		rest = strings.Replace(rest, "%25", "%", 1) // RFC 6874: the sign before a zone is escaped
		h.Name = rest
		if h.User != "" {
			h.Name = h.User + "@" + rest
		}
	}
	var port string
	var hasPort, bracketed bool
	if strings.HasPrefix(rest, "[") {
		addr, after, ok := strings.Cut(rest[1:], "]")
		if port, hasPort = strings.CutPrefix(after, ":"); !ok || !hasPort && after != "" {
			return Host{}, errBrackets
		}
		if rangeSet.MatchString(rest) { // made by a range within brackets
			return Host{}, errBrackets
		}
		h.Addr, bracketed = addr, true
	} else if strings.Count(rest, ":") > 1 {
		h.Addr = rest
	} else {
		h.Addr, port, hasPort = strings.Cut(rest, ":")
	}
	if err := checkAddr(h.Addr, bracketed); err != nil {
		return Host{}, err
	}
	if hasPort {
		var err error
		if h.Port, err = parsePort(port); err != nil {
			return Host{}, err
		}
	}
	return h, nil
}

// checkAddr accepts addresses, host names and what may be an alias in
// ssh_config.
func checkAddr(s string, bracketed bool) error {
	if strings.Contains(s, ":") {
		ip, err := netip.ParseAddr(s)
		if err != nil && bracketed {
			return fmt.Errorf("%q is not an IPv6 address", s)
		}
		if err != nil {
			return errors.New("it is neither an IPv6 address nor HOST:PORT; write an IPv6 address with a port as [ADDRESS]:PORT")
		}
		if ip.Zone() == "" {
			return nil
		}
		return checkName(ip.Zone(), "zone")
	}
	if err := checkName(s, "host name"); err != nil {
		return err
	}
	if strings.Contains(s, ".") && strings.Trim(s, "0123456789.") == "" {
		if _, err := netip.ParseAddr(s); err != nil {
			return fmt.Errorf("%q is not an IPv4 address", s)
		}
	}
	return nil
}

// checkName checks the characters and the length of a name. Letters of every
// script are allowed, since an alias of ssh_config may have them.
func checkName(s, what string) error {
	switch {
	case s == "":
		return fmt.Errorf("the %s is empty", what)
	case len(s) > maxName:
		return fmt.Errorf("the %s has more than %d bytes", what, maxName)
	case s[0] == '-':
		return fmt.Errorf("the %s begins with a hyphen", what)
	}
	for _, r := range s {
		if !unicode.In(r, unicode.L, unicode.M, unicode.N) && !strings.ContainsRune("._-+", r) {
			return fmt.Errorf("the %s has %q in it", what, r)
		}
	}
	return nil
}

// parsePort reads a TCP port, 1 to 65535, without a sign or leading zeros.
func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || padded(s) {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return int(n), nil
}

// checkJump checks a value of ProxyJump: "none", or up to seven jump hosts.
func checkJump(s string) error {
	if s == "none" {
		return nil
	}
	const most = 7 // what is dialled through, the node being the eighth
	hops := strings.Split(s, ",")
	if len(hops) > most {
		return fmt.Errorf("it names more than %d jump hosts", most)
	}
	for _, hop := range hops {
		if _, err := parseHost(hop); err != nil {
			return err
		}
	}
	return nil
}

// trimScheme returns s without a leading "ssh://", in whatever case.
func trimScheme(s string) string {
	const scheme = "ssh://"
	if len(s) >= len(scheme) && strings.EqualFold(s[:len(scheme)], scheme) {
		return s[len(scheme):]
	}
	return s
}

// cutLast is strings.Cut around the last sep.
func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return s, "", false
}
