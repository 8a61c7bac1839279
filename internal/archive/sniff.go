package archive

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// sniffSize is how much of a file is looked at to tell what it is: enough for a
// tar header (512 bytes) and for the title of an error page.
const sniffSize = 2048

// gzipMagic is ID1 and ID2 of RFC 1952, section 2.3.1.
const gzipMagic = "\x1f\x8b"

func isGzip(b []byte) bool { return bytes.HasPrefix(b, []byte(gzipMagic)) }

// isTar reports whether b begins with a tar header: its checksum is right.
func isTar(b []byte) bool {
	const size, from, to = 512, 148, 156 // the checksum field counts as spaces
	if len(b) < size {
		return false
	}
	sum := int64(8 * ' ')
	for i, c := range b[:size] {
		if i < from || i >= to {
			sum += int64(c)
		}
	}
	want, err := strconv.ParseInt(strings.Trim(string(b[from:to]), " \x00"), 8, 64)
	return err == nil && want == sum
}

// whatIs names what a file is that begins with b and should have been
// something else, with its article: "an HTML page", "a zip archive". What is
// found there is mostly the answer of a server that had no such file, so the
// gist of that is included.
func whatIs(b []byte) string {
	for _, m := range []struct{ magic, what string }{
		{gzipMagic, "a gzip stream"},
		{"\x1f\x9d", "a compress (.Z) stream"},
		{"PK\x03\x04", "a zip archive"},
		{"PK\x05\x06", "an empty zip archive"},
		{"\xfd7zXZ\x00", "an xz stream"},
		{"\x28\xb5\x2f\xfd", "a zstd stream"},
		{"BZh", "a bzip2 stream"},
		{"\x04\x22\x4d\x18", "an lz4 stream"},
		{"7z\xbc\xaf\x27\x1c", "a 7z archive"},
		{"\x7fELF", "an ELF program"},
		{"MZ", "a Windows program"},
		{"\xcf\xfa\xed\xfe", "a macOS program"},
		{"\xce\xfa\xed\xfe", "a macOS program"},
		{"\xca\xfe\xba\xbe", "a macOS universal program"},
		{"\xed\xab\xee\xdb", "an RPM package"},
		{"!<arch>\n", "an ar archive or Debian package"},
		{"#!", "a script"},
		{"%PDF", "a PDF document"},
	} {
		if bytes.HasPrefix(b, []byte(m.magic)) {
			return m.what
		}
	}
	switch {
	case len(b) == 0:
		return "empty"
	case isTar(b):
		return "a tar archive that is not compressed"
	case len(bytes.Trim(b, "\x00")) == 0:
		return "nothing but zero bytes"
	}
	if text, ok := asText(b); ok {
		return whatText(text)
	}
	return fmt.Sprintf("data of an unknown kind (it begins with % x)", b[:min(len(b), 8)])
}

// asText returns b as text, if it is any. The last rune may be cut.
func asText(b []byte) (string, bool) {
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	for i := 0; i < len(b); {
		r, n := utf8.DecodeRune(b[i:])
		if r == utf8.RuneError && n == 1 {
			if utf8.FullRune(b[i:]) {
				return "", false
			}
			b = b[:i]
			break
		}
		if !unicode.IsPrint(r) && !unicode.IsSpace(r) {
			return "", false
		}
		i += n
	}
	s := strings.TrimSpace(string(b))
	return s, s != ""
}

// whatText names a text and quotes what it says.
func whatText(s string) string {
	lower := strings.ToLower(s)
	quote := func(what, text string) string {
		text = strings.Join(strings.Fields(text), " ")
		if text == "" {
			return what
		}
		if r := []rune(text); len(r) > 80 {
			text = string(r[:80]) + "..."
		}
		return fmt.Sprintf("%s (%q)", what, text)
	}
	switch {
	case strings.HasPrefix(lower, "<!doctype html"), strings.HasPrefix(lower, "<html"),
		strings.HasPrefix(lower, "<head"), strings.HasPrefix(lower, "<body"),
		strings.HasPrefix(lower, "<?xml") && strings.Contains(lower, "<html"):
		return quote("an HTML page", between(s, "title"))
	case strings.HasPrefix(lower, "<?xml"), strings.HasPrefix(s, "<Error>"):
		return quote("an XML document", between(s, "Code")) // an object store's error
	case strings.HasPrefix(s, "<"):
		return "an XML or HTML document"
	case strings.HasPrefix(s, "{"), strings.HasPrefix(s, "["):
		return quote("a JSON text", s)
	}
	line, _, _ := strings.Cut(s, "\n")
	return quote("a text", line)
}

// between returns the text of the first element of that name.
func between(s, element string) string {
	low := strings.ToLower(s)
	if len(low) != len(s) {
		return "" // a letter whose lower case has another length: no error page
	}
	element = strings.ToLower(element)
	i := strings.Index(low, "<"+element+">")
	if i < 0 {
		return ""
	}
	i += len(element) + 2
	j := strings.Index(low[i:], "</"+element)
	if j < 0 {
		return ""
	}
	return s[i : i+j]
}
