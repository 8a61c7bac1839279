package cmdline

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/reason"
)

// A Manual is what a manual page says beyond the help texts.
type Manual struct {
	Section int         // 1 for users' commands, 8 for the administrator's
	Files   [][2]string // paths and what they are
	SeeAlso string      // "etcd\-fleet(1), journalctl(1)", without roff
}

// ManCommand is the hidden command "man": it prints the program's manual page,
// made of the same texts as its help. Packages are built with it. Its date is
// that of SOURCE_DATE_EPOCH, or none.
func ManCommand(stdout io.Writer, m Manual) *cli.Command {
	return &cli.Command{
		Name:   "man",
		Usage:  "print the manual page",
		Hidden: true,
		Action: func(c *cli.Context) error {
			if err := NoArgs(c); err != nil {
				return err
			}
			date := ""
			if s, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64); err == nil {
				date = time.Unix(s, 0).UTC().Format(time.DateOnly)
			}
			w := bufio.NewWriter(stdout)
			writeManual(w, c.App, m, date)
			if err := w.Flush(); err != nil {
				return reason.New(reason.OutputUnwritable, "%w", err)
			}
			return nil
		},
	}
}

// writeManual writes app's page with the macros of man(7).
func writeManual(w *bufio.Writer, app *cli.App, m Manual, date string) {
	name := roff(app.Name)
	fmt.Fprintf(w, ".TH %s %d \"%s\" \"%s\"\n", strings.ToUpper(name), m.Section, date, quoted(app.Name+" "+app.Version))
	fmt.Fprintf(w, ".SH NAME\n%s \\- %s\n", name, roff(app.Usage))
	fmt.Fprintf(w, ".SH SYNOPSIS\n")
	eachLeaf(app.Name, app.Commands, func(full string, c *cli.Command) {
		fmt.Fprintf(w, ".B %s\n", roff(full))
		if args := argsOf(c); args != "" {
			fmt.Fprintf(w, ".I %s\n", roff(args))
		}
		fmt.Fprintf(w, ".br\n")
	})
	if app.Description != "" {
		fmt.Fprintf(w, ".SH DESCRIPTION\n")
		writeText(w, app.Description)
	}
	fmt.Fprintf(w, ".SH COMMANDS\n")
	eachLeaf(app.Name, app.Commands, func(full string, c *cli.Command) {
		fmt.Fprintf(w, ".SS \"%s\"\n", quoted(strings.TrimSpace(full+" "+argsOf(c))))
		writeText(w, sentence(c.Usage))
		writeText(w, c.Description)
		writeFlags(w, c.Flags)
	})
	if len(m.Files) > 0 {
		fmt.Fprintf(w, ".SH FILES\n")
		for _, f := range m.Files {
			fmt.Fprintf(w, ".TP\n.I %s\n%s\n", roff(f[0]), roff(f[1]))
		}
	}
	if m.SeeAlso != "" {
		fmt.Fprintf(w, ".SH SEE ALSO\n%s\n", roff(m.SeeAlso))
	}
}

// eachLeaf visits the commands that do something, with their names in full.
func eachLeaf(prefix string, commands []*cli.Command, visit func(full string, c *cli.Command)) {
	for _, c := range commands {
		switch full := prefix + " " + c.Name; {
		case c.Hidden || c.Name == "help":
		case len(c.Subcommands) > 0:
			eachLeaf(full, c.Subcommands, visit)
		default:
			visit(full, c)
		}
	}
}

// argsOf returns what stands behind a command's name.
func argsOf(c *cli.Command) string {
	args := c.ArgsUsage
	if len(visible(c.Flags)) > 0 {
		args = strings.TrimSpace("[OPTIONS] " + args)
	}
	return args
}

// writeText writes a help text. Its paragraphs are filled; what stands below a
// line such as "Examples:" keeps its lines.
func writeText(w *bufio.Writer, text string) {
	for paragraph := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		first, rest, more := strings.Cut(strings.TrimSpace(paragraph), "\n")
		switch {
		case first == "":
		case more && strings.HasSuffix(first, ":"):
			fmt.Fprintf(w, ".PP\n%s\n.PP\n.RS 4\n.nf\n%s\n.fi\n.RE\n", roff(first), roff(rest))
		default:
			fmt.Fprintf(w, ".PP\n%s\n", roff(paragraph))
		}
	}
}

func writeFlags(w *bufio.Writer, flags []cli.Flag) {
	for _, doc := range visible(flags) {
		placeholder, usage := unquote(doc.GetUsage())
		var names []string
		for _, n := range doc.(cli.Flag).Names() {
			names = append(names, `\fB`+roff(strings.Repeat("-", min(len(n), 2))+n)+`\fR`)
		}
		line := strings.Join(names, ", ")
		if doc.TakesValue() {
			line += ` \fI` + roff(placeholder) + `\fR`
			if v := doc.GetDefaultText(); v != "" {
				usage += "; default: " + v
			}
		}
		if env := doc.GetEnvVars(); len(env) > 0 {
			usage += "; in the environment: " + strings.Join(env, ", ")
		}
		fmt.Fprintf(w, ".TP\n%s\n%s\n", line, roff(sentence(usage)))
	}
}

// visible returns the flags that help shows, without help's own.
func visible(flags []cli.Flag) []cli.DocGenerationFlag {
	var out []cli.DocGenerationFlag
	for _, f := range flags {
		doc, ok := f.(cli.DocGenerationFlag)
		if v, can := f.(cli.VisibleFlag); ok && f.Names()[0] != "help" && (!can || v.IsVisible()) {
			out = append(out, doc)
		}
	}
	return out
}

// sentence ends a line of help with a full stop. It has no capital letter: many
// begin with a value that has none.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	return strings.TrimSuffix(s, ".") + "."
}

// roff protects text from the formatter: backslashes, hyphens that somebody may
// copy, and lines that would be requests.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, `-`, `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(s)
	if strings.HasPrefix(s, ".") || strings.HasPrefix(s, "'") {
		s = `\&` + s
	}
	return s
}

// quoted is roff for an argument of a macro in double quotes.
func quoted(s string) string { return strings.ReplaceAll(roff(s), `"`, `\(dq`) }
