package fscall

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const mountTable = `26 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
21 26 0:20 / /proc rw,relatime - proc proc rw
40 26 0:45 / /mnt/my\040store rw shared:1 - autofs systemd-1 rw,fd=40
41 40 0:51 / /mnt/my\040store rw,relatime shared:2 - nfs4 server:/export rw,vers=4.2,hard
42 26 0:50 / /mnt/my rw - cifs //server/share rw,serverino
43 26 259:1048577 /a /srv rw - xfs /dev/nvme0n1p1 rw
`

func TestParseMounts(t *testing.T) {
	want := []Mount{
		{26, "/", "ext4", "/dev/vda", "rw,discard", 254 << 8},
		{21, "/proc", "proc", "proc", "rw", 20},
		{40, "/mnt/my store", "autofs", "systemd-1", "rw,fd=40", 45},
		{41, "/mnt/my store", "nfs4", "server:/export", "rw,vers=4.2,hard", 51},
		{42, "/mnt/my", "cifs", "//server/share", "rw,serverino", 50},
		{43, "/srv", "xfs", "/dev/nvme0n1p1", "rw", 259<<8 | 1 | 0x100000<<12},
	}
	got := parseMounts(strings.NewReader(mountTable))
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if got := parseMounts(strings.NewReader("26 1 254:0 / /\n")); got != nil {
		t.Errorf("got %v of a table that cannot be read", got)
	}
	c := New(nil)
	c.table.read = func() []Mount { return want }
	if m, ok := c.Device(51); !ok || m.Source != "server:/export" {
		t.Errorf("device 51: got %+v", m)
	}
	if m, ok := c.Device(52); ok {
		t.Errorf("device 52: got %+v", m)
	}
}

func TestMountOf(t *testing.T) {
	dir := t.TempDir()
	for link, to := range map[string]string{
		"far": "/mnt/my store/template", "near": "../" + filepath.Base(dir) + "/far", "self": "self",
	} {
		if err := os.Symlink(to, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	c := New(nil)
	c.table.read = func() []Mount { return parseMounts(strings.NewReader(mountTable)) }
	for name, want := range map[string]mountKey{
		"/":                     {26, "/"},
		"/usr/x":                {26, "/"},
		"/nowhere/at/all":       {26, "/"},
		"/mnt/my store":         {41, "/mnt/my store"},
		"/mnt/my store/x/y":     {41, "/mnt/my store"},
		"/mnt/my stores/x":      {26, "/"},
		"/mnt/my/x":             {42, "/mnt/my"},
		"/mnt/my/../my store/x": {41, "/mnt/my store"},
		"/srv//x":               {43, "/srv"},
		dir + "/far/x":          {41, "/mnt/my store"},
		dir + "/near/x":         {41, "/mnt/my store"},
		dir + "/plain":          {26, "/"},
	} {
		if got, ok := c.mountOf(name); got != want || !ok {
			t.Errorf("%s: got %+v, want %+v", name, got, want)
		}
	}
	if got, ok := c.mountOf(dir + "/self/x"); ok {
		t.Errorf("a link to itself leads to %+v", got)
	}
	t.Chdir(dir)
	if got, ok := c.mountOf("far/x"); !ok || got.id != 41 {
		t.Errorf("far/x: got %+v", got)
	}
	c.table.read = func() []Mount { return nil }
	c.table.at = c.table.at.Add(-tableAge)
	if got, ok := c.mountOf("/srv/x"); ok {
		t.Errorf("got %+v though no mount is known", got)
	}
}

// The system's own table agrees with stat.
func TestSystem(t *testing.T) {
	c := New(nil)
	var st syscall.Stat_t
	if err := syscall.Stat("/proc/self/stat", &st); err != nil {
		t.Fatal(err)
	}
	if m, ok := c.Device(st.Dev); !ok || m.Type != "proc" {
		t.Errorf("got %+v for proc's device", m)
	}
	if m, ok := c.mountOf("/proc/self/stat"); !ok || m.point != "/proc" {
		t.Errorf("proc is mounted at %q", m.point)
	}
}

func BenchmarkDo(b *testing.B) {
	for _, busy := range []bool{false, true} {
		name := "quiet"
		if busy {
			name = "beside a hung mount"
		}
		b.Run(name, func(b *testing.B) {
			c := New(nil)
			if busy {
				c.lost = 1
			}
			for b.Loop() {
				if _, err := Do(b.Context(), c, "/usr/lib/x", func() (int, error) { return 0, nil }, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
