package health

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
)

// Answers as etcd 3.6 gives them.
var answers = map[string]string{
	"/health":                `{"health":"true","reason":""}`,
	"/version":               `{"etcdserver":"3.6.5","etcdcluster":"3.6.0","storage":"3.6.0"}`,
	"/v3/maintenance/status": `{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","revision":"1","raft_term":"2"},"version":"3.6.5","dbSize":"20480","leader":"10276657743932975437","raftIndex":"4","raftTerm":"2","raftAppliedIndex":"4","dbSizeInUse":"16384","storageVersion":"3.6.0","dbSizeQuota":"2147483648"}`,
	"/v3/cluster/member/list": `{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","raft_term":"2"},
		"members":[{"ID":"10276657743932975437","name":"default","peerURLs":["http://localhost:2380"],"clientURLs":["http://localhost:2379"]}]}`,
	"/v3/maintenance/alarm": `{"header":{"cluster_id":"14841639068965178418","member_id":"10276657743932975437","raft_term":"2"}}`,
}

// handler gives these answers, but those in other.
func handler(other map[string]string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/v3/") != (r.Method == http.MethodPost) {
			http.Error(w, "method", http.StatusMethodNotAllowed)
			return
		}
		a, ok := other[r.URL.Path]
		if !ok {
			a = answers[r.URL.Path]
		}
		if a == "" {
			http.NotFound(w, r)
			return
		}
		if strings.Contains(a, `"health":"false"`) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if strings.Contains(a, `"code":`) {
			w.WriteHeader(http.StatusUnauthorized)
		}
		_, _ = io.WriteString(w, a)
	})
}

// target is the server at addr, dialled as if through SSH: no deadlines.
func target(addr string) Target {
	return Target{Name: "n", Addr: addr, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
		conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return noDeadlines{conn}, nil
	}}
}

// noDeadlines is a connection like a channel of SSH.
type noDeadlines struct{ net.Conn }

func (noDeadlines) SetDeadline(time.Time) error      { return errors.New("not supported") }
func (noDeadlines) SetReadDeadline(time.Time) error  { return errors.New("not supported") }
func (noDeadlines) SetWriteDeadline(time.Time) error { return errors.New("not supported") }

