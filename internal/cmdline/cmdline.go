// Package cmdline is what the command lines of both programs have in common:
// how help looks, how errors are told, and which of them is a usage error. It
// and the two programs are all that sees urfave/cli.
package cmdline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/reason"
)

// Run runs app and returns its error, which has been told on stderr, in one
// line and one of hint, unless it is a Told error. The caller makes
// reason.Exit of it the exit status.
//
// Run changes urfave/cli's own package variables, so a process runs one app.
func Run(ctx context.Context, app *cli.App, args []string, stdout, stderr io.Writer) error {
	app.Writer = stdout
	app.ErrWriter = stderr
	app.Suggest = true
	app.ExitErrHandler = func(*cli.Context, error) {}
	setUp(app.Commands)
	app.OnUsageError = usageError
	if app.Action == nil {
		app.Action = unknownCommand
	}
	cli.FlagStringer = flagEntry
	err := app.RunContext(ctx, nestedHelp(args))
	if err == nil {
		return nil
	}
	var told *Told
	if errors.As(err, &told) {
		return err
	}
	var e *reason.Error
	if !errors.As(err, &e) {
		// Only urfave/cli returns errors without a code: it did not understand the
		// command line.
		err = reason.New(reason.Usage, "%w", err)
	}
	fmt.Fprintf(stderr, "%s: %s\nhint: %s\n", app.Name, reason.Line(err.Error()), reason.HintOf(err))
	return err
}

// nestedHelp makes "help a b" what people mean by it, "a b --help": urfave/cli
// looks at one word only.
func nestedHelp(args []string) []string {
	if len(args) < 4 || args[1] != "help" && args[1] != "h" {
		return args
	}
	return append(append([]string{args[0]}, args[2:]...), "--help")
}

func setUp(commands []*cli.Command) {
	for _, c := range commands {
		c.OnUsageError = usageError
		if len(c.Subcommands) > 0 && c.Action == nil {
			c.Action = unknownCommand
		}
		setUp(c.Subcommands)
	}
}

// Told is an error that the user has seen already, in a log or a table.
type Told struct{ Err error }

func (e *Told) Error() string { return e.Err.Error() }

// Unwrap returns what was told.
func (e *Told) Unwrap() error { return e.Err }

func usageError(_ *cli.Context, err error, _ bool) error {
	return reason.New(reason.Usage, "%w", err)
}

// unknownCommand is the action of a program, or of a group of commands, that
// does nothing by itself.
func unknownCommand(c *cli.Context) error {
	if c.Args().Present() {
		return reason.New(reason.Usage, "there is no command %q", c.Args().First())
	}
	return cli.ShowSubcommandHelp(c)
}

// NoArgs refuses arguments of a command that has none: a flag that lost its
// dashes would otherwise be nothing.
func NoArgs(c *cli.Context) error {
	if c.Args().Present() {
		return reason.New(reason.Usage, "unexpected argument %q", c.Args().First())
	}
	return nil
}

// flagEntry is a flag's entry in a help text: its names and placeholder, and
// below them its use and its default. Two lines fit a terminal of 80 columns,
// whatever the default is.
func flagEntry(f cli.Flag) string {
	doc, ok := f.(cli.DocGenerationFlag)
	if !ok {
		return ""
	}
	placeholder, usage := unquote(doc.GetUsage())
	var names []string
	for _, n := range f.Names() {
		names = append(names, strings.Repeat("-", min(len(n), 2))+n)
	}
	line := strings.Join(names, ", ")
	if doc.TakesValue() {
		line += " " + placeholder
	}
	line += "\n  " + usage
	if v := doc.GetDefaultText(); v != "" && doc.TakesValue() {
		line += "; default: " + v
	}
	return line
}

// unquote takes the placeholder off the front of a usage text:
// "`FILE` locked while a setup runs".
func unquote(usage string) (placeholder, text string) {
	rest, ok := strings.CutPrefix(usage, "`")
	if !ok {
		return "VALUE", usage
	}
	name, after, _ := strings.Cut(rest, "`")
	return name, strings.TrimSpace(after)
}
