package source

import (
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseContentRange(t *testing.T) {
	tests := []struct {
		in   string
		want contentRange
		ok   bool
	}{
		{"bytes 0-99/1234", contentRange{0, 99, 1234}, true},
		{"Bytes 5-5/6", contentRange{5, 5, 6}, true},
		{"bytes 0-99/*", contentRange{0, 99, -1}, true},
		{"bytes */1234", contentRange{-1, -1, 1234}, true},
		{"bytes */0", contentRange{-1, -1, 0}, true},
		{"bytes */*", contentRange{}, false},
		{"", contentRange{}, false},
		{"bytes", contentRange{}, false},
		{"bytes=0-99/1234", contentRange{}, false},
		{"items 0-99/1234", contentRange{}, false},
		{"bytes 0-99", contentRange{}, false},
		{"bytes 99-0/1234", contentRange{}, false},
		{"bytes 0-1234/1234", contentRange{}, false},
		{"bytes -1-99/1234", contentRange{}, false},
		{"bytes 0--99/1234", contentRange{}, false},
		{"bytes 0-99/-1234", contentRange{}, false},
		{"bytes 0-99/+1234", contentRange{}, false},
		{"bytes 0-99/9223372036854775807", contentRange{}, false},
		{"bytes 0-99/18446744073709551716", contentRange{}, false},
		{"bytes 0-99/12 34", contentRange{}, false},
	}
	for _, test := range tests {
		got, err := parseContentRange(test.in)
		if (err == nil) != test.ok || test.ok && got != test.want {
			t.Errorf("%q: got %+v and error %v, want %+v", test.in, got, err, test.want)
		}
	}
}

func FuzzContentRange(f *testing.F) {
	for _, s := range []string{"bytes 0-99/1234", "bytes */0", "bytes 0-9/*", "bytes 18446744073709551615-0/9", "bytes  1-2/3", "bytes -/"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, err := parseContentRange(s)
		if err != nil {
			return
		}
		none := c.first == -1 && c.last == -1
		if !none && (c.first < 0 || c.last < c.first || c.size >= 0 && c.last >= c.size) || none && c.size < 0 || c.size > maxSize {
			t.Errorf("%q was read as %+v", s, c)
		}
	})
}

func TestNetrc(t *testing.T) {
	tests := []struct {
		name, in string
		want     netrc
		ok       bool
	}{
		{"empty", "", nil, true},
		{"one line", "machine a.example login u password p", netrc{{"a.example", "u", "p"}}, true},
		{"several lines", "machine A.example\n\tlogin u\n\tpassword p\nmachine b login v\n", netrc{{"a.example", "u", "p"}, {"b", "v", ""}}, true},
		{"default", "machine a login u password p\ndefault login anonymous password me", netrc{{"a", "u", "p"}, {"", "anonymous", "me"}}, true},
		{"comments", "# machine x login y\nmachine a # of the office\nlogin u password p#1 # last\n", netrc{{"a", "u", "p#1"}}, true},
		{"quotes", `machine a login "u v" password "p\"q\\r"`, netrc{{"a", "u v", `p"q\r`}}, true},
		{"password like a comment", "machine a login u password #1", netrc{{"a", "u", "#1"}}, true},
		{"password like a keyword", "machine a login machine password default", netrc{{"a", "machine", "default"}}, true},
		{"macro", "machine a login u password p\nmacdef init\ncd /x\nmachine no login no\n\nmachine b login v password q", netrc{{"a", "u", "p"}, {"b", "v", "q"}}, true},
		{"macro to the end", "macdef init\nmachine no", nil, true},
		{"account", "machine a login u account x password p", netrc{{"a", "u", "p"}}, true},
		{"login alone", "login u", nil, false},
		{"no value", "machine a login", nil, false},
		{"unknown word", "machine a user u", nil, false},
		{"open quotes", `machine a login "u`, nil, false},
		{"no name", `machine ""`, nil, false},
	}
	for _, test := range tests {
		got, err := parseNetrc(test.in)
		if (err == nil) != test.ok {
			t.Errorf("%s: got error %v", test.name, err)
		}
		if test.ok {
			if d := cmp.Diff(test.want, got, cmp.AllowUnexported(machine{})); d != "" {
				t.Errorf("%s (-want +got):\n%s", test.name, d)
			}
		}
	}
}

