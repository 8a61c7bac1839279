//go:build lab && linux

package main

import (
	"bytes"
	"fmt"
	"io"
	"sync"
)

// printer writes whole lines of several speakers to one output.
type printer struct {
	mu  sync.Mutex
	out io.Writer
}

// step announces what the demo does next.
func (p *printer) step(format string, args ...any) { p.line("== " + fmt.Sprintf(format, args...)) }

// say adds a detail to the step.
func (p *printer) say(format string, args ...any) { p.line("   " + fmt.Sprintf(format, args...)) }

func (p *printer) line(s string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintln(p.out, s)
}

// host returns a writer whose lines appear with the host's name before them. Several goroutines may write to it.
func (p *printer) host(name string) *hostWriter { return &hostWriter{p: p, name: name} }

type hostWriter struct {
	p    *printer
	name string
	mu   sync.Mutex
	rest []byte // a line that has not ended yet
}

func (w *hostWriter) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.rest = append(w.rest, b...)
	for {
		line, rest, found := bytes.Cut(w.rest, []byte("\n"))
		if !found {
			return len(b), nil
		}
		w.p.line(fmt.Sprintf("   %-7s| %s", w.name, line))
		w.rest = rest
	}
}
