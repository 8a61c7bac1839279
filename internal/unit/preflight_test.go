//go:build linux

package unit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

// etcdUnit is the unit of CloudStack, loaded and not running.
func etcdUnit() Status {
	return Status{Name: "etcd.service", LoadState: "loaded", ActiveState: "inactive", ExecStart: etcdArgv(), ControlGroup: ""}
}

// machine is a Preflight on a machine of its own where all is well.
func machine(t *testing.T) Preflight {
	root := t.TempDir()
	write(t, filepath.Join(root, "proc/net/tcp"), tcpHeading)
	return Preflight{
		root: root,
		addrs: func() ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("10.1.1.11"), netip.MustParseAddr("fd00::11")}, nil
		},
		statfs: func(string) (fsSpace, error) { return fsSpace{freeRoot: 1 << 30, freeUser: 1 << 30}, nil },
		bind:   func(netip.AddrPort) error { return nil },
	}
}

const tcpHeading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPreflight(t *testing.T) {
	inUse := func(ap netip.AddrPort) error {
		if ap.Port() != 2380 {
			return nil
		}
		return fmt.Errorf("listen: %w", unix.EADDRINUSE)
	}
	// process puts a process that listens on 2380 into /proc.
	process := func(t *testing.T, p *Preflight, st string, cgroup string) {
		p.bind = inUse
		write(t, p.at("/proc/net/tcp"), tcpHeading+
			"   0: 0B01010A:094C 00000000:0000 "+st+" 00000000:00000000 00:00000000 00000000     0        0 4711 1 0000000000000000 100 0 0 10 0\n")
		write(t, p.at("/proc/77/comm"), "old-etcd\n")
		write(t, p.at("/proc/77/cgroup"), cgroup)
		if err := os.MkdirAll(p.at("/proc/77/fd"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink("socket:[4711]", p.at("/proc/77/fd/9")); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name string
		on   func(t *testing.T, p *Preflight, st *Status)
		want reason.Code
		says string // in the error
		warn string // in a warning; "" for no warning
	}{
		{"all is well", func(*testing.T, *Preflight, *Status) {}, reason.Ready, "", ""},
		{"not etcd", func(_ *testing.T, _ *Preflight, st *Status) { st.ExecStart = []string{"/bin/sh", "-c", "etcd"} }, reason.Ready, "", "does not run etcd itself"},
		{"no ExecStart", func(_ *testing.T, _ *Preflight, st *Status) { st.ExecStart = nil }, reason.Ready, "", "does not run etcd itself"},
		{"configuration file", func(_ *testing.T, _ *Preflight, st *Status) {
			st.ExecStart = []string{"/opt/bin/etcd", "--config-file=/etc/etcd.yml"}
		}, reason.Ready, "", "--config-file"},

		{"B102: address of another machine", func(_ *testing.T, p *Preflight, _ *Status) {
			p.addrs = func() ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("10.1.1.99"), netip.MustParseAddr("127.0.0.1")}, nil
			}
		}, reason.AddressNotLocal, "http://10.1.1.11:2380, this machine has 10.1.1.99", ""},
		{"addresses cannot be listed", func(_ *testing.T, p *Preflight, _ *Status) {
			p.addrs = func() ([]netip.Addr, error) { return nil, errors.New("netlink") }
		}, reason.Ready, "", "netlink"},
		{"foreign addresses may be bound", func(t *testing.T, p *Preflight, _ *Status) {
			p.addrs = func() ([]netip.Addr, error) { return nil, nil }
			write(t, p.at("/proc/sys/net/ipv4/ip_nonlocal_bind"), "1\n")
		}, reason.Ready, "", "ip_nonlocal_bind"},
		{"a name instead of an address", func(_ *testing.T, _ *Preflight, st *Status) {
			st.Environment = []string{"ETCD_LISTEN_PEER_URLS=http://node:2380"}
			st.ExecStart = []string{"/usr/bin/etcd"}
		}, reason.Ready, "", "not an IP"},

		{"port taken", func(t *testing.T, p *Preflight, _ *Status) { process(t, p, "0A", "0::/system.slice/other.service\n") },
			reason.PortInUse, "10.1.1.11:2380, held by process 77 (old-etcd)", ""},
		{"port of the unit's own process", func(t *testing.T, p *Preflight, _ *Status) { process(t, p, "0A", "0::/system.slice/etcd.service\n") }, reason.Ready, "", ""},
		{"port of the unit's main process", func(t *testing.T, p *Preflight, st *Status) { process(t, p, "0A", ""); st.MainPID = 77 }, reason.Ready, "", ""},
		{"cgroup 1", func(t *testing.T, p *Preflight, st *Status) {
			process(t, p, "0A", "12:memory:/\n1:name=systemd:/system.slice/etcd.service/sub\n")
			st.ControlGroup = "/system.slice/etcd.service"
		}, reason.Ready, "", ""},
		{"an outgoing connection has the port", func(t *testing.T, p *Preflight, _ *Status) { process(t, p, "01", "") }, reason.Ready, "", "nobody listens on it"},
		{"listed but free", func(t *testing.T, p *Preflight, _ *Status) {
			process(t, p, "0A", "")
			p.bind = func(netip.AddrPort) error { return nil }
		}, reason.Ready, "", ""},
		{"nobody to name", func(t *testing.T, p *Preflight, _ *Status) {
			process(t, p, "0A", "")
			os.RemoveAll(p.at("/proc/77"))
		}, reason.PortInUse, "cannot be named", ""},
		{"in use, but not by a listener", func(_ *testing.T, p *Preflight, _ *Status) { p.bind = inUse }, reason.Ready, "", "nobody listens on it"},
		{"no table", func(_ *testing.T, p *Preflight, _ *Status) {
			p.bind = inUse
			os.RemoveAll(p.at("/proc/net"))
		}, reason.Ready, "", "cannot list the ports"},
		{"a table of nonsense", func(t *testing.T, p *Preflight, _ *Status) {
			p.bind = inUse
			write(t, p.at("/proc/net/tcp"), tcpHeading+"0: zz:1 x 0A 1 2 3 4 5 6 7\n")
		}, reason.Ready, "", "not an address"},

		{"B104: no space", func(_ *testing.T, p *Preflight, _ *Status) {
			p.statfs = func(string) (fsSpace, error) { return fsSpace{freeRoot: 100 << 20}, nil }
		}, reason.NoSpace, "needs 128 MiB for its first files, 100 MiB are free", ""},
		{"space for root only", func(_ *testing.T, p *Preflight, st *Status) {
			p.statfs = func(string) (fsSpace, error) { return fsSpace{freeRoot: 1 << 30}, nil }
			st.User = "etcd"
		}, reason.NoSpace, "", ""},
		{"read-only", func(_ *testing.T, p *Preflight, _ *Status) {
			p.statfs = func(string) (fsSpace, error) { return fsSpace{readOnly: true}, nil }
		}, reason.DataDirDenied, "/etcd-1.etcd/member/wal: its file system is read-only", ""},
		{"WAL on a file system of its own", func(_ *testing.T, p *Preflight, st *Status) {
			st.ExecStart = append(st.ExecStart, "--wal-dir=/wal/etcd")
			p.statfs = func(string) (fsSpace, error) { return fsSpace{freeRoot: 100 << 20}, nil }
		}, reason.NoSpace, "/wal/etcd: etcd needs 128 MiB", ""},
		{"space cannot be told", func(_ *testing.T, p *Preflight, _ *Status) {
			p.statfs = func(string) (fsSpace, error) { return fsSpace{}, unix.EIO }
		}, reason.Ready, "", "cannot tell the free space"},
		{"a running unit is past all of this", func(t *testing.T, p *Preflight, st *Status) {
			process(t, p, "0A", "")
			st.ActiveState = "active"
		}, reason.Ready, "", ""},

		{"data directory is a file", func(t *testing.T, p *Preflight, _ *Status) { write(t, p.at("/etcd-1.etcd"), "") }, reason.DataDirDenied, "/etcd-1.etcd is not a directory", ""},
		{"its parent is a file", func(t *testing.T, p *Preflight, st *Status) {
			write(t, p.at("/srv"), "")
			st.WorkingDirectory = "/srv"
		}, reason.DataDirDenied, "not a directory", ""},
		{"WAL of nonsense", func(t *testing.T, p *Preflight, _ *Status) {
			write(t, p.at("/etcd-1.etcd/member/wal/0.wal"), strings.Repeat("\xff", 500))
		}, reason.Ready, "", "cannot tell whose it is"},
		{"WAL without a file", func(t *testing.T, p *Preflight, _ *Status) {
			write(t, p.at("/etcd-1.etcd/member/wal/0.tmp"), "")
		}, reason.Ready, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, st := machine(t), etcdUnit()
			tt.on(t, &p, &st)
			warnings, err := p.Check(t.Context(), st)
			if reason.Of(err) != tt.want || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("got %v, want %s with %q", err, tt.want, tt.says)
			}
			all := strings.Join(warnings, "\n")
			if (all == "") != (tt.warn == "") || !strings.Contains(all, tt.warn) {
				t.Errorf("got warnings %q, want %q", all, tt.warn)
			}
		})
	}
}

func TestPreflightCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := machine(t).Check(ctx, etcdUnit()); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

// TestPreflightData reads write-ahead logs that real etcd 3.4 and 3.6 wrote.
func TestPreflightData(t *testing.T) {
	// The units that wrote them: single.wal and pair.wal (member n1).
	single := "--name n1 --initial-advertise-peer-urls http://127.0.0.1:32380 --initial-cluster-token t1 --initial-cluster n1=http://127.0.0.1:32380 --initial-cluster-state "
	pair := "--name n1 --initial-advertise-peer-urls http://127.0.0.1:31380 --initial-cluster-token t1 --initial-cluster n1=http://127.0.0.1:31380,n2=http://127.0.0.1:31382 --initial-cluster-state "
	tests := []struct {
		name, wal, args string
		want            reason.Code
		warn            string
	}{
		{"a second start", "single-etcd3.6.wal", single + "new", reason.Ready, ""},
		{"a second start, 3.4", "single-etcd3.4.wal", single + "new", reason.Ready, ""},
		{"a second start of one of two", "pair.wal", pair + "new", reason.Ready, ""},
		{"another cluster", "single-etcd3.6.wal", strings.ReplaceAll(single, "t1", "t2") + "new", reason.StaleData, ""},
		{"another address", "single-etcd3.6.wal", strings.ReplaceAll(single, "32380", "32390") + "new", reason.StaleData, ""},
		{"a disk copied from n1", "pair.wal", strings.Replace(pair, "--name n1", "--name n2", 1) + "new", reason.StaleData, ""},
		{"the same, existing", "pair.wal", strings.Replace(pair, "--name n1", "--name n2", 1) + "existing", reason.StaleData, ""},
		{"the cluster has grown", "single-etcd3.6.wal", strings.Replace(single, ":32380 --initial-cluster-state", ":32380,n2=http://127.0.0.1:1 --initial-cluster-state", 1) + "existing", reason.Ready, "other members"},
		{"joined later: nobody can tell", "pair.wal", single + "existing", reason.Ready, ""},
		{"a variable that cannot be expanded", "single-etcd3.6.wal", strings.ReplaceAll(single, "t1", "${TOKEN}") + "new", reason.Ready, "holds a variable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, st := machine(t), etcdUnit()
			b, err := os.ReadFile(filepath.Join("testdata/wal", tt.wal))
			if err != nil {
				t.Fatal(err)
			}
			write(t, p.at("/var/lib/etcd/member/wal/0000000000000000-0000000000000000.wal"), string(b))
			write(t, p.at("/var/lib/etcd/member/wal/0000000000000001-0000000000000009.wal"), "later")
			st.ExecStart = append([]string{"/opt/bin/etcd", "--data-dir", "/var/lib/etcd"}, strings.Fields(tt.args)...)
			warnings, err := p.Check(t.Context(), st)
			if reason.Of(err) != tt.want {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if all := strings.Join(warnings, "\n"); (all == "") != (tt.warn == "") || !strings.Contains(all, tt.warn) {
				t.Errorf("got warnings %q, want %q", all, tt.warn)
			}
		})
	}
}

