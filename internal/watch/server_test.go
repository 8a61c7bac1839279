package watch

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

const smallConfig = "stores: [{path: /mnt/secondary, zone: zone1}]\nurls: [{url: 'https://mirror.example/u.iso', zone: zone3}]\n"

// ask sends one request to a server over d.
func ask(t *testing.T, d *daemon, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	newServer(d).ServeHTTP(w, r)
	return w
}

func get(t *testing.T, d *daemon, target string) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, d, httptest.NewRequest(http.MethodGet, target, nil))
}

func post(t *testing.T, d *daemon, body string) *httptest.ResponseRecorder {
	t.Helper()
	return ask(t, d, httptest.NewRequest(http.MethodPost, pathAdmit, strings.NewReader(body)))
}

func decode[T any](t *testing.T, w *httptest.ResponseRecorder) T {
	t.Helper()
	var v T
	if got := w.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("content type %q", got)
	}
	dec := json.NewDecoder(w.Body)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		t.Fatalf("status %d: %v", w.Code, err)
	}
	return v
}

func TestHealthAndReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeScanner()
		d := newDaemon(t, f, config(t, smallConfig))
		if w := get(t, d, pathHealth); w.Code != 200 || w.Body.String() != "ok\n" {
			t.Errorf("healthz: %d %q", w.Code, w.Body)
		}
		if w := get(t, d, pathReady); w.Code != 503 || w.Body.String() != "not ready: the first round is not done\n" {
			t.Errorf("readyz before the first round: %d %q", w.Code, w.Body)
		}
		d.rounds.add(roundOut{})
		if w := get(t, d, pathReady); w.Code != 200 || w.Body.String() != "ready\n" {
			t.Errorf("readyz: %d %q", w.Code, w.Body)
		}
		f.mu.Lock()
		f.unready = reason.New(reason.AnswersDamaged, "page 7")
		f.mu.Unlock()
		time.Sleep(2 * usableFor)
		if w := get(t, d, pathReady); w.Code != 503 || !strings.Contains(w.Body.String(), "answers are damaged: page 7") {
			t.Errorf("readyz with damaged answers: %d %q", w.Code, w.Body)
		}
		if w := get(t, d, pathHealth); w.Code != 200 {
			t.Errorf("healthz with damaged answers: %d", w.Code)
		}
		d.stopping.Store(true)
		if w := get(t, d, pathReady); w.Code != 503 || !strings.Contains(w.Body.String(), "stopping") {
			t.Errorf("readyz while stopping: %d %q", w.Code, w.Body)
		}
	})
}

