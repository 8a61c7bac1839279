package watch

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
	"cks-etcd/internal/strictyaml"
)

const fullConfig = `
stores:
  - path: /mnt/secondary
    zone: zone1
    name: nfs1
  - path: more/isos   # begins where the configuration is
urls:
  - {url: "https://mirror.example/a.iso", zone: 1, name: a, template: "203"}
  - url: https://mirror.example/a.iso
    zone: 2
file: /etcd/etcd-linux-amd64.tar.gz
all: true
interval: 1m30s
failure_limit: 5
jobs: 2
look_timeout: 1m
read_timeout: 10s
admit_wait: 500ms
admit_any: true
answers: answers.db
http:
  ca: ca.pem
  headers:
    - "Authorization: Bearer geheim"
    - "X-Client:etcd-fleet"
  netrc: none
listen:
  - 127.0.0.1:9619
  - "[::1]:9620"
  - unix:/run/etcd-fleet/watch.sock
  - 0.0.0.0:9621
tls: {cert: w.crt, key: w.key, client_ca: ca.pem}
token_file: token
`

func TestParseConfig(t *testing.T) {
	got, err := ParseConfig("/etc/etcd-fleet/watch.yaml", []byte(fullConfig))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		Stores: []scan.Store{{Path: "/mnt/secondary", Zone: "zone1", Name: "nfs1"}, {Path: "/etc/etcd-fleet/more/isos"}},
		URLs: []scan.URL{
			{URL: "https://mirror.example/a.iso", Zone: "1", Name: "a", Template: "203"},
			{URL: "https://mirror.example/a.iso", Zone: "2"},
		},
		File: inspect.EtcdArchive, All: true, Interval: 90 * time.Second, FailureLimit: 5, Jobs: 2,
		LookTimeout: time.Minute, ReadTimeout: 10 * time.Second, AdmitWait: 500 * time.Millisecond, AdmitAny: true,
		Answers: "/etc/etcd-fleet/answers.db",
		HTTP:    HTTP{CA: "/etc/etcd-fleet/ca.pem", Headers: []string{"Authorization: Bearer geheim", "X-Client: etcd-fleet"}, Netrc: "none"},
		Listen: []Address{
			{"tcp", "127.0.0.1:9619"}, {"tcp", "[::1]:9620"}, {"unix", "/run/etcd-fleet/watch.sock"}, {"tcp", "0.0.0.0:9621"},
		},
		TLS:       &TLS{Cert: "/etc/etcd-fleet/w.crt", Key: "/etc/etcd-fleet/w.key", ClientCA: "/etc/etcd-fleet/ca.pem"},
		TokenFile: "/etc/etcd-fleet/token",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("configuration (-want +got):\n%s", diff)
	}
}