// The real /proc, a real socket of this process.
func TestPreflightRealPort(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	st := etcdUnit()
	st.ExecStart = []string{"etcd", "--listen-peer-urls=http://" + l.Addr().String(), "--listen-client-urls=http://localhost:0", "--data-dir", t.TempDir()}
	_, err = Preflight{}.Check(t.Context(), st)
	if want := fmt.Sprintf("process %d (", os.Getpid()); reason.Of(err) != reason.PortInUse || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want port-in-use by %s", err, want)
	}
	st.MainPID = os.Getpid()
	if _, err := (Preflight{}).Check(t.Context(), st); err != nil {
		t.Errorf("its own port: %v", err)
	}
}

func TestParseEtcd(t *testing.T) {
	got, ok := parseEtcd(etcdUnit())
	want := etcdConfig{
		name: "etcd-1", dataDir: "/etcd-1.etcd", walDir: "/etcd-1.etcd/member/wal",
		listenPeer: []string{"http://10.1.1.11:2380"}, listenClnt: []string{"http://10.1.1.11:2379", "http://127.0.0.1:2379"},
		advertisePeer:  []string{"http://10.1.1.11:2380"},
		initialCluster: "etcd-1=http://10.1.1.11:2380,etcd-2=http://10.1.1.12:2380,etcd-3=http://10.1.1.13:2380",
		token:          "etcd-cluster-1", state: "new",
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(etcdConfig{})); d != "" || !ok {
		t.Errorf("CloudStack's unit (-want +got):\n%s", d)
	}
	tests := []struct {
		name    string
		args    string
		env     []string
		wd      string
		dataDir string
		member  string
	}{
		{"defaults", "", nil, "", "/default.etcd", "default"},
		{"equals sign, one hyphen", "-name=a -data-dir=/d", nil, "", "/d", "a"},
		{"environment", "", []string{"ETCD_NAME=a", "ETCD_DATA_DIR=/e"}, "", "/e", "a"},
		{"flags before environment", "--name b", []string{"ETCD_NAME=a"}, "/w", "/w/b.etcd", "b"},
		{"missing working directory is allowed", "--name b", nil, "!/w", "/w/b.etcd", "b"},
		{"home", "--name b", nil, "~", "", "b"},
		{"a boolean before it", "--enable-pprof --name b", nil, "", "/b.etcd", "b"},
		{"variables", "--name ${N}-$X --data-dir /$$", []string{"N=n", "X=1", "X=2"}, "", "/$", "n-2"},
		{"an unknown variable", "--name $N", nil, "", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, ok := parseEtcd(Status{ExecStart: append([]string{"/usr/bin/etcd"}, strings.Fields(tt.args)...), Environment: tt.env, WorkingDirectory: tt.wd})
			if !ok || c.dataDir != tt.dataDir || c.name != tt.member {
				t.Errorf("got %q %q, want %q %q", c.dataDir, c.name, tt.dataDir, tt.member)
			}
			if (c.dataDir == "") != (len(c.unsure) > 0) {
				t.Errorf("no word about it: %q", c.unsure)
			}
		})
	}
}

