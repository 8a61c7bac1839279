// Package reason is the closed set of outcomes of both programs: every way to
// end has one code, and the same code stands in the node's state file, in JSON
// and JUnit reports, in metrics, in the man pages and in docs/reasons.md.
//
// The package imports nothing of this module, so every other package can name
// an outcome without knowing who reports it.
package reason

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Code names one outcome, for example "archive-missing". Codes are lower
// case words joined by hyphens, and are a published contract: they are added
// to, never renamed.
type Code string

// A Class says what an outcome is worth to somebody who may try again.
type Class string

const (
	// OK is the class of the outcomes that are not failures.
	OK Class = "ok"
	// Permanent: the same input gives the same failure; something must be changed first.
	Permanent Class = "permanent"
	// Transient: a later try may well succeed without anybody's help.
	Transient Class = "transient"
	// Unknown: the question could not be answered. It is neither a yes nor a no.
	Unknown Class = "unknown"
)

// Exit statuses of both programs.
const (
	ExitYes         = 0   // done, all included, all nodes active, request allowed
	ExitNo          = 1   // setup failed, an ISO lacks the file, a node failed, request refused
	ExitUsage       = 2   // usage or configuration error
	ExitDeadline    = 3   // a deadline passed with something still undecided
	ExitUnknown     = 4   // could not tell, and nothing was a definite no
	ExitInternal    = 70  // a bug
	ExitInterrupted = 130 // interrupted by a signal
)

// Info is what is known about a code without knowing the case at hand.
type Info struct {
	Code  Code
	Class Class
	Exit  int    // exit status of a program that ends with this code alone
	Title string // a few words that begin the message: "etcd archive missing"
	Hint  string // one line: what to do next
}

// Lookup returns what is known about c. A code that is not in the set is a
// bug, and gets the entry of Internal.
func Lookup(c Code) Info {
	for _, i := range table {
		if i.Code == c {
			return i
		}
	}
	i := Lookup(Internal)
	i.Title = fmt.Sprintf("unknown reason code %q", string(c))
	return i
}

// Known reports whether c is in the set. Codes that were read from a file or
// from another host are checked with it.
func Known(c Code) bool {
	for _, i := range table {
		if i.Code == c {
			return true
		}
	}
	return false
}

// All returns every code in the order of the documentation. The slice is the
// caller's own.
func All() []Info { return append([]Info(nil), table...) }

// Error is an outcome that is not a success. Its message is one line that
// begins with the code's title and goes on with the case at hand.
type Error struct {
	Code Code
	Err  error  // the case at hand: names the thing, carries the cause; may be nil
	Hint string // replaces the code's hint where the case allows a better one
}

// New returns an Error with code c. The format describes the case at hand; the
// verb %w keeps a cause, as in fmt.Errorf.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Err: fmt.Errorf(format, args...)}
}

// WithHint returns a copy of e whose hint is h.
func (e *Error) WithHint(h string) *Error {
	c := *e
	c.Hint = h
	return &c
}

// Error returns the message: one printable line.
func (e *Error) Error() string {
	title := Lookup(e.Code).Title
	if e.Err == nil {
		return title
	}
	return title + ": " + Line(e.Err.Error())
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Of finds the code of err: that of the outermost Error in its chain, Ready
// for nil, and Internal for an error that carries no code.
func Of(err error) Code {
	if err == nil {
		return Ready
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return Internal
}

// HintOf returns what to do next about err, in one line.
func HintOf(err error) string {
	var e *Error
	if errors.As(err, &e) && e.Hint != "" {
		return Line(e.Hint)
	}
	return Lookup(Of(err)).Hint
}

// Ended is the outcome of something that ctx kept from its end: that of ctx's
// cause where it has a code, SourceStalled for a deadline, else Interrupted. The
// format says what was being done.
func Ended(ctx context.Context, format string, args ...any) *Error {
	cause := context.Cause(ctx)
	what := fmt.Sprintf(format, args...)
	var e *Error
	switch {
	case errors.As(cause, &e) && e.Err == nil:
		return &Error{Code: e.Code, Err: errors.New(what), Hint: e.Hint}
	case e != nil:
		return &Error{Code: e.Code, Err: fmt.Errorf("%s: %w", what, e.Err), Hint: e.Hint}
	case errors.Is(cause, context.DeadlineExceeded):
		return New(SourceStalled, "%s: %w", what, cause)
	}
	return New(Interrupted, "%s: %w", what, cause)
}

// Exit returns the exit status for err alone.
func Exit(err error) int { return Lookup(Of(err)).Exit }

// Worst returns the exit status for a run in which several outcomes apply: a
// bug, a usage error or an interrupt first, since then the run as a whole did
// not happen; then the most definite one: no, deadline, could not tell. It is
// ExitYes when statuses is empty.
func Worst(statuses ...int) int {
	for _, s := range []int{ExitInternal, ExitUsage, ExitInterrupted, ExitNo, ExitDeadline, ExitUnknown} {
		for _, have := range statuses {
			if have == s {
				return s
			}
		}
	}
	return ExitYes
}

// MaxLine is the longest line that Line returns, in bytes. It fits a marker
// file, a table cell and the errortext of an API answer.
const MaxLine = 1000

// ellipsis ends a line that was cut.
const ellipsis = "..."

// Line makes s one printable line: line breaks and runs of white space become
// one space, other control characters and invalid UTF-8 become '?', and what
// is past MaxLine is cut and marked with "...". Text that came from a medium, a
// journal or another host goes through it before it is written anywhere.
func Line(s string) string {
	var b strings.Builder
	fits := 0 // what can stay when the line is too long, and leaves room for the ellipsis
	space := false
	for _, r := range s {
		switch {
		case unicode.IsSpace(r):
			space = b.Len() > 0
			continue
		case r == utf8.RuneError, !unicode.IsPrint(r):
			r = '?'
		}
		if space {
			b.WriteByte(' ')
		}
		space = false
		b.WriteRune(r)
		if b.Len() > MaxLine {
			return b.String()[:fits] + ellipsis
		}
		if b.Len() <= MaxLine-len(ellipsis) {
			fits = b.Len()
		}
	}
	return b.String()
}
