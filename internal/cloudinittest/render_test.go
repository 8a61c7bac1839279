package cloudinittest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// cloudConfig is what the tests look at in user data.
type cloudConfig struct {
	Users []struct {
		Name string
		Sudo string
		Keys []string `yaml:"ssh_authorized_keys"`
	}
	WriteFiles []struct {
		Path, Owner, Permissions, Content string
	} `yaml:"write_files"`
	RunCmd [][]string `yaml:"runcmd"`
}

func (c cloudConfig) file(t *testing.T, path string) string {
	t.Helper()
	for _, f := range c.WriteFiles {
		if f.Path == path {
			return f.Content
		}
	}
	t.Fatalf("no %s is written", path)
	return ""
}

func parse(t *testing.T, userData string) cloudConfig {
	t.Helper()
	if !strings.HasPrefix(userData, "#cloud-config\n") {
		t.Error("the first line does not say #cloud-config")
	}
	var c cloudConfig
	if err := yaml.Unmarshal([]byte(userData), &c); err != nil {
		t.Fatalf("not YAML: %v\n%s", err, userData)
	}
	return c
}

func template(t *testing.T) string {
	t.Helper()
	s, err := Template()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	managementKey = "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABAQC7 cloud@management.example"
	clusterKey    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBz0p2WJ2gqGZ2nVq1m9nB6zqcyL5nJvLwQk2sYp1xQ1 o'brien: #1 & co"
	created       = 1761845971000 // milliseconds since 1970
)

func TestPlaceholders(t *testing.T) {
	var got []string
	for _, m := range regexp.MustCompile(`\{\{\s*(.*?)\s*\}\}`).FindAllStringSubmatch(template(t), -1) {
		if m[0] != "{{ "+m[1]+" }}" {
			t.Errorf("%s is not as CloudStack spells it", m[0])
		}
		got = append(got, m[1])
	}
	slices.Sort(got)
	want := slices.Sorted(slices.Values(Placeholders))
	if diff := cmp.Diff(want, slices.Compact(got)); diff != "" {
		t.Errorf("placeholders (-CloudStack +template):\n%s", diff)
	}
}

func TestNodeName(t *testing.T) {
	const uuid = "0d3d2a1e-8e4b-4c1f-9a55-1f8f5a3b7c21"
	for _, tt := range []struct{ cluster, want string }{
		{"prod", "prod-etcd-1-19a36340838"},
		{"Prod-2", "Prod-2-etcd-1-19a36340838"},
		{"my cluster (test)", "myclustertest-etcd-1-19a36340838"},
		{"日本", uuid + "-etc-1-19a36340838"},
		{"a-name-of-thirty-six-characters-long", "a-name-of-thirty-six-characters-long-etc-1-19a36340838"},
		{strings.Repeat("x", 63), strings.Repeat("x", 40) + "-1-19a36340838"},
	} {
		if got := NodeName(tt.cluster, uuid, 1, created); got != tt.want {
			t.Errorf("NodeName(%q) = %q, want %q", tt.cluster, got, tt.want)
		}
	}
}

// clusters are names that people give clusters, or that YAML, systemd or a shell might take for something else.
var clusters = []string{"prod", "Prod_Cluster.1", "null", "true", "1e5", "0x10", "007", "-leading", "--", "~", "a: b", "# no", "- item", `"quoted"`, "it's", "{{ etcd.node_ip }}",
	"100%", "$HOME", "`reboot`", "tab\there", "new\nline", "日本語", "emoji 😀", strings.Repeat("long", 16), "trailing-", "!tag", "&anchor", "*alias", "@at", "%h"}

func TestRender(t *testing.T) {
	for _, cluster := range clusters {
		for _, pair := range []string{"", clusterKey} {
			t.Run(fmt.Sprintf("%q key pair %t", cluster, pair != ""), func(t *testing.T) {
				var members []Member
				for i := range 3 {
					members = append(members, Member{NodeName(cluster, "0d3d2a1e-8e4b-4c1f-9a55-1f8f5a3b7c21", i+1, created+int64(i)), fmt.Sprintf("10.1.1.%d", 11+i)})
				}
				v := Defaults(managementKey, members...)
				v.KeyPair, v.Index, v.EjectISO = pair, 1, pair != ""
				checkRendered(t, Render(template(t), v), v)
			})
		}
	}
}

