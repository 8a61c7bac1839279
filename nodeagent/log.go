package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/reason"
)

// newLog returns a log in the named format. Text is for people, one line a
// record:
//
//	21:39:07 find       5.214s  /dev/sr0, volume id "CDROM", Rock Ridge names
//	21:39:09 warning: preflight ...
//
// JSON is slog's own, one object a line.
func newLog(w io.Writer, format string) (*slog.Logger, error) {
	switch format {
	case "text":
		return slog.New(&lineHandler{w: w}), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, &slog.HandlerOptions{ReplaceAttr: seconds})), nil
	}
	return nil, reason.New(reason.Usage, "--log-format %q is neither text nor json", format)
}

// seconds makes durations numbers of seconds, and errors their lines.
func seconds(_ []string, a slog.Attr) slog.Attr {
	switch v := a.Value.Any().(type) {
	case time.Duration:
		return slog.Float64(a.Key, v.Round(time.Millisecond).Seconds())
	case error:
		return slog.String(a.Key, reason.Line(v.Error()))
	}
	return a
}

// lineHandler writes records as lines for people. The keys took and err have
// their places; detail, at and seen go without their names, all others follow
// as key=value.
type lineHandler struct {
	mu sync.Mutex
	w  io.Writer
}

func (h *lineHandler) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelInfo }

func (h *lineHandler) Handle(_ context.Context, r slog.Record) error {
	var took, fault string
	var plain, rest []string
	r.Attrs(func(a slog.Attr) bool {
		text := reason.Line(fmt.Sprint(a.Value.Any()))
		switch a.Key {
		case "took":
			took = fmt.Sprintf("%.3fs", a.Value.Duration().Seconds())
		case "detail", "at", "seen":
			plain = append(plain, text)
		case "err":
			fault = text
		default:
			if strings.ContainsAny(text, " \"=") {
				text = fmt.Sprintf("%q", text)
			}
			rest = append(rest, a.Key+"="+text)
		}
		return true
	})
	var parts []string
	switch {
	case r.Level >= slog.LevelError && took == "":
		parts = append(parts, "error: "+r.Message)
	case r.Level >= slog.LevelWarn && took == "":
		parts = append(parts, "warning: "+r.Message)
	default:
		parts = append(parts, fmt.Sprintf("%-9s %8s ", r.Message, took))
	}
	for _, s := range slices.Concat([]string{fault}, plain, rest) {
		if s != "" {
			parts = append(parts, s)
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	_, err := fmt.Fprintf(h.w, "%s %s\n", r.Time.Format(time.TimeOnly), strings.TrimRight(strings.Join(parts, " "), " "))
	return err
}

// WithAttrs and WithGroup are not used by the agent; the handler has no state
// that they could add to.
func (h *lineHandler) WithAttrs([]slog.Attr) slog.Handler { return h }
func (h *lineHandler) WithGroup(string) slog.Handler      { return h }
