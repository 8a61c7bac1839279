// Package sshtest is an SSH server inside the test's own process: it answers
// commands by calling a Go function, and can fail in every way that servers in
// the field were seen to fail. It is light enough for a thousand servers side
// by side.
package sshtest

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/crypto/ssh"
)

// A Fault is a way for a server to misbehave.
type Fault int

const (
	None           Fault = iota
	CloseAtOnce          // closes the connection right after accepting it
	Silent               // accepts and says nothing
	StallKex             // sends its banner, then nothing
	StallAuth            // finishes the key exchange, then answers no login
	StallOpen            // lets clients log in, then answers no request to open a session
	StallCommand         // opens the session, then never runs the command
	HugeBanner           // sends megabytes before its banner
	HugeAuthBanner       // sends login banners without end
	NotSSH               // answers as an HTTP server
	EndlessOutput        // writes to stdout without end
	EndlessStderr        // writes to stderr without end
	NeverClose           // sends answer and exit status, and leaves the channel open
	NoExitStatus         // sends no answer and closes the channel without a status
	RefuseSession        // refuses to open sessions
	RefuseExec           // refuses to run commands
)

// A Command is what a client asked the server to run.
type Command struct {
	User string
	Line string
	N    int64 // 1 for the server's first command
}

// A Reply is what a command does.
type Reply struct {
	Stdout, Stderr string
	Status         int    // exit status
	Signal         string // ends the command instead of a status: "KILL"
}

// Config of a Server. The zero value accepts any key and knows no command.
type Config struct {
	Addr       string          // to listen on; "": 127.0.0.1:0
	HostKeys   []ssh.Signer    // nil: one ed25519 key
	Authorized []ssh.PublicKey // keys that may log in; nil: any
	Password   bool            // accepts passwords only, and no password is right
	AuthBanner string          // sent before the login
	Version    string          // "": SSH-2.0-sshtest
	Fault      Fault
	// CutAfter resets the connection at the server's n-th write; 0: never. A
	// write is about one message.
	CutAfter int
	// Command answers commands. It may block until ctx, which ends with the
	// connection, is done.
	Command func(ctx context.Context, c Command) Reply
	// Forward allows direct-tcpip, so that the server can be a jump host.
	Forward bool
	// PublicKeyAlgorithms restricts the signatures of keys; nil: all. Without
	// the SHA-2 ones the server is as one from before 2016.
	PublicKeyAlgorithms []string
	// Crypto restricts the algorithms offered.
	Crypto ssh.Config
}

// A Server is a listening SSH server.
type Server struct {
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	cfg   Config
	conns map[net.Conn]struct{}

	accepted, logins, commands atomic.Int64
}

// Start starts a server.
func Start(cfg Config) (*Server, error) {
	if cfg.Addr == "" {
		cfg.Addr = "127.0.0.1:0"
	}
	if cfg.HostKeys == nil {
		key, err := NewKey("ed25519")
		if err != nil {
			return nil, err
		}
		cfg.HostKeys = []ssh.Signer{key}
	}
	ln, err := net.Listen("tcp", cfg.Addr)
	if err != nil {
		return nil, err
	}
	s := &Server{ln: ln, cfg: cfg, conns: make(map[net.Conn]struct{})}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.serve)
	return s, nil
}

// NewKey makes a key: "ed25519", "ecdsa" or "rsa".
func NewKey(kind string) (ssh.Signer, error) {
	var key any
	var err error
	switch kind {
	case "ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	case "ecdsa":
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "rsa":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	default:
		return nil, fmt.Errorf("unknown kind of key %q", kind)
	}
	if err != nil {
		return nil, err
	}
	return ssh.NewSignerFromKey(key)
}

// Addr returns host:port.
func (s *Server) Addr() string { return s.ln.Addr().String() }

// Change changes the server for connections made from now on.
func (s *Server) Change(f func(*Config)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f(&s.cfg)
}

// Stats returns how many connections were accepted, logins succeeded and
// commands were run.
func (s *Server) Stats() (accepted, logins, commands int64) {
	return s.accepted.Load(), s.logins.Load(), s.commands.Load()
}

// Drop closes the connections that are open, with a reset.
func (s *Server) Drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		reset(c)
	}
}

// Close stops the server and waits for all it started.
func (s *Server) Close() error {
	s.cancel()
	err := s.ln.Close()
	s.Drop()
	s.wg.Wait()
	return err
}

// reset closes c so that the other side sees a reset, not an end.
func reset(c net.Conn) {
	if w, ok := c.(*watched); ok {
		c = w.Conn
	}
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetLinger(0)
	}
	c.Close()
}

