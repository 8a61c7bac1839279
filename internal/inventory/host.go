// Package inventory turns what an operator names, be it arguments, lines,
// YAML or node sets, into the list of hosts to look at.
//
// It reads names and never looks anything up: whether a name is in ssh_config,
// in DNS or nowhere is found out by whoever connects. Every error is a
// *reason.Error with the code reason.Usage, or reason.NoNodes where the input
// is valid and names nobody; where an error has a place in a file, [Detail]
// returns the lines around it.
package inventory

// A Host is one etcd node as the operator named it. What is left empty is
// taken from ssh_config or from the program's defaults at the time of the
// first connection.
type Host struct {
	Name    string // shown everywhere: "203.0.113.10:50000", "etcd1.example"
	User    string // login name
	Addr    string // host name, IP address, or alias of an ssh_config entry
	Port    int    // TCP port of sshd; 0: not given
	KeyFile string // private key to offer, instead of the general ones
	HostKey string // pinned host key: "ssh-ed25519 AAAA..." or "SHA256:..."
	Member  string // name the etcd member must have
	Jump    string // ProxyJump in ssh_config's form: "[user@]host[:port][,...]"
	Group   string // group of the inventory it came from
}

// WithDefaults returns h with what it leaves open taken from d: login name,
// port, private key and jump hosts. The other fields belong to one host.
func (h Host) WithDefaults(d Host) Host {
	if h.User == "" {
		h.User = d.User
	}
	if h.Port == 0 {
		h.Port = d.Port
	}
	if h.KeyFile == "" {
		h.KeyFile = d.KeyFile
	}
	if h.Jump == "" {
		h.Jump = d.Jump
	}
	return h
}
