package sshnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/kevinburke/ssh_config"

	"cks-etcd/internal/reason"
)

const (
	// maxConfig bounds one ssh_config file; real ones have a few kilobytes.
	maxConfig = 4 << 20
	// maxInclude is OpenSSH's own limit of nested Include (READCONF_MAX_DEPTH).
	maxInclude = 16
	// everyHost begins the block that an ssh_config file starts in.
	everyHost = "Host *"
)

// sshConfig answers what ssh_config(5) says about a host. The first file that
// has a value wins.
type sshConfig struct {
	files []*ssh_config.Config
	home  string
}

// loadConfig reads the file of that name, or the user's and the system's where
// name is empty. What this program cannot evaluate is left out with a warning.
func loadConfig(name, home string, log *slog.Logger) (*sshConfig, error) {
	c := &sshConfig{home: home}
	if name == NoConfig {
		return c, nil
	}
	if name != "" {
		f, err := readConfig(name, filepath.Join(home, ".ssh"), home, log)
		if err != nil {
			return nil, reason.New(reason.Usage, "cannot read ssh_config %s as uid %d: %w", name, os.Getuid(), err)
		}
		c.files = append(c.files, f)
		return c, nil
	}
	user := filepath.Join(home, ".ssh")
	for _, at := range []struct{ name, dir string }{
		{filepath.Join(user, "config"), user},
		{"/etc/ssh/ssh_config", "/etc/ssh"},
	} {
		f, err := readConfig(at.name, at.dir, home, log)
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			log.Warn("ssh_config is left out", "file", at.name, "error", reason.Line(err.Error()))
		default:
			c.files = append(c.files, f)
		}
	}
	return c, nil
}

// readConfig reads one file. Relative names in its Include lines are below dir.
func readConfig(name, dir, home string, log *slog.Logger) (*ssh_config.Config, error) {
	flat := flattener{dir: dir, home: home, log: log}
	if err := flat.file(name, everyHost, 0); err != nil {
		return nil, err
	}
	return ssh_config.DecodeBytes(flat.out.Bytes())
}

// A flattener rewrites ssh_config into what the parser understands: Include is
// replaced by the text of the files, "Match all" and "Match host" become Host,
// and blocks with any other Match are left out with a warning, since the
// parser would refuse the whole file for them.
type flattener struct {
	out       bytes.Buffer
	dir, home string
	log       *slog.Logger
}

// file appends the file of that name. Where it ends, the block it was included
// in goes on.
func (f *flattener) file(name, block string, depth int) error {
	if depth > maxInclude {
		return fmt.Errorf("%s: Include is nested more than %d deep", name, maxInclude)
	}
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if info.Size() > maxConfig {
		return fmt.Errorf("%s: larger than %d bytes", name, maxConfig)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	outer, dropped := block, false
	for i, line := range strings.Split(string(b), "\n") {
		key, args := directive(line)
		switch key {
		case "":
			continue
		case "host":
			if dropped = outer != everyHost; dropped {
				f.log.Warn("a Host block of ssh_config is left out: it is included from within another one",
					"file", name, "line", i+1)
				continue
			}
			block = "Host " + strings.Join(args, " ")
			f.out.WriteString(block + "\n")
		case "match":
			block, dropped = matchBlock(args)
			if dropped = dropped || outer != everyHost; dropped {
				f.log.Warn("a Match block of ssh_config is left out: only 'all' and 'host' are understood",
					"file", name, "line", i+1)
				continue
			}
			f.out.WriteString(block + "\n")
		case "include":
			if dropped {
				continue
			}
			for _, pattern := range args {
				if err := f.include(pattern, block, depth); err != nil {
					return err
				}
			}
			f.out.WriteString(block + "\n")
		default:
			if !dropped && len(args) > 0 {
				fmt.Fprintf(&f.out, "%s %s\n", key, strings.Join(args, " "))
			}
		}
	}
	return nil
}

// include appends the files that match pattern. One that cannot be read is
// left out with a warning, as OpenSSH leaves out one that is not there.
func (f *flattener) include(pattern, block string, depth int) error {
	if rest, ok := strings.CutPrefix(pattern, "~/"); ok {
		pattern = filepath.Join(f.home, rest)
	} else if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(f.dir, pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil {
		return fmt.Errorf("cannot include %s: %w", pattern, err)
	}
	for _, name := range names {
		f.out.WriteString(block + "\n")
		err := f.file(name, block, depth+1)
		var pe *fs.PathError
		if errors.As(err, &pe) {
			f.log.Warn("an included ssh_config is left out", "file", name, "error", reason.Line(err.Error()))
			continue
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// matchBlock returns the Host line that says the same as a Match line.
func matchBlock(args []string) (block string, dropped bool) {
	if len(args) == 1 && strings.EqualFold(args[0], "all") {
		return everyHost, false
	}
	if len(args) == 2 && strings.EqualFold(args[0], "host") {
		return "Host " + strings.ReplaceAll(args[1], ",", " "), false
	}
	return "", true
}

// directive splits a line as ssh_config(5) says: "keyword args" or
// "keyword=args", arguments in double quotes where they hold spaces, and a
// comment behind '#'. The key is in lower case.
func directive(line string) (key string, args []string) {
	line = strings.Trim(line, " \t\r\f")
	if line == "" || line[0] == '#' {
		return "", nil
	}
	i := strings.IndexAny(line, " \t=")
	if i < 0 {
		return strings.ToLower(line), nil
	}
	key, line = strings.ToLower(line[:i]), strings.TrimLeft(line[i:], " \t")
	line = strings.TrimLeft(strings.TrimPrefix(line, "="), " \t")
	for line != "" && line[0] != '#' {
		var arg string
		if line[0] == '"' {
			arg, line, _ = strings.Cut(line[1:], `"`)
		} else if i := strings.IndexAny(line, " \t"); i >= 0 {
			arg, line = line[:i], line[i:]
		} else {
			arg, line = line, ""
		}
		if arg != "" {
			args = append(args, arg)
		}
		line = strings.TrimLeft(line, " \t")
	}
	return key, args
}

// get returns the value of key for the host as it was named, "" where none is set.
func (c *sshConfig) get(alias, key string) string {
	for _, f := range c.files {
		if v, err := f.Get(alias, key); err == nil && v != "" {
			return v
		}
	}
	return ""
}

// all returns every value of key for the host, in order.
func (c *sshConfig) all(alias, key string) []string {
	var out []string
	for _, f := range c.files {
		if v, err := f.GetAll(alias, key); err == nil {
			out = append(out, v...)
		}
	}
	return out
}

// expand replaces ~ and the tokens of ssh_config(5) in the name of a file.
func (c *sshConfig) expand(s string, h hop) string {
	if s == "~" {
		return c.home
	}
	if rest, ok := strings.CutPrefix(s, "~/"); ok {
		s = filepath.Join(c.home, rest)
	}
	return strings.NewReplacer("%%", "%", "%d", c.home, "%h", h.host, "%n", h.alias, "%r", h.user,
		"%p", fmt.Sprint(h.port), "%i", fmt.Sprint(os.Getuid())).Replace(s)
}
