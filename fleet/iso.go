package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
)

const isoExitStatuses = `Exit status:
0   every file asked for is included
1   one is missing, or there and broken
2   wrong usage or configuration, or no ISO found
4   could not tell, and nothing was a definite no
70  internal error
130 interrupted`

func isoCommand(std streams) *cli.Command {
	return &cli.Command{
		Name:  "iso",
		Usage: "ask ISO images whether they hold etcd",
		Subcommands: []*cli.Command{
			isoCheckCommand(std), isoLsCommand(std), isoCatCommand(std), isoListCommand(std), isoForgetCommand(std),
		},
	}
}

// sourceOptions are the flags that say how to reach an image.
type sourceOptions struct {
	readTimeout time.Duration
	ca, netrc   string
	headers     []string
	download    bool
	tempDir     string
}

func sourceFlags(o *sourceOptions) []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "read-timeout", Usage: "`DURATION` one read may take, retries included", Value: 30 * time.Second, DefaultText: "30s", Destination: &o.readTimeout},
		&cli.BoolFlag{Name: "download", Usage: "read a server that gives no ranges to the end", Destination: &o.download},
		&cli.StringFlag{Name: "temp-dir", Usage: "`DIR` for large temporary files", Destination: &o.tempDir, DefaultText: "the system's"},
		&cli.StringFlag{Name: "ca", Usage: "`FILE` certificates to trust besides the system's", Destination: &o.ca, DefaultText: "none"},
		&cli.StringSliceFlag{Name: "header", Usage: "`'NAME: VALUE'` sent to the server named; may be given again", DefaultText: "none"},
		&cli.StringFlag{Name: "netrc", Usage: "`FILE` with logins, or none", Destination: &o.netrc, DefaultText: "$NETRC, or ~/.netrc"},
	}
}

// options returns what the flags ask for, for the package that reads images.
func (o *sourceOptions) options(c *cli.Context) (source.Options, error) {
	o.headers = c.StringSlice("header")
	if o.readTimeout <= 0 {
		return source.Options{}, reason.New(reason.Usage, "--read-timeout must be above 0")
	}
	return source.Options{
		Timeout: o.readTimeout, CAFile: o.ca, Headers: o.headers, Netrc: o.netrc,
		Download: o.download, TempDir: o.tempDir, Agent: "etcd-fleet/" + version,
	}, nil
}

// answersOptions are the flags about the file of answers.
type answersOptions struct {
	path    string
	rebuild bool
}

func answersFlags(o *answersOptions) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "answers", Usage: "`FILE` where answers are kept", Destination: &o.path, EnvVars: []string{"ETCD_FLEET_ANSWERS"},
			DefaultText: "root's in /var/lib, else XDG_STATE_HOME"},
		&cli.BoolFlag{Name: "rebuild", Usage: "set a damaged file of answers aside and begin anew", Destination: &o.rebuild},
	}
}

// open opens the file of answers. warn is told of what was left out or set
// aside.
func (o *answersOptions) open(ctx context.Context, warn func(string)) (*answers.Store, error) {
	path := o.path
	if path == "" {
		path = answers.DefaultPath(os.Geteuid(), os.Getenv)
	}
	s, err := answers.Open(ctx, path, answers.Options{Rebuild: o.rebuild, Log: slog.New(warnHandler(warn))})
	if err == nil && s.SetAside() != "" {
		warn("the damaged answers are in " + s.SetAside() + " now")
	}
	return s, err
}

// warnOn tells warnings on standard error.
func warnOn(std streams) func(string) {
	return func(text string) { fmt.Fprintf(std.err, "etcd-fleet: warning: %s\n", reason.Line(text)) }
}

// warnHandler is a slog handler that passes warnings on, each as one text.
type warnHandler func(string)

// Enabled implements slog.Handler.
func (h warnHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }

// Handle implements slog.Handler.
func (h warnHandler) Handle(_ context.Context, r slog.Record) error {
	h(recordText(r, nil))
	return nil
}

// WithAttrs implements slog.Handler; what logs here has no attributes in common.
func (h warnHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup implements slog.Handler.
func (h warnHandler) WithGroup(string) slog.Handler { return h }

// outputFlag is the flag --output of the commands that write a report.
func outputFlag(format *string) cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` table, json, jsonl or junit", Value: "table", DefaultText: "table", Destination: format}
}

func checkFormat(format string) error {
	if !slices.Contains(formats, format) {
		return reason.New(reason.Usage, "--output %q is none of %s", format, strings.Join(formats, ", "))
	}
	return nil
}

// flagsFirst refuses a flag behind an argument, which would be taken for a name.
func flagsFirst(args []string) error {
	for _, a := range args {
		if strings.HasPrefix(a, "-") && a != "-" {
			return reason.New(reason.Usage, "%q stands after an argument; flags go first (a file of that name is ./%s)", a, a)
		}
	}
	return nil
}

// where is how a path or URL is remembered: a path in full, so that it means
// the same from everywhere, and a URL without a password.
func where(name string) string {
	if source.IsURL(name) {
		return source.Redact(name)
	}
	if abs, err := filepath.Abs(name); err == nil {
		return abs
	}
	return name
}

// unknownErr gives an error without a code of its own one of the codes of
// reaching an image.
func unknownErr(name string, err error) error {
	if reason.Of(err) != reason.Internal {
		return err
	}
	code := reason.ISOUnreadable
	switch {
	case errors.Is(err, fs.ErrNotExist):
		code = reason.SourceMissing
	case errors.Is(err, fs.ErrPermission):
		code = reason.SourceDenied
	}
	return reason.New(code, "%s: %w", name, err)
}

// maxListLine and maxListLines bound a list on standard input.
const (
	maxListLine  = 64 << 10
	maxListLines = 1 << 20
)

// readLines reads a list from standard input: one name a line; blank lines and
// those that begin with "#" say nothing.
func readLines(ctx context.Context, in io.Reader) ([]string, error) {
	list, err := await(ctx, func() ([]string, error) {
		var out []string
		s := bufio.NewScanner(in)
		s.Buffer(nil, maxListLine)
		for s.Scan() {
			l := strings.TrimSpace(s.Text())
			if l == "" || strings.HasPrefix(l, "#") {
				continue
			}
			if out = append(out, l); len(out) > maxListLines {
				return nil, reason.New(reason.Usage, "the list on standard input has more than %d lines", maxListLines)
			}
		}
		if err := s.Err(); err != nil {
			return nil, reason.New(reason.Usage, "cannot read the list on standard input: %w", err)
		}
		return out, nil
	})
	if ctx.Err() != nil && err == context.Cause(ctx) {
		return nil, reason.New(reason.Interrupted, "reading the list: %w", err)
	}
	return list, err
}

// statuses is the list of exit statuses of a command: its own, and those of
// others by number.
func statuses(own string, others ...int) string {
	text := "Exit status:\n" + own
	if !strings.Contains(own, "signal") { // which is how a daemon ends
		others = append(others, reason.ExitInterrupted)
	}
	others = append(others, reason.ExitInternal)
	slices.Sort(others)
	for _, n := range others {
		text += fmt.Sprintf("\n%-3d %s", n, map[int]string{
			reason.ExitUsage:       "wrong usage or configuration",
			reason.ExitUnknown:     "the answers cannot be read or kept",
			reason.ExitInternal:    "internal error",
			reason.ExitInterrupted: "interrupted",
		}[n])
	}
	return text
}