func TestISOs(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	d.rounds.add(summaryOf(scan.Round{Started: time.Unix(1, 0), Took: time.Second, Visits: []scan.Visit{{Name: "nfs2", Err: errors.New("stale handle")}}}))
	list := decode[isoList](t, get(t, d, pathISOs))
	if list.Schema != 1 || list.Round == nil || !cmp.Equal(list.Round.Errors, []string{"nfs2: stale handle"}) {
		t.Errorf("got schema %d, round %+v", list.Schema, list.Round)
	}
	type row struct {
		Name, Supports string
		Value          inspect.Value
		Code           reason.Code
		Alone          bool
	}
	var got []row
	for _, i := range list.ISOs {
		s := "null"
		if i.SupportsEtcd != nil {
			s = map[bool]string{true: "true", false: "false"}[*i.SupportsEtcd]
		}
		got = append(got, row{i.Name, s, i.Value, i.Code, i.LeftAlone})
	}
	want := []row{
		{"coming.iso", "null", inspect.Unknown, reason.ISOIncomplete, false},
		{"hung.iso", "null", inspect.Unknown, reason.SourceStalled, true},
		{"with.iso", "true", inspect.Included, reason.Included, false},
		{"without.iso", "false", inspect.Missing, reason.ArchiveMissing, false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ISOs (-want +got):\n%s", diff)
	}
	// supportsetcd is there even if it is null.
	if body := get(t, d, pathISOs+"?state=unknown").Body.String(); strings.Count(body, `"supportsetcd":null`) != 2 {
		t.Errorf("got %s", body)
	}
}

func TestISOFilters(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	for query, want := range map[string]string{
		"":                                     "coming.iso hung.iso with.iso without.iso",
		"?zone=zone2":                          "with.iso",
		"?zone=zone9":                          "",
		"?zone=zone1&state=missing":            "without.iso",
		"?state=missing&state=included":        "with.iso without.iso",
		"?zone=zone2&zone=zone1&state=unknown": "coming.iso hung.iso",
	} {
		var names []string
		for _, i := range decode[isoList](t, get(t, d, pathISOs+query)).ISOs {
			names = append(names, i.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
	for _, query := range []string{"?state=yes", "?zones=a", "?%zz"} {
		if w := get(t, d, pathISOs+query); w.Code != 400 || decode[failure](t, w).Error.Code != reason.Usage {
			t.Errorf("%q: status %d", query, w.Code)
		}
	}
	if body := get(t, d, pathISOs+"?zone=zone9").Body.String(); !strings.Contains(body, `"isos":[]`) || !strings.Contains(body, `"round":null`) {
		t.Errorf("got %s", body)
	}
}

func TestAdmit(t *testing.T) {
	f := newFakeScanner()
	d := newDaemon(t, f, config(t, smallConfig))
	for _, tt := range []struct {
		name, body     string
		allow, checked bool
		code, cause    reason.Code
		supports       string
	}{
		{"no etcd nodes", `{"etcd_nodes":0,"iso":"202"}`, true, false, reason.NotAsked, "", "null"},
		{"no etcd nodes, no ISO", `{"etcd_nodes":0}`, true, false, reason.NotAsked, "", "null"},
		{"included", `{"etcd_nodes":3,"iso":"201","version":"1.33.1","zone":"zone1"}`, true, true, reason.Included, "", "true"},
		{"missing", `{"etcd_nodes":3,"iso":"202","version":"1.32.4"}`, false, true, reason.ArchiveMissing, "", "false"},
		{"by path", `{"etcd_nodes":3,"iso":"/mnt/secondary/without.iso"}`, false, true, reason.ArchiveMissing, "", "false"},
		{"cannot look", `{"etcd_nodes":3,"iso":"203"}`, true, false, reason.AdmitUnchecked, reason.SourceStalled, "null"},
		{"outside of the stores", `{"etcd_nodes":3,"iso":"/mnt/secondary/../../etc/shadow"}`, true, false, reason.AdmitUnchecked, reason.SourceDenied, "null"},
		{"another server", `{"etcd_nodes":3,"iso":"http://192.0.2.1/secret"}`, true, false, reason.AdmitUnchecked, reason.SourceDenied, "null"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := post(t, d, tt.body)
			if w.Code != 200 {
				t.Fatalf("status %d: %s", w.Code, w.Body)
			}
			body := w.Body.String()
			v := decode[verdict](t, w)
			if v.Allow != tt.allow || v.Checked != tt.checked || v.Code != tt.code || v.Cause != tt.cause || v.Message == "" {
				t.Errorf("got %s", body)
			}
			if want := `"supportsetcd":` + tt.supports; !strings.Contains(body, want) {
				t.Errorf("got %s, want %s in it", body, want)
			}
		})
	}
	v := decode[verdict](t, post(t, d, `{"etcd_nodes":1,"iso":"202","version":"1.32.4"}`))
	for _, want := range []string{"1.32.4", inspect.EtcdArchive} {
		if !strings.Contains(v.Message, want) {
			t.Errorf("refusal %q does not name %s", v.Message, want)
		}
	}
	if got := testutil.ToFloat64(d.metrics.decisions.WithLabelValues("refuse")); got != 3 {
		t.Errorf("%v refusals counted, want 3", got)
	}
	if got := testutil.ToFloat64(d.metrics.decisions.WithLabelValues("allow_unchecked")); got != 3 {
		t.Errorf("%v unchecked counted, want 3", got)
	}
}

func TestAdmitByQuery(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	w := get(t, d, pathAdmit+"?etcd_nodes=3&iso=202&version=1.32.4&zone=zone1&wait=1s")
	if v := decode[verdict](t, w); v.Allow || v.Value != inspect.Missing {
		t.Errorf("got %+v", v)
	}
	if w := ask(t, d, httptest.NewRequest(http.MethodHead, pathAdmit+"?etcd_nodes=0", nil)); w.Code != 200 {
		t.Errorf("HEAD: status %d", w.Code)
	}
}

// TestAdmitAny: with admit_any every path and URL is looked at.
func TestAdmitAny(t *testing.T) {
	f := newFakeScanner()
	var asked []string
	f.look = func(_ context.Context, iso, zone string) (answers.Answer, error) {
		asked = append(asked, iso+" "+zone)
		return answers.Answer{Value: inspect.Included, Code: reason.Included}, nil
	}
	d := newDaemon(t, f, config(t, smallConfig+"admit_any: true\n"))
	for _, iso := range []string{"/elsewhere/a.iso", "http://192.0.2.1/a.iso"} {
		if v := decode[verdict](t, post(t, d, `{"etcd_nodes":3,"zone":"z","iso":"`+iso+`"}`)); !v.Allow || !v.Checked {
			t.Errorf("%s: got %+v", iso, v)
		}
	}
	if want := []string{"/elsewhere/a.iso z", "http://192.0.2.1/a.iso z"}; !cmp.Equal(asked, want) {
		t.Errorf("asked %q, want %q", asked, want)
	}
	if got := testutil.ToFloat64(d.metrics.looks.WithLabelValues("request", "included")); got != 2 {
		t.Errorf("%v looks counted, want 2", got)
	}
}

func TestMayAsk(t *testing.T) {
	c := config(t, smallConfig)
	for iso, want := range map[string]bool{
		"201": true, "203-1-7c82b718": true, "/mnt/secondary/a.iso": true, "/mnt/secondary/template/tmpl/1/203/a.iso": true,
		"https://mirror.example/u.iso": true, "/mnt/secondary": false, "/mnt/secondary2/a.iso": false,
		"/mnt/secondary/../a.iso": false, "1:etc": false, "mnt/secondary/a.iso": false, "..": false, ".": false,
		"https://mirror.example/other.iso": false, "file:///mnt/secondary/a.iso": false, "HTTP://mirror.example/x": false,
	} {
		if got := c.mayAsk(iso) == nil; got != want {
			t.Errorf("%q: got %t, want %t", iso, got, want)
		}
	}
}

func TestAdmitWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeScanner()
		f.look = func(ctx context.Context, _, _ string) (answers.Answer, error) {
			<-ctx.Done()
			return answers.Answer{}, context.Cause(ctx)
		}
		d := newDaemon(t, f, config(t, smallConfig+"admit_wait: 4s\n"))
		for body, want := range map[string]time.Duration{
			`{"etcd_nodes":3,"iso":"203"}`:              4 * time.Second,
			`{"etcd_nodes":3,"iso":"203","wait":"30s"}`: 30 * time.Second,
		} {
			began := time.Now()
			v := decode[verdict](t, post(t, d, body))
			if got := time.Since(began); got != want || !v.Allow || v.Checked || v.Cause != reason.SourceStalled {
				t.Errorf("%s: took %s, want %s: %+v", body, got, want, v)
			}
		}
	})
}

