package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/term"
)

// closePatience is how long a terminal that takes nothing (Ctrl-S) may keep
// the program from ending.
const closePatience = 5 * time.Second

// formats are the values of --output.
var formats = []string{"table", "json", "jsonl", "junit"}

// An output shows a run while it goes on, on standard error, and writes its
// report, on standard output.
type output struct {
	std    streams
	format string
	jsonl  *report.JSONL // nil: another format
	screen *term.Screen
	live   bool // there is a table that is drawn in place
	began  time.Time

	mu     sync.Mutex
	err    error    // the first error of standard output while running
	warned []string // shown on standard error already
}

// newOutput begins to show the things of names, as show says.
func newOutput(std streams, format string, quiet bool, show term.Options, names []string) *output {
	o := &output{std: std, format: format, began: time.Now()}
	style := term.Detect(std.err, os.Getenv)
	if format == "jsonl" {
		o.jsonl = report.NewJSONL(std.out)
		// The same terminal cannot hold a live table and lines of JSON.
		quiet = quiet || term.Detect(std.out, os.Getenv).TTY != nil || style.TTY == nil
	}
	o.live = style.Live && style.TTY != nil && !quiet
	show.Out, show.Style, show.Quiet = std.err, style, quiet
	o.screen = term.Start(show, names)
	return o
}

// event shows one change.
func (o *output) event(e report.Event) {
	e.Elapsed = e.At.Sub(o.began).Seconds()
	o.screen.Update(report.Row(e))
	if o.jsonl != nil {
		o.keep(o.jsonl.Event(e))
	}
}

// warn shows one line that concerns no single node, and keeps it for the report.
func (o *output) warn(text string) {
	text = reason.Line(text)
	o.screen.Note(term.Line{{Text: "warning: " + text, Tone: term.Warn}})
	o.mu.Lock()
	defer o.mu.Unlock()
	o.warned = append(o.warned, text)
}

// abandon takes the screen down when there is nothing to report.
func (o *output) abandon() {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	o.keep(o.screen.Close(ctx, nil))
}

func (o *output) keep(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
}

// close takes the live table away, and returns the warnings that the report
// has to repeat.
func (o *output) close() []string {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	o.keep(o.screen.Close(ctx, func(int) []term.Line { return nil }))
	if o.format == "table" { // people have seen them
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.warned)
}

// finish takes the live table away and writes the report.
func (o *output) finish(r report.Report) error {
	r.Warnings = slices.Concat(o.close(), r.Warnings)
	o.keep(write(o.std.out, o.format, o.jsonl, report.Complete(r, inventory.FoldNames)))
	return o.err
}

// write writes a complete report in the given format.
func write(w io.Writer, format string, jsonl *report.JSONL, r report.Report) error {
	switch format {
	case "json":
		return report.WriteJSON(w, r)
	case "jsonl":
		if jsonl == nil {
			jsonl = report.NewJSONL(w)
		}
		return jsonl.Result(r)
	case "junit":
		return report.WriteJUnit(w, r)
	}
	return writeTable(w, func(cols int) []term.Line { return report.Table(r, cols, inventory.FoldNames) })
}

// finishISOs is finish for a report on images.
func (o *output) finishISOs(r report.ISOReport) error {
	r.Warnings = slices.Concat(o.close(), r.Warnings)
	o.keep(writeISOs(o.std.out, o.format, o.jsonl, report.CompleteISO(r)))
	return o.err
}

// writeISOs writes a complete report on images in the given format.
func writeISOs(w io.Writer, format string, jsonl *report.JSONL, r report.ISOReport) error {
	switch format {
	case "json":
		return report.WriteISOJSON(w, r)
	case "jsonl":
		if jsonl == nil {
			jsonl = report.NewJSONL(w)
		}
		return jsonl.ISOReport(r)
	case "junit":
		return report.WriteISOJUnit(w, r)
	}
	return writeTable(w, func(cols int) []term.Line { return report.ISOTable(r, cols) })
}

// writeTable writes lines that fit w, should it be a terminal.
func writeTable(w io.Writer, lines func(cols int) []term.Line) error {
	style := term.Detect(w, os.Getenv)
	cols := 0
	if style.TTY != nil {
		if c, _, err := style.TTY.Size(); err == nil {
			cols = c
		}
	}
	return term.WriteLines(w, lines(cols), style.Colour)
}

// noteHandler is a slog handler that shows records on the screen.
type noteHandler struct {
	out   *output
	level slog.Level
	attrs []slog.Attr
}

func (h *noteHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *noteHandler) Handle(_ context.Context, r slog.Record) error {
	if text := recordText(r, h.attrs); r.Level >= slog.LevelWarn {
		h.out.warn(text)
	} else {
		h.out.screen.Note(term.Line{{Text: text, Tone: term.Faint}})
	}
	return nil
}

// recordText is a log record in one line for people.
func recordText(r slog.Record, attrs []slog.Attr) string {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%s", a.Key, reason.Line(fmt.Sprint(a.Value.Any())))
		return true
	}
	for _, a := range attrs {
		add(a)
	}
	r.Attrs(add)
	return b.String()
}

func (h *noteHandler) WithAttrs(as []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(c.attrs[:len(c.attrs):len(c.attrs)], as...)
	return &c
}

// WithGroup is not used by what logs here; names stay as they are.
func (h *noteHandler) WithGroup(string) slog.Handler { return h }
