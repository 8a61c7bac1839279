package sshnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
)

// A HostKeyPolicy says what to do about a host key that no file and no pin knows.
type HostKeyPolicy uint8

const (
	// AcceptNew accepts the key of an unknown host and remembers it after the
	// first login. A key that differs from a known one is refused.
	AcceptNew HostKeyPolicy = iota
	// Strict refuses unknown hosts.
	Strict
	// Off accepts any key that is neither revoked nor contradicts a pin. It
	// protects from nothing, and is logged as a warning.
	Off
)

// ParseHostKeyPolicy reads the policy from the words "accept-new", "strict" and "off".
func ParseHostKeyPolicy(s string) (HostKeyPolicy, error) {
	for _, p := range []HostKeyPolicy{AcceptNew, Strict, Off} {
		if p.String() == s {
			return p, nil
		}
	}
	return 0, reason.New(reason.Usage, "cannot use host key policy %q: it is accept-new, strict or off", s)
}

// String returns the word that ParseHostKeyPolicy reads.
func (p HostKeyPolicy) String() string {
	switch p {
	case Strict:
		return "strict"
	case Off:
		return "off"
	default:
		return "accept-new"
	}
}

// Defaults of Options.
const (
	DefaultConnectTimeout = 10 * time.Second
	DefaultCommandTimeout = 15 * time.Second
	DefaultUser           = "cloud"
	DefaultUnit           = "etcd.service"
	DefaultMarker         = "/home/cloud/etcd-setup-failed"
	DefaultState          = "/var/lib/etcd-nodeagent/state.json"
)

// NoConfig as Options.ConfigFile means that no ssh_config is read.
const NoConfig = "none"

// dialsPerTarget bounds the unauthenticated connections to one address. sshd
// begins to drop them at ten (MaxStartups 10:30:100, B46); a jump host sees all
// the nodes behind it at once.
const dialsPerTarget = 8

// Options of a Dialer. The zero value is useful.
type Options struct {
	ConnectTimeout time.Duration // TCP, handshake and login of one hop; 0: ssh_config's ConnectTimeout or DefaultConnectTimeout
	CommandTimeout time.Duration // one probe, from opening its channel to the end of its output; 0: DefaultCommandTimeout
	HostKeys       HostKeyPolicy
	KnownHosts     string   // our own known_hosts file; "": etcd-fleet/known_hosts below $XDG_STATE_HOME
	ConfigFile     string   // ssh_config; "": ~/.ssh/config and /etc/ssh/ssh_config; NoConfig: none
	KeyFiles       []string // private keys to offer first (-i)
	Agent          bool     // ask the agent at SSH_AUTH_SOCK; it is never asked otherwise
	// Passphrase asks for the passphrase of an encrypted key. It is called at
	// most once a file. Nil: encrypted keys cannot be used.
	Passphrase func(keyfile string) ([]byte, error)
	User       string // login name where neither host nor ssh_config names one; "": DefaultUser
	Unit       string // unit to look at; "": DefaultUnit
	Marker     string // path of the failure marker on the node; "": DefaultMarker
	State      string // path of the agent's state file on the node; "": DefaultState
	Home       string // home directory, for ~ and the default files; "": the user's
	Log        *slog.Logger
}

// A Dialer makes Nodes that share keys, known hosts and ssh_config. It is safe
// for concurrent use.
type Dialer struct {
	opts      Options
	probe     string // the fixed command
	config    *sshConfig
	keys      *keyring
	known     *knownHosts
	log       *slog.Logger
	agentDead atomic.Bool
	local     string // local user name, the default for jump hosts as in OpenSSH
	mu        sync.Mutex
	nodes     map[*Node]struct{}
	targets   map[string]chan struct{}
	closed    bool
}

