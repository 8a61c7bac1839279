package source

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// scheme matches the beginning of a URL with an authority (RFC 3986, 3.1). One
// letter is left to those who have drives.
var scheme = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]+://`)

// IsURL reports whether name is a URL, of any scheme, and not a path. Open refuses
// schemes other than http and https with the code source-unsupported.
func IsURL(name string) bool { return scheme.MatchString(name) }

// Redact returns a URL without its user and password, and anything else as it is.
// It is how a name is shown and stored.
func Redact(name string) string {
	if !IsURL(name) {
		return name
	}
	// By hand, since it must hold for what url.Parse refuses too.
	head, rest, _ := strings.Cut(name, "://")
	authority, tail := rest, ""
	if i := strings.IndexAny(rest, `/?#\`); i >= 0 {
		authority, tail = rest[:i], rest[i:]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	// A password with an unescaped slash ends the authority too early.
	if i := strings.IndexByte(tail, '@'); i >= 0 && strings.Contains(authority, ":") && !validPort(authority) {
		authority, tail = tail[i+1:], ""
	}
	return head + "://" + authority + tail
}

// validPort reports whether what follows the last colon of a host may be a port.
func validPort(host string) bool {
	port := host[strings.LastIndexByte(host, ':')+1:]
	return strings.Trim(port, "0123456789") == "" || strings.HasSuffix(host, "]")
}

var errScheme = errors.New("only http and https URLs can be read")

// parseURL returns an http or https URL without fragment, and its user
// information apart from it. Its errors do not show that.
func parseURL(name string) (*url.URL, *url.Userinfo, error) {
	u, err := url.Parse(name)
	if err != nil {
		// The cause quotes a part, which may be that of the password.
		return nil, nil, errors.New("the URL cannot be parsed")
	}
	u.Scheme = strings.ToLower(u.Scheme)
	if u.Scheme != "http" && u.Scheme != "https" {
		return nil, nil, errScheme
	}
	if u.Hostname() == "" {
		return nil, nil, fmt.Errorf("the URL names no host")
	}
	user := u.User
	u.User, u.Fragment, u.RawFragment = nil, "", ""
	return u, user, nil
}

// trusts reports whether what is meant for the host of from may be sent to to:
// to the same scheme, host and port, or to the same host by https instead of
// http where both have their usual port.
func trusts(from, to *url.URL) bool {
	if !strings.EqualFold(from.Hostname(), to.Hostname()) {
		return false
	}
	if from.Scheme == to.Scheme {
		return portOf(from) == portOf(to)
	}
	return to.Scheme == "https" && portOf(from) == "80" && portOf(to) == "443"
}

func portOf(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	if u.Scheme == "https" {
		return "443"
	}
	return "80"
}

// shown is a URL as it appears in messages: one that a server redirected to may
// have a signature in its query.
func shown(u *url.URL) string {
	if u.RawQuery == "" {
		return u.String()
	}
	v := *u
	v.RawQuery = "..."
	return v.String()
}
