package term

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Row is what is known of one node.
type Row struct {
	Name   string
	State  string    // one word: "active", "failed"
	Tone   Tone      // Good rows give way when the terminal is low; Bad ones come first
	Since  time.Time // when the state began; zero: not known
	Checks string    // "1/2"; "-" or empty: none
	Reason string    // one line, empty when all is well
}

// NodeColumns are the columns of a table of nodes. longest is the width of the
// longest name; a live table gives it so that its columns stand still.
func NodeColumns(longest int) []Column {
	return []Column{
		{Title: "NODE", Floor: longest, Min: 8, Middle: true},
		{Title: "STATE"},
		{Title: "FOR", Floor: 4, Drop: 2},
		{Title: "CHECKS", Drop: 1},
		{Title: "REASON", Min: 12, Drop: 3},
	}
}

// Cells returns the row for a table with NodeColumns, as it reads at now.
func (r Row) Cells(now time.Time) []Cell {
	since, checks := "-", r.Checks
	if !r.Since.IsZero() {
		since = Elapsed(now.Sub(r.Since))
	}
	if checks == "" {
		checks = "-"
	}
	return []Cell{{Text: r.Name}, {Text: r.State, Tone: r.Tone}, {Text: since}, {Text: checks}, {Text: r.Reason}}
}

// stateFloor is the width of the longest of the usual states, "activating",
// which nearly every run shows: the columns after it need not move then.
const stateFloor = 10

// view is what the live table says about rows at one time.
type view struct {
	rows     []Row
	noun     string
	now      time.Time
	started  time.Time
	deadline time.Time
	longest  int
	titles   []string
}

// rank orders rows by how much a reader wants to see them.
func rank(t Tone) int {
	switch t {
	case Bad:
		return 0
	case Warn:
		return 1
	case Good:
		return 3
	}
	return 2
}

// lines returns the table, at most rows lines of at most cols columns: every
// row when they fit, otherwise those that are not well, the worst first, then
// how many more there are. The summary is always the last line.
func (v view) lines(cols, rows int) []Line {
	summary := v.summary()
	const frame = 2 // heading and summary
	show := v.rows
	var more []Row
	if len(show)+frame > rows {
		show = slices.DeleteFunc(slices.Clone(v.rows), func(r Row) bool { return r.Tone == Good })
		slices.SortStableFunc(show, func(a, b Row) int { return cmp.Compare(rank(a.Tone), rank(b.Tone)) })
		if len(show)+frame > rows {
			n := max(rows-frame-1, 0) // one line says how many more
			show, more = show[:n], show[n:]
		}
	}
	if len(show) == 0 {
		return []Line{summary}
	}
	t := Table{Columns: NodeColumns(v.longest)}
	t.Columns[1].Floor = stateFloor
	for i, title := range v.titles {
		t.Columns[i].Title = title
	}
	for _, r := range show {
		t.Rows = append(t.Rows, r.Cells(v.now))
	}
	lines, _ := t.Lines(cols)
	if len(more) > 0 {
		counts := countStates(more)
		counts[0] = strings.Replace(counts[0], " ", " more ", 1)
		lines = append(lines, Line{{Text: "… and " + strings.Join(counts, ", "), Tone: Faint}})
	}
	return append(lines, summary)
}

// summary says how many nodes are in which state, and the time.
func (v view) summary() Line {
	counts := countStates(v.rows)
	text := fmt.Sprintf("%d %s", len(v.rows), v.noun)
	if len(counts) > 0 {
		text += ": " + strings.Join(counts, ", ")
	}
	text += " (" + Elapsed(v.now.Sub(v.started))
	if !v.deadline.IsZero() {
		text += " of " + Elapsed(v.deadline.Sub(v.started).Round(time.Second))
	}
	return Line{{Text: text + ")", Tone: Strong}}
}

// countStates returns "37 activating" for each state, the worst first, and in
// one class the most frequent first.
func countStates(rows []Row) []string {
	type count struct {
		state string
		rank  int
		n     int
	}
	var counts []count
	at := map[string]int{}
	for _, r := range rows {
		i, ok := at[r.State]
		if !ok {
			i = len(counts)
			at[r.State] = i
			counts = append(counts, count{r.State, rank(r.Tone), 0})
		}
		counts[i].n++
		counts[i].rank = min(counts[i].rank, rank(r.Tone))
	}
	slices.SortStableFunc(counts, func(a, b count) int {
		return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(b.n, a.n), cmp.Compare(a.state, b.state))
	})
	out := make([]string, 0, len(counts))
	for _, c := range counts {
		out = append(out, fmt.Sprintf("%d %s", c.n, c.state))
	}
	return out
}
