package report

import (
	"encoding/json"
	"io"
	"sync"
)

// WriteJSON writes the report as one indented JSON object. r is complete.
func WriteJSON(w io.Writer, r Report) error {
	e := encoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// EventLine is an event as it stands in JSON lines.
type EventLine struct {
	Type   string `json:"type"` // "event"
	Schema int    `json:"schema_version"`
	Event
}

// ResultLine is the report as it stands in JSON lines, the last one.
type ResultLine struct {
	Type string `json:"type"` // "result"
	Report
}

// JSONL writes JSON lines: one event a line while a command runs, then the
// report. Each line is one write. Its methods may be called by several
// goroutines; the first error of the writer is kept, and nothing is written
// after it.
type JSONL struct {
	mu  sync.Mutex
	enc *json.Encoder
	err error
}

// NewJSONL returns a JSONL that writes to w.
func NewJSONL(w io.Writer) *JSONL { return &JSONL{enc: encoder(w)} }

// Event writes one event.
func (j *JSONL) Event(e Event) error {
	return j.line(EventLine{Type: "event", Schema: Schema, Event: e.complete()})
}

// Result writes the report, which is complete. It is the last line.
func (j *JSONL) Result(r Report) error {
	return j.line(ResultLine{Type: "result", Report: r})
}

func (j *JSONL) line(v any) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = j.enc.Encode(v)
	}
	return j.err
}

// encoder leaves <, > and & readable: the text is no HTML.
func encoder(w io.Writer) *json.Encoder {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e
}
