package sshnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
)

// A Node is one etcd node. One connection to it is kept, and made anew by the
// next call after it ended; how long to wait between calls is the caller's
// part. A Node is safe for concurrent use.
type Node struct {
	d    *Dialer
	host inventory.Host

	dialing   chan struct{} // held by whoever makes or replaces the connection
	mu        sync.Mutex
	link      *link
	routed    []hop
	closed    atomic.Bool
	loggedIn  atomic.Bool
	mayChange atomic.Bool
	stats     counters
}

// Host returns the host the node was made for.
func (n *Node) Host() inventory.Host { return n.host }

// LoggedIn reports whether a login to the node ever succeeded.
func (n *Node) LoggedIn() bool { return n.loggedIn.Load() }

// Connected reports whether there is a connection, so that the next Probe need
// not make one. It costs no traffic, and a connection that died unheard counts.
func (n *Node) Connected() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.link != nil && !n.link.dead()
}

// AllowHostKeyChange says whether the node's host key may differ from the one
// in our own known_hosts file. It holds until the first login, with the policy
// AcceptNew, and never against a pin or somebody else's file.
func (n *Node) AllowHostKeyChange(allow bool) { n.mayChange.Store(allow) }

// Stats returns what the node cost so far.
func (n *Node) Stats() Stats { return n.stats.snapshot() }

// errClosed is the cause of using a Node after Close.
var errClosed = errors.New("the node is closed")

// Close ends the connection and waits for what served it. What still uses the
// node fails.
func (n *Node) Close() error {
	n.closed.Store(true)
	n.drop(nil)
	n.d.mu.Lock()
	delete(n.d.nodes, n)
	n.d.mu.Unlock()
	return nil
}

// drop closes the kept connection if it is l, or whichever it is for nil.
func (n *Node) drop(l *link) {
	n.mu.Lock()
	have := n.link
	if l == nil || have == l {
		n.link = nil
	}
	n.mu.Unlock()
	if l == nil {
		l = have
	}
	if l != nil {
		l.close()
	}
}

// connect returns the kept connection, or a new one. kept says which.
func (n *Node) connect(ctx context.Context) (l *link, kept bool, err error) {
	select {
	case n.dialing <- struct{}{}:
	case <-ctx.Done():
		return nil, false, n.ended(ctx, "waiting for a connection that is being made")
	}
	defer func() { <-n.dialing }()
	n.mu.Lock()
	l = n.link
	n.mu.Unlock()
	if l != nil && !l.dead() {
		return l, true, nil
	}
	n.drop(nil)
	if n.closed.Load() {
		return nil, false, reason.New(reason.Interrupted, "%s: %w", n.host.Name, errClosed)
	}
	if n.routed == nil {
		if n.routed, err = n.d.route(n.host); err != nil {
			return nil, false, err
		}
	}
	rules := keyRules{mayChange: n.mayChange.Load() && !n.loggedIn.Load()}
	l, err = n.d.dial(ctx, n.routed, rules, &n.stats)
	if err != nil {
		var pin *pinError
		if errors.As(err, &pin) {
			err = pin.err
		}
		return nil, false, err
	}
	n.loggedIn.Store(true)
	n.mu.Lock()
	n.link = l
	n.mu.Unlock()
	if n.closed.Load() { // Close came while we dialled
		n.drop(l)
		return nil, false, reason.New(reason.Interrupted, "%s: %w", n.host.Name, errClosed)
	}
	return l, false, nil
}

// Probe runs the fixed command once and returns what it showed. It connects
// when needed. It returns within the connect timeout of each hop plus the
// command timeout, or at once when ctx ends. Errors are *reason.Error with
// node-resolve, node-unreachable, ssh-handshake, ssh-auth-refused,
// ssh-host-key-changed, ssh-host-key-unknown, ssh-key-unusable,
// probe-unreadable, usage (ssh_config or inventory), or interrupted when ctx
// was cancelled or the node closed.
func (n *Node) Probe(ctx context.Context) (Observation, error) {
	for {
		l, kept, err := n.connect(ctx)
		if err != nil {
			return Observation{}, err
		}
		o, err := n.probe(ctx, l)
		if err == nil {
			return o, nil
		}
		var lost *lostError
		if kept && errors.As(err, &lost) && lost.before && ctx.Err() == nil && !n.closed.Load() {
			continue // the connection had died between two probes
		}
		if errors.As(err, &lost) {
			err = lost.err
		}
		return Observation{}, err
	}
}

