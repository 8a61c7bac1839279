package media

import (
	"fmt"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// What is seen of a slot is told in two lengths: state is stable while nothing
// changes, so that a log of changes can be made of it; line adds where it is
// and for how long a silent device has been silent.

const (
	notRead  = "not read yet"
	noAnswer = "does not answer"
	gone     = "gone"
)

// quiet reports whether the slot is a node that no medium can be expected in:
// an unused loop or network block device.
func (s *slot) quiet() bool {
	return !s.drive && s.before == "" && (!s.present || s.fresh && (s.seen.kind == empty || s.seen.kind == noDevice))
}

func (f *Finder) state(s *slot) string {
	t := s.seen.text
	age, busy := s.gate.busy()
	nothing := true
	switch {
	case busy && age >= f.opt.ReadTimeout:
		t = noAnswer
	case !s.present:
		t = gone
	case s.seen.kind == unseen:
		t = notRead
	default:
		nothing = s.seen.kind == empty || s.seen.kind == noDevice
	}
	if nothing && s.before != "" {
		t += ", earlier " + s.before
	}
	return t
}

func (f *Finder) line(s *slot) string {
	t := f.state(s)
	if rest, ok := strings.CutPrefix(t, noAnswer); ok {
		age, _ := s.gate.busy()
		t = fmt.Sprintf("%s for %v%s", noAnswer, age.Round(time.Second), rest)
	}
	return reason.Line(s.where + " " + t)
}

// Seen returns one line for each device and mount, and what was last seen
// there. Nodes that are no drives and have nothing behind them are left out.
func (f *Finder) Seen() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var lines []string
	for _, s := range f.sorted() {
		if !s.quiet() {
			lines = append(lines, f.line(s))
		}
	}
	if f.trouble != "" {
		lines = append(lines, f.trouble)
	}
	return lines
}

// fewPlain is how many devices without an ISO are named in a message. A node
// has as many as it has partitions, and they would crowd out the rest.
const fewPlain = 3

// summary is Seen in one line: first what had to do with an ISO, then the rest.
func (f *Finder) summary() string {
	var lines, plain []string
	for _, s := range f.sorted() {
		switch {
		case s.quiet():
		case s.seen.kind == noISO && s.fresh && s.present && !s.drive:
			plain = append(plain, f.line(s))
		default:
			lines = append(lines, f.line(s))
		}
	}
	if n := len(plain) - fewPlain; n > 1 {
		plain = append(plain[:fewPlain], fmt.Sprintf("%d more with no ISO 9660", n))
	}
	lines = append(lines, plain...)
	if f.trouble != "" {
		lines = append(lines, f.trouble)
	}
	if len(lines) == 0 {
		return "no block device"
	}
	return strings.Join(lines, ", ")
}
