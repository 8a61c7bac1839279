package inventory

import (
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
)

func TestParseArg(t *testing.T) {
	for _, c := range []struct {
		arg  string
		want []Host
	}{
		{"etcd1", []Host{{Name: "etcd1", Addr: "etcd1"}}},
		{"my_alias+2", []Host{{Name: "my_alias+2", Addr: "my_alias+2"}}},
		{"etcd1:22", []Host{{Name: "etcd1:22", Addr: "etcd1", Port: 22}}},
		{"cloud@203.0.113.10:50000", []Host{{Name: "cloud@203.0.113.10:50000", User: "cloud", Addr: "203.0.113.10", Port: 50000}}},
		{`DOM\me@ad.example@etcd1`, []Host{{Name: `DOM\me@ad.example@etcd1`, User: `DOM\me@ad.example`, Addr: "etcd1"}}},
		{"2001:db8::1", []Host{{Name: "2001:db8::1", Addr: "2001:db8::1"}}},
		{"2001:db8::1:22", []Host{{Name: "2001:db8::1:22", Addr: "2001:db8::1:22"}}},
		{"::1", []Host{{Name: "::1", Addr: "::1"}}},
		{"[::1]", []Host{{Name: "[::1]", Addr: "::1"}}},
		{"root@[fe80::1%eth0.5]:2222", []Host{{Name: "root@[fe80::1%eth0.5]:2222", User: "root", Addr: "fe80::1%eth0.5", Port: 2222}}},
		{"[etcd1.example]:22", []Host{{Name: "[etcd1.example]:22", Addr: "etcd1.example", Port: 22}}},
		{"ssh://cloud@etcd1.example:50000/", []Host{{Name: "cloud@etcd1.example:50000", User: "cloud", Addr: "etcd1.example", Port: 50000}}},
		{"SSH://etcd1", []Host{{Name: "etcd1", Addr: "etcd1"}}},
		{"ssh://a%40b@[fe80::1%25eth0]:22", []Host{{Name: "a@b@[fe80::1%eth0]:22", User: "a@b", Addr: "fe80::1%eth0", Port: 22}}},
		{"etcd[1-3,5].example:7", []Host{
			{Name: "etcd1.example:7", Addr: "etcd1.example", Port: 7},
			{Name: "etcd2.example:7", Addr: "etcd2.example", Port: 7},
			{Name: "etcd3.example:7", Addr: "etcd3.example", Port: 7},
			{Name: "etcd5.example:7", Addr: "etcd5.example", Port: 7},
		}},
		{"203.0.113.10:[50000-50001]", []Host{
			{Name: "203.0.113.10:50000", Addr: "203.0.113.10", Port: 50000},
			{Name: "203.0.113.10:50001", Addr: "203.0.113.10", Port: 50001},
		}},
		{"u@[2001:db8::[1-2]]:22", []Host{
			{Name: "u@[2001:db8::1]:22", User: "u", Addr: "2001:db8::1", Port: 22},
			{Name: "u@[2001:db8::2]:22", User: "u", Addr: "2001:db8::2", Port: 22},
		}},
		{"bücher.example", []Host{{Name: "bücher.example", Addr: "bücher.example"}}},
	} {
		got, err := ParseArg(c.arg)
		if err != nil {
			t.Errorf("%s: %v", c.arg, err)
			continue
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.arg, d)
		}
	}
}

func TestParseArgRefuses(t *testing.T) {
	for _, c := range []struct{ arg, want string }{
		{"", "empty"},
		{",", "empty"},
		{"a,,b", "empty"},
		{"a,", "empty"},
		{"@a", "login name"},
		{"u@", "host name is empty"},
		{":22", "host name is empty"},
		{"a:", `port ""`},
		{"a:0", `port "0"`},
		{"a:022", `port "022"`},
		{"a:65536", `port "65536"`},
		{"a:+22", `port "+22"`},
		{"a:ssh", `port "ssh"`},
		{"-oProxyCommand=x", "hyphen"},
		{"-u@a", "login name"},
		{"a b", "white space"},
		{"a\x1bb", "cannot be printed"},
		{"a\xff", "cannot be printed"},
		{"a\u202eb", "cannot be printed"},
		{"203.0.113.256", "not an IPv4 address"},
		{"203.0.113", "not an IPv4 address"},
		{"a:b:c", "[ADDRESS]:PORT"},
		{"[2001:db8::g]:22", "not an IPv6 address"},
		{"[::1]22", "brackets hold"},
		{"[::1", "brackets hold"},
		{"etcd[1-3", "brackets hold"},
		{"etcd1-3]", "brackets hold"},
		{"etcd[a-c]", "brackets hold"},
		{"etcd[]", "1 to 15 digits"},
		{"etcd[1-]", "1 to 15 digits"},
		{"etcd[1--3]", "not a number"},
		{"etcd[3-1]", "backwards"},
		{"etcd[1-010]", "same number of digits"},
		{"etcd[1/2]", "step"},
		{"etcd[0-4/0]", "step"},
		{"etcd[1-1000000000]", "more than 10000"},
		{"etcd[1-999999999999999]", "more than 10000"},
		{"etcd[1-9999999999999999]", "1 to 15 digits"},
		{strings.Repeat("[1-9999]", 60), "more than 10000"},
		{"[1-9999],b[1-9999]", "more than 10000"},
		{"etcd*", "'*'"},
		{"http://a", "only ssh://"},
		{"ssh://a/path", "'/'"},
		{"ssh://%zz@a", "login name"},
		{strings.Repeat("a", 254), "more than 253 bytes"},
		{strings.Repeat("a", 5000), "at most 1024"},
	} {
		got, err := ParseArg(c.arg)
		if reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), c.want) {
			t.Errorf("ParseArg(%.40q) = %v, %v; want an error with %q", c.arg, got, err, c.want)
		}
	}
}

