package strictyaml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml/token"
)

func TestParse(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"a: 1\n", ""},
		{"", ""},
		{"a: &x 1\n", `f.yaml:1:4: anchors (&) are not supported; quote the value if it is text`},
		{"a: *x\n", `f.yaml:1:4: no aliases here`},
		{"a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document begins here; a thing is one"},
		{"- - a\n", "f.yaml:1:1: one is missing"},
		{"a: \x01\n", "f.yaml:1:4: a control character or a byte that is not UTF-8"},
		{strings.Repeat("\n", 200), "f.yaml:101:1: more than 100 blank lines in a row"},
		{strings.Repeat(" ", 201) + "a: 1\n", "f.yaml:1:1: the line is indented by more than 200 characters"},
		{"a: " + strings.Repeat("[", 17) + strings.Repeat("]", 17) + "\n", "f.yaml:1:20: brackets are nested deeper than 16"},
		{"a: 1\nb: 2\nc: 3\nd: 4\n", "cannot read thing f.yaml: it has more than 10 words and signs"},
	} {
		f := &File{Path: "f.yaml", Source: c.text, Noun: "a thing", MaxTokens: 10, Missing: "one is missing",
			Refused: map[token.Type]string{token.AliasType: "no aliases here"}}
		if strings.Contains(c.text, "[[") {
			f.MaxTokens = 1000
		}
		_, err := f.Parse()
		if got := fmt.Sprint(err); got != c.want && (c.want != "" || err != nil) {
			t.Errorf("%.40q: %s, want %s", c.text, got, c.want)
		}
	}
}

func TestDetail(t *testing.T) {
	at := &token.Token{Position: &token.Position{Line: 2, Column: 3}}
	f := &File{Path: "f.yaml", Source: "secret: x\nb: c\n"}
	if got, want := Detail(f.Fail(at, "x")), "    1 | secret: x\n    2 | b: c\n      |   ^\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	f.Hide = func(_ error, lines []string) ([]bool, bool) { return []bool{true}, false }
	if got, want := Detail(f.Fail(at, "x")), "    1 | (not shown: may hold a secret)\n    2 | b: c\n      |   ^\n"; got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	f.Hide = func(error, []string) ([]bool, bool) { return nil, true }
	if got := Detail(f.Fail(at, "x")) + Detail(nil) + Detail(fmt.Errorf("x")) + Detail(f.Fail(nil, "x")); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

// FuzzParse: no text makes it panic or hang, and no place is outside of it.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"a: 1", "- a\n- b: {c: [d]}\n", "---\na: |\n  x\n...\n---\n", "a: &x [*x]", "? a\n: b\n", "\"\\x1b\": 1", "%TAG ! x\n---\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 4096 {
			t.Skip("larger than what a place needs")
		}
		file := &File{Path: "f.yaml", Source: s, Noun: "a thing", MaxTokens: 1 << 12, Missing: "one is missing"}
		if _, err := file.Parse(); err != nil {
			for line := range strings.SplitSeq(strings.TrimSuffix(Detail(err), "\n"), "\n") {
				if len([]rune(line)) > excerptWidth+8 {
					t.Errorf("a line of %d characters", len([]rune(line)))
				}
			}
		}
	})
}
