package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/strictyaml"
)

// docExample returns the n-th block of code marked as YAML in the documentation.
func docExample(t testing.TB, n int) string {
	t.Helper()
	b, err := os.ReadFile("../../docs/inventory.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := strings.Split(string(b), "```yaml\n")
	if len(blocks) <= n+1 {
		t.Fatalf("docs/inventory.md has no example %d", n)
	}
	text, _, _ := strings.Cut(blocks[n+1], "```")
	return text
}

func TestDocumentedExample(t *testing.T) {
	v, err := ReadYAML("/etc/etcd-fleet/hosts.yaml", []byte(docExample(t, 0)))
	if err != nil {
		t.Fatalf("%v\n%s", err, strictyaml.Detail(err))
	}
	if d := cmp.Diff([]string{"prod", "staging"}, v.Clusters()); d != "" {
		t.Errorf("clusters (-want +got):\n%s", d)
	}
	port := func(p int, member string) Host {
		return Host{
			Name: fmt.Sprintf("203.0.113.10:%d", p), User: "cloud", Addr: "203.0.113.10", Port: p,
			KeyFile: "~/.ssh/id_rsa", Jump: "ops@bastion.example:2222", Member: member, Group: "prod",
		}
	}
	pinned := port(50003, "prod-etcd-4")
	pinned.Name, pinned.User, pinned.KeyFile = "prod-etcd-4", "ubuntu", "/etc/etcd-fleet/keys/prod-etcd-4"
	pinned.HostKey, pinned.Jump = testKey, "none"
	fingerprint := port(50004, "")
	fingerprint.HostKey = testFingerprint
	staging := Host{User: "cloud", Port: 22, KeyFile: "~/.ssh/id_rsa", Group: "staging"}
	one := func(h Host, name, addr string) Host { h.Name, h.Addr = name, addr; return h }
	want := map[string][]Host{
		"prod": {port(50000, ""), port(50001, ""), port(50002, ""), pinned, fingerprint},
		"staging": {
			one(staging, "etcd01.staging.example", "etcd01.staging.example"),
			one(staging, "etcd02.staging.example", "etcd02.staging.example"),
			one(staging, "etcd03.staging.example", "etcd03.staging.example"),
			{Name: "[2001:db8::5]:2222", User: "cloud", Addr: "2001:db8::5", Port: 2222, KeyFile: "~/.ssh/id_rsa", Group: "staging"},
		},
	}
	want[""] = append([]Host{{Name: "lab-etcd", User: "cloud", Addr: "lab-etcd", Port: 22, KeyFile: "~/.ssh/id_rsa"}}, append(want["prod"], want["staging"]...)...)
	for cluster, hosts := range want {
		got, err := v.Hosts(cluster)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(hosts, got); d != "" {
			t.Errorf("%q (-want +got):\n%s", cluster, d)
		}
	}
	_, err = v.Hosts("produ")
	if reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), "prod, staging") {
		t.Errorf("unknown cluster: %v", err)
	}
}

// The error in the documentation is the one that is printed.
func TestDocumentedError(t *testing.T) {
	b, err := os.ReadFile("../../docs/inventory.md")
	if err != nil {
		t.Fatal(err)
	}
	_, err = ReadYAML("hosts.yaml", []byte(docExample(t, 1)))
	if err == nil {
		t.Fatal("no error")
	}
	if got := err.Error() + "\n" + strictyaml.Detail(err); !strings.Contains(string(b), got) {
		t.Errorf("docs/inventory.md does not have this:\n%s", got)
	}
}