func checkRendered(t *testing.T, text string, v Values) {
	t.Helper()
	c := parse(t, text)
	if strings.Contains(text, "{{") {
		t.Error("a placeholder is left")
	}
	keys := []string{v.PublicKey}
	if v.KeyPair != "" {
		keys = append(keys, v.KeyPair)
	}
	if len(c.Users) != 2 || c.Users[0].Name != "cloud" || c.Users[0].Sudo != "ALL=(ALL) NOPASSWD:ALL" || !slices.Equal(c.Users[0].Keys, keys) || c.Users[1].Name != "etcd" {
		t.Errorf("users %+v, want cloud with sudo and the keys %q, and etcd", c.Users, keys)
	}
	m := v.Members
	want := fmt.Sprintf(`[Service]
Environment=ETCD_NAME=%[1]s
Environment=ETCD_INITIAL_ADVERTISE_PEER_URLS=http://%[2]s:2380
Environment=ETCD_LISTEN_PEER_URLS=http://%[2]s:2380
Environment=ETCD_ADVERTISE_CLIENT_URLS=http://%[2]s:2379
Environment=ETCD_LISTEN_CLIENT_URLS=http://%[2]s:2379,http://127.0.0.1:2379
Environment=ETCD_INITIAL_CLUSTER=%[3]s=http://10.1.1.11:2380,%[1]s=http://10.1.1.12:2380,%[4]s=http://10.1.1.13:2380
`, m[1].Name, m[1].IP, m[0].Name, m[2].Name)
	if diff := cmp.Diff(want, c.file(t, "/etc/systemd/system/etcd.service.d/member.conf")); diff != "" {
		t.Errorf("member.conf (-want +got):\n%s", diff)
	}
	if n := len(c.RunCmd); n == 0 || !slices.Equal(c.RunCmd[n-1], []string{"/opt/bin/setup-etcd-node"}) {
		t.Errorf("runcmd %q: the setup must come last, so that its exit status counts", c.RunCmd)
	}
	if strings.Contains(text, "systemctl enable") {
		t.Error("something else than the agent enables a unit")
	}
}

// TestValues: what CloudStack never has, but its database could, leaves YAML too.
func TestValues(t *testing.T) {
	v := Defaults(managementKey, Member{`a: "b" # 'c' {d} [e] %f`, "10.1.1.11"})
	v.WaitTime, v.Reattempts = 0, -1
	parse(t, Render(template(t), v))
}

// TestUnit holds the template's etcd.service and systemd/etcd.service together.
func TestUnit(t *testing.T) {
	b, err := os.ReadFile(filepath.Join("..", "..", "systemd", "etcd.service"))
	if err != nil {
		t.Fatal(err)
	}
	_, want, found := strings.Cut(string(b), "\n[Unit]\n")
	if !found {
		t.Fatal("systemd/etcd.service has no [Unit] below its head")
	}
	c := parse(t, Render(template(t), Defaults(managementKey, Member{"a", "10.1.1.11"})))
	if diff := cmp.Diff("[Unit]\n"+want, c.file(t, "/etc/systemd/system/etcd.service")); diff != "" {
		t.Errorf("etcd.service (-systemd +template):\n%s", diff)
	}
}

// TestScript: the shell can read the script, and waits as long as CloudStack's settings say.
func TestScript(t *testing.T) {
	for _, tt := range []struct {
		wait, tries int64
		want        string
	}{{15, 100, "1500s"}, {30, 40, "1200s"}, {0, 0, "1500s"}, {0, 4, "60s"}, {-1, 10, "150s"}} {
		v := Defaults(managementKey, Member{"a", "10.1.1.11"})
		v.WaitTime, v.Reattempts = tt.wait, tt.tries
		script := parse(t, Render(template(t), v)).file(t, "/opt/bin/setup-etcd-node")
		if out, err := exec.CommandContext(t.Context(), "sh", "-n", "-c", script).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		head, _, found := strings.Cut(script, "PATH=$PATH")
		if !found {
			t.Fatal("the script's beginning was not found")
		}
		out, err := exec.CommandContext(t.Context(), "sh", "-c", head+"\necho $wait").CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != tt.want {
			t.Errorf("wait time %d, reattempts %d: %q, %v; want %q", tt.wait, tt.tries, got, err, tt.want)
		}
	}
}