func TestBlocks(t *testing.T) {
	tests := []struct {
		have, want string
		blocks     bool
	}{
		{"10.0.0.1:2380", "10.0.0.1:2380", true},
		{"10.0.0.1:2380", "10.0.0.1:2379", false},
		{"10.0.0.2:2380", "10.0.0.1:2380", false},
		{"0.0.0.0:2380", "10.0.0.1:2380", true},
		{"10.0.0.1:2380", "0.0.0.0:2380", true},
		{"[::]:2380", "10.0.0.1:2380", true},
		{"[::ffff:10.0.0.1]:2380", "10.0.0.1:2380", true},
		{"[fd00::1]:2380", "10.0.0.1:2380", false},
		{"0.0.0.0:2380", "[fd00::1]:2380", false},
	}
	for _, tt := range tests {
		if got := (listener{addr: netip.MustParseAddrPort(tt.have)}).blocks(netip.MustParseAddrPort(tt.want)); got != tt.blocks {
			t.Errorf("%s blocks %s: got %v", tt.have, tt.want, got)
		}
	}
}

// What etcd 3.6 logged as its IDs when it wrote the files.
func TestWALOwner(t *testing.T) {
	for file, want := range map[string]owner{
		"single-etcd3.4.wal": {0xf7fb6ebc6b5e146c, 0x2c7580268f5e827f},
		"single-etcd3.6.wal": {0xf7fb6ebc6b5e146c, 0x2c7580268f5e827f},
	} {
		b, err := os.ReadFile(filepath.Join("testdata/wal", file))
		if err != nil {
			t.Fatal(err)
		}
		got, err := walOwner(strings.NewReader(string(b)))
		if err != nil || got != want {
			t.Errorf("%s: got %x, %v; want %x", file, got, err, want)
		}
		whole := 0
		for n := range b { // cut anywhere, or with any byte wrong: never another owner
			if got, err := walOwner(strings.NewReader(string(b[:n]))); err == nil && got != want {
				t.Errorf("%s cut at %d: got %x", file, n, got)
			} else if err == nil && whole == 0 {
				whole = n
			}
		}
		for n := range whole {
			c := append([]byte(nil), b...)
			c[n] ^= 0x10
			if got, err := walOwner(strings.NewReader(string(c))); err == nil && got != want {
				t.Errorf("%s with byte %d changed: got %x", file, n, got)
			}
		}
	}
	if got, want := memberID([]string{"http://127.0.0.1:31382"}, "t1"), uint64(0xf18512664701b41d); got != want {
		t.Errorf("member ID: got %x, want %x", got, want)
	}
}