// serve accepts connections.
func (s *Server) serve() {
	for {
		c, err := s.ln.Accept()
		if err != nil {
			return
		}
		s.accepted.Add(1)
		s.mu.Lock()
		if s.ctx.Err() != nil {
			s.mu.Unlock()
			c.Close()
			return
		}
		cfg := s.cfg
		s.conns[c] = struct{}{}
		s.mu.Unlock()
		s.wg.Go(func() {
			s.handle(c, cfg)
			c.Close()
			s.mu.Lock()
			delete(s.conns, c)
			s.mu.Unlock()
		})
	}
}

// A cutter resets its connection at the n-th write.
type cutter struct {
	net.Conn
	left atomic.Int64
}

// Write writes, or resets.
func (c *cutter) Write(p []byte) (int, error) {
	if c.left.Add(-1) < 0 {
		reset(c.Conn)
		return 0, errors.New("cut")
	}
	return c.Conn.Write(p)
}

// A watched connection tells when the client has gone.
type watched struct {
	net.Conn
	lost context.CancelFunc
}

// Read reads from the client.
func (w *watched) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil {
		w.lost()
	}
	return n, err
}

// handle serves one connection.
func (s *Server) handle(c net.Conn, cfg Config) {
	ctx, cancel := context.WithCancel(s.ctx)
	defer cancel()
	switch cfg.Fault {
	case CloseAtOnce:
		return
	case Silent:
		wait(c)
		return
	case NotSSH:
		fmt.Fprint(c, "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
		return
	case HugeBanner:
		line := []byte(strings.Repeat("x", 200) + "\r\n")
		for range 8 << 20 / len(line) {
			if _, err := c.Write(line); err != nil {
				return
			}
		}
	}
	var conn net.Conn = &watched{Conn: c, lost: cancel}
	switch {
	case cfg.Fault == StallKex:
		fmt.Fprint(c, "SSH-2.0-sshtest\r\n")
		wait(c)
		return
	case cfg.CutAfter > 0:
		cut := &cutter{Conn: conn}
		cut.left.Store(int64(cfg.CutAfter))
		conn = cut
	}
	sc, chans, reqs, err := ssh.NewServerConn(conn, s.serverConfig(ctx, cfg))
	if err != nil {
		return
	}
	s.logins.Add(1)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	defer sc.Close()
	wg.Go(func() { ssh.DiscardRequests(reqs) })
	for nc := range chans {
		switch {
		case cfg.Fault == StallOpen:
		case nc.ChannelType() == "direct-tcpip" && cfg.Forward:
			wg.Go(func() { forward(nc) })
		case nc.ChannelType() != "session" || cfg.Fault == RefuseSession:
			_ = nc.Reject(ssh.Prohibited, "not here")
		default:
			wg.Go(func() { s.session(ctx, nc, sc.User(), cfg) })
		}
	}
}

// wait blocks until the client or the server ends the connection.
func wait(c net.Conn) {
	b := make([]byte, 512)
	for {
		if _, err := c.Read(b); err != nil {
			return
		}
	}
}

// errRefused refuses a login.
var errRefused = errors.New("refused")

// serverConfig returns x/crypto's form of cfg.
func (s *Server) serverConfig(ctx context.Context, cfg Config) *ssh.ServerConfig {
	sc := &ssh.ServerConfig{Config: cfg.Crypto, ServerVersion: cfg.Version, MaxAuthTries: -1,
		PublicKeyAuthAlgorithms: cfg.PublicKeyAlgorithms}
	if cfg.Version == "" {
		sc.ServerVersion = "SSH-2.0-sshtest"
	}
	for _, k := range cfg.HostKeys {
		sc.AddHostKey(k)
	}
	if cfg.AuthBanner != "" {
		sc.BannerCallback = func(ssh.ConnMetadata) string { return cfg.AuthBanner }
	}
	key := func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		switch {
		case cfg.Fault == StallAuth:
			<-ctx.Done()
		case cfg.Authorized == nil:
			return nil, nil
		case slices.ContainsFunc(cfg.Authorized, func(k ssh.PublicKey) bool { return string(k.Marshal()) == string(key.Marshal()) }):
			return nil, nil
		}
		return nil, errRefused
	}
	if cfg.Password {
		sc.PasswordCallback = func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) { return nil, errRefused }
	} else {
		sc.PublicKeyCallback = key
	}
	if cfg.Fault == HugeAuthBanner {
		sc.PreAuthConnCallback = func(c ssh.ServerPreAuthConn) {
			text := strings.Repeat("banner ", 4<<10)
			for range 1 << 10 {
				if c.SendAuthBanner(text) != nil {
					return
				}
			}
		}
	}
	return sc
}
