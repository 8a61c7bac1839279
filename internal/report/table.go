package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/term"
)

const (
	// wellRows is how many nodes that are well get a row each. More of them share
	// one: nobody reads 500 times "active".
	wellRows = 20
	// maxSet is the width of a set of nodes in the table, maxWhole below it, where
	// a set that was cut is said again. The other formats never cut one.
	maxSet   = 40
	maxWhole = 300
)

// states tells what each state means for the reader's eye. A state that is not
// here is shown without judgement.
var states = map[string]term.Tone{
	"active": term.Good,
	"failed": term.Bad, "flapping": term.Bad, "not-set-up": term.Bad,
	"auth-refused": term.Bad, "host-key-changed": term.Bad,
	"unreachable": term.Warn, "unknown": term.Warn, "undecided": term.Warn, "inactive": term.Warn,
	"waiting": term.Busy, "connecting": term.Busy, "booting": term.Busy, "activating": term.Busy,
}

// tone is the tone of a state. A node is well only when it was decided so:
// active on the first of two checks is on its way.
func tone(state string, code reason.Code) term.Tone {
	if t := states[state]; t != term.Good || code == reason.Ready {
		return t
	}
	return term.Busy
}

// Row returns what a live table shows of e.
func Row(e Event) term.Row {
	code := e.Code
	if code == "" && e.Want > 0 && e.Checks >= e.Want {
		code = reason.Ready
	}
	r := term.Row{Name: e.Node, State: e.State, Tone: tone(e.State, code), Checks: checks(e.Checks, e.Want), Reason: e.Message}
	if e.Since != nil {
		r.Since = *e.Since
	}
	return r
}

func checks(n, want int) string {
	if n == 0 || want == 0 {
		return "-"
	}
	return fmt.Sprintf("%d/%d", n, want)
}

