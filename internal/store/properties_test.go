package store_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"unicode/utf16"

	"cks-etcd/internal/store"

	"github.com/google/go-cmp/cmp"
)

// The lines are those of java.util.Properties.load's documentation, and what
// java.util.Properties.store and CloudStack's scripts write.
func TestParseProperties(t *testing.T) {
	type m = map[string]string
	for _, tt := range []struct {
		name, in string
		want     m
	}{
		{"nothing", "", m{}},
		{"as CloudStack saves it", "#\n#Thu Oct 30 13:51:39 UTC 2025\nid=203\npublic=true\nuniquename=203-1-7c82b718\niso.filename=203-1-7c82b718.iso\niso.size=812000000\niso=true\n",
			m{"id": "203", "public": "true", "uniquename": "203-1-7c82b718", "iso.filename": "203-1-7c82b718.iso", "iso.size": "812000000", "iso": "true"}},
		{"as its script begins it", "filename=a.iso\ndescription=Kubernetes v1.33\nhvm=false\nsize=5\n", m{"filename": "a.iso", "description": "Kubernetes v1.33", "hvm": "false", "size": "5"}},
		{"separators", "a=1\nb:2\nc 3\nd\t4\ne\f5\nf = 6\ng : 7\nh  =  8\ni = = 9\nj==10\nk:=11\nl =\t: 12\n",
			m{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5", "f": "6", "g": "7", "h": "8", "i": "= 9", "j": "=10", "k": "=11", "l": ": 12"}},
		{"no value", "cheeses\nempty=\nspace = \n=x\n", m{"cheeses": "", "empty": "", "space": "", "": "x"}},
		{"white space", "   a = b c  \n\t\f\n", m{"a": "b c  "}},
		{"comments", "# a=1\n  ! b=2\nc=#3\nd=!4\n# e=5\\\nf=6\n", m{"c": "#3", "d": "!4", "f": "6"}},
		{"line ends", "a=1\rb=2\r\nc=3\n\r\r\n\n", m{"a": "1", "b": "2", "c": "3"}},
		{"continued", "fruits   apple, banana, pear, \\\n    cantaloupe, \\\n\tkiwi\n", m{"fruits": "apple, banana, pear, cantaloupe, kiwi"}},
		{"continued with CRLF", "a=1\\\r\n  2\\\r 3\n", m{"a": "123"}},
		{"continued by a blank line", "a=1\\\n\nb=2\n", m{"a": "1", "b": "2"}},
		{"continued by what looks like a comment", "a=1\\\n#2\n", m{"a": "1#2"}},
		{"continued from nothing", "\\\n# comment\n\\\n\n  a=1\n", m{"a": "1"}},
		{"two backslashes do not continue", "a=1\\\\\nb=2\\\\\\\nc\n", m{"a": `1\`, "b": `2\c`}},
		{"backslash at the end", "a=1\\", m{"a": "1"}},
		{"nothing but a backslash", "\\", m{}},
		{"escapes", `a\ b\=c\:d=\t\n\r\f\\\"\'\z\#\!\b`, m{"a b=c:d": "\t\n\r\f\\\"'z#!b"}},
		{"escaped URL", `url=http\://mirror.example/cks/setup.iso?a\=b`, m{"url": "http://mirror.example/cks/setup.iso?a=b"}},
		{"unicode", `caf\u00e9=\u20AC\u0041\uD83D\ude00!`, m{"café": "€A😀!"}},
		{"half a surrogate", `a=\uD83Dx`, m{"a": "\ufffdx"}},
		{"escaped separator by number", `a\u003d=1`, m{"a=": "1"}},
		{"Latin-1", "caf\xe9=\xe9", m{"café": "é"}},
		{"the last counts", "a=1\na=2\n", m{"a": "2"}},
		{"NUL", "a=b\x00c", m{"a": "b\x00c"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := store.ParseProperties(strings.NewReader(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("properties (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePropertiesFails(t *testing.T) {
	for name, in := range map[string]string{
		"short escape":     `a=\u00e`,
		"no digits":        `a=\u`,
		"escape in a key":  `\uzzzz=1`,
		"sign":             `a=\u+123`,
		"too long":         "a=" + strings.Repeat("x", 64<<10),
		"too long comment": "#" + strings.Repeat("\n#", 64<<10),
	} {
		if got, err := store.ParseProperties(strings.NewReader(in)); err == nil {
			t.Errorf("%s: got %d properties, want an error", name, len(got))
		}
	}
	broken := errors.New("broken")
	if _, err := store.ParseProperties(iotest.ErrReader(broken)); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
}

// javaStore writes properties as java.util.Properties.store does.
func javaStore(m map[string]string) string {
	var b strings.Builder
	b.WriteString("#\n#Thu Oct 30 13:51:39 UTC 2025\n")
	escape := func(s string, key bool) {
		for i, c := range utf16.Encode([]rune(s)) {
			switch {
			case c == ' ' && (key || i == 0):
				b.WriteString(`\ `)
			case c == '\t':
				b.WriteString(`\t`)
			case c == '\n':
				b.WriteString(`\n`)
			case c == '\r':
				b.WriteString(`\r`)
			case c == '\f':
				b.WriteString(`\f`)
			case strings.ContainsRune(`=:#!\`, rune(c)):
				b.WriteString(`\` + string(rune(c)))
			case c < 0x20 || c > 0x7e:
				fmt.Fprintf(&b, `\u%04X`, c)
			default:
				b.WriteRune(rune(c))
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		escape(k, true)
		b.WriteByte('=')
		escape(m[k], false)
		b.WriteByte('\n')
	}
	return b.String()
}

// Whatever is read can be written as Java does, and reads the same again.
func FuzzParseProperties(f *testing.F) {
	for _, s := range []string{
		"", "a=b", "a\\\n  b = c", `\u00e9\uD83D\uDE00=\t`, "#c\\\na:b\r\nd e\r", `a\`, "\\\n\\\n#", "a=\xff\x00", `\u`, "= =", `k\==\:`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		got, err := store.ParseProperties(strings.NewReader(string(in)))
		if err != nil {
			return
		}
		size := 0
		for k, v := range got {
			size += len(k) + len(v)
		}
		if size > 3*len(in) {
			t.Errorf("%d bytes of %d", size, len(in))
		}
		text := javaStore(got)
		if len(text) > 64<<10 {
			return
		}
		again, err := store.ParseProperties(strings.NewReader(text))
		if err != nil {
			t.Fatalf("%q was written as %q: %v", in, text, err)
		}
		if diff := cmp.Diff(got, again); diff != "" {
			t.Errorf("%q was written as %q (-first +again):\n%s", in, text, diff)
		}
	})
}
