package unit

import (
	"net/netip"
	"net/url"
	"path"
	"strconv"
	"strings"
)

// An etcdConfig is what the unit tells etcd that matters before its start. The
// zero value of a field is filled with etcd's default by parseEtcd.
type etcdConfig struct {
	name                   string
	dataDir, walDir        string // absolute; "" where it cannot be told
	listenPeer, listenClnt []string
	advertisePeer          []string
	initialCluster         string
	token                  string
	state                  string // "new" or "existing"
	unsure                 []string
}

// parseEtcd reads etcd's settings from a unit: its flags, "--name x", "--name=x"
// or with one hyphen, and below them ETCD_* of its environment, as etcd does.
// What cannot be told from the unit stays out and is named in unsure. ok is
// false when the unit does not run etcd itself.
func parseEtcd(st Status) (c etcdConfig, ok bool) {
	if len(st.ExecStart) == 0 || path.Base(st.ExecStart[0]) != "etcd" {
		return c, false
	}
	set := map[string]string{}
	for _, e := range st.Environment {
		if k, v, ok := strings.Cut(e, "="); ok && strings.HasPrefix(k, "ETCD_") {
			set[strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(k, "ETCD_"), "_", "-"))] = v
		}
	}
	args := st.ExecStart[1:]
	for i := 0; i < len(args); i++ {
		k, v, joined := strings.Cut(args[i], "=")
		k, isFlag := strings.CutPrefix(k, "-")
		k = strings.TrimPrefix(k, "-")
		if !isFlag || k == "" {
			continue
		}
		if !joined && wanted(k) && i+1 < len(args) {
			i++
			v = args[i]
		}
		set[k] = v
	}
	get := func(k, deflt string) string {
		v, ok := set[k]
		if !ok {
			return deflt
		}
		if v, ok = expand(v, st.Environment); !ok {
			c.unsure = append(c.unsure, "--"+k+" holds a variable")
			return ""
		}
		return v
	}
	if _, ok := set["config-file"]; ok {
		// etcd then ignores every other flag.
		c.unsure = append(c.unsure, "etcd reads a --config-file")
		return c, true
	}
	c.name = get("name", "default")
	c.listenPeer = list(get("listen-peer-urls", "http://localhost:2380"))
	c.listenClnt = list(get("listen-client-urls", "http://localhost:2379"))
	c.advertisePeer = list(get("initial-advertise-peer-urls", "http://localhost:2380"))
	c.initialCluster = get("initial-cluster", "")
	c.token = get("initial-cluster-token", "etcd-cluster")
	c.state = get("initial-cluster-state", "new")
	deflt := ""
	if c.name != "" {
		deflt = c.name + ".etcd"
	}
	c.dataDir = c.absolute(get("data-dir", deflt), st.WorkingDirectory)
	if w := get("wal-dir", ""); w != "" {
		c.walDir = c.absolute(w, st.WorkingDirectory)
	} else if c.dataDir != "" {
		c.walDir = path.Join(c.dataDir, "member", "wal")
	}
	return c, true
}

// wanted reports whether flag k is one of those that parseEtcd reads, which all
// take a value. Others may be booleans without one.
func wanted(k string) bool {
	switch k {
	case "name", "data-dir", "wal-dir", "listen-peer-urls", "listen-client-urls", "initial-advertise-peer-urls",
		"initial-cluster", "initial-cluster-token", "initial-cluster-state", "config-file":
		return true
	}
	return false
}

// absolute resolves dir against the unit's working directory, "/" by default.
func (c *etcdConfig) absolute(dir, wd string) string {
	wd = strings.TrimPrefix(wd, "!") // "-" of the unit file: it may be missing
	switch {
	case dir == "":
		return ""
	case path.IsAbs(dir):
		return path.Clean(dir)
	case wd == "":
		wd = "/"
	case !path.IsAbs(wd):
		c.unsure = append(c.unsure, "the working directory is "+wd)
		return ""
	}
	return path.Join(wd, dir)
}

// expand replaces $NAME and ${NAME} by the unit's environment, as systemd does
// when it executes. ok is false when a variable is not in it.
func expand(v string, env []string) (string, bool) {
	var b strings.Builder
	for {
		i := strings.IndexByte(v, '$')
		if i < 0 {
			b.WriteString(v)
			return b.String(), true
		}
		b.WriteString(v[:i])
		v = v[i+1:]
		if rest, ok := strings.CutPrefix(v, "$"); ok { // "$$" is a dollar
			b.WriteByte('$')
			v = rest
			continue
		}
		name := v
		if rest, ok := strings.CutPrefix(v, "{"); ok {
			if name, v, ok = strings.Cut(rest, "}"); !ok {
				return "", false
			}
		} else {
			n := strings.IndexFunc(v, func(r rune) bool {
				return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
			})
			if n < 0 {
				n = len(v)
			}
			name, v = v[:n], v[n:]
		}
		val, ok := lookup(env, name)
		if !ok {
			return "", false
		}
		b.WriteString(val)
	}
}

func lookup(env []string, name string) (string, bool) {
	for i := len(env) - 1; i >= 0; i-- { // the last assignment counts
		if k, v, ok := strings.Cut(env[i], "="); ok && k == name {
			return v, true
		}
	}
	return "", false
}

// list cuts a list of URLs at its commas.
func list(s string) []string {
	var out []string
	for _, e := range strings.Split(s, ",") {
		if e = strings.TrimSpace(e); e != "" {
			out = append(out, e)
		}
	}
	return out
}

// endpoint returns address and port of a listen URL. ok is false for a unix
// socket, and for a name that only etcd's resolver can tell.
func endpoint(raw string) (ap netip.AddrPort, ok bool) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" {
		return ap, false
	}
	port, err := strconv.ParseUint(u.Port(), 10, 16)
	if err != nil || port == 0 {
		return ap, false
	}
	host := u.Hostname()
	if host == "localhost" {
		host = "127.0.0.1"
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return ap, false
	}
	return netip.AddrPortFrom(ip.Unmap().WithZone(""), uint16(port)), true
}
