package isotest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"sort"
	"strings"
	"testing"

	"cks-etcd/internal/isofs/isotest"

	"github.com/google/go-cmp/cmp"
)

// What the builder makes without damage must be an ordinary image to tools
// that know nothing of it.
func TestBuildReadByOtherTools(t *testing.T) {
	content := []byte("the archive\n")
	wanted := isotest.File("etcd-linux-amd64.tar.gz", content)
	long := isotest.File("", []byte("x"))
	long.ID = "LONG;1"
	long.SUSP = []isotest.Entry{isotest.CE(&isotest.Area{Entries: []isotest.Entry{
		isotest.NM(1, strings.Repeat("a", 100)), isotest.NM(0, strings.Repeat("b", 100)),
	}})}
	big := isotest.File("big", nil)
	big.Pieces = [][]byte{make([]byte, isotest.SectorSize), []byte("tail")}
	root := isotest.Dir("", isotest.Dir("etcd", wanted), isotest.Dir("k8s", isotest.File("kubeadm", nil)), long, big)
	names := []string{".", "big", "etcd", "etcd/etcd-linux-amd64.tar.gz", "k8s", "k8s/kubeadm", strings.Repeat("a", 100) + strings.Repeat("b", 100)}
	sort.Strings(names)

	t.Run("bsdtar and isoinfo", func(t *testing.T) {
		file := write(t, isotest.Spec{RockRidge: true, Root: root})
		if diff := cmp.Diff(names, lines(run(t, "bsdtar", "-tf", file))); diff != "" {
			t.Errorf("bsdtar -tf (-want +got):\n%s", diff)
		}
		if got := run(t, "bsdtar", "-xOf", file, "etcd/etcd-linux-amd64.tar.gz"); got != string(content) {
			t.Errorf("bsdtar -x = %q, want %q", got, content)
		}
		if got := run(t, "isoinfo", "-R", "-i", file, "-x", "/etcd/etcd-linux-amd64.tar.gz"); got != string(content) {
			t.Errorf("isoinfo -x = %q, want %q", got, content)
		}
	})

	// bsdtar also skips LEN_SKP bytes in the root's first record, which SUSP
	// 5.3 excepts, and isoinfo never skips any: neither finds a name here.
	t.Run("xorriso with skip bytes", func(t *testing.T) {
		file := write(t, isotest.Spec{RockRidge: true, Root: root, Skip: 5})
		var got []string
		for _, l := range lines(run(t, "xorriso", "-indev", file, "-find")) {
			got = append(got, strings.TrimPrefix(strings.Trim(l, "'"), "./"))
		}
		if diff := cmp.Diff(names, got); diff != "" {
			t.Errorf("xorriso -find (-want +got):\n%s", diff)
		}
	})
}

func write(t *testing.T, s isotest.Spec) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "x.iso")
	if err := os.WriteFile(file, isotest.Build(t, s).Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestJolietReadByOtherTools(t *testing.T) {
	root := isotest.Dir("", isotest.Dir("etcd", isotest.File("etcd-linux-amd64.tar.gz", []byte("joliet"))))
	file := write(t, isotest.Spec{Root: root, Joliet: isotest.ToJoliet(root)})
	if got := run(t, "bsdtar", "-xOf", file, "etcd/etcd-linux-amd64.tar.gz"); got != "joliet" {
		t.Errorf("bsdtar -x = %q, want %q", got, "joliet")
	}
	if got := run(t, "isoinfo", "-J", "-i", file, "-x", "/etcd/etcd-linux-amd64.tar.gz"); got != "joliet" {
		t.Errorf("isoinfo -J -x = %q, want %q", got, "joliet")
	}
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	var stderr strings.Builder
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return string(out)
}

func lines(s string) []string {
	l := strings.Split(strings.TrimSpace(s), "\n")
	sort.Strings(l)
	return l
}
