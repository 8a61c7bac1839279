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
	began  time.Time
	err    error // the first error of standard output while running

	mu     sync.Mutex
	warned []string // shown on standard error already
}

// newOutput begins to show the nodes of names.
func newOutput(std streams, format string, quiet bool, deadline time.Time, names []string) *output {
	o := &output{std: std, format: format, began: time.Now()}
	style := term.Detect(std.err, os.Getenv)
	if format == "jsonl" {
		o.jsonl = report.NewJSONL(std.out)
		// The same terminal cannot hold a live table and lines of JSON.
		quiet = quiet || term.Detect(std.out, os.Getenv).TTY != nil || style.TTY == nil
	}
	o.screen = term.Start(term.Options{
		Out: std.err, Style: style, Quiet: quiet, Noun: "etcd nodes", Deadline: deadline,
	}, names)
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
	if o.err == nil {
		o.err = err
	}
}

// finish takes the live table away and writes the report.
func (o *output) finish(r report.Report) error {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	o.keep(o.screen.Close(ctx, func(int) []term.Line { return nil }))
	if o.format != "table" { // people have seen them
		o.mu.Lock()
		r.Warnings = slices.Concat(o.warned, r.Warnings)
		o.mu.Unlock()
	}
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
	style := term.Detect(w, os.Getenv)
	cols := 0
	if style.TTY != nil {
		if c, _, err := style.TTY.Size(); err == nil {
			cols = c
		}
	}
	return term.WriteLines(w, report.Table(r, cols, inventory.FoldNames), style.Colour)
}

// noteHandler is a slog handler that shows records on the screen.
type noteHandler struct {
	out   *output
	level slog.Level
	attrs []slog.Attr
}

func (h *noteHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= h.level }

func (h *noteHandler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	b.WriteString(r.Message)
	add := func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%s", a.Key, reason.Line(fmt.Sprint(a.Value.Any())))
		return true
	}
	for _, a := range h.attrs {
		add(a)
	}
	r.Attrs(add)
	if r.Level >= slog.LevelWarn {
		h.out.warn(b.String())
	} else {
		h.out.screen.Note(term.Line{{Text: b.String(), Tone: term.Faint}})
	}
	return nil
}

func (h *noteHandler) WithAttrs(as []slog.Attr) slog.Handler {
	c := *h
	c.attrs = append(c.attrs[:len(c.attrs):len(c.attrs)], as...)
	return &c
}

// WithGroup is not used by what logs here; names stay as they are.
func (h *noteHandler) WithGroup(string) slog.Handler { return h }
