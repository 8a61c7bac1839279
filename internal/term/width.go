package term

import (
	"strings"
	"unicode"

	"cks-etcd/internal/reason"
)

// maxMarks is how many combining marks one letter keeps. Two are enough for
// the scripts in use, and bound the bytes that a column can hold.
const maxMarks = 2

// clean makes s printable: one line, and no more marks than letters can carry.
func clean(s string) string {
	s = reason.Line(s)
	if !strings.ContainsFunc(s, func(r rune) bool { return runeWidth(r) == 0 }) {
		return s
	}
	// No mark at the beginning, nor what such marks leave bare: it would join the
	// cell before.
	s = strings.TrimLeftFunc(s, func(r rune) bool { return r == ' ' || runeWidth(r) == 0 })
	marks := 0
	return strings.Map(func(r rune) rune {
		if runeWidth(r) > 0 {
			marks = 0
			return r
		}
		if marks++; marks > maxMarks {
			return -1
		}
		return r
	}, s)
}

// wide holds the characters that take two columns: those of East Asian Width W
// and F in Unicode's UAX #11, joined into ranges generously, since what is
// counted too wide costs a space, and what is counted too narrow a line.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1}, // Hangul Jamo, leading consonants
		{Lo: 0x231a, Hi: 0x231b, Stride: 1},
		{Lo: 0x2e80, Hi: 0x303e, Stride: 1}, // CJK radicals and punctuation
		{Lo: 0x3041, Hi: 0x33ff, Stride: 1}, // Kana to CJK compatibility
		{Lo: 0x3400, Hi: 0x4dbf, Stride: 1},
		{Lo: 0x4e00, Hi: 0x9fff, Stride: 1},
		{Lo: 0xa000, Hi: 0xa4cf, Stride: 1},
		{Lo: 0xa960, Hi: 0xa97f, Stride: 1},
		{Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, // Hangul syllables
		{Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe30, Hi: 0xfe6f, Stride: 1},
		{Lo: 0xff00, Hi: 0xff60, Stride: 1}, // full width forms
		{Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x16fe0, Hi: 0x18dff, Stride: 1}, // Tangut
		{Lo: 0x1b000, Hi: 0x1b2ff, Stride: 1},
		{Lo: 0x1f300, Hi: 0x1f64f, Stride: 1}, // pictographs
		{Lo: 0x1f680, Hi: 0x1f6ff, Stride: 1},
		{Lo: 0x1f900, Hi: 0x1faff, Stride: 1},
		{Lo: 0x20000, Hi: 0x3fffd, Stride: 1},
	},
}

// runeWidth returns the columns that a printable r takes: 0, 1 or 2.
func runeWidth(r rune) int {
	switch {
	case r < 0x300:
		return 1
	case unicode.In(r, unicode.Mn, unicode.Me):
		return 0
	case unicode.Is(wide, r):
		return 2
	}
	return 1
}

// Width returns the columns that s takes on a terminal.
func Width(s string) int {
	n := 0
	for _, r := range s {
		n += runeWidth(r)
	}
	return n
}

// ellipsis stands where text was cut. It takes one column.
const ellipsis = "…"

// cutEnd returns s if it fits cols columns, or its beginning and "…".
func cutEnd(s string, cols int) string {
	if Width(s) <= cols {
		return s
	}
	if cols <= 0 {
		return ""
	}
	return head(s, cols-1) + ellipsis
}

// CutMiddle returns s if it fits cols columns, or its two ends around "…": what
// tells names apart stands at either end.
func CutMiddle(s string, cols int) string {
	if Width(s) <= cols {
		return s
	}
	if cols <= 2 {
		return cutEnd(s, cols)
	}
	front := (cols - 1) / 2
	back := cols - 1 - front
	tail, n := len(s), 0
	runes := []rune(s)
	for i := len(runes) - 1; i >= 0; i-- {
		w := runeWidth(runes[i])
		if n+w > back {
			break
		}
		n += w
		tail -= len(string(runes[i]))
	}
	// The end must not begin with a mark that lost its letter.
	end := strings.TrimLeftFunc(s[tail:], func(r rune) bool { return runeWidth(r) == 0 })
	return head(s, front) + ellipsis + end
}

// head returns as much of the beginning of s as fits cols columns.
func head(s string, cols int) string {
	n := 0
	for i, r := range s {
		w := runeWidth(r)
		if n+w > cols {
			return s[:i]
		}
		n += w
	}
	return s
}
