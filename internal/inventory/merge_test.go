package inventory

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMerge(t *testing.T) {
	args := []Host{
		{Name: "b:22", Addr: "b", Port: 22},
		{Name: "A", Addr: "A"},
		{Name: "0:0::1", Addr: "::1"},
	}
	file := []Host{
		{Name: "a", Addr: "a", HostKey: "SHA256:x", Member: "m", KeyFile: "k", Group: "prod"},
		{Name: "a", Addr: "a", HostKey: "SHA256:y", Group: "dev"},
		{Name: "b", Addr: "b"},
		{Name: "a", User: "root", Addr: "a"},
		{Name: "::1", Addr: "0::1"},
		{Name: "c", Addr: "10.0.0.1", Jump: "j1"},
		{Name: "c", Addr: "10.0.0.1", Jump: "j2"},
	}
	got, warnings := Merge(args, nil, file)
	want := []Host{
		{Name: "b:22", Addr: "b", Port: 22},
		{Name: "A", Addr: "A", HostKey: "SHA256:x", Member: "m", KeyFile: "k"},
		{Name: "0:0::1", Addr: "::1"},
		{Name: "b", Addr: "b"},
		{Name: "a", User: "root", Addr: "a"},
		{Name: "10.0.0.1 via j1", Addr: "10.0.0.1", Jump: "j1"},
		{Name: "10.0.0.1 via j2", Addr: "10.0.0.1", Jump: "j2"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("hosts (-want +got):\n%s", d)
	}
	wantWarnings := []string{
		"host named twice, counted once: A and a (no cluster and cluster prod)",
		"host named twice, counted once: A and a (no cluster and cluster dev)",
		`host-key of A differs: "SHA256:x" is used, "SHA256:y" is not`,
		"host named twice, counted once: 0:0::1 and ::1",
	}
	if d := cmp.Diff(wantWarnings, warnings); d != "" {
		t.Errorf("warnings (-want +got):\n%s", d)
	}
}

func TestMergeNamesAreDistinct(t *testing.T) {
	got, _ := Merge([]Host{
		{Name: "etcd1", Addr: "192.0.2.1", Group: "prod"},
		{Name: "etcd1", Addr: "192.0.2.2", Group: "dev"},
		{Name: "prod/etcd1", Addr: "192.0.2.3"},
		{Name: "x", Addr: "x", Port: 1},
		{Name: "x", Addr: "x", Port: 2},
		{Name: "y", User: "u", Addr: "y"},
		{Name: "y", User: "v", Addr: "y"},
	})
	var names []string
	for _, h := range got {
		names = append(names, h.Name)
	}
	want := "192.0.2.1 dev/etcd1 192.0.2.3 x:1 x:2 u@y v@y"
	if got := strings.Join(names, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestWithDefaults(t *testing.T) {
	d := Host{Name: "d", User: "u", Addr: "d", Port: 1, KeyFile: "k", HostKey: "h", Member: "m", Jump: "j", Group: "g"}
	got := Host{Name: "x", Addr: "x"}.WithDefaults(d)
	if want := (Host{Name: "x", Addr: "x", User: "u", Port: 1, KeyFile: "k", Jump: "j"}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	full := Host{Name: "x", User: "a", Addr: "x", Port: 2, KeyFile: "b", Jump: "none"}
	if got := full.WithDefaults(d); got != full {
		t.Errorf("got %+v, want %+v", got, full)
	}
}
