package term

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
)

func TestWidth(t *testing.T) {
	for _, tt := range []struct {
		in   string
		want int
	}{{"", 0}, {"plain", 5}, {"ä", 1}, {"a\u0308", 1}, {"漢字", 4}, {"한글", 4}, {"ｆｕｌｌ", 8}, {"😀", 2}, {"…", 1}} {
		if got := Width(tt.in); got != tt.want {
			t.Errorf("Width(%q) = %d, want %d", tt.in, got, tt.want)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct {
		in          string
		cols        int
		end, middle string
	}{
		{"short", 5, "short", "short"},
		{"203.0.113.10:50000", 10, "203.0.113…", "203.…50000"},
		{"漢字漢字", 4, "漢…", "…字"},
		{"abc", 2, "a…", "a…"},
		{"abc", 1, "…", "…"},
		{"abc", 0, "", ""},
		{"abcde\u0301", 3, "ab…", "a…e\u0301"},
	} {
		if got := cutEnd(tt.in, tt.cols); got != tt.end {
			t.Errorf("cutEnd(%q, %d) = %q, want %q", tt.in, tt.cols, got, tt.end)
		}
		if got := CutMiddle(tt.in, tt.cols); got != tt.middle {
			t.Errorf("CutMiddle(%q, %d) = %q, want %q", tt.in, tt.cols, got, tt.middle)
		}
	}
}

// A wide letter does not fit half a row: a terminal of 5 columns shows two in a
// row, and a frame that counts otherwise leaves lines behind after a resize.
func TestRowsOf(t *testing.T) {
	for _, tt := range []struct {
		in         string
		cols, want int
	}{{"", 5, 1}, {"abcde", 5, 1}, {"abcdef", 5, 2}, {"漢字漢字", 5, 2}, {"漢字漢字漢", 5, 3}, {"abcde\u0301", 5, 1}} {
		if got := rowsOf(tt.in, tt.cols); got != tt.want {
			t.Errorf("rowsOf(%q, %d) = %d, want %d", tt.in, tt.cols, got, tt.want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("203.0.113.10:50000", 10)
	f.Add("漢字e\u0301\u0301", 3)
	f.Fuzz(func(t *testing.T, s string, cols int) {
		cols = min(max(cols, 0), 200)
		s = clean(s)
		for _, got := range []string{cutEnd(s, cols), CutMiddle(s, cols)} {
			if Width(got) > cols || !utf8.ValidString(got) {
				t.Errorf("%q cut to %d is %q, %d wide", s, cols, got, Width(got))
			}
		}
		if clean(s) != s {
			t.Errorf("%q is not clean", s)
		}
	})
}

func TestElapsed(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0s", 14999 * time.Millisecond: "14s", 125 * time.Second: "2m05s",
		62 * time.Minute: "1h02m", 76 * time.Hour: "3d04h",
	} {
		if got := Elapsed(d); got != want {
			t.Errorf("Elapsed(%s) = %q, want %q", d, got, want)
		}
	}
}

// The table gives up, in this order: the end of the reason, the middle of the
// name, the checks, the time, the reason.
func TestTableNarrows(t *testing.T) {
	now := time.Unix(1000, 0)
	tab := Table{Columns: NodeColumns(0), Rows: [][]Cell{
		Row{Name: "203.0.113.10:50002", State: "failed", Since: now.Add(-9 * time.Second), Reason: "etcd archive missing on /dev/sr0"}.Cells(now),
	}}
	for _, tt := range []struct {
		cols int
		want []string
		cut  bool
	}{
		{0, []string{"NODE                STATE   FOR   CHECKS  REASON", "203.0.113.10:50002  failed  9s    -       etcd archive missing on /dev/sr0"}, false},
		{60, []string{"NODE                STATE   FOR   CHECKS  REASON", "203.0.113.10:50002  failed  9s    -       etcd archive miss…"}, true},
		{45, []string{"NODE       STATE   FOR   CHECKS  REASON", "203.…0002  failed  9s    -       etcd archiv…"}, true},
		{40, []string{"NODE          STATE   FOR   REASON", "203.0…:50002  failed  9s    etcd archiv…"}, true},
		{34, []string{"NODE          STATE   REASON", "203.0…:50002  failed  etcd archiv…"}, true},
		{20, []string{"NODE          STATE", "203.0…:50002  failed"}, true},
	} {
		lines, cut := tab.Lines(tt.cols)
		var got []string
		for _, l := range lines {
			got = append(got, l.String())
			if w := Width(l.String()); tt.cols > 0 && w > tt.cols {
				t.Errorf("%d columns: a line of %d", tt.cols, w)
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || cut[0] != tt.cut {
			t.Errorf("%d columns, cut %v (-want +got):\n%s", tt.cols, cut[0], diff)
		}
	}
}

func TestLineKeepsControlOut(t *testing.T) {
	var b strings.Builder
	if err := WriteLines(&b, []Line{{{Text: hostile, Tone: Bad}}}, false); err != nil {
		t.Fatal(err)
	}
	if got := b.String(); strings.ContainsAny(got, "\x1b\x07\r\u202e\u009b") || strings.Count(got, "\n") != 1 {
		t.Errorf("%q", got)
	}
}

type sized struct {
	cols, rows int
	err        error
}

func (s sized) Size() (int, int, error)        { return s.cols, s.rows, s.err }
func (s sized) Watch() (<-chan Change, func()) { return nil, func() {} }

func TestStyle(t *testing.T) {
	for _, tt := range []struct {
		name         string
		env          map[string]string
		tty          sized
		colour, live bool
	}{
		{"usual", map[string]string{"TERM": "xterm"}, sized{80, 24, nil}, true, true},
		{"NO_COLOR", map[string]string{"TERM": "xterm", "NO_COLOR": "1"}, sized{80, 24, nil}, false, true},
		{"NO_COLOR empty", map[string]string{"TERM": "xterm", "NO_COLOR": ""}, sized{80, 24, nil}, true, true},
		{"dumb", map[string]string{"TERM": "dumb"}, sized{80, 24, nil}, false, false},
		{"no TERM", nil, sized{80, 24, nil}, false, false},
		{"serial console", map[string]string{"TERM": "vt220"}, sized{0, 0, nil}, true, false},
		{"size not known", map[string]string{"TERM": "vt220"}, sized{80, 24, errors.New("no")}, true, false},
	} {
		s := styleOf(tt.tty, func(k string) string { return tt.env[k] })
		if s.Colour != tt.colour || s.Live != tt.live {
			t.Errorf("%s: colour %v, live %v, want %v, %v", tt.name, s.Colour, s.Live, tt.colour, tt.live)
		}
	}
	if s := Detect(&strings.Builder{}, nil); s != (Style{}) {
		t.Errorf("a buffer is taken for a terminal: %+v", s)
	}
}
