package watch

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cks-etcd/internal/reason"
)

// TestRunReal is the whole daemon on a directory of ISOs: its answers outlive it.
func TestRunReal(t *testing.T) {
	if _, err := exec.LookPath("genisoimage"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("genisoimage is missing")
		}
		t.Skip("genisoimage is missing")
	}
	store := t.TempDir()
	tree := mkdir(t, t.TempDir(), "tree")
	mkdir(t, tree, "k8s")
	if err := os.WriteFile(filepath.Join(tree, "k8s/kubeadm"), []byte("kubeadm"), 0o755); err != nil {
		t.Fatal(err)
	}
	image := func(name string) {
		t.Helper()
		if out, err := exec.Command("genisoimage", "-quiet", "-J", "-R", "-l", "-o", filepath.Join(store, name), tree).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	image("without.iso")
	mkdir(t, tree, "etcd")
	if err := os.WriteFile(filepath.Join(tree, "etcd/etcd-linux-amd64.tar.gz"), []byte("\x1f\x8b\x08\x00 not much of an archive"), 0o644); err != nil {
		t.Fatal(err)
	}
	image("with.iso")
	if err := os.WriteFile(filepath.Join(store, "page.iso"), []byte("<html>404</html>"), 0o644); err != nil {
		t.Fatal(err)
	}
	state := t.TempDir()
	text := "stores: [{path: " + store + ", zone: zone1, name: nfs1}]\nanswers: " + state + "/answers.db\nlisten: ['unix:DIR/w.sock']\n"

	for _, run := range []string{"first", "second"} {
		p := start(t, nil, text)
		p.told("STATUS=3 ISOs: 1 included, 1 missing, 0 broken, 1 unknown")
		c := over(filepath.Join(p.dir, "w.sock"))
		if code, body := fetch(t, c, "http://x"+pathReady); code != 200 {
			t.Errorf("%s run: readyz: %d %s", run, code, body)
		}
		_, body := fetch(t, c, "http://x"+pathISOs+"?zone=zone1")
		var list isoList
		if err := json.Unmarshal([]byte(body), &list); err != nil {
			t.Fatal(err)
		}
		got := make(map[string]reason.Code)
		for _, i := range list.ISOs {
			got[i.Name] = i.Code
		}
		if got["with.iso"] != reason.Included || got["without.iso"] != reason.ArchiveMissing || got["page.iso"] != reason.NotISO {
			t.Errorf("%s run: %s", run, body)
		}
		if _, body := fetch(t, c, "http://x"+pathAdmit+"?etcd_nodes=3&version=1.33.1&iso="+store+"/without.iso"); !strings.Contains(body, `"allow":false`) || !strings.Contains(body, "1.33.1") {
			t.Errorf("%s run: %s", run, body)
		}
		_, metrics := fetch(t, c, "http://x"+pathMetrics)
		want := map[string]string{"first": `etcd_fleet_looks_total{by="round",result="included"} 1`, "second": `etcd_fleet_looks_total{by="round",result="included"} 0`}[run]
		if !strings.Contains(metrics, want) {
			t.Errorf("%s run: no %s in\n%s", run, want, metrics)
		}
		p.stop()
		<-p.done
		if p.err != nil {
			t.Errorf("%s run: %v", run, p.err)
		}
	}
}

// TestRunRealTwice: two daemons on one socket.
func TestRunRealTwice(t *testing.T) {
	state := t.TempDir()
	text := "answers: " + state + "/answers.db\nlisten: ['unix:" + state + "/w.sock']\n"
	first := start(t, nil, text)
	first.told("READY=1")
	second := start(t, nil, text)
	<-second.done
	if reason.Of(second.err) != reason.ListenFailed {
		t.Errorf("got %v, want listen-failed", second.err)
	}
	c, err := net.Dial("unix", state+"/w.sock")
	if err != nil {
		t.Fatalf("the first daemon cannot be reached: %v", err)
	}
	c.Close()
}
