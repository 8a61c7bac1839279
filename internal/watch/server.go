package watch

import (
	"context"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// Limits of a connection. No answer takes long but that of an admission, which
// waits for a look for at most maxWait.
const (
	headerTime = 10 * time.Second
	bodyTime   = 10 * time.Second
	readTime   = maxWait + 15*time.Second // a request with its body; passing it ends the request
	writeTime  = maxWait + 30*time.Second
	idleTime   = 2 * time.Minute
	maxHeader  = 16 << 10 // bytes; net/http adds 4 KiB
)

// The endpoints. A path is also the label of its metrics.
const (
	pathHealth  = "/healthz"
	pathReady   = "/readyz"
	pathMetrics = "/metrics"
	pathISOs    = "/api/v1/isos"
	pathAdmit   = "/api/v1/admit"
)

// A route is one endpoint.
type route struct {
	methods []string
	open    bool // without a token: it tells no more than whether the daemon works
	serve   http.HandlerFunc
}

// A server answers requests.
type server struct {
	daemon  *daemon
	metrics *metrics
	log     *slog.Logger
	routes  map[string]route
	origin  *http.CrossOriginProtection
	asking  chan struct{} // one for each request that waits for a decision
}

func newServer(d *daemon) *server {
	s := &server{daemon: d, metrics: d.metrics, log: d.log, origin: http.NewCrossOriginProtection(), asking: make(chan struct{}, maxAsking)}
	get := []string{http.MethodGet, http.MethodHead}
	s.routes = map[string]route{
		pathHealth:  {methods: get, open: true, serve: s.health},
		pathReady:   {methods: get, open: true, serve: s.ready},
		pathMetrics: {methods: get, serve: d.metrics.handler(d.log).ServeHTTP},
		pathISOs:    {methods: get, serve: s.isos},
		pathAdmit:   {methods: []string{http.MethodGet, http.MethodHead, http.MethodPost}, serve: s.admit},
	}
	return s
}

// http returns the HTTP server. Its handlers live as long as their requests do.
func (s *server) http() *http.Server {
	return &http.Server{
		Handler:           s,
		ReadHeaderTimeout: headerTime,
		ReadTimeout:       readTime,
		WriteTimeout:      writeTime,
		IdleTimeout:       idleTime,
		MaxHeaderBytes:    maxHeader,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, networkKey{}, c.LocalAddr().Network())
		},
		ErrorLog: slog.NewLogLogger(s.log.Handler(), slog.LevelDebug), // what clients do wrong
	}
}

// networkKey finds the network of a request's connection in its context.
type networkKey struct{}

// ServeHTTP guards, counts and logs all requests.
func (s *server) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	began := time.Now()
	w := &recorder{ResponseWriter: rw}
	route, known := s.routes[r.URL.Path]
	endpoint := "other" // whatever people ask for must not become labels
	if known {
		endpoint = r.URL.Path
	}
	defer func() {
		p := recover()
		if p != nil {
			s.log.Error("a request failed", "method", r.Method, "path", reason.Line(r.URL.Path), "panic", p, "stack", string(debug.Stack()))
			if w.status == 0 {
				s.fail(w, http.StatusInternalServerError, reason.New(reason.Internal, "the request could not be answered"))
			}
		}
		s.metrics.request(endpoint, r.Method, w.code())
		s.log.Debug("request", "method", reason.Line(r.Method), "path", reason.Line(r.URL.Path), "status", w.code(),
			"bytes", w.bytes, "took", time.Since(began), "from", r.RemoteAddr)
		if p != nil && w.wrote() {
			panic(http.ErrAbortHandler) // half an answer must not look like a whole one
		}
	}()
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	switch {
	case !known:
		s.fail(w, http.StatusNotFound, reason.New(reason.Usage, "there is nothing at this path; see %s, %s, %s, %s and %s", pathAdmit, pathISOs, pathMetrics, pathReady, pathHealth))
	case !route.open && !s.trusted(r):
		h.Set("WWW-Authenticate", "Bearer")
		s.fail(w, http.StatusUnauthorized, reason.New(reason.Unauthorized, "the request has no valid token"))
	case !slices.Contains(route.methods, r.Method):
		h.Set("Allow", strings.Join(route.methods, ", "))
		s.fail(w, http.StatusMethodNotAllowed, reason.New(reason.Usage, "this path takes %s", strings.Join(route.methods, ", ")))
	case s.origin.Check(r) != nil:
		s.fail(w, http.StatusForbidden, reason.New(reason.Unauthorized, "the request comes from a web page of another origin").WithHint("ask from a program, or from a page of the same origin"))
	default:
		route.serve(w, r)
	}
}

// trusted reports whether a request may have its answer: it came over a Unix
// socket, whose mode says who may connect, or no token is asked for, or it has it.
func (s *server) trusted(r *http.Request) bool {
	want := s.daemon.current.Load().guard.token
	if want == nil || r.Context().Value(networkKey{}) == "unix" {
		return true
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	return ok && strings.EqualFold(scheme, "Bearer") && want.matches(strings.TrimSpace(token))
}

// health says that the process answers at all.
func (s *server) health(w http.ResponseWriter, r *http.Request) {
	plain(w, http.StatusOK, "ok")
}

// ready says whether answers can be given that rest on a whole round.
func (s *server) ready(w http.ResponseWriter, r *http.Request) {
	if err := s.daemon.notReady(r.Context()); err != nil {
		w.Header().Set("Retry-After", "5")
		plain(w, http.StatusServiceUnavailable, "not ready: "+reason.Line(err.Error()))
		return
	}
	plain(w, http.StatusOK, "ready")
}

func plain(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	w.Write([]byte(line + "\n")) // who asked is gone if this fails
}

// A recorder knows what was answered.
type recorder struct {
	http.ResponseWriter
	status int
	bytes  int64
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	n, err := w.ResponseWriter.Write(p)
	w.bytes += int64(n)
	return n, err
}

// Unwrap lets http.ResponseController find the connection.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *recorder) code() int {
	if w.status == 0 {
		return http.StatusOK
	}
	return w.status
}

// wrote reports whether a part of an answer that was not a failure of ours is out.
func (w *recorder) wrote() bool { return w.status != 0 && w.status != http.StatusInternalServerError }
