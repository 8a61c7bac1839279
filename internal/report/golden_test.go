package report

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"cks-etcd/internal/term"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

// Every way to end, in every format.
func TestGolden(t *testing.T) {
	for name, r := range reports() {
		t.Run(name, func(t *testing.T) {
			r := Complete(r, foldTest)
			var b bytes.Buffer
			if err := WriteTable(&b, r, foldTest); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".txt", b.Bytes())
			b.Reset()
			if err := term.WriteLines(&b, Table(r, 60, foldTest), false); err != nil {
				t.Fatal(err)
			}
			golden(t, name+"-60.txt", b.Bytes())
			if name == "many" {
				return // what is left is long, and like the others
			}
			b.Reset()
			if err := WriteJSON(&b, r); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".json", b.Bytes())
			b.Reset()
			if err := WriteJUnit(&b, r); err != nil {
				t.Fatal(err)
			}
			golden(t, name+".xml", b.Bytes())
		})
	}
}

// Nothing that is not printable leaves in any format, whoever sent it.
func TestHostileText(t *testing.T) {
	r := Complete(reports()["hostile"], foldTest)
	var text, js, jsonl, junit bytes.Buffer
	j := NewJSONL(&jsonl)
	for _, err := range []error{
		WriteTable(&text, r, foldTest), WriteJSON(&js, r), WriteJUnit(&junit, r),
		j.Event(Event{At: began, Node: hostile, State: hostile, Message: hostile}), j.Result(r),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, out := range map[string]string{"table": text.String(), "json": js.String(), "jsonl": jsonl.String(), "junit": junit.String()} {
		for _, c := range out {
			if c != '\n' && !unicode.IsPrint(c) || c == unicode.ReplacementChar {
				t.Errorf("%s holds %q", name, c)
			}
		}
	}
	if got := strings.Count(jsonl.String(), "\n"); got != 2 {
		t.Errorf("%d JSON lines, want 2", got)
	}
	for _, l := range Reasons(r) {
		if strings.ContainsAny(l, "\n\x1b") {
			t.Errorf("reason %q", l)
		}
	}
}