// A password on a command line is bad enough; in a log of ours it would stay.
func TestPasswordIsNotShown(t *testing.T) {
	for _, arg := range []string{"cloud:hunter2@a", "ssh://cloud:hunter2@a:22", "cloud:hunter2@a[x", "b/c,cloud:hunter2@a", "cloud:hunter2@a[1-2]", "cloud:hunter2@[bad"} {
		_, err := ParseArg(arg)
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", arg, err)
		}
		_, err = ReadYAML("hosts.yaml", []byte("hosts:\n  - \""+arg+"\"\n"))
		if err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("YAML, %s: %v", arg, err)
		}
	}
}

func TestExpand(t *testing.T) {
	for _, c := range []struct {
		set  string
		want []string
	}{
		{"a", []string{"a"}},
		{"n[08-11]", []string{"n08", "n09", "n10", "n11"}},
		{"n[8-11]", []string{"n8", "n9", "n10", "n11"}},
		{"n[0-8/4]x", []string{"n0x", "n4x", "n8x"}},
		{"n[099-101]", []string{"n099", "n100", "n101"}},
		{"n[09-100/91]", []string{"n09", "n100"}},
		{"r[1-2]-n[01,3]", []string{"r1-n01", "r1-n3", "r2-n01", "r2-n3"}},
		{"[1-2].a,b", []string{"1.a", "2.a", "b"}},
		{"[::1]:[1-2]", []string{"[::1]:1", "[::1]:2"}},
	} {
		got, err := expand(c.set)
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("expand(%s) = %q, %v; want %q", c.set, got, err, c.want)
		}
	}
}

func TestReadList(t *testing.T) {
	got, err := ReadList(strings.NewReader("\ufeff# etcd\r\n\r\n etcd1:22  # first\r\n\tb[1-2]\n#c\nd#e.example"))
	if reason.Of(err) != reason.Usage || !strings.Contains(err.Error(), "line 6") {
		t.Errorf("got %v, %v; want an error on line 6", got, err)
	}
	got, err = ReadList(strings.NewReader("\ufeff# etcd\r\n\r\n etcd1:22  # first\r\n\tb[1-2]\n#c\nd"))
	want := []Host{
		{Name: "etcd1:22", Addr: "etcd1", Port: 22},
		{Name: "b1", Addr: "b1"}, {Name: "b2", Addr: "b2"}, {Name: "d", Addr: "d"},
	}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func TestReadListRefuses(t *testing.T) {
	many := strings.Repeat("a[1-9999]\n", 2)
	for _, c := range []struct {
		list string
		code reason.Code
		want string
	}{
		{"", reason.NoNodes, "no host"},
		{"# none\n\n", reason.NoNodes, "no host"},
		{"a b", reason.Usage, "line 1"},
		{"a\n-x", reason.Usage, "line 2"},
		{"a\n" + strings.Repeat("b", 2000), reason.Usage, "line 2"},
		{"a\x00", reason.Usage, "line 1"},
		{strings.Repeat("#\n", maxBytes), reason.Usage, "longer than"},
		{many, reason.Usage, "line 2"},
	} {
		got, err := ReadList(strings.NewReader(c.list))
		if reason.Of(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q: got %v, %v; want %s with %q", c.list, got, err, c.code, c.want)
		}
	}
	_, err := ReadList(endless{})
	if reason.Of(err) != reason.Usage {
		t.Errorf("an endless list: %v", err)
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '\n'
	}
	return len(b), nil
}

// oneLine reports whether err prints as one line of bounded length.
func oneLine(err error) bool {
	s := err.Error()
	return len(s) <= 2*reason.MaxLine && !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) })
}

func FuzzParseArg(f *testing.F) {
	for _, s := range []string{
		"etcd1", "cloud@203.0.113.10:50000", "[fe80::1%eth0]:22", "2001:db8::1", "ssh://a%40b@[::1%25x]:1/",
		"etcd[1-3,5].example:22", "[01-10]", "a[1-2],b[0-8/2]", "[2001:db8::[1-2]]:[1-2]", "u:p@h", "[[1]]", "[1,2", "a]b[",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		hosts, err := ParseArg(s)
		if err != nil {
			if reason.Of(err) != reason.Usage || !oneLine(err) {
				t.Errorf("%q: %q", s, err)
			}
			return
		}
		if len(hosts) == 0 || len(hosts) > MaxHosts {
			t.Errorf("%q: %d hosts", s, len(hosts))
		}
		for _, h := range hosts {
			if h.Addr == "" || h.Addr[0] == '-' || strings.HasPrefix(h.User, "-") || h.Port < 0 || h.Port > 65535 || h.Name != reason.Line(h.Name) {
				t.Errorf("%q: %+v", s, h)
			}
			again, err := ParseArg(h.Name)
			if err != nil || len(again) != 1 || again[0].Addr != h.Addr {
				t.Errorf("%q: the name %q reads as %+v, %v", s, h.Name, again, err)
			}
		}
	})
}
