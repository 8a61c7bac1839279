package reason

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

// TestTable holds the promises that the set makes about itself.
func TestTable(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)
	seen := map[Code]bool{}
	for _, i := range All() {
		if !form.MatchString(string(i.Code)) {
			t.Errorf("code %q is not lower case words joined by hyphens", i.Code)
		}
		if seen[i.Code] {
			t.Errorf("code %s is twice in the table", i.Code)
		}
		seen[i.Code] = true
		if i.Title == "" || i.Hint == "" || Line(i.Title) != i.Title || Line(i.Hint) != i.Hint {
			t.Errorf("%s: title and hint must each be one line", i.Code)
		}
		switch i.Class {
		case OK:
			if i.Exit != ExitYes {
				t.Errorf("%s: class ok with exit status %d", i.Code, i.Exit)
			}
		case Permanent, Transient:
			if i.Exit == ExitYes {
				t.Errorf("%s: class %s with exit status 0", i.Code, i.Class)
			}
		case Unknown:
			if i.Exit != ExitUnknown && i.Exit != ExitInternal {
				t.Errorf("%s: could not tell must not be reported as a yes or a no, got exit status %d", i.Code, i.Exit)
			}
		default:
			t.Errorf("%s: class %q", i.Code, i.Class)
		}
	}
}

func TestError(t *testing.T) {
	cause := fmt.Errorf("open /dev/sr0: %w", fs.ErrPermission)
	err := fmt.Errorf("step find: %w", New(ISOUnreadable, "/dev/sr0: %w", cause))
	if got, want := Of(err), ISOUnreadable; got != want {
		t.Errorf("Of = %s, want %s", got, want)
	}
	if !errors.Is(err, fs.ErrPermission) {
		t.Error("the cause is lost")
	}
	if got, want := New(ISOUnreadable, "a\nb").Error(), "ISO cannot be read: a b"; got != want {
		t.Errorf("message %q, want %q", got, want)
	}
	if got, want := Exit(err), ExitUnknown; got != want {
		t.Errorf("Exit = %d, want %d", got, want)
	}
	if got, want := Exit(nil), ExitYes; got != want {
		t.Errorf("Exit(nil) = %d, want %d", got, want)
	}
	if got, want := Exit(context.Canceled), ExitInternal; got != want {
		t.Errorf("Exit of an error without a code = %d, want %d", got, want)
	}
	if got, want := HintOf(New(Usage, "x").WithHint("do y")), "do y"; got != want {
		t.Errorf("HintOf = %q, want %q", got, want)
	}
}

func TestWorst(t *testing.T) {
	for _, tt := range []struct {
		have []int
		want int
	}{
		{nil, 0},
		{[]int{0, 0}, 0},
		{[]int{0, 4, 0}, 4},
		{[]int{4, 3}, 3},
		{[]int{3, 1, 4}, 1},
		{[]int{1, 130}, 130},
		{[]int{130, 70}, 70},
	} {
		if got := Worst(tt.have...); got != tt.want {
			t.Errorf("Worst(%v) = %d, want %d", tt.have, got, tt.want)
		}
	}
}

func TestLine(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"", ""},
		{"plain", "plain"},
		{"  two\r\n\tlines \n", "two lines"},
		{"esc \x1b[31mred\x1b[0m", "esc ?[31mred?[0m"},
		{"bad \xff utf-8", "bad ? utf-8"},
		{"nul\x00", "nul?"},
		{"right\u202eleft", "right?left"},
	} {
		if got := Line(tt.in); got != tt.want {
			t.Errorf("Line(%q) = %q, want %q", tt.in, got, tt.want)
		}
	}
	if got := Line(strings.Repeat("ä", MaxLine)); len(got) > MaxLine || !strings.HasSuffix(got, "...") {
		t.Errorf("a long line has %d bytes and ends in %q", len(got), got[len(got)-5:])
	}
}

func FuzzLine(f *testing.F) {
	f.Add("a\nb\x1b[0m")
	f.Add(strings.Repeat("\xe2\x80", 600))
	f.Fuzz(func(t *testing.T, s string) {
		got := Line(s)
		if len(got) > MaxLine || !utf8.ValidString(got) {
			t.Errorf("%d bytes, valid UTF-8 %v", len(got), utf8.ValidString(got))
		}
		for _, r := range got {
			if !unicode.IsPrint(r) {
				t.Errorf("%q is not printable", r)
			}
		}
		if again := Line(got); again != got {
			t.Errorf("a line is not its own line: %q, then %q", got, again)
		}
	})
}
