package sshnode

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
)

func TestRoute(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "config"), `
# comment
Include more/*.conf
Host etcd1 etcd2
	HostName %h.example.
	Port=50000
	User ubuntu
	IdentityFile ~/keys/%r
	IdentityFile "~/a key"
	UserKnownHostsFile ~/kh /dev/null
	HostKeyAlias Node-1
	ConnectTimeout 3
Match exec "touch /tmp/never"
	User evil
Match host etcd3,etcd4
	User matched
	ProxyJump ops@jump1:2222,jump2
Host jump1
	ProxyJump jump0
	HostName 192.0.2.7
Host loop1
	ProxyJump loop2
Host loop2
	ProxyJump loop1
Host command
	ProxyCommand nc %h %p
Match all
	GlobalKnownHostsFile none
`)
	write(t, filepath.Join(dir, ".ssh", "more", "a.conf"), "Host etcd2\n  User included\n")
	var log logBook
	d := dialer(t, Options{Home: dir, ConfigFile: filepath.Join(dir, "config"), Log: logTo(&log)})
	d.local = "me"
	if got := log.String(); !strings.Contains(got, "Match block") || !strings.Contains(got, "line=13") || strings.Count(got, "\n") != 1 {
		t.Errorf("got log %q, want one warning about line 13", got)
	}

	show := func(h inventory.Host) string {
		hops, err := d.route(h)
		if err != nil {
			return string(reason.Of(err)) + " " + err.Error()
		}
		var parts []string
		for _, h := range hops {
			parts = append(parts, fmt.Sprintf("%s@%s", h.user, h.addr()))
		}
		return strings.Join(parts, " > ")
	}
	for _, tt := range []struct {
		host inventory.Host
		want string
	}{
		{inventory.Host{Name: "etcd1"}, "ubuntu@etcd1.example.:50000"},
		{inventory.Host{Name: "etcd1", User: "root", Port: 7}, "root@etcd1.example.:7"},
		{inventory.Host{Name: "etcd2:9", Addr: "etcd2", Port: 9}, "included@etcd2.example.:9"},
		{inventory.Host{Name: "203.0.113.10:50001"}, "cloud@203.0.113.10:50001"},
		{inventory.Host{Name: "[2001:db8::1]:50001"}, "cloud@[2001:db8::1]:50001"},
		{inventory.Host{Name: "2001:db8::1"}, "cloud@[2001:db8::1]:22"},
		{inventory.Host{Name: "etcd4"}, "me@jump0:22 > ops@192.0.2.7:2222 > me@jump2:22 > matched@etcd4:22"},
		{inventory.Host{Name: "etcd4", Jump: "none"}, "matched@etcd4:22"},
		{inventory.Host{Name: "x", Jump: "[2001:db8::9]:23"}, "me@[2001:db8::9]:23 > cloud@x:22"},
	} {
		if got := show(tt.host); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.host.Name, got, tt.want)
		}
	}
	for host, part := range map[string]string{
		"loop1": "loop", "command": "ProxyCommand", "-oProxyCommand=x": "host name",
	} {
		if got := show(inventory.Host{Name: host}); !strings.HasPrefix(got, "usage ") || !strings.Contains(got, part) {
			t.Errorf("%s: got %s", host, got)
		}
	}
	for _, jump := range []string{"a:b", "a:99999", "@", "-x", "a b"} {
		if got := show(inventory.Host{Name: "x", Jump: jump}); !strings.HasPrefix(got, "usage ") {
			t.Errorf("jump %q: got %s", jump, got)
		}
	}

	hops, err := d.route(inventory.Host{Name: "etcd1"})
	if err != nil {
		t.Fatal(err)
	}
	h := hops[0]
	want := []keyFile{{path: filepath.Join(dir, "keys", "ubuntu")}, {path: filepath.Join(dir, "a key")}}
	if diff := cmp.Diff(want, h.keys, cmp.AllowUnexported(keyFile{})); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{filepath.Join(dir, "kh"), "/dev/null"}, h.known); diff != "" {
		t.Errorf("known_hosts files (-want +got):\n%s", diff)
	}
	if h.keyName != "node-1:22" || h.timeout != 3*time.Second {
		t.Errorf("got key name %s and timeout %v", h.keyName, h.timeout)
	}
}

func TestConfigErrors(t *testing.T) {
	dir := t.TempDir()
	loop := filepath.Join(dir, "loop")
	write(t, loop, "Include "+loop+"\n")
	for _, file := range []string{filepath.Join(dir, "none"), loop} {
		_, err := New(Options{Home: dir, ConfigFile: file})
		wants(t, err, reason.Usage, file)
	}
	for _, o := range []Options{
		{Unit: "etcd.service; reboot"}, {Unit: "-x.service"}, {Unit: "etcd"}, {Unit: "a'b.service"},
		{Marker: "relative"}, {Marker: "/a b"}, {State: "/$(x)"},
	} {
		o.Home, o.ConfigFile = dir, NoConfig
		_, err := New(o)
		wants(t, err, reason.Usage)
	}
}

func FuzzConfig(f *testing.F) {
	for _, s := range []string{"", "Host a\n Port 22\n", "Host\nMatch\nMatch host\nMatch all\n= x\n", "Host !\n", "Host \"a b\" c # d\n", "a=\"b", "\x00 \xff=\r\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if strings.Contains(strings.ToLower(s), "include") {
			t.Skip("reads other files")
		}
		file := filepath.Join(t.TempDir(), "config")
		write(t, file, s)
		d, err := New(Options{Home: "/nonexistent", ConfigFile: file})
		if err != nil {
			return
		}
		if hops, err := d.route(inventory.Host{Name: "a"}); err == nil && (hops[len(hops)-1].port < 1 || hops[len(hops)-1].host == "") {
			t.Errorf("got %+v", hops)
		}
	})
}
