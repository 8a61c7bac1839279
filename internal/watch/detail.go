package watch

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"cks-etcd/internal/reason"
)

// A FileError is a fault at one place of a configuration. As the cause in a
// *reason.Error it is one line, "watch.yaml:7:5: unknown key ...".
type FileError struct {
	Path   string
	Line   int // from 1
	Column int // in characters, from 1
	Err    error
	source string // the file
}

// Error returns place and fault in one line, in the form that editors follow.
func (e *FileError) Error() string {
	return reason.Line(fmt.Sprintf("%s:%d:%d: %v", e.Path, e.Line, e.Column, e.Err))
}

// Unwrap returns the fault without its place.
func (e *FileError) Unwrap() error { return e.Err }

// Detail returns the lines around the place in a configuration that err speaks
// of, with a caret under it, to be printed below the error's own line:
//
//	6 | stores:
//	7 |   - pth: /mnt/secondary
//	  |     ^
//
// It ends with a line break, holds only printable characters, and is empty
// where there is no such place. Lines that may hold a secret are not shown:
// what is said about a configuration ends up in the journal.
func Detail(err error) string {
	var e *FileError
	if !errors.As(err, &e) {
		return ""
	}
	return excerpt(e.source, e.Line, e.Column)
}

const (
	excerptBefore = 2   // lines shown before the one at fault
	excerptWidth  = 100 // characters shown of a line
)

func excerpt(text string, line, column int) string {
	lines := strings.Split(text, "\n")
	if line < 1 || line > len(lines) || column < 1 {
		return ""
	}
	hidden := secretLines(lines)
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

var (
	headersKey = regexp.MustCompile(`(?i)headers?\b`)
	topKey     = regexp.MustCompile(`^["'\pL]`)
	secretText = regexp.MustCompile(`(?i)pass|secret|token|authorization|cookie|api-?key|://[^/]*@`)
	// tokenFile is the one setting whose name looks like a secret and is none.
	tokenFile = regexp.MustCompile(`^token_file\s*:`)
)

// secretLines tells which lines may hold a secret: everything from a key
// "headers" to the next key at the top, and what looks like one anywhere else.
// It goes by the text, since a file with a fault in it has no other form.
func secretLines(lines []string) []bool {
	hidden := make([]bool, len(lines))
	in := false
	for i, line := range lines {
		if topKey.MatchString(line) {
			in = false
		}
		in = in || headersKey.MatchString(line)
		hidden[i] = in || secretText.MatchString(line) && !tokenFile.MatchString(line)
	}
	return hidden
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