func TestAdmitBadInput(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	for body, want := range map[string]string{
		``:                                       "the body must be a JSON object",
		`[]`:                                     "the body must be a JSON object",
		`{`:                                      "not JSON",
		`{"etcd_nodes":3`:                        "not JSON",
		`{"etcd_nodes":3,"iso":"a"} x`:           "goes on",
		`{"etcd_nodes":3,"iso":"a"}{}`:           "goes on",
		`{"iso":"a"}`:                            "etcd_nodes is missing",
		`{"etcd_nodes":"3","iso":"a"}`:           "etcd_nodes must be a whole number",
		`{"etcd_nodes":1.5,"iso":"a"}`:           "etcd_nodes must be a whole number",
		`{"etcd_nodes":null,"iso":"a"}`:          "etcd_nodes must be a whole number",
		`{"etcd_nodes":-1}`:                      "etcd_nodes must be from 0 to 10000",
		`{"etcd_nodes":10001,"iso":"a"}`:         "etcd_nodes must be from 0 to 10000",
		`{"etcd_nodes":3}`:                       "iso is missing",
		`{"etcd_nodes":3,"iso":7}`:               "iso must be a string",
		`{"etcd_nodes":3,"iso":"a","nodes":1}`:   `unknown key \"nodes\"`,
		`{"ETCD_NODES":3,"iso":"a"}`:             `unknown key \"ETCD_NODES\"`,
		`{"etcd_nodes":0,"etcd_nodes":3}`:        "etcd_nodes is given twice",
		`{"etcd_nodes":3,"iso":"a\u0007"}`:       "iso has characters in it that cannot be printed",
		`{"etcd_nodes":3,"iso":"a","wait":"5"}`:  "wait must be a duration with its unit",
		`{"etcd_nodes":3,"iso":"a","wait":"2m"}`: "wait must be from 100ms to 1m",
		`{"etcd_nodes":3,"iso":"` + strings.Repeat("a", 4097) + `"}`:           "iso is longer than 4096 bytes",
		`{"etcd_nodes":3,"iso":"a","zone":"` + strings.Repeat("a", 256) + `"}`: "zone is longer than 255 bytes",
		"{\"etcd_nodes\":3,\"iso\":\"\xff\"}":                                  "not UTF-8",
	} {
		w := post(t, d, body)
		text := w.Body.String()
		if w.Code != 400 || !strings.Contains(text, want) || decode[failure](t, w).Error.Code != reason.Usage {
			t.Errorf("%.80s: got %d %s, want 400 with %q", body, w.Code, text, want)
		}
	}
	if w := post(t, d, `{"etcd_nodes":3,"iso":"`+strings.Repeat("a", maxBody)+`"}`); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("large body: got %d", w.Code)
	}
	for _, query := range []string{"", "?etcd_nodes=x&iso=a", "?etcd_nodes=3&etcd_nodes=0&iso=a", "?etcd_nodes=3&iso=a&x=1", "?etcd_nodes=3;iso=a"} {
		if w := get(t, d, pathAdmit+query); w.Code != 400 {
			t.Errorf("%q: got %d, want 400", query, w.Code)
		}
	}
	if w := ask(t, d, httptest.NewRequest(http.MethodPost, pathAdmit+"?etcd_nodes=0", strings.NewReader(`{"etcd_nodes":3,"iso":"a"}`))); w.Code != 400 {
		t.Errorf("query and body: got %d, want 400", w.Code)
	}
}