// FuzzNetrc: what was read says the same when it is written down again, and an
// error shows nothing of what may be a password.
func FuzzNetrc(f *testing.F) {
	f.Add("machine a login u password p\ndefault login x password y\n")
	f.Add("macdef m\n a\n\nmachine \"q\\\"\" login \"\\n\"")
	f.Add("# c\nmachine a account b user secret")
	f.Fuzz(func(t *testing.T, in string) {
		list, err := parseNetrc(in)
		if err != nil {
			if strings.Contains(in, "secret") && strings.Contains(err.Error(), "secret") {
				t.Errorf("the error shows the content: %v", err)
			}
			return
		}
		var b strings.Builder
		q := func(s string) string {
			return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\t", `\t`).Replace(s) + `"`
		}
		for _, m := range list {
			if m.name == "" {
				b.WriteString("default ")
			} else {
				b.WriteString("machine " + q(m.name) + "\n")
			}
			b.WriteString("login " + q(m.login) + " password " + q(m.password) + "\n")
		}
		again, err := parseNetrc(b.String())
		if err != nil {
			t.Fatalf("%v in\n%s", err, b.String())
		}
		if d := cmp.Diff(list, again, cmp.AllowUnexported(machine{})); d != "" {
			t.Errorf("(-first +second):\n%s", d)
		}
	})
}

func TestRedact(t *testing.T) {
	for in, want := range map[string]string{
		"/mnt/a@b.iso":                   "/mnt/a@b.iso",
		"http://h/x.iso":                 "http://h/x.iso",
		"http://u:p@h/x.iso":             "http://h/x.iso",
		"https://u@h:8443/x@y.iso?a=b@c": "https://h:8443/x@y.iso?a=b@c",
		"http://u:p@q@h/x":               "http://h/x",
		"http://u:p/q@h/x":               "http://h/x",
		"http://u:p q@ho st":             "http://ho st",
		"http://h:80/a@b":                "http://h:80/a@b",
		"http://[::1]:80/a@b":            "http://[::1]:80/a@b",
	} {
		if got := Redact(in); got != want {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestKey(t *testing.T) {
	when := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	strong, weak, date := `"abc"`, `W/"abc"`, "Mon, 01 Jan 2024 00:00:00 GMT"
	long := "http://h/" + strings.Repeat("x", 500)
	ids := []struct {
		id   Identity
		want string // "*": any, but not that of another
	}{
		{Identity{}, ""},
		{Identity{Kind: KindDevice, Device: 1, Inode: 2, Size: 3, Modified: when}, ""},
		{Identity{Kind: KindFile, Device: 0x801, Inode: 2, Size: 3, Modified: when}, "file:801:2:3:1767323045.000000006"},
		{Identity{Kind: KindFile, Device: 0x801, Inode: 2, Size: 3}, "*"},
		{Identity{Kind: KindFile, Volume: "nfs=h:/e", Device: 0x35, Inode: 2, Size: 3, Modified: when}, "file:nfs=h:/e:2:3:1767323045.000000006"},
		{Identity{Kind: KindFile, Volume: "nfs=h:/\xff", Inode: 2, Size: 3, Modified: when}, "*"},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3}, ""},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3, ETag: weak}, ""},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3, ETag: strong}, `url:http://h/x:3:"abc"`},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 4, ETag: strong}, "*"},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3, ETag: weak, LastModified: date}, "*"},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3, LastModified: date}, "*"},
		{Identity{Kind: KindURL, URL: "http://h/x", Size: 3, ETag: "\"\xff\xfe\""}, "*"},
		{Identity{Kind: KindURL, URL: long, Size: 3, ETag: strong}, "*"},
		{Identity{Kind: KindURL, URL: long + "y", Size: 3, ETag: strong}, "*"},
	}
	seen := map[string]bool{}
	for _, test := range ids {
		got := test.id.Key()
		if test.want != "*" && got != test.want || test.want == "*" && (got == "" || seen[got]) {
			t.Errorf("%+v: got %q, want %q", test.id, got, test.want)
		}
		if len(got) > maxKey || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Errorf("%q is too long or does not print", got)
		}
		seen[got] = true
	}
}

func TestIdentityURL(t *testing.T) {
	parse := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	of := func(named, final string) string { return identityURL(parse(named), parse(final)) }
	if got, want := of("http://h/x", "http://cdn/y"), "http://cdn/y"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	a := of("http://h/x", "http://cdn/y?sig=1")
	if b := of("http://h/x", "http://cdn/y?sig=2"); a != b {
		t.Errorf("another signature makes another identity: %s and %s", a, b)
	}
	if strings.Contains(a, "sig") {
		t.Errorf("%s shows the query", a)
	}
	if b := of("http://h/get?id=1", "http://h/get?id=1"); b == of("http://h/get?id=2", "http://h/get?id=2") {
		t.Errorf("%s is two resources", b)
	}
}

func TestVersion(t *testing.T) {
	header := func(kv ...string) http.Header {
		h := http.Header{}
		for i := 0; i < len(kv); i += 2 {
			h.Set(kv[i], kv[i+1])
		}
		return h
	}
	date, later := "Mon, 01 Jan 2024 00:00:00 GMT", "Mon, 01 Jan 2024 00:00:10 GMT"
	v := versionOf(header("ETag", `"a"`, "Last-Modified", date, "Date", later), 9)
	if want := (version{9, `"a"`, date, false}); v != want {
		t.Errorf("got %+v, want %+v", v, want)
	}
	if v := versionOf(header("ETag", `a`, "Last-Modified", date, "Date", date), 9); v != (version{9, "", date, true}) {
		t.Errorf("a tag without quotes and a date of the same second: got %+v", v)
	}
	if err := v.differs(versionOf(header("ETag", `"a"`), 9)); err != nil {
		t.Errorf("a later answer may leave the date out: %v", err)
	}
	for name, now := range map[string]version{
		"no tag":       {9, "", date, false},
		"other tag":    {9, `"b"`, date, false},
		"weak tag":     {9, `W/"a"`, date, false},
		"other length": {8, `"a"`, date, false},
		"other date":   {9, `"a"`, later, false},
	} {
		if v.differs(now) == nil {
			t.Errorf("%s: not noticed", name)
		}
	}
}

func TestRetryAfter(t *testing.T) {
	now := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	for in, want := range map[string]time.Duration{
		"": 0, "3": 3 * time.Second, "-3": 0, "x": 0, "99999999999999999999": 0, "4000000000": maxRetryAfter,
		"Mon, 01 Jan 2024 00:00:10 GMT": 10 * time.Second, "Sun, 31 Dec 2023 00:00:00 GMT": 0,
	} {
		h := http.Header{}
		h.Set("Retry-After", in)
		if got := retryAfter(h, now); got != want {
			t.Errorf("%q: got %v, want %v", in, got, want)
		}
	}
}

func TestTrusts(t *testing.T) {
	for _, test := range []struct {
		from, to string
		want     bool
	}{
		{"http://h/a", "http://H:80/b", true},
		{"https://h/a", "https://h:443/b", true},
		{"http://h/a", "https://h/b", true},
		{"https://h/a", "http://h/b", false},
		{"http://h/a", "http://h:8080/b", false},
		{"http://h:8080/a", "https://h/b", false},
		{"http://h/a", "http://h.evil/b", false},
		{"http://h/a", "http://sub.h/b", false},
	} {
		from, _ := url.Parse(test.from)
		to, _ := url.Parse(test.to)
		if got := trusts(from, to); got != test.want {
			t.Errorf("%s to %s: got %v", test.from, test.to, got)
		}
	}
}
