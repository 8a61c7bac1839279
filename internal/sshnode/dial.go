package sshnode

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"cks-etcd/internal/reason"
)

// A link is a connection to a node: the TCP connection at the bottom, and one
// SSH connection a hop on top of it.
type link struct {
	root    net.Conn // closing it ends everything above
	clients []*ssh.Client
	last    hop
	gone    chan struct{} // closed when the connection to the node has ended
	owned   sync.WaitGroup
}

// client returns the SSH connection to the node itself.
func (l *link) client() *ssh.Client { return l.clients[len(l.clients)-1] }

// dead says whether the connection has ended. It costs no traffic.
func (l *link) dead() bool {
	select {
	case <-l.gone:
		return true
	default:
		return false
	}
}

// cut ends the connection at once, however stuck the server is.
func (l *link) cut() { l.root.Close() }

// close ends the connection and waits for all that served it.
func (l *link) close() {
	l.cut()
	for _, c := range slices.Backward(l.clients) {
		_ = c.Wait() // returns an error always, since the connection ends
	}
	l.owned.Wait()
}

// dial connects to the last of the hops through those before it. The rules are
// those of the node; they do not apply to jump hosts.
func (d *Dialer) dial(ctx context.Context, hops []hop, rules keyRules, stats *counters) (*link, error) {
	l := &link{last: hops[len(hops)-1], gone: make(chan struct{})}
	for i, h := range hops {
		r := rules
		if h.jump {
			r = keyRules{}
		}
		ids, unusable, err := d.identities(ctx, h)
		if err == nil {
			err = d.dialHop(ctx, l, i, h, &attempt{rules: r, ids: ids, unusable: unusable, stats: stats})
		}
		if err != nil {
			if l.root != nil {
				l.close()
			}
			return nil, err
		}
	}
	client := l.client()
	l.owned.Go(func() {
		_ = client.Wait()
		close(l.gone)
		l.cut() // the hops below are of no use without it
	})
	l.owned.Go(func() { l.keepalive(client) })
	return l, nil
}

// dialHop adds the connection to h to l. A pinned fingerprint does not tell
// the type of its key, so where a server shows a key of another type it is
// asked again for the rest of its keys.
func (d *Dialer) dialHop(ctx context.Context, l *link, i int, h hop, a *attempt) error {
	leave, err := d.enter(ctx, h.addr())
	if err != nil {
		return describe(ctx, h, stageConnect, 0, nil, a, err)
	}
	defer leave()
	a.algorithms = d.algorithms(h)
	for {
		err := d.handshake(ctx, l, i, h, a)
		var pin *pinError
		if !errors.As(err, &pin) || !pin.retry {
			return err
		}
		if a.pinErr == nil {
			a.pinErr = err // the key it likes best is the one to name
		}
		rest := slices.DeleteFunc(slices.Clone(a.algorithms), func(s string) bool {
			return slices.Contains(algorithmsOf(pin.shown.Type()), s)
		})
		if len(rest) == 0 || len(rest) == len(a.algorithms) {
			return a.pinErr
		}
		a.algorithms = rest
	}
}

// algorithms returns the host key algorithms to offer to h.
func (d *Dialer) algorithms(h hop) []string {
	if h.pin == "" {
		return d.known.algorithms(h)
	}
	if key, err := parsePin(h.pin); err == nil && key != nil {
		return algorithmsOf(key.Type())
	}
	return plainAlgorithms()
}

// An attempt is all that a login needs and learns.
type attempt struct {
	rules      keyRules
	ids        []identity
	unusable   []string // keys of ours that could not be used, and why
	stats      *counters
	algorithms []string // of host keys, to offer
	pinErr     error    // what an earlier try of the same login said about the host key

	mu      sync.Mutex
	banner  string   // the server's login banner
	methods []string // the server's login methods
	offered []string // keys the server was asked about
	accept  *acceptance
}

// maxBanner bounds what is kept of a login banner.
const maxBanner = 1 << 10

