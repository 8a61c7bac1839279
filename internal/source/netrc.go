package source

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// maxNetrc bounds the file: those of people with many hosts have some KiB.
const maxNetrc = 1 << 20

// A netrc is what a file in the format of netrc(5) says.
type netrc []machine

// A machine is one entry.
type machine struct {
	name            string // lower case; "" is the default entry
	login, password string
}

// lookup returns the first entry for a host, or the default, which comes last. A
// login that is not "" must be the entry's.
func (n netrc) lookup(host, login string) (machine, bool) {
	for _, m := range n {
		if (m.name == "" || strings.EqualFold(m.name, host)) && (login == "" || login == m.login) {
			return m, true
		}
	}
	return machine{}, false
}

// parseNetrc reads the format of netrc(5) as curl does: words between white
// space, which may be in double quotes with \", \\, \n, \r and \t in them; comments
// from a word that begins with # where a keyword may stand; macros, which are
// left out. Entries behind the default are never used.
func parseNetrc(text string) (netrc, error) {
	p := netrcParser{rest: text, line: 1}
	var list netrc
	var m *machine
	end := func() {
		if m != nil {
			list = append(list, *m)
		}
		m = nil
	}
	for {
		p.space()
		if strings.HasPrefix(p.rest, "#") {
			p.skipLine()
			continue
		}
		at := p.line
		key, ok, err := p.word()
		if err != nil || !ok {
			end()
			return list, err
		}
		switch key {
		case "default":
			end()
			m = &machine{}
			continue
		case "macdef": // to the next empty line
			p.skipMacro()
			continue
		}
		value, ok, err := p.word()
		if err != nil {
			return nil, err
		}
		if !ok {
			return nil, fmt.Errorf("line %d: nothing follows the last word", at)
		}
		switch {
		case key == "machine":
			end()
			if value == "" {
				return nil, fmt.Errorf("line %d: a machine has no name", at)
			}
			m = &machine{name: strings.ToLower(value)}
		case m == nil:
			return nil, fmt.Errorf("line %d: a word stands before the first machine", at)
		case key == "login":
			m.login = value
		case key == "password":
			m.password = value
		case key == "account": // FTP's
		default:
			// Not quoted: it may be a password in the wrong place.
			return nil, fmt.Errorf("line %d: there is a word other than machine, default, login, password, account and macdef", at)
		}
	}
}

type netrcParser struct {
	rest string
	line int
}

const netrcSpace = " \t\r\n\v\f"

func (p *netrcParser) advance(n int) {
	p.line += strings.Count(p.rest[:n], "\n")
	p.rest = p.rest[n:]
}

func (p *netrcParser) space() { p.advance(len(p.rest) - len(strings.TrimLeft(p.rest, netrcSpace))) }

func (p *netrcParser) skipLine() {
	if i := strings.IndexByte(p.rest, '\n'); i >= 0 {
		p.advance(i + 1)
		return
	}
	p.rest = ""
}

func (p *netrcParser) skipMacro() {
	for p.rest != "" {
		p.skipLine()
		line, _, _ := strings.Cut(p.rest, "\n")
		if strings.TrimRight(line, "\r") == "" {
			return
		}
	}
}

// word returns the next word, and whether there is one.
func (p *netrcParser) word() (string, bool, error) {
	p.space()
	if p.rest == "" {
		return "", false, nil
	}
	if p.rest[0] != '"' {
		n := strings.IndexAny(p.rest, netrcSpace)
		if n < 0 {
			n = len(p.rest)
		}
		w := p.rest[:n]
		p.advance(n)
		return w, true, nil
	}
	var b strings.Builder
	for i := 1; i < len(p.rest); i++ {
		switch c := p.rest[i]; c {
		case '"':
			p.advance(i + 1)
			return b.String(), true, nil
		case '\\':
			if i++; i < len(p.rest) {
				b.WriteByte(unescape(p.rest[i]))
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", false, fmt.Errorf("line %d: a quotation mark is not closed", p.line)
}

func unescape(c byte) byte {
	switch c {
	case 'n':
		return '\n'
	case 'r':
		return '\r'
	case 't':
		return '\t'
	}
	return c
}

// readNetrc reads the file of that name. What is special or too long is no netrc.
func readNetrc(name string) (netrc, error) {
	info, err := os.Stat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxNetrc+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxNetrc {
		return nil, fmt.Errorf("%s is longer than %d bytes", name, maxNetrc)
	}
	list, err := parseNetrc(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s, %w", name, err)
	}
	return list, nil
}

// findNetrc reads the netrc that Options.Netrc names. One that nobody asked for
// may be absent; named says whether an error is worth to stop for.
func findNetrc(option string) (list netrc, named bool, err error) {
	switch {
	case option == "none":
		return nil, false, nil
	case option != "":
		list, err = readNetrc(option)
		return list, true, err
	}
	if name := os.Getenv("NETRC"); name != "" {
		list, err = readNetrc(name)
		return list, false, err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return nil, false, nil
	}
	list, err = readNetrc(filepath.Join(home, ".netrc"))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, false, err
}