func TestDefaults(t *testing.T) {
	for name, text := range map[string]string{"empty": "", "comments": "# nothing\n\n# here\n", "document": "---\n", "null": "~\n", "BOM": "\ufeff"} {
		got, err := ParseConfig("watch.yaml", []byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got.Interval != 5*time.Minute || got.FailureLimit != 3 || got.AdmitWait != 10*time.Second || got.File != inspect.EtcdArchive {
			t.Errorf("%s: got %+v", name, got)
		}
		if want := []Address{{"tcp", "127.0.0.1:9619"}}; !cmp.Equal(got.Listen, want) {
			t.Errorf("%s: listens on %v, want %v", name, got.Listen, want)
		}
	}
}

func TestAnswersDefault(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(key string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == key {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	for _, tt := range []struct {
		env  func(string) string
		want string
	}{
		{env("STATE_DIRECTORY", "/var/lib/etcd-fleet", "HOME", "/"), "/var/lib/etcd-fleet/answers.db"},
		{env("STATE_DIRECTORY", "/var/lib/a:/var/lib/b"), "/var/lib/a/answers.db"},
		{env("STATE_DIRECTORY", "relative", "XDG_STATE_HOME", "/s"), "/s/etcd-fleet/answers.db"},
	} {
		if got := defaultAnswers(1000, tt.env); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"unknown key", "intervall: 5m", `w.yaml:1:1: unknown key "intervall" in the configuration; the keys are stores, urls, file, all, interval,`},
		{"unknown key below", "stores:\n  - pth: /a", `w.yaml:2:5: unknown key "pth" in a store; the keys are path, zone, name`},
		{"twice", "jobs: 1\nall: true\njobs: 2", `w.yaml:3:1: "jobs" stands here again; the first is on line 1`},
		{"twice below", "http:\n  netrc: none\n  netrc: none", `w.yaml:3:3: "netrc" stands here again`},
		{"no value", "stores:\njobs: 1", `w.yaml:1:1: "stores" has no value`},
		{"no value, scalar", "file:", `w.yaml:1:1: "file" has no value`},
		{"no value, mapping", "http:", `w.yaml:1:1: "http" has no value`},
		{"empty text", `file: ""`, `w.yaml:1:1: "file" has no value`},
		{"list for text", "file: [a]", `w.yaml:1:7: "file" must be a single value`},
		{"text for list", "stores: /mnt", `w.yaml:1:9: "stores" must be a list`},
		{"text for mapping", "http: none", `w.yaml:1:7: http must be KEY: VALUE lines; the keys are ca, headers, netrc`},
		{"list at the top", "- a", `w.yaml:1:1: the configuration must be KEY: VALUE lines`},
		{"text for flag", `all: "true"`, `"all" must be true or false`},
		{"number for flag", `all: 1`, `"all" must be true or false`},
		{"text for number", `jobs: "4"`, `"jobs" must be a number`},
		{"fraction", `jobs: 1.5`, `"jobs" must be a number`},
		{"too few jobs", `jobs: 0`, `"jobs" must be from 1 to 64`},
		{"too many jobs", `jobs: 65`, `"jobs" must be from 1 to 64`},
		{"huge number", `jobs: 99999999999999999999`, `"jobs" must be a number`},
		{"no unit", `interval: 300`, `w.yaml:1:11: "interval" must be a duration with its unit, as in 90s, 5m or 1h30m`},
		{"too short", `interval: 1s`, `"interval" must be from 10s to 24h`},
		{"negative", `interval: -5m`, `"interval" must be from 10s to 24h`},
		{"wait too long", `admit_wait: 2m`, `"admit_wait" must be from 100ms to 1m`},
		{"no limit", `failure_limit: 0`, `"failure_limit" must be from 1 to 1000`},
		{"store without path", "stores:\n  - zone: a", `w.yaml:2:5: a store needs the key "path"`},
		{"store that is text", "stores:\n  - /mnt/secondary", `w.yaml:2:5: a store must be KEY: VALUE lines`},
		{"store is missing", "stores:\n  - path: /a\n  -", `a value is missing in "stores"`},
		{"store twice", "stores:\n  - path: /a\n  - path: /b/../a/", `w.yaml:3:5: store /a stands here again`},
		{"home", "stores:\n  - path: ~/isos", `cannot use path: ~ is not known here`},
		{"url twice", "urls:\n  - url: http://a/b\n  - url: http://a/b", `w.yaml:3:5: this URL stands here again for the same zone; the first is on line 2`},
		{"url of no kind", "urls:\n  - url: ftp://a/b", `cannot use url: only http:// and https:// URLs can be read`},
		{"url without host", "urls:\n  - url: https:///b", `cannot use url: only http:// and https:// URLs can be read`},
		{"url with login", "urls:\n  - url: https://u:geheim@a/b", `cannot use url: a URL holds no login here`},
		{"no file", "file: /", `cannot use file: "/" names no file on an ISO`},
		{"directory", "file: etcd/", `"etcd/" names no file on an ISO`},
		{"header", "http:\n  headers:\n    - geheim", `cannot use headers: a header is "Name: value"`},
		{"header with a line break", "http:\n  headers:\n    - \"A: geheim\\nB: c\"", `"headers" has characters in it that cannot be printed`},
		{"no port", "listen: [127.0.0.1]", `w.yaml:1:10: cannot use listen: "127.0.0.1" is neither HOST:PORT nor unix:/PATH`},
		{"named port", "listen: ['127.0.0.1:http']", `the port is a number from 0 to 65535`},
		{"relative socket", "listen: ['unix:watch.sock']", `the path of a socket begins with /`},
		{"long socket", "listen: ['unix:/" + strings.Repeat("a", 103) + "']", `the path of a socket is at most 103 bytes long`},
		{"listen twice", "listen: ['127.0.0.1:1', '127.0.0.1:01']", `w.yaml:1:25: 127.0.0.1:1 stands here again`},
		{"open to all", "listen: [':9619']", `w.yaml:1:10: :9619 can be reached from other machines, and so needs "tls" and "token_file"`},
		{"open to all, no token", "listen:\n  - 127.0.0.1:1\n  - 203.0.113.1:1\ntls: {cert: a, key: b}", `w.yaml:3:5: 203.0.113.1:1 can be reached`},
		{"open to all, no TLS", "listen: ['[::]:1']\ntoken_file: a", `can be reached from other machines`},
		{"a name is not local", "listen: ['node1:1']", `can be reached from other machines`},
		{"no key", "tls: {cert: a}", `w.yaml:1:1: "tls" needs "cert" and "key"`},
		{"TLS for nothing", "listen: ['unix:/a']\ntls: {cert: a, key: b}", `w.yaml:2:1: "tls" has no use`},
		{"anchor", "a: &a 1", `w.yaml:1:4: anchors (&) are not supported`},
		{"alias", "a: *a", `aliases (*) are not supported`},
		{"tag", "jobs: !!int 1", `tags (!) are not supported`},
		{"second document", "jobs: 1\n---\njobs: 2", `w.yaml:2:1: a second document begins here`},
		{"broken", "stores: [", `w.yaml:1:`},
		{"control character", "file: a\x00b", `w.yaml:1:8: a control character or a byte that is not UTF-8`},
		{"not UTF-8", "file: \xff", `w.yaml:1:7: a control character`},
		{"deep", strings.Repeat("[", 100), `brackets are nested deeper than 16`},
		{"too long", strings.Repeat("#", 1<<20+1), `it is longer than 1048576 bytes`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseConfig("w.yaml", []byte(tt.text))
			if reason.Of(err) != reason.Usage || !strings.Contains(fmt.Sprint(err), tt.want) {
				t.Fatalf("got %v, want a usage error with %q", err, tt.want)
			}
			if strings.Contains(err.Error()+strictyaml.Detail(err), "geheim") {
				t.Errorf("a secret is shown: %v\n%s", err, strictyaml.Detail(err))
			}
		})
	}
}

func TestReadConfigMissing(t *testing.T) {
	_, err := ReadConfig(filepath.Join(t.TempDir(), "none.yaml"))
	if reason.Of(err) != reason.Usage {
		t.Errorf("got %v, want a usage error", err)
	}
	if got := strictyaml.Detail(err); got != "" {
		t.Errorf("detail %q, want none", got)
	}
}

func TestDetail(t *testing.T) {
	_, err := ParseConfig("w.yaml", []byte("# stores\nstores:\n  - pth: /mnt/secondary\n"))
	want := "    1 | # stores\n    2 | stores:\n    3 |   - pth: /mnt/secondary\n      |     ^\n"
	if got := strictyaml.Detail(err); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// TestDetailSecrets: what is said about a configuration ends up in the journal.
func TestDetailSecrets(t *testing.T) {
	_, err := ParseConfig("w.yaml", []byte("http:\n  headers:\n    - \"Authorization: geheim\"\n  nonsense: 1\njobs: x\n"))
	got := strictyaml.Detail(err)
	if strings.Contains(got, "geheim") || !strings.Contains(got, "not shown") {
		t.Errorf("got\n%s", got)
	}
	_, err = ParseConfig("w.yaml", []byte("http:\n  headers:\n    - \"A: geheim\"\njobs: x\n"))
	got = strictyaml.Detail(err)
	if strings.Contains(got, "geheim") || !strings.Contains(got, "    4 | jobs: x\n      |       ^\n") {
		t.Errorf("got\n%s", got)
	}
}

// TestPackagedConfig holds the configuration that is installed to what the
// program reads: as it is, and with each of its settings in use.
func TestPackagedConfig(t *testing.T) {
	b, err := os.ReadFile("../../packaging/etc/watch.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asIs, err := ParseConfig("/etc/etcd-fleet/watch.yaml", b)
	if err != nil {
		t.Fatalf("%v\n%s", err, strictyaml.Detail(err))
	}
	// Settings are commented out without a space, prose with one.
	used := regexp.MustCompile(`(?m)^#([a-z]| +[-a-z])`).ReplaceAllFunc(b, func(m []byte) []byte {
		if bytes.HasPrefix(m, []byte("# ")) && !bytes.HasPrefix(m, []byte("#  ")) {
			return m
		}
		return m[1:]
	})
	used = regexp.MustCompile(`(?m)^ +(etcd-fleet|systemctl) .*\n`).ReplaceAll(used, nil)
	all, err := ParseConfig("/etc/etcd-fleet/watch.yaml", used)
	if err != nil {
		t.Fatalf("%v\n%s", err, strictyaml.Detail(err))
	}
	if len(all.Stores) != 1 || len(all.URLs) != 1 || len(all.Listen) != 2 || all.TLS == nil || all.TokenFile == "" {
		t.Errorf("not all settings were read: %+v", all)
	}
	// What is shown as the default is the default.
	all.Stores, all.URLs, all.HTTP, all.Listen, all.TLS, all.TokenFile = nil, nil, HTTP{}, asIs.Listen, nil, ""
	asIs.Answers = all.Answers
	if diff := cmp.Diff(asIs, all); diff != "" {
		t.Errorf("defaults (-program +file):\n%s", diff)
	}
	keys := regexp.MustCompile(`(?m)^([a-z_]+):`).FindAllSubmatch(used, -1)
	_, err = ParseConfig("w.yaml", []byte("x: 1"))
	_, list, _ := strings.Cut(fmt.Sprint(err), "the keys are ")
	if want := len(strings.Split(list, ", ")); len(keys) != want {
		t.Errorf("%d keys are shown, want %d: %s", len(keys), want, list)
	}
}

func FuzzConfig(f *testing.F) {
	f.Add([]byte(fullConfig))
	f.Add([]byte(`{"stores": [{"path": "/a"}], "all": false}`))
	f.Add([]byte("listen:\n- unix:/a\n- 127.0.0.1:0\n"))
	f.Add([]byte("file: |\n  etcd/x\n"))
	f.Add([]byte("http: {headers: [\"A: b\"]}\n? x\n: y\n"))
	f.Add([]byte("stores:\n  - - - a\n"))
	f.Add([]byte("a: [1, {b: c}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := ParseConfig("w.yaml", b)
		if err != nil {
			if reason.Of(err) != reason.Usage {
				t.Errorf("code %s, want usage: %v", reason.Of(err), err)
			}
			if d := strictyaml.Detail(err); d != "" && !strings.HasSuffix(d, "\n") {
				t.Errorf("detail %q does not end its line", d)
			}
			return
		}
		for _, a := range c.Listen {
			if !a.Local() && (c.TLS == nil || c.TokenFile == "") {
				t.Errorf("listens on %s without TLS and token", a)
			}
			if again, err := parseAddress(a.String()); err != nil || again != a {
				t.Errorf("address %v is read again as %v, %v", a, again, err)
			}
		}
		if c.Interval < minInterval || c.Jobs < 1 || c.FailureLimit < 1 || c.AdmitWait > maxWait || len(c.Listen) == 0 {
			t.Errorf("out of bounds: %+v", c)
		}
		for _, s := range c.Stores {
			if !filepath.IsAbs(s.Path) {
				t.Errorf("store %q is relative", s.Path)
			}
		}
	})
}