func TestReadYAML(t *testing.T) {
	for _, c := range []struct {
		name, yaml string
		want       []Host
	}{
		{"scalar", "hosts: a[1-2]", []Host{{Name: "a1", Addr: "a1"}, {Name: "a2", Addr: "a2"}}},
		{"address", "hosts:\n- 192.0.2.1\n- ::1\n- 2001:db8::1\n", []Host{{Name: "192.0.2.1", Addr: "192.0.2.1"}, {Name: "::1", Addr: "::1"}, {Name: "2001:db8::1", Addr: "2001:db8::1"}}},
		{"quoted", "hosts: ['[::1]:22']", []Host{{Name: "[::1]:22", Addr: "::1", Port: 22}}},
		{"JSON", `{"hosts": [{"host": "a", "port": 7, "member": "m"}]}`, []Host{{Name: "a:7", Addr: "a", Port: 7, Member: "m"}}},
		{"CRLF", "hosts:\r\n- a\r\n- host: b\r\n  user: u\r\n", []Host{{Name: "a", Addr: "a"}, {Name: "b", User: "u", Addr: "b"}}},
		{"BOM", "\ufeffhosts: [a]", []Host{{Name: "a", Addr: "a"}}},
		{"text that looks like other types", "hosts:\n- host: 1\n  member: no\n- host: 1e3\n  member: 007\n- host: \"true\"\n  member: 0x1F\n",
			[]Host{{Name: "1", Addr: "1", Member: "no"}, {Name: "1e3", Addr: "1e3", Member: "007"}, {Name: "true", Addr: "true", Member: "0x1F"}}},
		{"port in host, and default port", "defaults: {port: 50000}\nhosts: [a, 'b:22']", []Host{{Name: "a", Addr: "a", Port: 50000}, {Name: "b:22", Addr: "b", Port: 22}}},
		{"port of a bare address", "hosts:\n- host: u@::1\n  port: 7\n", []Host{{Name: "u@[::1]:7", User: "u", Addr: "::1", Port: 7}}},
		{"host key over lines", "hosts:\n- host: a\n  host-key: >-\n    ssh-ed25519\n    " + strings.Fields(testKey)[1] + "\n", []Host{{Name: "a", Addr: "a", HostKey: testKey}}},
		{"key at home, relative, absolute", "hosts:\n- {host: a, key: ~/k}\n- {host: b, key: k}\n- {host: c, key: /k}\n- {host: d, key: '%d/k'}\n",
			[]Host{{Name: "a", Addr: "a", KeyFile: "~/k"}, {Name: "b", Addr: "b", KeyFile: "dir/k"}, {Name: "c", Addr: "c", KeyFile: "/k"}, {Name: "d", Addr: "d", KeyFile: "%d/k"}}},
		{"jump hosts", "hosts:\n- {host: a, jump: 'u@j1:22,[::1]:7,j3'}\n", []Host{{Name: "a", Addr: "a", Jump: "u@j1:22,[::1]:7,j3"}}},
		{"defaults, near before far", "defaults: {user: far, key: /far}\nclusters:\n  c:\n    defaults: {user: near}\n    hosts: [a, x@b]\n",
			[]Host{{Name: "a", User: "near", Addr: "a", KeyFile: "/far", Group: "c"}, {Name: "x@b", User: "x", Addr: "b", KeyFile: "/far", Group: "c"}}},
		{"empty parts", "---\n# nothing\ndefaults:\nclusters:\n  c:\n  d: {hosts: }\nhosts: a\n", []Host{{Name: "a", Addr: "a"}}},
	} {
		v, err := ReadYAML("dir/hosts.yaml", []byte(c.yaml))
		if err != nil {
			t.Errorf("%s: %v\n%s", c.name, err, strictyaml.Detail(err))
			continue
		}
		got, err := v.Hosts("")
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", c.name, err, d)
		}
	}
}

