package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"cks-etcd/internal/reason"
)

// An Error is a fault at one place of a file. As the cause in a *reason.Error it
// is one line, "hosts.yaml:7:5: unknown key ...".
type Error struct {
	Path   string
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
	file   *File
}

// Error returns place and fault in one line, in the form that editors follow.
func (e *Error) Error() string {
	return reason.Line(fmt.Sprintf("%s:%d:%d: %v", e.Path, e.Line, e.Column, e.Err))
}

// Unwrap returns the fault without its place.
func (e *Error) Unwrap() error { return e.Err }

// Detail returns the lines around the first place in a file that err speaks of,
// with a caret under it, to be printed below the error's own line:
//
//	6 |     - host: 203.0.113.10
//	7 |       prot: 50000
//	  |       ^
//
// It ends with a line break, holds only printable characters, and is empty
// where there is no such place. Lines that may hold a secret are not shown: what
// is said about a file ends up in logs.
func Detail(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return ""
	}
	lines := strings.Split(e.file.Source, "\n")
	hidden := make([]bool, len(lines))
	if e.file.Hide != nil {
		some, all := e.file.Hide(err, lines)
		if all {
			return ""
		}
		copy(hidden, some)
	}
	return excerpt(lines, hidden, e.Line, e.Column)
}

const (
	excerptBefore = 2   // lines shown before the one at fault
	excerptWidth  = 100 // characters shown of a line
)

// excerpt shows a place in text. Places outside of it give "".
func excerpt(lines []string, hidden []bool, line, column int) string {
	if line < 1 || line > len(lines) || column < 1 {
		return ""
	}
	// A place far to the right moves the window over all lines alike.
	from := 0
	if column > excerptWidth {
		from = column - excerptWidth/2
	}
	var b strings.Builder
	for n := max(1, line-excerptBefore); n <= line; n++ {
		shown := window(lines[n-1], from)
		if hidden[n-1] {
			shown = "(not shown: may hold a secret)"
		}
		fmt.Fprintf(&b, "%s\n", strings.TrimRight(fmt.Sprintf("%5d | %s", n, shown), " "))
	}
	if !hidden[line-1] {
		fmt.Fprintf(&b, "      | %s^\n", strings.Repeat(" ", column-1-from))
	}
	return b.String()
}

// window returns excerptWidth characters of line, each one column wide and
// printable.
func window(line string, from int) string {
	out := make([]rune, 0, excerptWidth)
	n := 0
	for _, r := range strings.TrimSuffix(line, "\r") {
		if n++; n <= from {
			continue
		}
		if len(out) == excerptWidth {
			break
		}
		switch {
		case r == '\t':
			r = ' '
		case r == unicode.ReplacementChar, !unicode.IsPrint(r):
			r = '?'
		}
		out = append(out, r)
	}
	return string(out)
}
