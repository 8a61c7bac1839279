package store

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf16"
)

// maxProperties is the longest file that is read: a template.properties has
// under 1 KiB.
const maxProperties = 64 << 10

// ParseProperties reads the format of java.util.Properties.load: comments that
// begin with "#" or "!", lines continued by a backslash at their end, keys and
// values divided by "=", ":" or white space, the escapes \t \n \r \f and
// \uXXXX, and a backslash before anything else. Bytes are ISO 8859-1. Of two
// lines with one key the last counts.
//
// It fails for a \u without four hex digits, as Java does, for more than 64
// KiB, and with the error of r.
func ParseProperties(r io.Reader) (map[string]string, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxProperties+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read properties: %w", err)
	}
	if len(b) > maxProperties {
		return nil, fmt.Errorf("cannot read properties: there are more than %d bytes", maxProperties)
	}
	props := make(map[string]string)
	lines := logicalLines{rest: b}
	for {
		line, ok := lines.next()
		if !ok {
			return props, nil
		}
		key, value := split(line)
		k, err := unescape(key)
		if err != nil {
			return nil, err
		}
		if props[k], err = unescape(value); err != nil {
			return nil, err
		}
	}
}

// logicalLines are lines with their continuations joined, without comments,
// blank lines, and the white space they begin with.
type logicalLines struct{ rest []byte }

func (l *logicalLines) next() (line []byte, ok bool) {
	for len(l.rest) > 0 {
		natural := l.natural()
		natural = trimSpace(natural)
		// A line that is nothing but a backslash continues as if it were not
		// there: what follows may be a comment.
		if len(line) == 0 && (len(natural) == 0 || natural[0] == '#' || natural[0] == '!') {
			continue
		}
		continued := endsInBackslash(natural)
		if continued {
			natural = natural[:len(natural)-1]
		}
		line = append(line, natural...)
		if !continued {
			return line, true
		}
	}
	return line, len(line) > 0
}

// natural takes the next line, which ends in \n, \r or \r\n.
func (l *logicalLines) natural() []byte {
	for i, c := range l.rest {
		if c != '\n' && c != '\r' {
			continue
		}
		line, end := l.rest[:i], i+1
		if c == '\r' && end < len(l.rest) && l.rest[end] == '\n' {
			end++
		}
		l.rest = l.rest[end:]
		return line
	}
	line := l.rest
	l.rest = nil
	return line
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\f' }

func trimSpace(b []byte) []byte {
	for len(b) > 0 && isSpace(b[0]) {
		b = b[1:]
	}
	return b
}

func endsInBackslash(b []byte) bool {
	n := 0
	for n < len(b) && b[len(b)-1-n] == '\\' {
		n++
	}
	return n%2 == 1
}

// split divides a line into key and value, both still escaped.
func split(line []byte) (key, value []byte) {
	end := 0
	for ; end < len(line); end++ {
		c := line[end]
		if c == '\\' {
			end++ // whatever it is, it is part of the key
		} else if c == '=' || c == ':' || isSpace(c) {
			break
		}
	}
	end = min(end, len(line))
	key, value = line[:end], trimSpace(line[end:])
	if len(value) > 0 && (value[0] == '=' || value[0] == ':') {
		value = trimSpace(value[1:])
	}
	return key, value
}

// unescape decodes ISO 8859-1 and escapes.
func unescape(b []byte) (string, error) {
	var s strings.Builder
	var units []uint16 // of UTF-16, which \u writes, to join surrogates
	flush := func() {
		for _, r := range utf16.Decode(units) {
			s.WriteRune(r)
		}
		units = units[:0]
	}
	for i := 0; i < len(b); i++ {
		c := b[i]
		if c != '\\' {
			flush()
			s.WriteRune(rune(c))
			continue
		}
		if i++; i == len(b) {
			break
		}
		switch c = b[i]; c {
		case 'u':
			digits := b[i+1 : min(i+5, len(b))]
			n, err := strconv.ParseUint(string(digits), 16, 16)
			if err != nil || len(digits) != 4 {
				return "", fmt.Errorf("cannot read properties: malformed escape %q", `\u`+string(digits))
			}
			units = append(units, uint16(n))
			i += 4
			continue
		case 't':
			c = '\t'
		case 'n':
			c = '\n'
		case 'r':
			c = '\r'
		case 'f':
			c = '\f'
		}
		flush()
		s.WriteRune(rune(c))
	}
	flush()
	return s.String(), nil
}