func TestReadYAMLRefuses(t *testing.T) {
	laughs := "a: &a [x,x]\n"
	for i := 'b'; i < 'k'; i++ {
		laughs += fmt.Sprintf("%c: &%c [*%c,*%c,*%c,*%c,*%c,*%c,*%c,*%c]\n", i, i, i-1, i-1, i-1, i-1, i-1, i-1, i-1, i-1)
	}
	for _, c := range []struct {
		name, yaml string
		at         string // line:column, "" where there is no place
		want       string
	}{
		{"unknown key at the top", "host: a\n", "1:1", `unknown key "host"`},
		{"unknown key of a host", "hosts:\n  - host: a\n    prot: 22\n", "3:5", "the keys are host, name, user, port"},
		{"unknown key of a cluster", "clusters:\n  c:\n    hots: [a]\n", "3:5", "defaults, hosts"},
		{"unknown key of defaults", "defaults:\n  host-key: x\n", "2:3", "user, port, key, jump"},
		{"key twice", "hosts: [a]\nhosts: [b]\n", "2:1", `"hosts"`},
		{"key twice, quoted", "hosts:\n- host: a\n  \"host\": b\n", "3:3", `"host"`},
		{"bad host", "hosts:\n  - a\n  - b:0\n", "3:5", `port "0"`},
		{"bad host in a mapping", "hosts:\n  - host: a:b:c\n", "2:11", "[ADDRESS]:PORT"},
		{"bracket unquoted", "hosts:\n  - [::1]\n", "2:5", "must be quoted"},
		{"bracket and port unquoted", "hosts:\n  - [::1]:22\n", "2:10", "quote a host"},
		{"mapping for a list", "hosts:\n  host: a\n", "2:3", "begin each host"},
		{"list for a mapping", "clusters:\n- a\n", "2:1", "KEY: VALUE"},
		{"text for a mapping", "hello\n", "1:1", "KEY: VALUE"},
		{"no host", "hosts:\n- user: a\n", "2:3", `the key "host"`},
		{"empty item", "hosts:\n- a\n-\n", "", "missing"},
		{"empty value", "hosts:\n- host: a\n  user:\n", "3:3", "has no value"},
		{"null", "hosts:\n- host: a\n  user: ~\n", "3:3", "has no value"},
		{"list for a value", "hosts:\n- host: a\n  user: [b]\n", "3:9", "single value"},
		{"port", "hosts:\n- host: a\n  port: 0x16\n", "3:9", "1 to 65535"},
		{"port twice", "hosts:\n- host: a:1\n  port: 2\n", "3:3", "given twice"},
		{"user twice", "hosts:\n- host: u@a\n  user: v\n", "3:3", "given twice"},
		{"user", "hosts:\n- host: a\n  user: -x\n", "3:9", "login name"},
		{"jump", "hosts:\n- host: a\n  jump: b,c:d:e\n", "3:9", "cannot use jump"},
		{"jumps", "hosts:\n- host: a\n  jump: 1,2,3,4,5,6,7,8\n", "3:9", "more than 7"},
		{"host key", "hosts:\n- host: a\n  host-key: SHA256:x\n", "3:13", "43 characters"},
		{"member of many", "hosts:\n- host: a[1-2]\n  member: m\n", "3:3", "names 2"},
		{"name twice", "hosts:\n- host: a\n  name: n\n- host: b\n  name: n\n", "5:3", "first is on line 3"},
		{"name", "hosts:\n- host: a\n  name: a b\n", "3:9", "' '"},
		{"escape in a value", "hosts:\n- host: a\n  member: \"x\\e[31m\"\n", "3:11", "cannot be printed"},
		{"control character", "hosts:\n- a\n# \x1b[2J\n", "3:3", "control character"},
		{"not UTF-8", "hosts:\n- \xff\n", "2:3", "UTF-8"},
		{"cluster name", "clusters:\n  a b: {}\n", "2:3", "cannot use cluster"},
		{"syntax", "hosts:\n  - a\n b: c\n", "3:2", ""},
		{"tab", "hosts:\n\t- a\n", "2:1", ""},
		{"open bracket", "hosts: [a\n", "1:8", ""},
		{"open quote", "hosts: \"a\n", "1:8", ""},
		{"two documents", "hosts: [a]\n---\nhosts: [b]\n", "2:1", "second document"},
		{"two documents, one ended", "hosts: [a]\n...\nhosts: [b]\n", "3:1", ""},
		{"empty items", "hosts:\n" + strings.Repeat("-\n# c\n", 100_000), "2:1", "missing"},
		{"blank lines", "hosts: |\n" + strings.Repeat("\n", 1000), "", "blank lines"},
		{"anchor", laughs, "1:4", "anchors"},
		{"alias", "hosts: *a\n", "1:8", "aliases"},
		{"merge key", "defaults:\n  <<: {user: a}\n", "2:3", "merge keys"},
		{"tag", "hosts: !!binary YQ==\n", "1:8", "tags"},
		{"directive", "%YAML 1.2\n---\nhosts: [a]\n", "1:1", "directives"},
		{"complex key", "? hosts\n: [a]\n", "1:1", "complex keys"},
		{"deep brackets", strings.Repeat("[", 100_000), "1:17", "nested"},
		{"deep braces", strings.Repeat("{a: ", 100_000), "", "nested"},
		{"deep dashes", strings.Repeat("- ", 100_000), "1:1", "indented"},
		{"deep keys", strings.Repeat("? ", 100_000), "1:1", "indented"},
		{"deep lines", deepLines(1000), "", "indented"},
		{"megabytes", strings.Repeat("#\n", maxBytes), "", "longer than"},
		{"many hosts", "hosts:\n- a[1-9999]\n- b[1-2]\n", "3:3", "more than 10000"},
		{"many groups", "clusters:\n a: {hosts: 'a[1-9999]'}\n b: {hosts: 'a[1-9999]'}\n", "3:13", "more than 10000"},
	} {
		began := time.Now()
		v, err := ReadYAML("hosts.yaml", []byte(c.yaml))
		if reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "hosts.yaml") {
			t.Errorf("%s: got %v, %v; want an error with %q", c.name, v, err, c.want)
			continue
		}
		if c.at != "" && !strings.HasPrefix(err.Error(), "usage: hosts.yaml:"+c.at+": ") {
			t.Errorf("%s: %v; want the place %s", c.name, err, c.at)
		}
		if c.at != "" && !strings.HasSuffix(strictyaml.Detail(err), "^\n") {
			t.Errorf("%s: detail %q", c.name, strictyaml.Detail(err))
		}
		if d := time.Since(began); d > 20*time.Second {
			t.Errorf("%s: took %v", c.name, d)
		}
	}
}

