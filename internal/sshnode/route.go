package sshnode

import (
	"net"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
)

// maxHops bounds a chain of jump hosts; longer ones are a mistake in ssh_config.
const maxHops = 8

// A hop is one SSH server on the way to a node, the node itself included, with
// all that ssh_config says about it.
type hop struct {
	alias   string // as it was named
	host    string // to connect to
	port    int
	user    string
	keyName string        // host:port under which its key is known
	plain   string        // as keyName, without the port; "" where OpenSSH would not look there
	pin     string        // pinned host key, "" none
	keys    []keyFile     // private keys to offer
	known   []string      // known_hosts files that are only read
	timeout time.Duration // for connect, handshake and login
	jump    bool          // not the node itself
}

// addr returns host:port.
func (h hop) addr() string { return net.JoinHostPort(h.host, strconv.Itoa(h.port)) }

// String names the hop in messages.
func (h hop) String() string {
	if h.jump {
		return "jump host " + h.addr()
	}
	return h.addr()
}

// loginName is what a login name may look like. A leading hyphen, white space
// and shell characters have no business in one.
var loginName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9_.@\\+][A-Za-z0-9_.@\\+$-]{0,127}$`) })

// route returns the hops to h in the order in which they are dialled.
func (d *Dialer) route(h inventory.Host) ([]hop, error) {
	alias := h.Addr
	if alias == "" {
		alias = h.Name
		if host, port, err := net.SplitHostPort(h.Name); err == nil {
			alias = host
			if n, err := strconv.Atoi(port); err == nil && h.Port == 0 {
				h.Port = n
			}
		}
	}
	last, err := d.hop(alias, h.User, h.Port, d.opts.User)
	if err != nil {
		return nil, err
	}
	last.pin = h.HostKey
	if h.KeyFile != "" {
		last.keys = []keyFile{{path: d.config.expand(h.KeyFile, last), named: true}}
	}
	spec := h.Jump
	if spec == "" {
		spec = d.config.get(alias, "ProxyJump")
	}
	if spec == "" {
		if c := d.config.get(alias, "ProxyCommand"); c != "" && c != "none" {
			return nil, reason.New(reason.Usage, "cannot reach %s: its ProxyCommand is not supported, use ProxyJump", alias)
		}
	}
	return d.through(spec, []hop{last})
}

// through puts the jump hosts of spec, and theirs, before the hops of tail.
func (d *Dialer) through(spec string, tail []hop) ([]hop, error) {
	if spec == "" || strings.EqualFold(spec, "none") {
		return tail, nil
	}
	specs := strings.Split(spec, ",")
	var front []hop
	for _, s := range specs {
		user, host, port, err := parseJump(s)
		if err != nil {
			return nil, err
		}
		h, err := d.hop(host, user, port, d.local)
		if err != nil {
			return nil, err
		}
		h.jump = true
		front = append(front, h)
	}
	hops := append(front, tail...)
	seen := make(map[string]bool)
	for _, h := range hops {
		if seen[h.addr()] || len(hops) > maxHops {
			return nil, reason.New(reason.Usage, "cannot reach %s: its jump hosts form a loop (%s) or are more than %d",
				hops[len(hops)-1].addr(), h.addr(), maxHops-1)
		}
		seen[h.addr()] = true
	}
	// As with ssh -J, only the first one of the list is reached by its own ProxyJump.
	return d.through(d.config.get(front[0].alias, "ProxyJump"), hops)
}

// parseJump reads "[user@]host[:port]" or "ssh://[user@]host[:port]".
func parseJump(s string) (user, host string, port int, err error) {
	bad := reason.New(reason.Usage, "cannot use jump host %q: it is [user@]host[:port]", s)
	s = strings.TrimSpace(s)
	s = strings.TrimSuffix(strings.TrimPrefix(s, "ssh://"), "/")
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		user, s = s[:i], s[i+1:]
	}
	host = s
	if h, p, err := net.SplitHostPort(s); err == nil {
		host = h
		if port, err = strconv.Atoi(p); err != nil || port < 1 || port > 65535 {
			return "", "", 0, bad
		}
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if host == "" || strings.HasPrefix(host, "-") || strings.ContainsAny(host, " \t/") {
		return "", "", 0, bad
	}
	return user, host, port, nil
}

// hop fills in what the arguments leave open from ssh_config, then from defaults.
func (d *Dialer) hop(alias, user string, port int, defaultUser string) (hop, error) {
	c := d.config
	h := hop{alias: alias, host: alias, user: user, port: port}
	if name := c.get(alias, "HostName"); name != "" {
		h.host = strings.NewReplacer("%%", "%", "%h", alias, "%n", alias).Replace(name)
	}
	if h.host == "" || strings.HasPrefix(h.host, "-") || strings.ContainsAny(h.host, " \t\n/\x00") {
		return hop{}, reason.New(reason.Usage, "cannot use host name %q", h.host)
	}
	if h.port == 0 {
		h.port = 22
		if p := c.get(alias, "Port"); p != "" {
			n, err := strconv.Atoi(p)
			if err != nil {
				return hop{}, reason.New(reason.Usage, "cannot use port %q of %s in ssh_config", p, alias)
			}
			h.port = n
		}
	}
	if h.port < 1 || h.port > 65535 {
		return hop{}, reason.New(reason.Usage, "cannot use port %d of %s: it must be 1 to 65535", h.port, alias)
	}
	h.user = or(or(h.user, c.get(alias, "User")), defaultUser)
	if !loginName().MatchString(h.user) {
		return hop{}, reason.New(reason.Usage, "cannot use login name %q for %s", h.user, alias)
	}

	// OpenSSH compares host names in lower case. An alias for the key stands
	// alone, without the port.
	h.keyName = net.JoinHostPort(strings.ToLower(h.host), strconv.Itoa(h.port))
	if h.port != 22 {
		h.plain = net.JoinHostPort(strings.ToLower(h.host), "22")
	}
	if name := c.get(alias, "HostKeyAlias"); name != "" {
		h.keyName, h.plain = net.JoinHostPort(strings.ToLower(name), "22"), ""
	}

	for _, f := range d.opts.KeyFiles {
		h.keys = append(h.keys, keyFile{path: c.expand(f, h), named: true})
	}
	identities := c.all(alias, "IdentityFile")
	for _, f := range identities {
		if !strings.EqualFold(f, "none") {
			h.keys = append(h.keys, keyFile{path: c.expand(f, h)})
		}
	}
	if len(identities) == 0 && len(d.opts.KeyFiles) == 0 {
		for _, f := range []string{"id_rsa", "id_ecdsa", "id_ed25519"} {
			h.keys = append(h.keys, keyFile{path: filepath.Join(d.opts.Home, ".ssh", f)})
		}
	}

	h.known = d.knownFiles(h, "UserKnownHostsFile", filepath.Join(d.opts.Home, ".ssh", "known_hosts"), filepath.Join(d.opts.Home, ".ssh", "known_hosts2"))
	h.known = append(h.known, d.knownFiles(h, "GlobalKnownHostsFile", "/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")...)

	h.timeout = d.opts.ConnectTimeout
	if n, err := strconv.Atoi(c.get(alias, "ConnectTimeout")); h.timeout <= 0 && err == nil && n > 0 {
		h.timeout = time.Duration(n) * time.Second
	}
	if h.timeout <= 0 {
		h.timeout = DefaultConnectTimeout
	}
	return h, nil
}

// knownFiles returns the files that the key of ssh_config names, or the defaults.
func (d *Dialer) knownFiles(h hop, key string, defaults ...string) []string {
	v := d.config.get(h.alias, key)
	if v == "" {
		return defaults
	}
	var out []string
	for _, f := range strings.Fields(v) {
		if !strings.EqualFold(f, "none") {
			out = append(out, d.config.expand(f, h))
		}
	}
	return out
}
