package health

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"syscall"

	"cks-etcd/internal/reason"
)

const (
	// maxBody bounds one answer. A member takes about 250 bytes of the longest,
	// and etcd supports no more than some dozen of them.
	maxBody = 256 << 10
	// maxHeader bounds the header of an answer; etcd's has about 200 bytes.
	maxHeader = 16 << 10
)

// plainToTLS is how Go's server answers plain HTTP on a port that speaks TLS.
const plainToTLS = "Client sent an HTTP request to an HTTPS server"

// Ask asks the etcd at t for its health, version, status, members and alarms.
// It returns within o.Timeout, and soon after ctx ended.
func Ask(ctx context.Context, t Target, o Options) NodeHealth {
	h := NodeHealth{Name: t.Name, Member: t.Member}
	if !t.Clock.IsZero() && !t.At.IsZero() {
		h.Offset, h.OffsetKnown = t.Clock.Sub(t.At), true
	}
	if t.Addr == "" {
		t.Addr = DefaultAddr
	}
	if o.Timeout <= 0 {
		o.Timeout = askTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	c := newClient(ctx, t, o.TLS)
	defer c.close()

	b, err := c.get(ctx, "/version")
	if err != nil {
		h.Err = c.explain(ctx, err)
		return h
	}
	if h.Version, err = parseVersion(b); err != nil {
		h.Err = reason.New(reason.HealthUnreadable, "what answers at %s of %s is not etcd: %w", t.Addr, t.Name, err)
		return h
	}
	for _, part := range []struct {
		name, path, body string
		parse            func([]byte) error
	}{
		{"status", "/v3/maintenance/status", "{}", func(b []byte) (err error) { h.Status, err = parseStatus(b); return err }},
		// Not linearizable: a member without a quorum must answer, too.
		{"member list", "/v3/cluster/member/list", "{}", func(b []byte) (err error) { h.Members, err = parseMembers(b); return err }},
		{"alarms", "/v3/maintenance/alarm", `{"action":"GET"}`, func(b []byte) (err error) { h.Alarms, err = parseAlarms(b); return err }},
		{"health", "/health", "", func(b []byte) (err error) { h.Healthy, h.HealthWhy, err = parseHealth(b); return err }},
	} {
		if part.body == "" {
			b, err = c.get(ctx, part.path)
		} else {
			b, err = c.post(ctx, part.path, part.body)
		}
		if err == nil {
			err = part.parse(b)
		}
		if err != nil {
			h.Notes = append(h.Notes, reason.Line(fmt.Sprintf("cannot read the %s of etcd on %s: %v", part.name, t.Name, c.cause(ctx, err))))
		}
	}
	if h.Status == nil && h.Healthy == nil {
		h.Err = reason.New(reason.HealthUnreadable, "%s", strings.Join(h.Notes, "; "))
	}
	return h
}

// A client talks HTTP to one etcd.
type client struct {
	target Target
	scheme string
	http   *http.Client
	tr     *http.Transport

	mu    sync.Mutex
	conns []net.Conn
}

// newClient returns a client whose connections are closed when ctx ends: those
// through SSH know no deadlines.
func newClient(ctx context.Context, t Target, sec *TLS) *client {
	c := &client{target: t, scheme: "http"}
	c.tr = &http.Transport{
		Proxy:                  nil, // the connection is made by the target's Dial
		DialContext:            func(dial context.Context, _, _ string) (net.Conn, error) { return c.dial(dial, ctx) },
		MaxConnsPerHost:        1,
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true,
	}
	if sec != nil {
		c.scheme = "https"
		c.tr.TLSClientConfig = sec.config(t)
	}
	c.http = &http.Client{
		Transport:     c.tr,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c
}

// dial opens a connection that is closed with the client, or when life ends.
func (c *client) dial(ctx, life context.Context) (net.Conn, error) {
	conn, err := c.target.Dial(ctx, c.target.Addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(life, func() { _ = conn.Close() }) // life ends with Ask
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conns = append(c.conns, conn)
	return conn, nil
}

// close ends all connections.
func (c *client) close() {
	c.tr.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		_ = conn.Close() // nothing more is wanted of it
	}
}

// A statusError is an HTTP answer other than 200, with what it said.
type statusError struct {
	code int
	said string
}

// Error words it.
func (e *statusError) Error() string {
	if e.said == "" {
		return fmt.Sprintf("HTTP status %d", e.code)
	}
	return fmt.Sprintf("HTTP status %d: %s", e.code, e.said)
}

// get returns the body that GET gives. For /health the status 503 is an answer, too.
func (c *client) get(ctx context.Context, path string) ([]byte, error) {
	return c.do(ctx, http.MethodGet, path, nil)
}

// post calls a method of etcd's gRPC gateway.
func (c *client) post(ctx context.Context, path, body string) ([]byte, error) {
	return c.do(ctx, http.MethodPost, path, strings.NewReader(body))
}

// do sends a request and returns the body of its answer.
func (c *client) do(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.scheme+"://"+c.target.Addr+path, body)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxBody+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxBody {
		return nil, fmt.Errorf("the answer is longer than %d KiB", maxBody>>10)
	}
	if resp.StatusCode == http.StatusOK || path == "/health" && resp.StatusCode == http.StatusServiceUnavailable {
		return b, nil
	}
	e := &statusError{code: resp.StatusCode, said: gatewayError(b)}
	if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(path, "/v3/") {
		e.said = "there is no gRPC gateway at /v3 (etcd before 3.4, or --enable-grpc-gateway=false)"
	}
	return nil, e
}

// cause drops what an http.Client adds to an error, and says what the end of
// ctx means.
func (c *client) cause(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return errors.New("no answer in time")
		}
		return context.Cause(ctx)
	}
	var outer *url.Error
	if errors.As(err, &outer) {
		return outer.Err
	}
	return err
}