// deepLines nests mappings, one a line.
func deepLines(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%sa:\n", strings.Repeat(" ", i))
	}
	return b.String()
}

func TestNoNodes(t *testing.T) {
	for _, c := range []struct{ yaml, cluster string }{
		{"", ""}, {"# nothing\n", ""}, {"---\n", ""}, {"hosts:\n", ""}, {"hosts: []\n", ""}, {"clusters: {c: {hosts: []}}", ""}, {"hosts: a\nclusters: {c: }", "c"},
	} {
		v, err := ReadYAML("hosts.yaml", []byte(c.yaml))
		if err != nil {
			t.Errorf("%q: %v", c.yaml, err)
			continue
		}
		if got, err := v.Hosts(c.cluster); reason.Of(err) != reason.NoNodes {
			t.Errorf("%q: %v, %v", c.yaml, got, err)
		}
	}
}

// What looks like a secret is not shown again by the error about it.
func TestSecretsAreNotShown(t *testing.T) {
	for _, yaml := range []string{
		"hosts:\n- host: a\n  ansible_password: hunter2\n",
		"hosts:\n- cloud:hunter2@a\n",
		"hosts:\n- host: a\n  host-key: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    hunter2\n",
		"hosts:\n- host: a\n  key: |\n    -----BEGIN OPENSSH PRIVATE KEY-----\n    hunter2\n",
		"hosts:\n- host: a\n  key: -----BEGIN OPENSSH PRIVATE KEY-----\nhunter2 hunter2\n",
	} {
		_, err := ReadYAML("hosts.yaml", []byte(yaml))
		if err == nil || strings.Contains(err.Error()+strictyaml.Detail(err), "hunter2") {
			t.Errorf("%q: %v\n%s", yaml, err, strictyaml.Detail(err))
		}
	}
}

