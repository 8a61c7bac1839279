package term

// gap is the space between two columns of a table.
const gap = 2

// A Column of a table. The last one is the one that gives way first when the
// table is wider than the terminal.
type Column struct {
	Title  string
	Floor  int  // never narrower than this, however short its cells are
	Min    int  // may be cut down to this; 0: is never cut
	Drop   int  // when cutting is not enough, left out in rising order; 0: stays
	Middle bool // cut in the middle, not at the end
}

// A Table is text in columns.
type Table struct {
	Columns []Column
	Rows    [][]Cell // one cell a column
}

// Lines lays the table out: a heading and one line a row. With cols above 0 no
// line is wider than cols columns, as far as columns can be cut or left out.
// cut says which rows lost text by it.
func (t Table) Lines(cols int) (lines []Line, cut []bool) {
	natural := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		natural[i] = max(Width(c.Title), c.Floor)
	}
	rows := make([][]Cell, len(t.Rows))
	for r, row := range t.Rows {
		rows[r] = make([]Cell, len(t.Columns))
		for i := range t.Columns {
			c := row[i]
			c.Text = clean(c.Text)
			natural[i] = max(natural[i], Width(c.Text))
			rows[r][i] = c
		}
	}
	shown, width := t.fit(natural, cols)

	heading := make(Line, 0, len(shown))
	for _, i := range shown {
		heading = append(heading, Cell{Text: cutEnd(t.Columns[i].Title, width[i]), Tone: Strong, Pad: width[i] + gap})
	}
	lines = append(lines, heading)
	cut = make([]bool, len(rows))
	for r, row := range rows {
		line := make(Line, 0, len(shown))
		for _, i := range shown {
			c := row[i]
			if Width(c.Text) > width[i] {
				cut[r] = true
				if t.Columns[i].Middle {
					c.Text = CutMiddle(c.Text, width[i])
				} else {
					c.Text = cutEnd(c.Text, width[i])
				}
			}
			c.Pad = width[i] + gap
			line = append(line, c)
		}
		for i, c := range row {
			cut[r] = cut[r] || c.Text != "" && width[i] == 0
		}
		lines = append(lines, line)
	}
	return lines, cut
}

// fit chooses the columns that are shown and the width of each.
func (t Table) fit(natural []int, cols int) (shown []int, width []int) {
	for i := range t.Columns {
		shown = append(shown, i)
	}
	least := func(i int) int {
		if m := t.Columns[i].Min; m > 0 {
			return min(m, natural[i])
		}
		return natural[i]
	}
	for {
		need := 0
		for n, i := range shown {
			need += least(i)
			if n > 0 {
				need += gap
			}
		}
		next := -1
		for n, i := range shown {
			if d := t.Columns[i].Drop; d > 0 && (next < 0 || d < t.Columns[shown[next]].Drop) {
				next = n
			}
		}
		if cols > 0 && need > cols && next >= 0 {
			shown = append(shown[:next:next], shown[next+1:]...)
			continue
		}
		width = make([]int, len(t.Columns))
		spare := cols - need
		for _, i := range shown {
			width[i] = least(i)
		}
		// First no column gets more than half of the terminal, so that a long name
		// leaves room for the reason; then whoever still wants.
		for _, most := range []int{cols / 2, cols} {
			for _, i := range shown {
				want := natural[i] - width[i]
				if cols > 0 {
					want = min(want, max(min(spare, most-width[i]), 0))
				}
				width[i] += want
				spare -= want
			}
		}
		return shown, width
	}
}