// handshake connects, checks the host key and logs in, within h.timeout.
func (d *Dialer) handshake(ctx context.Context, l *link, i int, h hop, a *attempt) error {
	ids := a.ids
	ag, more, err := d.agent(ctx, h.timeout)
	if err != nil {
		a.unusable = append(a.unusable, reason.Line(err.Error()))
	}
	defer ag.Close()
	ids = append(slices.Clip(ids), more...)

	begin := time.Now()
	parent := ctx
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	a.stats.dials.Add(1)

	var conn net.Conn
	if i == 0 {
		var dialer net.Dialer
		conn, err = dialer.DialContext(ctx, "tcp", h.addr())
		if err == nil {
			l.root = conn
		}
	} else {
		// The channel through the jump host knows no deadline; it ends with the
		// connection below it.
		stop := context.AfterFunc(ctx, l.cut)
		conn, err = l.clients[i-1].Dial("tcp", h.addr())
		if !stop() && err == nil {
			err = context.Cause(ctx)
		}
	}
	if err != nil {
		return describe(parent, h, stageConnect, time.Since(begin), nil, a, err)
	}
	g := newGuard(conn, a.stats)
	if end, ok := ctx.Deadline(); ok && i == 0 {
		if err := conn.SetDeadline(end); err != nil {
			conn.Close()
			return describe(parent, h, stageConnect, time.Since(begin), nil, a, err)
		}
	}
	cut := l.cut
	if i == 0 {
		cut = func() { conn.Close() }
	}
	stop := context.AfterFunc(ctx, cut)
	defer stop()

	stopAgent := context.AfterFunc(ctx, func() { ag.Close() })
	defer stopAgent()

	var refused error // ours, about the host key; x/crypto does not keep the chain
	cfg := &ssh.ClientConfig{
		User:              h.user,
		ClientVersion:     "SSH-2.0-etcd-fleet",
		HostKeyAlgorithms: a.algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			a.accept, refused = d.checkHostKey(h, key, a.rules)
			if refused == nil {
				g.reach(stageAuth)
			}
			return refused
		},
		BannerCallback: func(text string) error {
			a.mu.Lock()
			defer a.mu.Unlock()
			if len(a.banner) < maxBanner {
				a.banner = strings.ToValidUTF8((a.banner + " " + text)[:min(maxBanner, len(a.banner)+1+len(text))], "?")
			}
			return nil
		},
		Auth: []ssh.AuthMethod{ssh.PublicKeysCallback(func() ([]ssh.Signer, error) {
			signers := offers(ids)
			for _, id := range ids {
				a.offered = append(a.offered, id.name)
			}
			return signers, nil
		})},
		AuthCallback: func(c *ssh.ClientAuthContext) (ssh.AuthMethod, error) {
			a.methods = c.AllowedMethods
			return nil, nil
		},
	}
	c, chans, reqs, err := ssh.NewClientConn(g, h.keyName, cfg)
	if err != nil {
		at := g.at()
		if refused != nil {
			return refused
		}
		var none *ssh.AlgorithmNegotiationError
		if a.pinErr != nil && errors.As(err, &none) {
			return a.pinErr // it has no other keys
		}
		return describe(parent, h, at, time.Since(begin), g, a, err)
	}
	client := ssh.NewClient(c, chans, reqs)
	l.clients = append(l.clients, client)
	if !stop() { // its time was over the moment it succeeded
		return describe(parent, h, stageAuth, time.Since(begin), g, a, context.Cause(ctx))
	}
	if i == 0 {
		if err := conn.SetDeadline(time.Time{}); err != nil {
			return describe(parent, h, stageAuth, time.Since(begin), g, a, err)
		}
	}
	g.reach(stageReady)
	a.stats.handshakes.Add(1)
	d.log.Debug("logged in", "host", h.addr(), "user", h.user, "server", reason.Line(string(c.ServerVersion())),
		"key", ssh.FingerprintSHA256(a.accept.key), "took", time.Since(begin).Round(time.Millisecond))
	return d.remember(h, a.accept)
}

// Bounds of the keepalive, in OpenSSH's terms ServerAliveInterval=15 and
// ServerAliveCountMax=1: a connection that only waits is found dead within
// half a minute.
const (
	keepaliveEvery = 15 * time.Second
	keepaliveWait  = 10 * time.Second
)

// keepalive asks the server now and then whether it is there, and ends the
// connection when no answer comes. What the answer says does not matter; sshd
// refuses the request as unknown.
func (l *link) keepalive(client *ssh.Client) {
	t := time.NewTicker(keepaliveEvery)
	defer t.Stop()
	for {
		select {
		case <-l.gone:
			return
		case <-t.C:
		}
		late := time.AfterFunc(keepaliveWait, l.cut)
		_, _, err := client.SendRequest("keepalive@openssh.com", true, nil)
		late.Stop()
		if err != nil {
			l.cut()
			return
		}
	}
}

// A lateError says that a deadline passed. The error below it adds nothing
// that people want to read, so it is kept for errors.Is alone.
type lateError struct {
	text string
	err  error
}

func (e *lateError) Error() string { return e.text }
func (e *lateError) Unwrap() error { return e.err }

// late returns the error of a deadline that passed. err is the error below.
func late(c reason.Code, err error, format string, args ...any) *reason.Error {
	if !errors.Is(err, context.DeadlineExceeded) {
		err = context.DeadlineExceeded
	}
	return &reason.Error{Code: c, Err: &lateError{fmt.Sprintf(format, args...), err}}
}