// Table returns the report for people: a row a node, but one row for nodes that
// share a reason and for a multitude of nodes that are well; below it the
// reasons that had no room, hints, health, warnings, and the summary. cols is
// the width of the terminal, 0 for text of any width. r is complete.
func Table(r Report, cols int, fold func(names []string) string) []term.Line {
	var out []term.Line
	if len(r.Nodes) > 0 {
		t, rows := tableOf(r, fold)
		lines, cut := t.Lines(cols)
		out = append(out, lines...)
		for i, c := range cut {
			if f := rows[i].fold; f != nil && (c || rows[i].setCut) {
				set := cutSet(f.Set, len(f.Nodes), maxWhole) + ":"
				out = append(out, term.Line{{Text: set, Tone: term.Strong, Pad: term.Width(set) + 1}, {Text: because(f.Message, f.Code)}})
			}
		}
	}
	out = append(out, hints(r)...)
	out = append(out, health(r.Health)...)
	for _, w := range r.Warnings {
		out = append(out, term.Line{{Text: "warning: " + w, Tone: term.Warn}})
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

// WriteTable writes the table to w, for a reader that is not a terminal.
func WriteTable(w io.Writer, r Report, fold func(names []string) string) error {
	return term.WriteLines(w, Table(r, 0, fold), false)
}

// tableRow is one row: some nodes, and the fold they come from when they are not well.
type tableRow struct {
	nodes  []NodeResult
	fold   *Fold
	setCut bool
}

func tableOf(r Report, fold func(names []string) string) (term.Table, []*tableRow) {
	foldOf := map[string]*Fold{}
	for i := range r.Folded {
		for _, name := range r.Folded[i].Nodes {
			foldOf[name] = &r.Folded[i]
		}
	}
	well := 0
	for i := range r.Nodes {
		if r.Nodes[i].ok() {
			well++
		}
	}
	var rows []*tableRow
	shared := map[*Fold]*tableRow{} // nil: nodes that are well
	for _, n := range r.Nodes {
		f := foldOf[n.Node]
		if n.ok() {
			f = nil
		}
		if row := shared[f]; row != nil {
			row.nodes = append(row.nodes, n)
			continue
		}
		row := &tableRow{nodes: []NodeResult{n}, fold: f}
		rows = append(rows, row)
		if f != nil || well > wellRows {
			shared[f] = row
		}
	}
	t := term.Table{Columns: term.NodeColumns(0)}
	for _, row := range rows {
		t.Rows = append(t.Rows, row.cells(r.Ended, fold))
	}
	return t, rows
}

// cells says what the nodes of the row have in common: the longest time, and
// the checks when all had the same.
func (row *tableRow) cells(now time.Time, fold func(names []string) string) []term.Cell {
	first := row.nodes[0]
	out := term.Row{State: first.State, Tone: tone(first.State, first.Code), Checks: checks(first.Checks, first.Want)}
	var names []string
	for _, n := range row.nodes {
		names = append(names, n.Node)
		if c := checks(n.Checks, n.Want); c != out.Checks {
			out.Checks = "-"
		}
		if n.Since != nil && (out.Since.IsZero() || n.Since.Before(out.Since)) {
			out.Since = *n.Since
		}
	}
	if row.fold != nil {
		out.Reason = because(row.fold.Message, row.fold.Code)
	}
	set := nodeSet(names, fold)
	out.Name = cutSet(set, len(names), maxSet)
	row.setCut = out.Name != set
	return out.Cells(now)
}

// cutSet returns the set, or what fits cols columns of it and the number of its
// nodes. The name of one node is left to the table.
func cutSet(set string, n, cols int) string {
	if n < 2 || term.Width(set) <= cols {
		return set
	}
	return fmt.Sprintf("%s (%d nodes)", term.CutMiddle(set, cols), n)
}

// hints returns each hint once. With one reason it needs no name.
func hints(r Report) []term.Line {
	var seen []string
	var out []term.Line
	distinct := map[string]bool{}
	for _, f := range r.Folded {
		distinct[f.Hint] = true
	}
	for _, f := range r.Folded {
		if f.Hint == "" || slices.Contains(seen, f.Hint) {
			continue
		}
		seen = append(seen, f.Hint)
		label := "hint: "
		if len(distinct) > 1 {
			label = fmt.Sprintf("hint (%s): ", spoken(string(f.Code)))
		}
		out = append(out, term.Line{{Text: label + f.Hint, Tone: term.Faint}})
	}
	if p := r.Problem; p != nil && len(r.Nodes) == 0 && p.Hint != "" {
		out = append(out, term.Line{{Text: "hint: " + p.Hint, Tone: term.Faint}})
	}
	return out
}

// health returns what etcd said of itself: a line, and one for each finding.
func health(h *HealthResult) []term.Line {
	if h == nil {
		return nil
	}
	text := "cluster " + h.Verdict
	if h.ClusterID != "" {
		text += ", ID " + h.ClusterID
	}
	if h.Leader != "" {
		text += ", leader " + h.Leader
	}
	if h.Version != "" {
		text += ", etcd " + h.Version
	}
	text += fmt.Sprintf(", %d of %d members healthy", h.MembersHealthy, h.MembersExpected)
	t := term.Warn
	switch h.Verdict {
	case "healthy":
		t = term.Good
	case "unhealthy":
		t = term.Bad
	}
	out := []term.Line{{{Text: text, Tone: t}}}
	said := false
	for _, p := range h.Problems {
		said = said || p.Message != "" && strings.HasSuffix(h.Message, p.Message)
		out = append(out, term.Line{{Text: "cluster: " + because(p.Message, p.Code), Tone: term.Warn}})
	}
	if h.Message != "" && !said {
		out = append(out, term.Line{{Text: "cluster: " + h.Message, Tone: t}})
	}
	if h.Hint != "" {
		out = append(out, term.Line{{Text: "hint: " + h.Hint, Tone: term.Faint}})
	}
	return out
}