func FuzzQuestion(f *testing.F) {
	f.Add([]byte(`{"etcd_nodes":3,"iso":"203","version":"1.33.1","zone":"zone1","wait":"5s"}`), "etcd_nodes=3&iso=203")
	f.Add([]byte(`{"etcd_nodes":0,"etcd_nodes":0}`), "etcd_nodes=%zz")
	f.Add([]byte(`{"iso":[[[{"a":null}]]]}`), "a=b;c=d&wait=1h")
	f.Fuzz(func(t *testing.T, body []byte, query string) {
		for _, read := range []func(*question) error{
			func(q *question) error { return q.readJSON(body) },
			func(q *question) error { return q.readQuery(query) },
		} {
			q := question{has: make(map[string]bool)}
			if read(&q) != nil || q.check() != nil {
				continue
			}
			if q.EtcdNodes < 0 || q.EtcdNodes > maxNodes || q.EtcdNodes > 0 && q.ISO == "" || !q.has["etcd_nodes"] ||
				q.has["wait"] && (q.wait < minWait || q.wait > maxWait) || reason.Line(q.Version) != strings.TrimSpace(q.Version) && !strings.Contains(q.Version, "  ") {
				t.Errorf("taken as a question: %+v", q)
			}
		}
	})
}

// TestAdmitOverloaded: so many requests that wait say that storage does not answer.
func TestAdmitOverloaded(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	s := newServer(d)
	for range maxAsking {
		s.asking <- struct{}{}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodGet, pathAdmit+"?etcd_nodes=0", nil))
	if w.Code != 503 || w.Header().Get("Retry-After") == "" {
		t.Errorf("got %d %v", w.Code, w.Header())
	}
}