// remotePath is what a path on the node may look like: absolute, and without
// anything that a shell could take for something else. Like the others, it is
// made when it is needed: that takes longer than most commands of the program.
var remotePath = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^/[A-Za-z0-9._/@:+-]{1,255}$`) })

// unitName is systemd's own rule for the name of a service (systemd.unit(5)),
// without the backslash of escaped names.
var unitName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`^[A-Za-z0-9:_.@][A-Za-z0-9:_.@-]{0,200}\.service$`) })

// New checks o and reads ssh_config. Its errors carry the code usage. No
// network is used.
func New(o Options) (*Dialer, error) {
	if o.CommandTimeout <= 0 {
		o.CommandTimeout = DefaultCommandTimeout
	}
	o.User = or(o.User, DefaultUser)
	o.Unit = or(o.Unit, DefaultUnit)
	o.Marker = or(o.Marker, DefaultMarker)
	o.State = or(o.State, DefaultState)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if !unitName().MatchString(o.Unit) {
		return nil, reason.New(reason.Usage, "cannot use unit %q: not the name of a service", o.Unit)
	}
	for _, p := range []string{o.Marker, o.State} {
		if !remotePath().MatchString(p) {
			return nil, reason.New(reason.Usage, "cannot use path %q on a node: it must be absolute and made of letters, digits and ._/@:+-", p)
		}
	}
	if o.Home == "" {
		home, err := os.UserHomeDir()
		if u, uerr := user.Current(); err != nil && uerr == nil && u.HomeDir != "" {
			home, err = u.HomeDir, nil // services run without HOME
		}
		if err != nil && (o.KnownHosts == "" || len(o.KeyFiles) == 0) {
			return nil, reason.New(reason.Usage, "cannot find the home directory of uid %d: %w", os.Getuid(), err)
		}
		o.Home = home
	}
	if o.KnownHosts == "" {
		state := os.Getenv("XDG_STATE_HOME")
		if !filepath.IsAbs(state) { // the specification says to ignore relative ones
			state = filepath.Join(o.Home, ".local", "state")
		}
		o.KnownHosts = filepath.Join(state, "etcd-fleet", "known_hosts")
	}
	d := &Dialer{
		opts:    o,
		probe:   probeCommand(o.Unit, o.Marker, o.State),
		log:     o.Log,
		nodes:   make(map[*Node]struct{}),
		targets: make(map[string]chan struct{}),
		keys:    newKeyring(o.Passphrase),
		known:   newKnownHosts(o.KnownHosts, o.Log),
	}
	if u, err := user.Current(); err == nil {
		d.local = u.Username
	}
	var err error
	if d.config, err = loadConfig(o.ConfigFile, o.Home, o.Log); err != nil {
		return nil, err
	}
	if o.HostKeys == Off {
		d.log.Warn("host keys are not checked: anybody on the way can answer in a node's name")
	}
	return d, nil
}

// or returns s, or def where s is empty.
func or(s, def string) string {
	if s == "" {
		return def
	}
	return s
}

// Node returns the node that h names. No network is used before the first Probe.
func (d *Dialer) Node(h inventory.Host) *Node {
	n := &Node{d: d, host: h, dialing: make(chan struct{}, 1)}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		n.closed.Store(true)
		return n
	}
	d.nodes[n] = struct{}{}
	return n
}

// Close closes every node's connection.
func (d *Dialer) Close() error {
	d.mu.Lock()
	d.closed = true
	nodes := d.nodes
	d.nodes = nil
	d.mu.Unlock()
	var errs []error
	for n := range nodes {
		errs = append(errs, n.Close())
	}
	return errors.Join(errs...)
}

// enter waits for the right to shake hands with target. The function it
// returns gives the right back.
func (d *Dialer) enter(ctx context.Context, target string) (leave func(), err error) {
	d.mu.Lock()
	gate := d.targets[target]
	if gate == nil {
		gate = make(chan struct{}, dialsPerTarget)
		d.targets[target] = gate
	}
	d.mu.Unlock()
	select {
	case gate <- struct{}{}:
		return func() { <-gate }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for %d other logins to %s: %w", dialsPerTarget, target, context.Cause(ctx))
	}
}