// A lostError says that a connection broke.
type lostError struct {
	err    *reason.Error
	before bool // before the command was sent
}

// Error returns the message.
func (e *lostError) Error() string { return e.err.Error() }

// Unwrap returns the error with the code.
func (e *lostError) Unwrap() error { return e.err }

// probe runs the command over l.
func (n *Node) probe(ctx context.Context, l *link) (Observation, error) {
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, n.d.opts.CommandTimeout)
	defer cancel()
	begin := time.Now()
	n.stats.commands.Add(1)
	out := run(ctx, l, n.d.probe)
	if !out.clean {
		n.drop(l)
	}
	if out.err != nil && !framed(out.stdout) {
		return Observation{}, n.failed(parent, ctx, l.last, out, time.Since(begin))
	}
	o, err := observe(time.Now(), out)
	if err != nil {
		return Observation{}, reason.New(reason.ProbeUnreadable, "%s: %w", l.last, err)
	}
	return o, nil
}

// failed turns what stopped a command into an error with a code.
func (n *Node) failed(parent, ctx context.Context, h hop, out output, waited time.Duration) error {
	if parent.Err() != nil && errors.Is(context.Cause(parent), context.Canceled) {
		return n.ended(parent, out.doing)
	}
	took := waited.Round(10 * time.Millisecond)
	switch {
	case n.closed.Load():
		return reason.New(reason.Interrupted, "%s: %w", h, errClosed)
	case ctx.Err() != nil && !out.opened:
		return late(reason.NodeUnreachable, out.err, "%s: %s: no answer in %v", h, out.doing, took)
	case ctx.Err() != nil:
		return late(reason.ProbeUnreadable, out.err, "%s: %s: no answer in %v%s", h, out.doing, took, out.quote())
	case out.refused, out.cut:
		return reason.New(reason.ProbeUnreadable, "%s: %s: %w", h, out.doing, out.err)
	default:
		return &lostError{reason.New(reason.NodeUnreachable, "%s: the connection was lost while %s: %w", h, out.doing, cause(out.err)), !out.opened}
	}
}

// ended is the error of a context that ended while doing something.
func (n *Node) ended(ctx context.Context, doing string) error {
	if errors.Is(context.Cause(ctx), context.Canceled) {
		return reason.New(reason.Interrupted, "%s: %s: %w", n.host.Name, doing, context.Cause(ctx))
	}
	return reason.New(reason.NodeUnreachable, "%s: %s: %w", n.host.Name, doing, context.Cause(ctx))
}

// Forward opens a connection from the node to addr, as direct-tcpip of RFC
// 4254, section 7.2. Opening is bounded by ctx and by the connect timeout; the
// connection that is returned knows no deadlines, so bound its use with a
// timer that closes it.
func (n *Node) Forward(ctx context.Context, addr string) (net.Conn, error) {
	for {
		l, kept, err := n.connect(ctx)
		if err != nil {
			return nil, err
		}
		dialCtx, cancel := context.WithTimeout(ctx, l.last.timeout)
		conn, err := n.forward(dialCtx, l, addr)
		cancel()
		if err == nil {
			return conn, nil
		}
		var no *ssh.OpenChannelError
		refused := errors.As(err, &no)
		switch {
		case ctx.Err() != nil:
			return nil, n.ended(ctx, "connecting to "+addr+" through it")
		case !refused && kept && !n.closed.Load():
			n.drop(l) // the connection had died
			continue
		case !refused:
			n.drop(l)
			return nil, reason.New(reason.NodeUnreachable, "%s: the connection was lost while connecting to %s through it: %w", l.last, addr, cause(err))
		}
		return nil, reason.New(reason.HealthUnreadable, "%s: cannot reach %s on it: %w", l.last, addr, err)
	}
}

// forward opens the channel, and cuts the connection when no answer comes.
func (n *Node) forward(ctx context.Context, l *link, addr string) (net.Conn, error) {
	stop := context.AfterFunc(ctx, l.cut)
	conn, err := l.client().DialContext(ctx, "tcp", addr)
	if !stop() {
		if err == nil {
			conn.Close()
		}
		n.drop(l)
		return nil, fmt.Errorf("no answer: %w", context.Cause(ctx))
	}
	return conn, err
}