func TestMethodsAndPaths(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	for _, tt := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/", 404, ""},
		{"GET", "/api/v1/isos/", 404, ""},
		{"POST", pathISOs, 405, "GET, HEAD"},
		{"DELETE", pathAdmit, 405, "GET, HEAD, POST"},
		{"POST", pathHealth, 405, "GET, HEAD"},
		{"HEAD", pathISOs, 200, ""},
		{"HEAD", pathMetrics, 200, ""},
	} {
		w := ask(t, d, httptest.NewRequest(tt.method, tt.path, nil))
		if w.Code != tt.status || w.Header().Get("Allow") != tt.allow {
			t.Errorf("%s %s: got %d, Allow %q; want %d, %q", tt.method, tt.path, w.Code, w.Header().Get("Allow"), tt.status, tt.allow)
		}
		for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
			if got := w.Header().Get(name); got != want {
				t.Errorf("%s %s: %s is %q, want %q", tt.method, tt.path, name, got, want)
			}
		}
	}
	r := httptest.NewRequest(http.MethodPost, pathAdmit, strings.NewReader(`{"etcd_nodes":0}`))
	r.Header.Set("Sec-Fetch-Site", "cross-site")
	w := ask(t, d, r)
	if got := decode[failure](t, w).Error; w.Code != http.StatusForbidden || got.Code != reason.Unauthorized || strings.Contains(got.Hint, "TOKEN") {
		t.Errorf("from another origin: got %d, %+v", w.Code, got)
	}
}

func TestToken(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(path, []byte("0123456789abcdef\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig+"token_file: "+path+"\n"))
	var err error
	if d.current.Load().guard, err = readGuard(d.current.Load().Config); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path, authorization string
		want                int
	}{
		{pathISOs, "", 401},
		{pathMetrics, "", 401},
		{pathAdmit, "", 401},
		{pathHealth, "", 200},
		{pathReady, "", 503},
		{pathISOs, "Bearer 0123456789abcdef", 200},
		{pathISOs, "bearer  0123456789abcdef", 200},
		{pathISOs, "Bearer 0123456789abcde", 401},
		{pathISOs, "Bearer 0123456789abcdef0", 401},
		{pathISOs, "Basic 0123456789abcdef", 401},
		{pathISOs, "0123456789abcdef", 401},
		{pathMetrics, "Bearer 0123456789abcdef", 200},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.path, nil)
		if tt.authorization != "" {
			r.Header.Set("Authorization", tt.authorization)
		}
		w := ask(t, d, r)
		if w.Code != tt.want {
			t.Errorf("%s with %q: got %d, want %d", tt.path, tt.authorization, w.Code, tt.want)
		}
		if w.Code != 401 {
			continue
		}
		if got := w.Header().Get("WWW-Authenticate"); got != "Bearer" {
			t.Errorf("%s with %q: WWW-Authenticate is %q", tt.path, tt.authorization, got)
		}
		if got := decode[failure](t, w).Error; got.Code != reason.Unauthorized || !strings.Contains(got.Hint, "Bearer TOKEN") {
			t.Errorf("%s with %q: got %+v", tt.path, tt.authorization, got)
		}
	}
	// Over a Unix socket its mode says who may connect.
	r := httptest.NewRequest(http.MethodGet, pathISOs, nil)
	if w := ask(t, d, r.WithContext(context.WithValue(r.Context(), networkKey{}, "unix"))); w.Code != 200 {
		t.Errorf("over a Unix socket: got %d", w.Code)
	}
}

func TestTokenFile(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"short":         {"secret", 0o600, "shorter than 16 characters"},
		"two":           {"0123456789abcdef 0123", 0o600, "one token"},
		"readable":      {"0123456789abcdef", 0o644, "everybody may use"},
		"long":          {strings.Repeat("a", 5000), 0o600, "longer than"},
		"not printable": {"0123456789abcdef\x01", 0o600, "one token"},
	} {
		path := filepath.Join(t.TempDir(), "token")
		if err := os.WriteFile(path, []byte(tt.text), tt.mode); err != nil {
			t.Fatal(err)
		}
		_, err := readGuard(Config{TokenFile: path})
		if reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want %q", name, err, tt.want)
		}
	}
}

