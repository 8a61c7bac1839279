package report

import (
	"fmt"
	"io"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// ISOReport is the result of one run over ISO images.
type ISOReport struct {
	Schema   int         `json:"schema_version"`
	Command  string      `json:"command"`          // "iso check"
	Result   string      `json:"result"`           // see Result
	Exit     int         `json:"exit_status"`      // of the program
	Summary  string      `json:"summary"`          // one line
	Started  time.Time   `json:"started"`          //
	Ended    time.Time   `json:"ended"`            //
	Seconds  float64     `json:"duration_seconds"` // from Started to Ended
	Problem  *Problem    `json:"problem"`          // what stopped the run as a whole, nil: nothing did
	ISOs     []ISOResult `json:"isos"`             // in the order they were named and found
	LeftOut  int         `json:"left_out"`         // ISOs that are no Kubernetes ISOs and were not asked for
	Waiting  int         `json:"not_looked_at"`    // ISOs that the run ended before
	Warnings []string    `json:"warnings"`
}

// ISOResult is what is known of one image.
type ISOResult struct {
	ISO        string       `json:"iso"`           // path or URL
	Name       string       `json:"name"`          // unique name of its template, or what somebody called it; empty: none
	Template   string       `json:"template"`      // template id on secondary storage; empty: not there
	Zone       string       `json:"zone"`          // empty: none was given
	Kubernetes *bool        `json:"kubernetes"`    // whether it is a Kubernetes ISO, by content; nil: could not tell
	Size       *int64       `json:"size_bytes"`    // nil: not known
	VolumeID   string       `json:"volume_id"`     //
	Names      string       `json:"names"`         // the names that were read: "Rock Ridge", "Joliet", ...
	Digest     string       `json:"volume_digest"` // SHA-256 of the volume descriptors
	Key        string       `json:"identity"`      // what an answer is remembered by; empty: it cannot be
	Files      []FileResult `json:"files"`         // in the order they were asked for
	Requests   int          `json:"requests"`      // over the network
	Bytes      int64        `json:"bytes_read"`
	Started    time.Time    `json:"started"`
	Ended      time.Time    `json:"ended"`
}

// FileResult is the answer about one file on one image.
type FileResult struct {
	File       string       `json:"file"`
	Value      string       `json:"value"` // "included", "missing", "broken" or "unknown"
	Supports   *bool        `json:"supportsetcd"`
	Code       reason.Code  `json:"code"` // "included" when it is there
	Class      reason.Class `json:"class"`
	Message    string       `json:"message"` // the reason, one line; empty when it is there
	Hint       string       `json:"hint"`    // what to do next; empty when it is there
	Size       *int64       `json:"size_bytes"`
	Version    string       `json:"etcd_version"`
	Arch       string       `json:"arch"`
	SHA256     string       `json:"sha256"` // of the archive; empty unless Deep
	Deep       bool         `json:"deep"`   // all of the archive was read and verified
	Notes      []string     `json:"notes"`
	Remembered bool         `json:"remembered"` // nothing was read: the answer is from Checked
	Checked    *time.Time   `json:"checked"`    // when it was looked at; nil: never
}

// Values of FileResult.Value.
const (
	ValueIncluded = "included"
	ValueMissing  = "missing"
	ValueBroken   = "broken"
	ValueUnknown  = "unknown"
)

// CompleteISO returns a copy of r that is ready to be written, as Complete does
// for nodes.
func CompleteISO(r ISOReport) ISOReport {
	r.Schema = Schema
	r.Result = ResultOf(r.Exit)
	line(&r.Command)
	r.Started, r.Ended = r.Started.UTC(), r.Ended.UTC()
	r.Seconds = seconds(r.Ended.Sub(r.Started))
	if r.Problem != nil {
		p := r.Problem.complete()
		r.Problem = &p
	}
	r.Warnings = lines(r.Warnings)
	r.ISOs = each(r.ISOs, ISOResult.complete)
	r.Summary = isoSummary(r)
	return r
}

func (i ISOResult) complete() ISOResult {
	for _, s := range []*string{&i.ISO, &i.Name, &i.Template, &i.Zone, &i.VolumeID, &i.Names, &i.Digest, &i.Key} {
		line(s)
	}
	i.Started, i.Ended = i.Started.UTC(), i.Ended.UTC()
	i.Files = each(i.Files, FileResult.complete)
	return i
}

func (f FileResult) complete() FileResult {
	for _, s := range []*string{&f.File, &f.Message, &f.Hint, &f.Version, &f.Arch, &f.SHA256} {
		line(s)
	}
	info := reason.Lookup(f.Code)
	f.Class = info.Class
	switch {
	case f.ok():
		f.Message, f.Hint = "", ""
	case f.Hint == "":
		f.Hint = info.Hint
	}
	f.Supports = nil
	if f.Value != ValueUnknown {
		yes := f.Value == ValueIncluded
		f.Supports = &yes
	}
	f.Checked = utc(f.Checked)
	f.Notes = lines(f.Notes)
	return f
}

func (f *FileResult) ok() bool { return f.Value == ValueIncluded }

// note is what the table says beside the answer of the image of that name, whose
// row has the name already.
func (f *FileResult) note(iso string) string {
	var parts []string
	if !f.ok() {
		parts = append(parts, strings.Replace(because(f.Message, f.Code), iso+": ", "", 1))
	}
	return strings.Join(append(parts, f.Notes...), "; ")
}

// isoSummary is the whole result in one line: "1 of 3 ISOs without etcd, 1
// unknown (2 s)". The definite no comes first, then what could not be told.
func isoSummary(r ISOReport) string {
	took := " (" + Took(r.Ended.Sub(r.Started)) + ")"
	if r.Command == "iso list" {
		took = "" // nothing was looked at
	}
	if len(r.ISOs) == 0 {
		if r.Problem != nil {
			return because(r.Problem.Message, r.Problem.Code) + took
		}
		return "no ISOs" + took
	}
	counts := map[string]int{}
	total := 0
	for _, i := range r.ISOs {
		for _, f := range i.Files {
			counts[f.Value]++
			total++
		}
	}
	noun := "ISO"
	if distinctFiles(r) > 1 {
		noun = "file"
	}
	if total != 1 {
		noun += "s"
	}
	var parts []string
	for _, v := range []string{ValueMissing, ValueBroken, ValueUnknown, ValueIncluded} {
		if n := counts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	text := fmt.Sprintf("%d %s: %s", total, noun, strings.Join(parts, ", "))
	if r.Waiting > 0 {
		text += fmt.Sprintf(", %d not looked at", r.Waiting)
	}
	if r.Exit == reason.ExitInterrupted {
		text = "interrupted: " + text
	}
	return text + took
}

// WriteISOJSON writes the report as one indented JSON object. r is complete.
func WriteISOJSON(w io.Writer, r ISOReport) error {
	e := encoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// ISOLine is one image's result as it stands in JSON lines.
type ISOLine struct {
	Type   string `json:"type"` // "iso"
	Schema int    `json:"schema_version"`
	ISOResult
}

// ISOResultLine is the report as it stands in JSON lines, the last one.
type ISOResultLine struct {
	Type string `json:"type"` // "result"
	ISOReport
}

// ISO writes the result of one image as soon as it is known.
func (j *JSONL) ISO(i ISOResult) error {
	return j.line(ISOLine{Type: "iso", Schema: Schema, ISOResult: i.complete()})
}

// ISOReport writes the report, which is complete. It is the last line.
func (j *JSONL) ISOReport(r ISOReport) error {
	return j.line(ISOResultLine{Type: "result", ISOReport: r})
}

// WriteISOJUnit writes the report with one test case for each file of each
// image, and one for what stopped the run. r is complete.
func WriteISOJUnit(w io.Writer, r ISOReport) error {
	class := "etcd-fleet." + strings.ReplaceAll(r.Command, " ", ".")
	s := Suite{Program: "etcd-fleet " + r.Command, Name: "ISOs", Started: r.Started, Seconds: r.Seconds}
	for _, i := range r.ISOs {
		for _, f := range i.Files {
			c := Case{
				Name: i.ISO, Class: class, Seconds: seconds(i.Ended.Sub(i.Started)), Outcome: outcome(f.Code), Type: string(f.Code),
				Message: because(f.Message, f.Code), Detail: []string{because(f.Message, f.Code), prefixed("hint: ", f.Hint), "file: " + f.File},
			}
			if len(i.Files) > 1 {
				c.Name += " " + f.File
			}
			for _, n := range f.Notes {
				c.Detail = append(c.Detail, "note: "+n)
			}
			s.Cases = append(s.Cases, c)
		}
	}
	if p := r.Problem; p != nil || len(s.Cases) == 0 {
		c := Case{Name: r.Command, Class: class, Outcome: Errored, Type: string(reason.NoISOs), Message: r.Summary}
		if p != nil {
			c.Seconds, c.Type, c.Message = r.Seconds, string(p.Code), because(p.Message, p.Code)
			c.Detail = []string{c.Message, prefixed("hint: ", p.Hint)}
		}
		s.Cases = append(s.Cases, c)
	}
	return s.Write(w)
}