func TestAsk(t *testing.T) {
	s := httptest.NewServer(handler(nil))
	defer s.Close()
	to := target(s.Listener.Addr().String())
	to.At = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	to.Clock = to.At.Add(-3 * time.Second)
	got := Ask(t.Context(), to, Options{})
	well := true
	want := NodeHealth{
		Name: "n", Healthy: &well, Version: &Version{Server: "3.6.5", Cluster: "3.6.0"},
		Status:  &Status{ClusterID: 14841639068965178418, MemberID: 10276657743932975437, Leader: 10276657743932975437, RaftTerm: 2, RaftIndex: 4, DBSize: 20480, Errors: []string{}},
		Members: []Member{{ID: 10276657743932975437, Name: "default", PeerURLs: []string{"http://localhost:2380"}, ClientURLs: []string{"http://localhost:2379"}}},
		Alarms:  []Alarm{}, Offset: -3 * time.Second, OffsetKnown: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAskOdd asks servers that answer in other ways.
func TestAskOdd(t *testing.T) {
	for _, tt := range []struct {
		name  string
		other map[string]string
		code  reason.Code // of Err
		says  string      // in Err or a note
	}{
		{"not etcd", map[string]string{"/version": `<html>`}, reason.HealthUnreadable, "is not etcd"},
		{"no version", map[string]string{"/version": `{}`}, reason.HealthUnreadable, "is not etcd"},
		{"endless", map[string]string{"/version": strings.Repeat(" ", maxBody+1)}, reason.HealthUnreadable, "longer than"},
		{"no gateway", map[string]string{"/v3/maintenance/status": " ", "/v3/cluster/member/list": " ", "/v3/maintenance/alarm": " "}, reason.Ready, "not a JSON object"},
		{"authentication (gateway's error)", map[string]string{"/v3/cluster/member/list": `{"code":16,"message":"etcdserver: user name is empty"}`}, reason.Ready, "HTTP status 401: etcdserver: user name is empty"},
		{"unhealthy", map[string]string{"/health": `{"health":"false","reason":"RAFT NO LEADER"}`}, reason.Ready, ""},
		{"two objects", map[string]string{"/health": `{"health":"true"}{}`}, reason.Ready, "something follows"},
		{"a hostile name", map[string]string{"/v3/maintenance/status": "{\"header\":{\"cluster_id\":\"\x1b[31m\"}}"}, reason.Ready, "cannot read the status"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := httptest.NewServer(handler(tt.other))
			defer s.Close()
			got := Ask(t.Context(), target(s.Listener.Addr().String()), Options{})
			if reason.Of(got.Err) != tt.code {
				t.Errorf("got %v, want %s", got.Err, tt.code)
			}
			text := strings.Join(got.Notes, "; ")
			if got.Err != nil {
				text = got.Err.Error()
			}
			if !strings.Contains(text, tt.says) || reason.Line(text) != text {
				t.Errorf("%q lacks %q", text, tt.says)
			}
			if tt.name == "unhealthy" && (got.Healthy == nil || *got.Healthy || got.HealthWhy != "RAFT NO LEADER") {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestAskHangs bounds servers that never answer, over connections that know no
// deadlines. That nothing is left behind is for synctest to see.
func TestAskHangs(t *testing.T) {
	sec, err := LoadTLS("", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []Options{{}, {TLS: sec}, {Timeout: time.Second}} {
		synctest.Test(t, func(t *testing.T) {
			var far []net.Conn
			to := Target{Name: "n", Dial: func(context.Context, string) (net.Conn, error) {
				near, other := net.Pipe()
				far = append(far, other)
				return noDeadlines{near}, nil
			}}
			begin := time.Now()
			got := Ask(t.Context(), to, o)
			if reason.Of(got.Err) != reason.HealthUnreadable || !strings.Contains(got.Err.Error(), "no answer in time") {
				t.Errorf("%+v: got %v", o, got.Err)
			}
			want := o.Timeout
			if want == 0 {
				want = askTimeout
			}
			if took := time.Since(begin); took != want {
				t.Errorf("%+v: took %v, want %v", o, took, want)
			}
			for _, c := range far {
				if _, err := c.Read(make([]byte, 1)); err == nil {
					t.Error("the connection is still open")
				}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
			defer cancel()
			to.Dial = func(context.Context, string) (net.Conn, error) {
				near, _ := net.Pipe()
				return noDeadlines{near}, nil
			}
			if got := AskAll(ctx, []Target{to, to}, o); got[0].Err == nil || got[1].Err == nil {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestAskRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	if got := Ask(t.Context(), target(addr), Options{}); reason.Of(got.Err) != reason.HealthUnreadable || !strings.Contains(got.Err.Error(), "refused") {
		t.Errorf("got %v", got.Err)
	}
	to := target(addr)
	to.Dial = func(context.Context, string) (net.Conn, error) {
		return nil, reason.New(reason.NodeUnreachable, "n:22: no route")
	}
	if got := Ask(t.Context(), to, Options{}); reason.Of(got.Err) != reason.NodeUnreachable {
		t.Errorf("got %v, want the reason of the connection", got.Err)
	}
}

// TestTLS asks with, without and with the wrong TLS.
func TestTLS(t *testing.T) {
	s := httptest.NewUnstartedServer(handler(nil))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	plain := httptest.NewServer(handler(nil))
	defer plain.Close()
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	right, err := LoadTLS(ca, "", "")
	if err != nil {
		t.Fatal(err)
	}
	system, err := LoadTLS("", "", "")
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		addr string
		tls  *TLS
		says string // "" works
		hint string
	}{
		{"right CA", s.Listener.Addr().String(), right, "", ""},
		{"another CA", s.Listener.Addr().String(), system, "cannot trust etcd's certificate", ""},
		{"without TLS", s.Listener.Addr().String(), nil, "speaks TLS", "give --health-ca"},
		{"TLS to a plain port", plain.Listener.Addr().String(), right, "does not speak TLS", "leave out"},
	} {
		got := Ask(t.Context(), target(tt.addr), Options{TLS: tt.tls})
		switch {
		case tt.says == "" && got.Err != nil:
			t.Errorf("%s: %v", tt.name, got.Err)
		case tt.says != "" && (reason.Of(got.Err) != reason.HealthUnreadable || !strings.Contains(got.Err.Error(), tt.says) || !strings.Contains(reason.HintOf(got.Err), tt.hint)):
			t.Errorf("%s: got %v (%s), want %q", tt.name, got.Err, reason.HintOf(got.Err), tt.says)
		}
	}
	// The certificate is for 127.0.0.1 and example.com. Any name of the node will
	// do, but one must.
	for host, want := range map[string]bool{"example.com": true, "other.test": false} {
		to := target(s.Listener.Addr().String())
		to.Host = host
		inner := to.Dial
		to.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return inner(ctx, s.Listener.Addr().String()) }
		to.Addr = "192.0.2.1:2379"
		if got := Ask(t.Context(), to, Options{TLS: right}); (got.Err == nil) != want {
			t.Errorf("host %s: got %v", host, got.Err)
		}
	}

	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, files := range [][3]string{{junk, "", ""}, {filepath.Join(dir, "none"), "", ""}, {"", ca, ""}, {"", "", ca}, {"", junk, junk}} {
		if _, err := LoadTLS(files[0], files[1], files[2]); reason.Of(err) != reason.Usage {
			t.Errorf("%v: got %v, want a usage error", files, err)
		}
	}
}

// A pipes is a listener whose connections are pipes, for the time of synctest.
type pipes struct {
	conns chan net.Conn
	done  chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.done:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.done); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }
func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.conns <- far
	return near, nil
}

// TestCheckSettles asks again while members elect their leader (B59).
func TestCheckSettles(t *testing.T) {
	for _, tt := range []struct {
		settle time.Duration
		sick   int // answers that are not well
		code   reason.Code
		asked  int
		took   time.Duration
	}{
		{0, 1, reason.HealthNoQuorum, 1, 0},
		{10 * time.Second, 0, reason.Ready, 1, 0},
		{10 * time.Second, 2, reason.Ready, 3, 4 * time.Second},
		{10 * time.Second, 99, reason.HealthNoQuorum, 6, 10 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				other := map[string]string{}
				if r.URL.Path == "/version" {
					asked++
				}
				if asked <= tt.sick {
					other["/health"] = `{"health":"false","reason":"RAFT NO LEADER"}`
					other["/v3/maintenance/status"] = `{"header":{"cluster_id":"1","member_id":"2"}}`
				}
				handler(other).ServeHTTP(w, r)
			})}
			p := &pipes{conns: make(chan net.Conn), done: make(chan struct{})}
			go func() { _ = s.Serve(p) }()
			begin := time.Now()
			r := Check(t.Context(), []Target{{Name: "n", Dial: p.dial}}, Options{Settle: tt.settle}, Expect{})
			if got := reason.Of(r.Err()); got != tt.code || asked != tt.asked || time.Since(begin) != tt.took {
				t.Errorf("settle %v: got %v after asking %d times in %v, want %s, %d, %v", tt.settle, r.Err(), asked, time.Since(begin), tt.code, tt.asked, tt.took)
			}
			_ = s.Close()
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, a := range answers {
		f.Add([]byte(a))
	}
	f.Add([]byte(`{"health":false}`))
	f.Add([]byte(`{"members":[{"ID":"1"},{"ID":1}]}`))
	f.Add([]byte(`{"header":{},"alarms":[{"memberID":"18446744073709551615","alarm":"CORRUPT"},{"alarm":7}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := NodeHealth{Name: "n"}
		n.Version, _ = parseVersion(b)
		n.Healthy, n.HealthWhy, _ = parseHealth(b)
		n.Status, _ = parseStatus(b)
		n.Members, _ = parseMembers(b)
		n.Alarms, _ = parseAlarms(b)
		if len(n.Members) > maxMembers || len(n.Alarms) > maxMembers {
			t.Errorf("%d members, %d alarms", len(n.Members), len(n.Alarms))
		}
		for _, finding := range Compare([]NodeHealth{n, n}, Expect{}).Findings {
			if finding.Message != reason.Line(finding.Message) {
				t.Errorf("not one printable line: %q", finding.Message)
			}
		}
		gatewayError(b)
	})
}