// TestPanic: a fault in one request ends neither the daemon nor the connection's
// answer.
func TestPanic(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	s := newServer(d)
	s.routes[pathISOs] = route{methods: []string{"GET"}, serve: func(http.ResponseWriter, *http.Request) { panic("a fault") }}
	s.routes[pathAdmit] = route{methods: []string{"GET"}, serve: func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, "{")
		panic("half-way")
	}}
	srv := httptest.NewUnstartedServer(s)
	srv.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	srv.Start()
	defer srv.Close()
	resp, err := http.Get(srv.URL + pathISOs)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if resp.StatusCode != 500 || !strings.Contains(string(b), `"internal-error"`) || strings.Contains(string(b), "a fault") {
		t.Errorf("got %d %s", resp.StatusCode, b)
	}
	if resp, err := http.Get(srv.URL + pathAdmit); err == nil {
		_, err = io.ReadAll(resp.Body)
		resp.Body.Close()
		if err == nil {
			t.Error("half an answer looks like a whole one")
		}
	}
	if resp, err := http.Get(srv.URL + pathHealth); err != nil || resp.StatusCode != 200 {
		t.Errorf("afterwards: %v %v", resp, err)
	}
}

func TestMetrics(t *testing.T) {
	d := newDaemon(t, newFakeScanner(), config(t, smallConfig))
	d.metrics.round(scan.Round{Started: time.Unix(1000, 0), Took: 2 * time.Second, Bytes: 4096}, true)
	d.metrics.round(scan.Round{Started: time.Unix(2000, 0), Took: time.Second}, false)
	d.metrics.roundLook(inspect.Included, nil, time.Second)
	d.metrics.roundLook(inspect.Included, nil, time.Second)
	d.metrics.roundLook(inspect.Broken, nil, time.Second)
	d.metrics.roundLook("", errors.New("no"), time.Second)
	d.metrics.reload(errors.New("no"))
	get(t, d, "/nonsense")
	ask(t, d, httptest.NewRequest("BREW", pathISOs, nil))
	get(t, d, pathAdmit+"?etcd_nodes=3&iso=202")
	problems, err := testutil.GatherAndLint(d.metrics.registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	body := get(t, d, pathMetrics).Body.String()
	for _, want := range []string{
		`etcd_fleet_isos{value="included",zone="zone1"} 1`,
		`etcd_fleet_isos{value="included",zone="zone2"} 1`,
		`etcd_fleet_isos{value="missing",zone="zone1"} 1`,
		`etcd_fleet_isos{value="unknown",zone="zone1"} 2`,
		`etcd_fleet_isos{value="included",zone="zone3"} 0`,
		`etcd_fleet_isos_left_alone{zone="zone1"} 1`,
		`etcd_fleet_iso_failures{zone="zone1"} 3`,
		`etcd_fleet_copies_unusable{zone="zone1"} 1`,
		`etcd_fleet_configured{kind="store"} 1`,
		`etcd_fleet_configured{kind="url"} 1`,
		`etcd_fleet_lost_workers 2`,
		`etcd_fleet_rounds_total{success="true"} 1`,
		`etcd_fleet_rounds_total{success="false"} 1`,
		`etcd_fleet_round_start_timestamp_seconds 2000`,
		`etcd_fleet_round_duration_seconds 1`,
		`etcd_fleet_round_success 0`,
		`etcd_fleet_round_last_success_timestamp_seconds 1002`,
		`etcd_fleet_looks_total{by="round",result="included"} 2`,
		`etcd_fleet_looks_total{by="round",result="failed"} 1`,
		`etcd_fleet_looks_total{by="round",result="broken"} 1`,
		`etcd_fleet_looks_total{by="request",result="missing"} 0`,
		`etcd_fleet_look_duration_seconds_count{by="round"} 4`,
		`etcd_fleet_read_bytes_total 4096`,
		`etcd_fleet_admit_decisions_total{result="refuse"} 1`,
		`etcd_fleet_admit_decisions_total{result="allow"} 0`,
		`etcd_fleet_config_last_reload_successful 0`,
		`etcd_fleet_http_requests_total{code="404",endpoint="other",method="GET"} 1`,
		`etcd_fleet_http_requests_total{code="405",endpoint="/api/v1/isos",method="other"} 1`,
		`version="1.2.3"`,
		`process_open_fds`,
		`go_goroutines`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}
