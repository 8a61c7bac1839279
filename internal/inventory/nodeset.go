package inventory

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// MaxHosts is how many hosts one argument, list or inventory may name. It is
// far above any fleet one process should look at, and keeps a slip of the
// finger such as etcd[1-1000000000] from taking the machine's memory.
const MaxHosts = 10_000

// maxDigits is the longest number in a range. It fits an int64 with room to
// add to it.
const maxDigits = 15

// errBrackets explains what may stand in brackets.
var errBrackets = errors.New("brackets hold numbers and ranges, as in etcd[1-3,5], or an address at the beginning, as in [2001:db8::1]:22")

// rangeSet matches what is a range set for sure, right or wrong.
var rangeSet = regexp.MustCompile(`^\[[0-9,/-]*\]`)

// numbers is one item of a range set: "5", "1-3", "01-10", "0-8/2".
type numbers struct {
	first, last, step int64
	width             int // digits to pad to with zeros
}

func (n numbers) count() int64 { return (n.last-n.first)/n.step + 1 }

// A part of a node set is literal text, or numbers to choose from.
type part struct {
	text string
	set  []numbers // nil: text
}

func (p part) count() int64 {
	if p.set == nil {
		return 1
	}
	var sum int64
	for _, n := range p.set {
		sum += n.count() // each is at most MaxHosts, their number at most that of the bytes read
	}
	return sum
}

// values returns the texts that the part stands for, in the order written.
func (p part) values() []string {
	if p.set == nil {
		return []string{p.text}
	}
	var out []string
	for _, n := range p.set {
		for v := n.first; v <= n.last; v += n.step {
			out = append(out, fmt.Sprintf("%0*d", n.width, v))
		}
	}
	return out
}

// expand returns the names that a node set in clustershell's form stands for,
// at most MaxHosts, in the order written and with the last bracket moving
// fastest: "etcd[1-3,5].example", "rack[1-2]-etcd[01-10]:22", "a1,b[1-2]",
// "203.0.113.10:[50000-50002]". A range may have a step ("[0-8/2]"), and is
// padded with zeros as its first number is. An address in brackets at the
// beginning, or after the login name, stays as it is.
//
// Clustershell's operators other than the comma, its wildcards and its groups
// are not part of the form.
func expand(s string) ([]string, error) {
	var names []string
	for rest, more := s, true; more; {
		var parts []part
		var err error
		parts, rest, more, err = scanSet(rest)
		if err != nil {
			return nil, err
		}
		count := int64(1)
		for _, p := range parts {
			if count *= p.count(); count+int64(len(names)) > MaxHosts {
				return nil, fmt.Errorf("it names more than %d hosts", MaxHosts)
			}
		}
		names = append(names, product(parts)...)
	}
	return names, nil
}

// product joins every choice of values.
func product(parts []part) []string {
	out := []string{""}
	for _, p := range parts {
		values := p.values()
		next := make([]string, 0, len(out)*len(values))
		for _, begin := range out {
			for _, v := range values {
				next = append(next, begin+v)
			}
		}
		out = next
	}
	return out
}

// scanSet reads s up to the first comma outside of brackets, and returns what
// comes after it and whether there was one.
func scanSet(s string) (parts []part, rest string, more bool, err error) {
	literal := false // within the brackets of an address
	begin := 0       // of the text not yet in parts
	flush := func(end int) {
		if begin < end {
			parts = append(parts, part{text: s[begin:end]})
		}
	}
	i := 0
scan:
	for i < len(s) {
		switch s[i] {
		case '[':
			if m := rangeSet.FindString(s[i:]); m != "" {
				set, err := parseRanges(m[1 : len(m)-1])
				if err != nil {
					return nil, "", false, err
				}
				flush(i)
				parts = append(parts, part{set: set})
				i += len(m)
				begin = i
				continue
			}
			if literal || i > 0 && s[i-1] != '@' && s[i-1] != '/' {
				return nil, "", false, errBrackets
			}
			literal = true
		case ']':
			if !literal {
				return nil, "", false, errBrackets
			}
			literal = false
		case ',':
			if literal {
				return nil, "", false, errBrackets
			}
			rest, more = s[i+1:], true
			break scan
		}
		i++
	}
	if literal {
		return nil, "", false, errBrackets
	}
	flush(i)
	if len(parts) == 0 {
		return nil, "", false, errors.New("a name is empty")
	}
	return parts, rest, more, nil
}

// parseRanges reads what stands between the brackets of a range set.
func parseRanges(s string) ([]numbers, error) {
	var set []numbers
	for item := range strings.SplitSeq(s, ",") {
		n, err := parseRange(item)
		if err != nil {
			return nil, err
		}
		set = append(set, n)
	}
	return set, nil
}

func parseRange(item string) (numbers, error) {
	span, stepText, stepped := strings.Cut(item, "/")
	first, last, ranged := strings.Cut(span, "-")
	if !ranged {
		last = first
	}
	n := numbers{step: 1}
	var err error
	if n.first, err = number(first); err != nil {
		return numbers{}, fmt.Errorf("range %q: %w", item, err)
	}
	if n.last, err = number(last); err != nil {
		return numbers{}, fmt.Errorf("range %q: %w", item, err)
	}
	if stepped {
		if n.step, err = number(stepText); err != nil || n.step < 1 || !ranged {
			return numbers{}, fmt.Errorf("range %q: a step is as in 0-8/2", item)
		}
	}
	if padded(first) {
		n.width = len(first)
	}
	switch {
	case n.last < n.first:
		return numbers{}, fmt.Errorf("range %q runs backwards", item)
	case padded(last) && len(last) != len(first):
		return numbers{}, fmt.Errorf("range %q: both ends need the same number of digits when padded with zeros", item)
	case n.count() > MaxHosts:
		return numbers{}, fmt.Errorf("range %q names more than %d hosts", item, MaxHosts)
	}
	return n, nil
}

// number reads a decimal number of at most maxDigits digits.
func number(s string) (int64, error) {
	if s == "" || len(s) > maxDigits {
		return 0, fmt.Errorf("a number has 1 to %d digits", maxDigits)
	}
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("%q is not a number", s)
		}
	}
	return strconv.ParseInt(s, 10, 64)
}

// padded reports whether a number is written with zeros before it.
func padded(s string) bool { return len(s) > 1 && s[0] == '0' }
