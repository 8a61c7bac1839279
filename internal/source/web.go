package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

const (
	defaultAgent = "etcd-fleet"

	// maxHeader bounds the headers of an answer. Servers send some hundred bytes.
	maxHeader = 64 << 10
	// maxRedirects is how many are followed; more are a loop.
	maxRedirects = 10
	// maxCA bounds the CA file; the bundle of a distribution has 250 KB.
	maxCA = 16 << 20

	// A host that does not even take a connection in dialTimeout, or does not finish
	// the TLS handshake in handshakeTimeout, is tried anew within the time of the read.
	dialTimeout      = 10 * time.Second
	handshakeTimeout = 10 * time.Second

	idleTimeout = 90 * time.Second
)

// A web makes requests.
type web struct {
	transport http.RoundTripper
	header    http.Header // for hosts that were named
	agent     string
	netrc     netrc
	pause     time.Duration // before the first retry
	log       *slog.Logger
}

func newWeb(o Options) (*web, error) {
	w := &web{agent: o.Agent, pause: firstPause, log: o.Log}
	if w.agent == "" {
		w.agent = defaultAgent
	}
	var err error
	if w.header, err = parseHeaders(o.Headers); err != nil {
		return nil, reason.New(reason.Usage, "%w", err)
	}
	list, named, err := findNetrc(o.Netrc)
	switch {
	case err != nil && named:
		return nil, reason.New(reason.Usage, "cannot use the netrc file: %w", err)
	case err != nil:
		o.Log.Warn("cannot use the netrc file", "err", err)
	}
	w.netrc = list
	roots, err := certificates(o.CAFile)
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot use the CA file: %w", err)
	}
	w.transport = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		TLSClientConfig:        &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    handshakeTimeout,
		DisableCompression:     true, // a range is one of bytes as they are stored
		MaxResponseHeaderBytes: maxHeader,
		MaxIdleConnsPerHost:    8,
		IdleConnTimeout:        idleTimeout,
		ForceAttemptHTTP2:      true,
		// Without pings, a dead connection of HTTP/2 is used for the retry too.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 5 * time.Second, PingTimeout: 5 * time.Second},
	}
	return w, nil
}

func certificates(name string) (*x509.CertPool, error) {
	if name == "" {
		return nil, nil // the system's
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxCA))
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	if !pool.AppendCertsFromPEM(b) {
		return nil, fmt.Errorf("%s holds no certificate in PEM form", name)
	}
	return pool, nil
}

// ownHeaders are set by this package or by the transport, and nobody else.
var ownHeaders = []string{
	"Accept-Encoding", "Connection", "Content-Length", "Host", "If-Match", "If-Modified-Since", "If-None-Match",
	"If-Range", "If-Unmodified-Since", "Proxy-Authorization", "Range", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
}

// parseHeaders reads header fields (RFC 9110, 5). Its errors do not show values.
func parseHeaders(list []string) (http.Header, error) {
	h := make(http.Header)
	for _, line := range list {
		name, value, ok := strings.Cut(line, ":")
		if !ok {
			return nil, errors.New(`a header is not of the form "Name: value"`)
		}
		value = strings.Trim(value, " \t")
		if !token(name) {
			return nil, fmt.Errorf("%q is not the name of a header", name)
		}
		if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) {
			return nil, fmt.Errorf("the value of the header %s has a control character", name)
		}
		name = http.CanonicalHeaderKey(name)
		if slices.Contains(ownHeaders, name) {
			return nil, fmt.Errorf("the header %s cannot be set", name)
		}
		h.Add(name, value)
	}
	return h, nil
}

// token reports whether s is one of RFC 9110, 5.6.2.
func token(s string) bool {
	const others = "!#$%&'*+-.^_`|~"
	return s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && !strings.ContainsRune(others, r)
	})
}

// A place is a URL that somebody named, with what its host may be told.
type place struct {
	named  *url.URL    // without user and password
	secret http.Header // for that host alone
}

func (w *web) place(name string) (*place, error) {
	u, user, err := parseURL(name)
	if err != nil {
		return nil, err
	}
	secret := w.header.Clone()
	login, password, known := "", "", false
	if user != nil {
		login = user.Username()
		password, known = user.Password()
	}
	// What the URL says is said of it alone; a header is said of all URLs.
	if !known && (login != "" || secret.Get("Authorization") == "") {
		if m, ok := w.netrc.lookup(u.Hostname(), login); ok {
			login, password = m.login, m.password
		}
	}
	if login != "" || password != "" {
		r := http.Request{Header: http.Header{}}
		r.SetBasicAuth(login, password)
		secret.Set("Authorization", r.Header.Get("Authorization"))
	}
	return &place{named: u, secret: secret}, nil
}

// errRedirects and errNoLocation are faults of a server that redirects.
var (
	errRedirects  = fmt.Errorf("more than %d redirects", maxRedirects)
	errNoLocation = errors.New("a redirect leads nowhere")
)

// A hop is where a request goes, and whether it may take secrets along.
type hop struct {
	url     *url.URL
	trusted bool
}

// get makes a request with the header fields of h and follows redirects. Once one
// of them has left the host of p or gone from https to http, secrets are not sent
// any more, also where a later one leads back. It returns the answer, with its body
// unread, and where it came from.
func (w *web) get(ctx context.Context, p *place, at hop, h http.Header, count *counter) (*http.Response, hop, error) {
	for range maxRedirects + 1 {
		req := (&http.Request{Method: http.MethodGet, URL: at.url, Host: at.url.Host, Header: http.Header{}}).WithContext(ctx)
		req.Header.Set("User-Agent", w.agent)
		if at.trusted {
			for name, values := range p.secret {
				req.Header[name] = values
			}
		}
		for name, values := range h {
			req.Header[name] = values
		}
		req.Header.Set("Accept-Encoding", "identity")
		count.requests.Add(1)
		resp, err := w.transport.RoundTrip(req)
		if err != nil {
			return nil, at, err
		}
		switch resp.StatusCode {
		case http.StatusMovedPermanently, http.StatusFound, http.StatusSeeOther,
			http.StatusTemporaryRedirect, http.StatusPermanentRedirect:
		default:
			return resp, at, nil
		}
		drain(resp)
		to, err := at.url.Parse(resp.Header.Get("Location"))
		if err != nil || resp.Header.Get("Location") == "" {
			return nil, at, errNoLocation
		}
		to.User, to.Fragment, to.RawFragment = nil, "", ""
		if to.Scheme != "http" && to.Scheme != "https" || to.Hostname() == "" {
			return nil, at, fmt.Errorf("%w: to a URL of the scheme %q", errNoLocation, to.Scheme)
		}
		down := at.url.Scheme == "https" && to.Scheme == "http"
		if down {
			w.log.Warn("redirected from https to http", "url", shown(at.url), "to", shown(to))
		}
		at = hop{to, at.trusted && !down && trusts(p.named, to)}
	}
	return nil, at, errRedirects
}

// drainable is how much of a body that nobody wants is read to keep its
// connection; the page that comes with a redirect or an error is shorter.
const drainable = 8 << 10

func drain(resp *http.Response) {
	if resp.ContentLength >= 0 && resp.ContentLength <= drainable {
		_, _ = io.CopyN(io.Discard, resp.Body, drainable) // a failure costs a connection
	}
	resp.Body.Close()
}