func FuzzWALOwner(f *testing.F) {
	files, _ := filepath.Glob("testdata/wal/*.wal")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\xff0"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, err := walOwner(strings.NewReader(string(b))); err == nil && (o.member == 0 || o.cluster == 0) {
			t.Errorf("got %x without an error", o)
		}
	})
}

func FuzzParseTCP(f *testing.F) {
	b, err := os.ReadFile("/proc/net/tcp")
	if err == nil {
		f.Add(string(b))
	}
	f.Add(tcpHeading + "   0: 0B01010A:094C 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1\n")
	f.Add(tcpHeading + "   0: 00000000000000000000000001000000:0016 0:0 0A 0 0 0 0 0 1 1\n")
	f.Fuzz(func(t *testing.T, s string) {
		ls, err := parseTCP(strings.NewReader(s))
		for _, l := range ls {
			if err == nil && !l.addr.IsValid() {
				t.Errorf("got an address that is none: %v", l)
			}
		}
	})
}

func FuzzParseEtcd(f *testing.F) {
	f.Add(strings.Join(etcdArgv(), "\n"), "ETCD_NAME=a\nX=1")
	f.Add("etcd\n--name=${X}$Y$$\n--data-dir\n-\n--\n--=\n$", "=\n")
	f.Fuzz(func(t *testing.T, argv, env string) {
		c, _ := parseEtcd(Status{ExecStart: strings.Split(argv, "\n"), Environment: strings.Split(env, "\n")})
		for _, dir := range []string{c.dataDir, c.walDir} {
			if dir != "" && !filepath.IsAbs(dir) {
				t.Errorf("got a relative directory %q", dir)
			}
		}
		for _, u := range append(c.listenPeer, c.listenClnt...) {
			if ap, ok := endpoint(u); ok && (!ap.IsValid() || ap.Port() == 0) {
				t.Errorf("%q: got %v", u, ap)
			}
		}
		foretell(c)
	})
}