// describe turns an error of connecting to h into one with a code. parent is
// the caller's context, without the hop's own deadline.
func describe(parent context.Context, h hop, at stage, waited time.Duration, g *guard, a *attempt, err error) error {
	if parent.Err() != nil && errors.Is(context.Cause(parent), context.Canceled) {
		return reason.New(reason.Interrupted, "connecting to %s: %w", h, context.Cause(parent))
	}
	took := waited.Round(10 * time.Millisecond)
	if waited >= time.Second {
		took = waited.Round(100 * time.Millisecond)
	}
	timeout := isTimeout(err) || waited >= h.timeout || parent.Err() != nil
	said := ""
	if g != nil {
		said = g.said()
	}
	var dns *net.DNSError
	switch {
	case errors.As(err, &dns):
		return reason.New(reason.NodeResolve, "%s: %w", h, dns)
	case at == stageConnect && timeout:
		return late(reason.NodeUnreachable, err, "connecting to %s: no answer in %v", h, took)
	case at == stageConnect:
		return reason.New(reason.NodeUnreachable, "connecting to %s: %w", h, cause(err))
	case errors.Is(err, errBudget):
		return reason.New(reason.SSHHandshake, "%s: %w%s", h, err, said)
	case at == stageBanner && timeout:
		return late(reason.SSHHandshake, err, "%s accepted the connection but sent no SSH banner in %v%s", h, took, said)
	case at == stageBanner:
		return reason.New(reason.SSHHandshake, "%s ended the connection before its SSH banner%s: %w", h, said, cause(err))
	case at == stageKex && timeout:
		return late(reason.SSHHandshake, err, "%s did not finish the key exchange in %v", h, took)
	case at == stageKex:
		return describeKex(h, err)
	default:
		return describeAuth(h, timeout, took, a, err)
	}
}

// describeKex names the part of the negotiation that failed (B33).
func describeKex(h hop, err error) error {
	var none *ssh.AlgorithmNegotiationError
	if errors.As(err, &none) {
		return reason.New(reason.SSHHandshake, "%s has no %s algorithm in common with us: it offers %s; we offer %s",
			h, none.What, strings.Join(none.RequestedAlgorithms, ","), strings.Join(none.SupportedAlgorithms, ","))
	}
	return reason.New(reason.SSHHandshake, "key exchange with %s: %w", h, cause(err))
}

// describeAuth tells a refused login from one that could not be finished.
func describeAuth(h hop, timeout bool, took time.Duration, a *attempt, err error) error {
	who := fmt.Sprintf("%s: as %s", h, h.user)
	var more strings.Builder
	if banner := reason.Line(a.banner); banner != "" {
		fmt.Fprintf(&more, "; the server says %q", banner)
	}
	if len(a.unusable) > 0 {
		fmt.Fprintf(&more, "; not offered: %s", strings.Join(a.unusable, "; "))
	}
	msg := err.Error()
	switch {
	case timeout:
		return late(reason.SSHHandshake, err, "%s: no answer to the login in %v%s", who, took, more.String())
	case strings.Contains(msg, "unable to authenticate"), strings.Contains(msg, "no common public key signature"):
		methods := strings.Join(a.methods, ", ")
		if len(a.methods) > 0 && !slices.Contains(a.methods, "publickey") {
			return reason.New(reason.SSHAuthRefused, "%s: the server does not accept keys, only %s%s", who, methods, more.String())
		}
		if len(a.offered) == 0 {
			return reason.New(reason.SSHAuthRefused, "%s: there is no key to offer; the server accepts %s%s", who, methods, more.String())
		}
		what := "the key " + strings.Join(a.offered, ", ") + " is not accepted"
		if len(a.offered) > 1 {
			what = "none of the keys " + strings.Join(a.offered, ", ") + " is accepted"
		}
		if strings.Contains(msg, "no common public key signature") {
			what += " (" + cause(err).Error() + ")"
		}
		return reason.New(reason.SSHAuthRefused, "%s: %s; the server accepts %s%s", who, what, methods, more.String())
	case strings.Contains(msg, "ssh: disconnect, reason"):
		return reason.New(reason.SSHAuthRefused, "%s: the server ended the login: %w%s", who, cause(err), more.String())
	case a.banner != "":
		// sshd shows what PAM's account modules say (pam_nologin) as a banner,
		// then ends the connection.
		return reason.New(reason.SSHAuthRefused, "%s: the server ended the login%s: %w", who, more.String(), cause(err))
	default:
		return reason.New(reason.SSHHandshake, "%s: the connection ended during the login%s: %w", who, more.String(), cause(err))
	}
}

// isTimeout says whether err is one of a deadline.
func isTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

// cause strips what our message says already: the operation and address of
// net's errors, and x/crypto's prefix.
func cause(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	var inner error = err
	for strings.HasPrefix(inner.Error(), "ssh: handshake failed") {
		u := errors.Unwrap(inner)
		if u == nil {
			break
		}
		inner = u
	}
	return inner
}