func TestDetail(t *testing.T) {
	_, err := ReadYAML("h", []byte("hosts:\n\n  - {host: ü, "+strings.Repeat(" ", 100)+"prot: 1, member: "+strings.Repeat("x", 200)+"}\n"))
	// Column 115 is shown at the 50th.
	want := "    1 |\n    2 |\n    3 | " + strings.Repeat(" ", 49) + "prot: 1, member: " + strings.Repeat("x", 34) + "\n      | " + strings.Repeat(" ", 49) + "^\n"
	if d := cmp.Diff(want, strictyaml.Detail(err)); d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if got := strictyaml.Detail(nil) + strictyaml.Detail(fmt.Errorf("x")); got != "" {
		t.Errorf("got %q", got)
	}
}

func TestReadFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts.yaml")
	if _, err := ReadFile(path); reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), path) {
		t.Errorf("no file: %v", err)
	}
	if _, err := ReadFile(filepath.Dir(path)); reason.Of(err) != reason.Usage {
		t.Errorf("a directory: %v", err)
	}
	if _, err := ReadFile("/dev/zero"); reason.Of(err) != reason.Usage {
		t.Errorf("an endless file: %v", err)
	}
	if err := os.WriteFile(path, []byte("hosts: a"), 0o600); err != nil {
		t.Fatal(err)
	}
	v, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Hosts(""); err != nil || len(got) != 1 || got[0].Name != "a" {
		t.Errorf("got %v, %v", got, err)
	}
}

// A full inventory is read in a time that nobody notices.
func TestReadYAMLFull(t *testing.T) {
	var b strings.Builder
	b.WriteString("hosts:\n")
	for i := range MaxHosts {
		fmt.Fprintf(&b, "- host: 10.0.%d.%d\n  port: 22\n  member: m%d\n", i/256, i%256, i)
	}
	began := time.Now()
	v, err := ReadYAML("hosts.yaml", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := v.Hosts(""); err != nil || len(got) != MaxHosts {
		t.Errorf("%d hosts, %v", len(got), err)
	}
	t.Logf("%d bytes in %v", b.Len(), time.Since(began))
}

// excerptWidth is how many characters of a line strictyaml shows.
const excerptWidth = 100

func FuzzReadYAML(f *testing.F) {
	f.Add([]byte(docExample(f, 0)))
	f.Add([]byte(docExample(f, 1)))
	for _, s := range []string{
		"hosts: [a, 'b:1']", "hosts:\r\n- a\r\n", "a: &a [*a]", "? a\n: b\n", "{\"hosts\": [{\"host\": \"a\"}]}", "hosts: |\n  a\n", "hosts: >-\n a\n",
		"---\n...\n---\n", "hosts:\n- host: a\n  host-key: SHA256:x\n", "- - - a", "\"\\x1b\": 1", "a: 'b", "hosts:\n-\n", "%TAG ! x\n---\n", ":", "- :", "[]: a", "{a, b}: c",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := ReadYAML("hosts.yaml", b)
		if err != nil {
			if reason.Of(err) != reason.Usage || !oneLine(err) {
				t.Errorf("error %q", err)
			}
			for line := range strings.SplitSeq(strings.TrimSuffix(strictyaml.Detail(err), "\n"), "\n") {
				if len([]rune(line)) > excerptWidth+8 || strings.ContainsFunc(line, func(r rune) bool { return r < ' ' || r == 0x7f }) {
					t.Errorf("detail line %q", line)
				}
			}
			return
		}
		hosts, err := v.Hosts("")
		if err != nil && reason.Of(err) != reason.NoNodes || len(hosts) > MaxHosts {
			t.Errorf("%d hosts, %v", len(hosts), err)
		}
		for _, h := range hosts {
			if h.Addr == "" || h.Addr[0] == '-' || h.Name != reason.Line(h.Name) || h.Member != reason.Line(h.Member) || h.Port < 0 || h.Port > 65535 {
				t.Errorf("%+v", h)
			}
		}
	})
}
