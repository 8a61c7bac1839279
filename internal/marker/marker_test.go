package marker

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"cks-etcd/internal/reason"
)

func TestParseLine(t *testing.T) {
	tests := []struct{ name, in, want string }{
		{"as written", "etcd archive missing: /dev/sr0\n", "etcd archive missing: /dev/sr0"},
		{"no line break", "why", "why"},
		{"empty", "", ""},
		{"blank", " \n\t\r\n\v\n", ""},
		{"blank lines first", "\n\r\n  why  \nmore\n", "why"},
		{"several lines", "first\nsecond\n", "first"},
		{"carriage returns", "a\rb\r\n", "a b"},
		{"terminal escapes", "\x1b[2Jgone\x07\n", "?[2Jgone?"},
		{"NUL", "a\x00b", "a?b"},
		{"invalid UTF-8", "a\xffb", "a?b"},
		{"right-to-left override", "a\u202eb", "a?b"},
		{"line separator", "a\u2028b", "a b"},
		{"text past the limit", strings.Repeat("\n", maxMarker) + "late", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := ParseLine([]byte(tt.in)); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// printable fails unless s is one printable line of bounded length.
func printable(t *testing.T, what, s string) {
	t.Helper()
	if !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }) {
		t.Errorf("%s: got %q, want one printable line", what, s)
	}
	if len(s) > reason.MaxLine {
		t.Errorf("%s: got %d bytes, want at most %d", what, len(s), reason.MaxLine)
	}
	if s != strings.TrimSpace(s) {
		t.Errorf("%s: got %q, want no space around it", what, s)
	}
}

func FuzzParseLine(f *testing.F) {
	for _, s := range []string{
		"etcd archive missing: /dev/sr0\n", "", "\n\n", "\r\n x \r\n", "\x1b]0;title\x07", "\xff\xfe\x00", "a\u2028b\u202e\u00a0c",
		strings.Repeat("ä", reason.MaxLine), strings.Repeat("x ", reason.MaxLine), strings.Repeat("\n", maxMarker) + "x",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		got := ParseLine(b)
		printable(t, "line", got)
		if again := ParseLine([]byte(got + "\n")); len(got) < reason.MaxLine/2 && again != got {
			t.Errorf("got %q from %q, want the same line again", again, got)
		}
	})
}
