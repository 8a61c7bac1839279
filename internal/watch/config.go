package watch

import (
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/parser"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// A Config is what the daemon is to do. Its durations, numbers and addresses
// are within their bounds.
type Config struct {
	Stores       []scan.Store
	URLs         []scan.URL
	File         string        // looked for on each ISO
	All          bool          // list ISOs that are no Kubernetes ISOs, too
	Interval     time.Duration // from the start of a round to that of the next
	FailureLimit int
	Jobs         int
	LookTimeout  time.Duration // for one ISO
	ReadTimeout  time.Duration // for one read
	AdmitWait    time.Duration // for a look that a request needs
	AdmitAny     bool          // requests may name paths and URLs that are not configured
	Answers      string        // path of the file they are kept in
	HTTP         HTTP
	Listen       []Address
	TLS          *TLS   // nil: plain HTTP
	TokenFile    string // "": no token is asked for
}

// HTTP says how URLs are read.
type HTTP struct {
	CA      string   // file with certificates to trust, "" for the system's
	Headers []string // "Name: value", sent with every request to the servers named
	Netrc   string   // path, "" for the default, "none" for none
}

// TLS names the files of the server's certificate.
type TLS struct {
	Cert, Key string
	ClientCA  string // "": clients need no certificate
}

// Bounds and defaults of the settings.
const (
	defaultListen   = "127.0.0.1:9619"
	defaultInterval = 5 * time.Minute
	defaultRead     = 30 * time.Second

	// minInterval keeps a slip of the unit from turning rounds, each of which
	// walks the stores, into a load on a storage server.
	minInterval = 10 * time.Second
	maxInterval = 24 * time.Hour
	maxLook     = time.Hour
	maxRead     = 10 * time.Minute
	// maxWait bounds what a request may wait for: the caller is an API call of
	// somebody who waits for a cluster, with a timeout of its own.
	maxWait = time.Minute
	minWait = 100 * time.Millisecond

	maxStores  = 1000
	maxURLs    = 10000
	maxListen  = 32
	maxHeaders = 64
	maxLimit   = 1000
	maxJobs    = 64 // more only queue up at the storage
)

// configHint is what to do about a configuration that cannot be used.
const configHint = "correct the file, and try it with 'etcd-fleet watch --check'; docs/watch.md describes it"

// ReadConfig reads the configuration at path, at most 1 MiB of it. Errors have
// the code reason.Usage, and a *strictyaml.Error in their chain wherever there is a
// place to name, so that [strictyaml.Detail] shows it. Relative paths in the file begin
// at its directory.
//
// It is strict: an unknown key, a key that is given twice, a value of the wrong
// kind or out of bounds, anchors, aliases, merge keys, tags, directives and a
// second document are errors. A file without settings is valid.
func ReadConfig(path string) (Config, error) {
	f, err := os.Open(path)
	if err != nil {
		return Config{}, reason.New(reason.Usage, "cannot read configuration: %w", err).WithHint(configHint)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return Config{}, reason.New(reason.Usage, "cannot read configuration: %w", err).WithHint(configHint)
	}
	return ParseConfig(path, b)
}

// ParseConfig is [ReadConfig] for a file that was read already.
func ParseConfig(path string, b []byte) (Config, error) {
	if len(b) > maxConfigBytes {
		return Config{}, reason.New(reason.Usage, "cannot read configuration %s: it is longer than %d bytes", path, maxConfigBytes).WithHint(configHint)
	}
	c, err := newDecoder(path, b).config()
	if err != nil {
		return Config{}, reason.New(reason.Usage, "%w", err).WithHint(configHint)
	}
	return c, nil
}

func (d *decoder) config() (Config, error) {
	c := Config{
		File:         inspect.EtcdArchive,
		Interval:     defaultInterval,
		FailureLimit: scan.DefaultFailureLimit,
		Jobs:         scan.DefaultJobs,
		LookTimeout:  scan.DefaultLookTimeout,
		ReadTimeout:  defaultRead,
		AdmitWait:    admit.DefaultWait,
		Answers:      defaultAnswers(os.Geteuid(), os.Getenv),
	}
	top, err := d.Parse(parser.AllowDuplicateMapKey())
	if err != nil {
		return c, err
	}
	listenAt := make(map[string]value)
	var tlsAt value
	err = d.mapping(value{node: top}, "the configuration",
		field{"stores", func(v value) error { return d.list(v, maxStores, func(v value) error { return d.store(&c, v) }) }},
		field{"urls", func(v value) error { return d.list(v, maxURLs, func(v value) error { return d.url(&c, v) }) }},
		field{"file", d.text(&c.File, fileOnISO)},
		field{"all", d.flag(&c.All)},
		field{"interval", d.duration(&c.Interval, minInterval, maxInterval)},
		field{"failure_limit", d.number(&c.FailureLimit, 1, maxLimit)},
		field{"jobs", d.number(&c.Jobs, 1, maxJobs)},
		field{"look_timeout", d.duration(&c.LookTimeout, time.Second, maxLook)},
		field{"read_timeout", d.duration(&c.ReadTimeout, time.Second, maxRead)},
		field{"admit_wait", d.duration(&c.AdmitWait, minWait, maxWait)},
		field{"admit_any", d.flag(&c.AdmitAny)},
		field{"answers", d.text(&c.Answers, d.absolute)},
		field{"http", func(v value) error { return d.http(&c.HTTP, v) }},
		field{"listen", func(v value) error {
			return d.list(v, maxListen, func(v value) error {
				var s string
				if err := d.text(&s)(v); err != nil {
					return err
				}
				a, err := parseAddress(s)
				if err != nil {
					return d.Fail(v.at, "cannot use listen: %w", err)
				}
				if _, twice := listenAt[a.String()]; twice {
					return d.Fail(v.at, "%s stands here again", a)
				}
				listenAt[a.String()] = v
				c.Listen = append(c.Listen, a)
				return nil
			})
		}},
		field{"tls", func(v value) error { tlsAt = v; return d.tls(&c, v) }},
		field{"token_file", d.text(&c.TokenFile, d.absolute)},
	)
	if err != nil {
		return c, err
	}
	if c.Answers == "" {
		return c, fmt.Errorf("cannot read configuration %s: there is no default for \"answers\" here, since HOME is not set", d.Path)
	}
	if len(c.Listen) == 0 {
		a, err := parseAddress(defaultListen)
		if err != nil {
			return c, err
		}
		c.Listen = []Address{a}
	}
	for _, a := range c.Listen {
		if !a.Local() && (c.TLS == nil || c.TokenFile == "") {
			return c, d.Fail(listenAt[a.String()].at, "%s can be reached from other machines, and so needs \"tls\" and \"token_file\"; 127.0.0.1, [::1] and unix sockets do not", a)
		}
	}
	if c.TLS != nil && !slices.ContainsFunc(c.Listen, func(a Address) bool { return a.Network == "tcp" }) {
		return c, d.Fail(tlsAt.at, "\"tls\" has no use: no address is a TCP one")
	}
	return c, nil
}

// defaultAnswers is where answers are kept: in the directory that systemd made
// for the service (STATE_DIRECTORY, systemd.exec(5)), else where the other
// commands keep them.
func defaultAnswers(euid int, getenv func(string) string) string {
	if dir, _, _ := strings.Cut(getenv("STATE_DIRECTORY"), ":"); filepath.IsAbs(dir) {
		return filepath.Join(dir, "answers.db")
	}
	return answers.DefaultPath(euid, getenv)
}

func (d *decoder) store(c *Config, v value) error {
	var s scan.Store
	err := d.mapping(v, "a store",
		field{"path", d.text(&s.Path, d.absolute)},
		field{"zone", d.text(&s.Zone)},
		field{"name", d.text(&s.Name)})
	if err != nil {
		return err
	}
	if s.Path == "" {
		return d.Fail(v.at, "a store needs the key \"path\": the directory where it is mounted")
	}
	if slices.ContainsFunc(c.Stores, func(o scan.Store) bool { return o.Path == s.Path }) {
		return d.Fail(v.at, "store %s stands here again", s.Path)
	}
	c.Stores = append(c.Stores, s)
	return nil
}

func (d *decoder) url(c *Config, v value) error {
	var u scan.URL
	err := d.mapping(v, "a URL",
		field{"url", d.text(&u.URL, httpURL)},
		field{"zone", d.text(&u.Zone)},
		field{"name", d.text(&u.Name)},
		field{"template", d.text(&u.Template)})
	if err != nil {
		return err
	}
	if u.URL == "" {
		return d.Fail(v.at, "a URL needs the key \"url\"")
	}
	if line, twice := d.urls[scan.URL{URL: u.URL, Zone: u.Zone}]; twice {
		return d.Fail(v.at, "this URL stands here again for the same zone; the first is on line %d", line)
	}
	d.urls[scan.URL{URL: u.URL, Zone: u.Zone}] = v.at.Position.Line
	c.URLs = append(c.URLs, u)
	return nil
}

func (d *decoder) http(h *HTTP, v value) error {
	return d.mapping(v, "http",
		field{"ca", d.text(&h.CA, d.absolute)},
		field{"headers", func(v value) error {
			return d.list(v, maxHeaders, func(v value) error {
				var s string
				if err := d.text(&s, header)(v); err != nil {
					return err
				}
				h.Headers = append(h.Headers, s)
				return nil
			})
		}},
		field{"netrc", d.text(&h.Netrc, func(s string) (string, error) {
			if s == "none" {
				return s, nil
			}
			return d.absolute(s)
		})})
}

func (d *decoder) tls(c *Config, v value) error {
	c.TLS = &TLS{}
	err := d.mapping(v, "tls",
		field{"cert", d.text(&c.TLS.Cert, d.absolute)},
		field{"key", d.text(&c.TLS.Key, d.absolute)},
		field{"client_ca", d.text(&c.TLS.ClientCA, d.absolute)})
	if err != nil {
		return err
	}
	if c.TLS.Cert == "" || c.TLS.Key == "" {
		return d.Fail(v.at, "\"tls\" needs \"cert\" and \"key\"")
	}
	return nil
}

// absolute makes a path of the configuration one that does not depend on where
// the daemon was started.
func (d *decoder) absolute(s string) (string, error) {
	if filepath.IsAbs(s) {
		return filepath.Clean(s), nil
	}
	if strings.HasPrefix(s, "~") {
		return "", errors.New("~ is not known here; write the whole path")
	}
	return filepath.Abs(filepath.Join(filepath.Dir(d.Path), s))
}

// fileOnISO checks a path on an ISO, written with or without a leading slash.
func fileOnISO(s string) (string, error) {
	clean := strings.TrimPrefix(path.Clean("/"+s), "/")
	if clean == "" || strings.HasSuffix(s, "/") {
		return "", fmt.Errorf("%q names no file on an ISO", s)
	}
	return clean, nil
}

// httpURL checks a URL. The error does not show one that holds a password.
func httpURL(s string) (string, error) {
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return "", errors.New("it is not a URL")
	case u.User != nil:
		return "", errors.New("a URL holds no login here; use \"netrc\" or \"headers\" of \"http\"")
	case u.Scheme != "http" && u.Scheme != "https", u.Host == "":
		return "", errors.New("only http:// and https:// URLs can be read")
	case u.Fragment != "":
		return "", errors.New("a URL of an ISO has no #fragment")
	}
	return s, nil
}

// fieldName is the name of a field of HTTP's header (RFC 9110, section 5.6.2).
var fieldName = regexp.MustCompile("^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")

// header checks a line of HTTP's header. Its value may be a secret, and so
// stands in no error.
func header(s string) (string, error) {
	name, val, ok := strings.Cut(s, ":")
	val = strings.TrimSpace(val)
	if !ok || !fieldName.MatchString(name) {
		return "", errors.New("a header is \"Name: value\"")
	}
	return name + ": " + val, nil
}
