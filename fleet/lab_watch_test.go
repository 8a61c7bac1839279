//go:build lab

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
)

// watchConfig is a daemon's configuration: two zones, one store each, and a
// second look soon.
const watchConfig = `stores:
  - path: /mnt/zone1
    zone: zone1
  - path: /mnt/zone2
    zone: zone2
interval: 10s
listen: ["127.0.0.1:9619", "unix:/run/etcd-fleet/watch.sock"]
`

// TestLabWatch runs the daemon under systemd with its unit: notify, reload,
// watchdog, stop, metrics scraped, admission asked by curl.
func TestLabWatch(t *testing.T) {
	f := newFleet(t)
	h := lab.StartT(t, f.Lab, lab.HostOptions{Name: "manager"})
	ctx := t.Context()
	must := func(args ...string) string {
		t.Helper()
		out, err := h.Must(ctx, args...)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	sh := func(script string) string { t.Helper(); return must("sh", "-ec", script) }
	eventually := func(what string, within time.Duration, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(within); !ok(); time.Sleep(200 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within %v: %s\n%s", within, what, sh("journalctl -u etcd-fleet-watch --no-pager | tail -n 30; systemctl status etcd-fleet-watch || true"))
			}
		}
	}
	show := func(property string) string {
		return strings.TrimSpace(must("systemctl", "show", "--value", "-p", property, "etcd-fleet-watch"))
	}

	// Two stores: a template with etcd in both zones, one without in the second.
	archive := filepath.Join(f.dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(ctx, archive, lab.ArchiveOptions{}); err != nil {
		t.Fatal(err)
	}
	good, plain := filepath.Join(f.dir, "good.iso"), filepath.Join(f.dir, "plain.iso")
	for iso, etcd := range map[string]string{good: archive, plain: ""} {
		if err := lab.KubernetesISO(ctx, iso, lab.KubernetesOptions{Etcd: etcd}); err != nil {
			t.Fatal(err)
		}
	}
	put := func(zone, template, iso string) {
		t.Helper()
		name := template + "-1-" + zone
		dir := "/mnt/" + zone + "/template/tmpl/1/" + template + "/"
		sh("mkdir -p " + dir)
		if err := h.CopyIn(iso, dir+name+".iso"); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(iso)
		if err != nil {
			t.Fatal(err)
		}
		text := "uniquename=" + template + "-1\niso.filename=" + name + ".iso\niso=true\niso.size=" + strconv.FormatInt(fi.Size(), 10) + "\n"
		if err := h.WriteFile(dir+"template.properties", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sh("mkdir -p /mnt/zone1 /mnt/zone2")
	put("zone1", "203", good)
	put("zone2", "203", good)
	put("zone2", "204", plain)

	// As the package installs it.
	if err := h.CopyIn(f.program, "/usr/bin/etcd-fleet"); err != nil {
		t.Fatal(err)
	}
	if err := h.CopyIn("../systemd/etcd-fleet-watch.service", "/etc/systemd/system/etcd-fleet-watch.service"); err != nil {
		t.Fatal(err)
	}
	sh("useradd --system --home-dir /var/lib/etcd-fleet --shell /usr/sbin/nologin etcd-fleet; mkdir -p /etc/etcd-fleet")
	if err := h.WriteFile("/etc/etcd-fleet/watch.yaml", []byte(watchConfig), 0o644); err != nil {
		t.Fatal(err)
	}
	sh("systemctl daemon-reload; systemctl start etcd-fleet-watch") // returns at READY=1
	if got := show("ActiveState"); got != "active" {
		t.Fatalf("the unit is %s", got)
	}
	if got := show("NRestarts"); got != "0" {
		t.Errorf("it restarted %s times", got)
	}

	curl := func(args ...string) string {
		t.Helper()
		return must(append([]string{"curl", "-sS", "-m", "20"}, args...)...)
	}
	const base = "http://127.0.0.1:9619"
	if got := curl("-o", "/dev/null", "-w", "%{http_code}", base+"/healthz"); got != "200" {
		t.Errorf("/healthz: %s", got)
	}
	eventually("the first round", 60*time.Second, func() bool {
		return curl("-o", "/dev/null", "-w", "%{http_code}", base+"/readyz") == "200"
	})

	type iso struct {
		Template     string `json:"template"`
		SupportsEtcd *bool  `json:"supportsetcd"`
		Copies       []struct{ Zone string }
	}
	list := func(query string) map[string]iso {
		t.Helper()
		var got struct{ ISOs []iso }
		body := curl(base + "/api/v1/isos" + query)
		if err := json.Unmarshal([]byte(body), &got); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		out := map[string]iso{}
		for _, i := range got.ISOs {
			out[i.Template] = i
		}
		return out
	}
	isos := list("")
	if i := isos["203"]; i.SupportsEtcd == nil || !*i.SupportsEtcd || len(i.Copies) != 2 {
		t.Errorf("template 203: %+v; want supportsetcd in two copies", i)
	}
	if i := isos["204"]; i.SupportsEtcd == nil || *i.SupportsEtcd {
		t.Errorf("template 204: %+v; want supportsetcd false", i)
	}
	if got := list("?zone=zone1"); len(got) != 1 {
		t.Errorf("zone1 has %d ISOs, want 1", len(got))
	}

	ask := func(body string) map[string]any {
		t.Helper()
		out := curl("--unix-socket", "/run/etcd-fleet/watch.sock", "-d", body, "http://localhost/api/v1/admit")
		var v map[string]any
		if err := json.Unmarshal([]byte(out), &v); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return v
	}
	for _, c := range []struct {
		body           string
		allow, checked bool
		message        string
	}{
		{`{"etcd_nodes":0,"iso":"204"}`, true, false, "no etcd nodes"},
		{`{"etcd_nodes":3,"iso":"203","version":"v1.33.1","zone":"zone1"}`, true, true, "v1.33.1"},
		{`{"etcd_nodes":3,"iso":"204","version":"v1.32.4","zone":"zone2"}`, false, true, "v1.32.4 cannot have etcd nodes: etcd/etcd-linux-amd64.tar.gz"},
		{`{"etcd_nodes":3,"iso":"999","version":"v1.30","zone":"zone1"}`, true, false, "unchecked"},
	} {
		got := ask(c.body)
		if got["allow"] != c.allow || got["checked"] != c.checked || !strings.Contains(got["message"].(string), c.message) {
			t.Errorf("%s: %v; want allow %v, checked %v, %q", c.body, got, c.allow, c.checked, c.message)
		}
	}

	metrics := curl(base + "/metrics")
	for _, want := range []string{`etcd_fleet_isos.*included.* 1`, `etcd_fleet_isos.*missing.* 1`} {
		if !regexp.MustCompile(want).MatchString(metrics) {
			t.Errorf("the metrics have no %s:\n%s", want, metrics)
		}
	}

	// A new ISO is seen at a later round, or sooner.
	put("zone1", "205", plain)
	eventually("template 205 in the list", 60*time.Second, func() bool { i, ok := list("")["205"]; return ok && i.SupportsEtcd != nil })

	// Reload: a bad configuration leaves the old one at work, a good one counts.
	if err := h.WriteFile("/etc/etcd-fleet/watch.yaml", []byte("nonsense: [\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	h.Exec(ctx, "systemctl", "reload", "etcd-fleet-watch")
	if got := curl("-o", "/dev/null", "-w", "%{http_code}", base+"/healthz"); got != "200" || show("ActiveState") != "active" {
		t.Errorf("after a bad configuration: /healthz %s, unit %s", got, show("ActiveState"))
	}
	pid := show("MainPID")
	if err := h.WriteFile("/etc/etcd-fleet/watch.yaml", []byte(strings.Replace(watchConfig, "  - path: /mnt/zone1\n    zone: zone1\n", "", 1)), 0o644); err != nil {
		t.Fatal(err)
	}
	sh("systemctl reload etcd-fleet-watch")
	eventually("zone1 gone after a reload", 60*time.Second, func() bool { return len(list("?zone=zone1")) == 0 })
	if got := show("MainPID"); got != pid {
		t.Errorf("the reload started another process: %s, was %s", got, pid)
	}

	// Answers are on the disk: nothing is looked at again after a restart.
	sh("systemctl restart etcd-fleet-watch")
	eventually("the first round after a restart", 60*time.Second, func() bool {
		return curl("-o", "/dev/null", "-w", "%{http_code}", base+"/readyz") == "200"
	})
	if got := curl(base + "/metrics"); !regexp.MustCompile(`(?m)^etcd_fleet_looks_total\S* 0$`).MatchString(got) {
		t.Errorf("after a restart it looked again:\n%s", strings.Join(regexp.MustCompile(`(?m)^etcd_fleet_looks.*$`).FindAllString(got, -1), "\n"))
	}

	// The watchdog ends a process that does nothing any more, and systemd starts another.
	sh("mkdir -p /etc/systemd/system/etcd-fleet-watch.service.d; printf '[Service]\\nWatchdogSec=12\\nRestartSec=1\\nTimeoutAbortSec=2\\n' >/etc/systemd/system/etcd-fleet-watch.service.d/test.conf; systemctl daemon-reload; systemctl restart etcd-fleet-watch")
	pid = show("MainPID")
	must("kill", "-STOP", pid)
	eventually("another process after the watchdog", 90*time.Second, func() bool {
		p := show("MainPID")
		return p != pid && p != "0" && show("ActiveState") == "active"
	})

	// A clean stop is quick, and leaves no socket.
	began := time.Now()
	sh("systemctl stop etcd-fleet-watch")
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the stop took %v", took)
	}
	if got := show("Result"); got != "success" {
		t.Errorf("the stop's result is %s", got)
	}
	if r, err := h.Exec(ctx, "test", "-e", "/run/etcd-fleet/watch.sock"); err != nil || r.Exit == 0 {
		t.Errorf("the socket is still there: %+v, %v", r, err)
	}
}
