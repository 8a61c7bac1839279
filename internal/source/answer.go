package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// A contentRange is the field of that name (RFC 9110, 14.4) in bytes.
type contentRange struct {
	first, last int64 // both -1 in a 416: no range
	size        int64 // of the whole; -1: not told
}

// parseContentRange reads "bytes 0-99/1234", "bytes 0-99/*" and "bytes */1234".
func parseContentRange(s string) (contentRange, error) {
	wrong := func() (contentRange, error) {
		return contentRange{}, fmt.Errorf("the Content-Range %.80q cannot be read", s)
	}
	unit, rest, ok := strings.Cut(s, " ")
	if !ok || !strings.EqualFold(unit, "bytes") {
		return wrong()
	}
	span, size, ok := strings.Cut(strings.TrimSpace(rest), "/")
	if !ok {
		return wrong()
	}
	c := contentRange{first: -1, last: -1, size: -1}
	if size != "*" {
		if c.size, ok = decimal(size); !ok {
			return wrong()
		}
	}
	if span == "*" {
		if c.size < 0 {
			return wrong()
		}
		return c, nil
	}
	first, last, ok := strings.Cut(span, "-")
	if !ok {
		return wrong()
	}
	var ok1, ok2 bool
	c.first, ok1 = decimal(first)
	c.last, ok2 = decimal(last)
	if !ok1 || !ok2 || c.first > c.last || c.size >= 0 && c.last >= c.size {
		return wrong()
	}
	return c, nil
}

// decimal reads a length of digits alone, up to what is believed.
func decimal(s string) (int64, bool) {
	if s == "" || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n <= maxSize
}

// strongTag reports whether s is a strong entity tag (RFC 9110, 8.8.3).
func strongTag(s string) bool {
	return len(s) >= 2 && s[0] == '"' && s[len(s)-1] == '"' && !strings.ContainsFunc(s[1:len(s)-1], func(r rune) bool {
		return r <= ' ' || r == '"' || r == 0x7f
	})
}

// weakTag reports whether s is a weak one.
func weakTag(s string) bool {
	return strings.HasPrefix(s, "W/") && strongTag(s[len("W/"):])
}

// A version is what one representation is told from others by.
type version struct {
	size     int64  // -1: not told
	tag      string // as it was sent; "" if it is none
	modified string // as it was sent; "" if it is no date
	// young: the date is too close to that of the answer, and does not tell one
	// version from another that was written in the same second (RFC 9110, 8.8.2.2).
	young bool
}

func versionOf(h http.Header, size int64) version {
	v := version{size: size}
	if tag := h.Get("Etag"); strongTag(tag) || weakTag(tag) {
		v.tag = tag
	}
	if t, err := http.ParseTime(h.Get("Last-Modified")); err == nil {
		v.modified = h.Get("Last-Modified")
		date, err := http.ParseTime(h.Get("Date"))
		v.young = err != nil || date.Sub(t) < time.Second
	}
	return v
}

// condition asks for v alone: a server that has another version answers 412.
func (v version) condition(h http.Header) {
	switch {
	case strongTag(v.tag):
		h.Set("If-Match", v.tag)
	case v.modified != "":
		h.Set("If-Unmodified-Since", v.modified)
	}
}

// differs says how the version of a later answer is not v, or nil. A server may
// leave the date out of an answer to a range, but not the tag (RFC 9110, 15.3.7).
func (v version) differs(now version) error {
	switch {
	case now.size != v.size:
		return fmt.Errorf("it had %d bytes and has %d now", v.size, now.size)
	case now.tag != v.tag:
		return fmt.Errorf("its entity tag was %s and is %s now", orNone(v.tag), orNone(now.tag))
	case now.modified != v.modified && (now.modified != "" || v.tag == ""):
		return fmt.Errorf("it was of %s and is of %s now", orNone(v.modified), orNone(now.modified))
	}
	return nil
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

// maxRetryAfter is the longest pause a server's word is remembered for.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the field of that name (RFC 9110, 10.2.3): seconds or a date.
func retryAfter(h http.Header, now time.Time) time.Duration {
	s := textproto.TrimString(h.Get("Retry-After"))
	if n, err := strconv.ParseUint(s, 10, 32); err == nil {
		return min(time.Duration(n)*time.Second, maxRetryAfter)
	}
	if t, err := http.ParseTime(s); err == nil {
		return min(max(t.Sub(now), 0), maxRetryAfter)
	}
	return 0
}

// encoded says how the content is not as it is stored, or nil.
func encoded(h http.Header) error {
	for _, line := range h.Values("Content-Encoding") {
		for e := range strings.SplitSeq(line, ",") {
			if e = strings.TrimSpace(e); e != "" && !strings.EqualFold(e, "identity") {
				return fmt.Errorf("the server answers with the content encoding %.20q, which was not asked for", e)
			}
		}
	}
	return nil
}

var errMultipart = errors.New("the server answers with several parts, where one was asked for")

// checkPart checks the head of a 206 for want bytes at off, and returns how many
// it has and the length of the whole.
func checkPart(resp *http.Response, off, want int64) (n, size int64, err error) {
	if err := encoded(resp.Header); err != nil {
		return 0, 0, err
	}
	ranges := resp.Header.Values("Content-Range")
	if len(ranges) != 1 {
		if strings.HasPrefix(strings.ToLower(resp.Header.Get("Content-Type")), "multipart/") {
			return 0, 0, errMultipart
		}
		return 0, 0, fmt.Errorf("the server answers to a range with %d Content-Range fields", len(ranges))
	}
	c, err := parseContentRange(ranges[0])
	switch {
	case err != nil:
		return 0, 0, err
	case c.size < 0:
		return 0, 0, errors.New("the server does not tell the length of the whole")
	case c.first != off || c.last >= off+want:
		return 0, 0, fmt.Errorf("the server answers with bytes %d-%d, asked for %d-%d", c.first, c.last, off, off+want-1)
	}
	n = c.last - c.first + 1
	if resp.ContentLength >= 0 && resp.ContentLength != n {
		return 0, 0, fmt.Errorf("the server announces %d bytes for a range of %d", resp.ContentLength, n)
	}
	return n, c.size, nil
}
