package isofs

import (
	"bytes"
	"errors"
	"unicode/utf16"
	"unicode/utf8"
)

// Names is a set of names an image is read through.
type Names uint8

// The sets of names, in the order in which Linux prefers them.
const (
	RockRidge Names = iota + 1
	Joliet
	Plain
)

func (n Names) String() string {
	switch n {
	case RockRidge:
		return "Rock Ridge"
	case Joliet:
		return "Joliet"
	case Plain:
		return "plain ISO 9660"
	default:
		return "unknown names"
	}
}

// appendPlain appends the name that Linux shows for the identifier id of the
// primary tree (mount option map=normal): lower case, ";1" and ".;1" gone from
// the end, other semicolons and slashes turned into dots.
func appendPlain(dst, id []byte) []byte {
	if bare, ok := bytes.CutSuffix(id, []byte(".;1")); ok {
		id = bare
	} else {
		id = bytes.TrimSuffix(id, []byte(";1"))
	}
	for _, c := range id {
		switch {
		case c >= 'A' && c <= 'Z':
			c += 'a' - 'A'
		case c == ';' || c == '/':
			c = '.'
		}
		dst = append(dst, c)
	}
	return dst
}

// appendJoliet appends the name that Linux shows for the big-endian UCS-2
// identifier id of a Joliet tree: UTF-8, without ";1" and dots at the end.
func appendJoliet(dst, id []byte) ([]byte, error) {
	if len(id)%2 != 0 {
		return dst, errors.New("a Joliet name ends within a character")
	}
	start := len(dst)
	for ; len(id) > 0; id = id[2:] {
		r := rune(id[0])<<8 | rune(id[1])
		if utf16.IsSurrogate(r) {
			if len(id) < 4 {
				return dst, errors.New("a Joliet name ends within a character")
			}
			r = utf16.DecodeRune(r, rune(id[2])<<8|rune(id[3]))
			if r == utf8.RuneError {
				return dst, errors.New("a Joliet name is not UTF-16")
			}
			id = id[2:]
		}
		dst = utf8.AppendRune(dst, r)
	}
	name := dst[start:]
	if len(name) > 2 {
		name = bytes.TrimSuffix(name, []byte(";1"))
	}
	for len(name) >= 2 && name[len(name)-1] == '.' {
		name = name[:len(name)-1]
	}
	return dst[:start+len(name)], nil
}

// checkName says what is wrong with a name that no file can have, or that
// would not survive being printed on a line.
func checkName(name []byte) error {
	switch {
	case len(name) == 0:
		return errors.New("a directory record has an empty name")
	case string(name) == "." || string(name) == "..":
		return errors.New(`a name is "." or ".."`)
	case bytes.IndexByte(name, '/') >= 0:
		return errors.New("a name contains a slash")
	case bytes.IndexByte(name, 0) >= 0:
		return errors.New("a name contains a NUL byte")
	case bytes.IndexByte(name, '\n') >= 0:
		return errors.New("a name contains a newline")
	}
	return nil
}

// matcher returns the comparison of names with wanted.
func (n Names) matcher(wanted string) func(name []byte) bool {
	w := []byte(wanted)
	if n != Joliet {
		return func(name []byte) bool { return bytes.Equal(name, w) }
	}
	w = bytes.TrimRight(w, ".")
	return func(name []byte) bool { return len(w) > 0 && equalFoldASCII(name, w) }
}

// equalFoldASCII compares as Linux does in a Joliet tree: letters outside
// ASCII keep their case.
func equalFoldASCII(a, b []byte) bool {
	lower := func(c byte) byte {
		if c >= 'A' && c <= 'Z' {
			c += 'a' - 'A'
		}
		return c
	}
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if lower(a[i]) != lower(b[i]) {
			return false
		}
	}
	return true
}
