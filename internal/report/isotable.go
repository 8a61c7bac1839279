package report

import (
	"fmt"
	"slices"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/term"
)

// valueTones tell what each answer means for the reader's eye.
var valueTones = map[string]term.Tone{
	ValueIncluded: term.Good, ValueMissing: term.Bad, ValueBroken: term.Bad, ValueUnknown: term.Warn,
}

// ISOTitles are the headings of a live table of images.
var ISOTitles = []string{"ISO", "ETCD", "FOR", "READ", "NOTE"}

// ISORow returns what a live table shows of an image that was looked at. The
// answer about several files is the worst one.
func ISORow(i ISOResult) term.Row {
	r := term.Row{Name: i.ISO, State: ValueIncluded, Tone: term.Good}
	for _, f := range i.Files {
		if t := valueTones[f.Value]; t > r.Tone {
			r.State, r.Tone = f.Value, t
		}
		if n := f.note(i.ISO); !f.ok() && r.Reason == "" {
			r.Reason = n
		}
	}
	return r
}

// ISOTable returns the report for people: a row for each file of each image,
// below it what had no room, hints, warnings, and the summary. cols is the width
// of the terminal, 0 for text of any width. r is complete.
func ISOTable(r ISOReport, cols int) []term.Line {
	var out []term.Line
	if len(r.ISOs) > 0 {
		t, notes := isoTableOf(r)
		lines, cut := t.Lines(cols)
		out = append(out, lines...)
		out = append(out, uncut(notes, cut)...)
	}
	out = append(out, isoHints(r)...)
	for _, w := range r.Warnings {
		out = append(out, term.Line{{Text: "warning: " + w, Tone: term.Warn}})
	}
	if r.LeftOut > 0 {
		out = append(out, term.Line{{Text: fmt.Sprintf("%d that hold no Kubernetes were left out (--all shows them)", r.LeftOut), Tone: term.Faint}})
	}
	last := term.Cell{Text: r.Summary, Tone: term.Bad}
	switch r.Exit {
	case reason.ExitYes:
		last.Tone = term.Good
	case reason.ExitDeadline, reason.ExitUnknown, reason.ExitInterrupted:
		last.Tone = term.Warn
	}
	return append(out, term.Line{last})
}

type isoNote struct{ iso, note string }

// uncut returns the notes that had no room, each once.
func uncut(notes []isoNote, cut []bool) []term.Line {
	isos := map[string][]string{} // by note
	var order []string
	for i, c := range cut {
		n := notes[i]
		if !c || n.note == "" {
			continue
		}
		if isos[n.note] == nil {
			order = append(order, n.note)
		}
		isos[n.note] = append(isos[n.note], n.iso)
	}
	var out []term.Line
	for _, note := range order {
		who := isos[note][0]
		if more := len(isos[note]) - 1; more > 0 {
			who = fmt.Sprintf("%s and %d more", who, more)
		}
		out = append(out, term.Line{{Text: who + ":", Tone: term.Strong, Pad: term.Width(who) + 2}, {Text: note}})
	}
	return out
}

// distinctFiles counts the files that were asked for.
func distinctFiles(r ISOReport) int {
	files := map[string]bool{}
	for _, i := range r.ISOs {
		for _, f := range i.Files {
			files[f.File] = true
		}
	}
	return len(files)
}

// isoTableOf leaves out the columns that would be empty in every row.
func isoTableOf(r ISOReport) (term.Table, []isoNote) {
	files := distinctFiles(r)
	all := []struct {
		column term.Column
		cell   func(i *ISOResult, f *FileResult) term.Cell
	}{
		{term.Column{Title: "ISO", Min: 16, Middle: true}, func(i *ISOResult, _ *FileResult) term.Cell { return term.Cell{Text: i.ISO} }},
		{term.Column{Title: "ZONE", Drop: 4}, func(i *ISOResult, _ *FileResult) term.Cell { return term.Cell{Text: i.Zone} }},
		{term.Column{Title: "FILE", Min: 12, Middle: true, Drop: 5}, func(_ *ISOResult, f *FileResult) term.Cell {
			if files == 1 {
				return term.Cell{}
			}
			return term.Cell{Text: f.File}
		}},
		{term.Column{Title: "ETCD"}, func(_ *ISOResult, f *FileResult) term.Cell {
			return term.Cell{Text: f.Value, Tone: valueTones[f.Value]}
		}},
		{term.Column{Title: "VERSION", Drop: 2}, func(_ *ISOResult, f *FileResult) term.Cell { return term.Cell{Text: f.Version} }},
		{term.Column{Title: "ARCH", Drop: 1}, func(_ *ISOResult, f *FileResult) term.Cell { return term.Cell{Text: f.Arch} }},
		{term.Column{Title: "CHECKED", Drop: 1}, func(_ *ISOResult, f *FileResult) term.Cell {
			if !f.Remembered || f.Checked == nil {
				return term.Cell{}
			}
			return term.Cell{Text: f.Checked.Local().Format("2006-01-02 15:04")}
		}},
		{term.Column{Title: "NOTE", Min: 12, Drop: 3}, func(i *ISOResult, f *FileResult) term.Cell { return term.Cell{Text: f.note(i.ISO)} }},
	}
	var t term.Table
	var notes []isoNote
	used := make([]bool, len(all))
	rows := [][]term.Cell{}
	for n := range r.ISOs {
		i := &r.ISOs[n]
		for m := range i.Files {
			var row []term.Cell
			for c := range all {
				cell := all[c].cell(i, &i.Files[m])
				used[c] = used[c] || cell.Text != "" || all[c].column.Drop == 0
				row = append(row, cell)
			}
			rows = append(rows, row)
			notes = append(notes, isoNote{i.ISO, i.Files[m].note(i.ISO)})
		}
	}
	for c := range all {
		if used[c] {
			t.Columns = append(t.Columns, all[c].column)
		}
	}
	for _, row := range rows {
		var cells []term.Cell
		for c := range row {
			if used[c] {
				cells = append(cells, row[c])
			}
		}
		t.Rows = append(t.Rows, cells)
	}
	return t, notes
}

// isoHints returns the hint of each code once.
func isoHints(r ISOReport) []term.Line {
	type told struct {
		code reason.Code
		hint string
	}
	var hints []told
	for _, i := range r.ISOs {
		for _, f := range i.Files {
			if f.Hint != "" && !slices.ContainsFunc(hints, func(t told) bool { return t.hint == f.Hint }) {
				hints = append(hints, told{f.Code, f.Hint})
			}
		}
	}
	if p := r.Problem; p != nil && len(hints) == 0 && p.Hint != "" {
		hints = append(hints, told{p.Code, p.Hint})
	}
	var out []term.Line
	for _, h := range hints {
		label := "hint: "
		if len(hints) > 1 {
			label = fmt.Sprintf("hint (%s): ", reason.Lookup(h.code).Title)
		}
		out = append(out, term.Line{{Text: label + h.hint, Tone: term.Faint}})
	}
	return out
}
