package source

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"cks-etcd/internal/reason"
)

// secrets are all that another host must never see.
var secrets = []string{"Authorization", "Cookie", "X-Token", "Proxy-Authorization"}

// TestCredentials follows credentials through redirects, within a host and out of it.
func TestCredentials(t *testing.T) {
	data := content(100_000)
	type seen struct{ user, password, token, cookie string }
	var mu sync.Mutex
	got := map[string]seen{} // by path
	note := func(r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		u, p, _ := r.BasicAuth()
		got[r.URL.Path] = seen{u, p, r.Header.Get("X-Token"), r.Header.Get("Cookie")}
		if r.Referer() != "" {
			t.Errorf("%s got the Referer %s", r.URL.Path, r.Referer())
		}
	}
	var home *httptest.Server
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		for _, h := range secrets {
			if r.Header.Get(h) != "" {
				t.Errorf("another host got %s: %s", h, r.Header.Get(h))
			}
		}
		if r.URL.Path == "/back" {
			http.Redirect(w, r, home.URL+"/returned.iso", http.StatusFound)
			return
		}
		ok(w, r, data, `"v1"`)
	}))
	t.Cleanup(other.Close)
	home = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		switch r.URL.Path {
		case "/within":
			http.Redirect(w, r, "/inner.iso", http.StatusMovedPermanently)
		case "/away":
			http.Redirect(w, r, strings.Replace(other.URL, "http://", "http://evil:evil@", 1)+"/outer.iso", http.StatusTemporaryRedirect)
		case "/round":
			http.Redirect(w, r, other.URL+"/back", http.StatusFound)
		default:
			w.Header().Set("Set-Cookie", "a=b")
			ok(w, r, data, `"v1"`)
		}
	}))
	t.Cleanup(home.Close)
	secure := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		note(r)
		http.Redirect(w, r, home.URL+"/insecure.iso", http.StatusFound)
	}))
	t.Cleanup(secure.Close)

	dir := t.TempDir()
	ca, rc := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "netrc")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	if err := os.WriteFile(ca, block, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(rc, []byte("machine 127.0.0.1 login carol password c\ndefault login anybody password x\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := newOpener(t, Options{CAFile: ca, Netrc: rc, Headers: []string{"X-Token: t", "Cookie: k=v"}})

	withUser := strings.Replace(home.URL, "http://", "http://al%20ice:p%40ss@", 1)
	alice, carol, nobody := seen{"al ice", "p@ss", "t", "k=v"}, seen{"carol", "c", "t", "k=v"}, seen{}
	tests := []struct {
		url  string
		want map[string]seen
	}{
		{withUser + "/plain.iso", map[string]seen{"/plain.iso": alice}},
		{home.URL + "/plain.iso", map[string]seen{"/plain.iso": carol}},
		{withUser + "/within", map[string]seen{"/within": alice, "/inner.iso": alice}},
		{withUser + "/away", map[string]seen{"/away": alice, "/outer.iso": nobody}},
		{withUser + "/round", map[string]seen{"/round": alice, "/back": nobody, "/returned.iso": nobody}},
		{secure.URL + "/down", map[string]seen{"/down": carol, "/insecure.iso": nobody}},
	}
	for _, test := range tests {
		clear(got)
		s, err := o.Open(t.Context(), test.url)
		if err != nil {
			t.Errorf("%s: %v", test.url, err)
			continue
		}
		if _, err := s.ReadAt(make([]byte, 10), 90_000); err != nil { // a second request
			t.Error(err)
		}
		s.Close()
		mu.Lock()
		if fmt.Sprint(got) != fmt.Sprint(test.want) {
			t.Errorf("%s:\ngot  %v\nwant %v", test.url, got, test.want)
		}
		mu.Unlock()
		for _, shown := range []string{s.Name(), s.Identity().Key(), fmt.Sprint(s.Identity())} {
			if strings.Contains(shown, "ice") || strings.Contains(shown, "p%40ss") || strings.Contains(shown, "evil") {
				t.Errorf("%s shows user or password", shown)
			}
		}
	}
	// Without the CA, nothing is sent at all.
	clear(got)
	_, err := newOpener(t, Options{}).Open(t.Context(), secure.URL+"/down")
	wantCode(t, err, reason.SourceUnreachable)
	if len(got) > 0 {
		t.Errorf("requests were made of a server that is not known: %v", got)
	}
}

// TestRedirectExpires: the place that a redirect led to is good for one request.
func TestRedirectExpires(t *testing.T) {
	data := content(1 << 20)
	issued := 0
	used := map[string]bool{}
	url := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
		switch sig := r.URL.Query().Get("sig"); {
		case sig == "":
			issued++
			http.Redirect(w, r, "/signed.iso?sig=secret"+strconv.Itoa(issued), http.StatusFound)
		case used[sig]:
			w.WriteHeader(http.StatusForbidden)
		default:
			used[sig] = true
			ok(w, r, data, `"v1"`)
		}
	})
	o := newOpener(t, Options{})
	s, err := o.Open(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, off := range []int{200_000, 400_000, 600_000} {
		p := make([]byte, 100)
		if _, err := s.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, data[off:off+100]) {
			t.Fatalf("at %d: got error %v, or other bytes", off, err)
		}
	}
	id, err := o.Identify(t.Context(), url)
	if err != nil || id.Key() != s.Identity().Key() || strings.Contains(id.Key(), "secret") {
		t.Errorf("got the key %q and error %v, want %q", id.Key(), err, s.Identity().Key())
	}
}

// TestProxy runs a child, since the environment is read once in a process.
func TestProxy(t *testing.T) {
	if os.Getenv("SOURCE_TEST_PROXIED") != "" {
		s, err := newOpener(t, Options{}).Open(t.Context(), "http://mirror.invalid/setup.iso")
		if err != nil {
			t.Fatal(err)
		}
		s.Close()
		return
	}
	asked := make(chan string, 10)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.RequestURI
		ok(w, r, content(100_000), `"v1"`)
	}))
	defer proxy.Close()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestProxy$")
	cmd.Env = append(os.Environ(), "SOURCE_TEST_PROXIED=1", "http_proxy="+proxy.URL, "HTTP_PROXY="+proxy.URL, "no_proxy=", "NO_PROXY=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got, want := <-asked, "http://mirror.invalid/setup.iso"; got != want {
		t.Errorf("the proxy was asked for %s, want %s", got, want)
	}
}