// explain turns the first failure into the reason why etcd cannot be asked.
func (c *client) explain(ctx context.Context, err error) error {
	t := c.target
	err = c.cause(ctx, err)
	var coded *reason.Error
	if errors.As(err, &coded) { // the connection to the node has a reason of its own
		return err
	}
	var notTLS tls.RecordHeaderError
	if errors.As(err, &notTLS) || errors.Is(err, http.ErrSchemeMismatch) || c.scheme == "https" && c.speaksPlain(ctx, err) {
		return reason.New(reason.HealthUnreadable, "%s of %s does not speak TLS", t.Addr, t.Name).
			WithHint("leave out --health-ca, --health-cert and --health-key")
	}
	if ctx.Err() == nil && c.scheme == "http" && c.speaksTLS(ctx, err) {
		return reason.New(reason.HealthUnreadable, "%s of %s speaks TLS, and was asked without", t.Addr, t.Name).
			WithHint("give --health-ca, --health-cert and --health-key")
	}
	return reason.New(reason.HealthUnreadable, "%s of %s: %w", t.Addr, t.Name, err)
}

// speaksTLS finds out, after plain HTTP failed by err, whether the port would
// rather have TLS.
func (c *client) speaksTLS(ctx context.Context, err error) bool {
	var status *statusError
	if errors.As(err, &status) {
		return strings.Contains(status.said, plainToTLS)
	}
	conn, err := c.dial(ctx, ctx)
	if err != nil {
		return false
	}
	first := &firstByte{Conn: conn}
	// Nothing is sent over this connection but the first message of a handshake,
	// and nothing it says is trusted, so there is nothing to verify.
	hello := tls.Client(first, &tls.Config{InsecureSkipVerify: true})
	if err := hello.HandshakeContext(ctx); err == nil {
		return true
	}
	return first.tls()
}

// speaksPlain finds out, after a handshake ended by err without a word from
// the other side, whether the port answers plain HTTP: etcd closes connections
// that begin with something it does not know.
func (c *client) speaksPlain(ctx context.Context, err error) bool {
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		return false
	}
	conn, err := c.dial(ctx, ctx)
	if err != nil {
		return false
	}
	if _, err := io.WriteString(conn, "GET /version HTTP/1.0\r\n\r\n"); err != nil {
		return false
	}
	b := make([]byte, len("HTTP/"))
	_, err = io.ReadFull(conn, b)
	return err == nil && string(b) == "HTTP/"
}

// A firstByte remembers how an answer begins.
type firstByte struct {
	net.Conn
	buf bytes.Buffer
}

// Read reads from the connection.
func (f *firstByte) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	if f.buf.Len() < 3 {
		f.buf.Write(p[:min(n, 3)])
	}
	return n, err
}

// tls reports whether the answer is a record of TLS: content type alert or
// handshake, and major version 3 (RFC 8446, section 5.1).
func (f *firstByte) tls() bool {
	b := f.buf.Bytes()
	return len(b) >= 2 && (b[0] == 21 || b[0] == 22) && b[1] == 3
}
