package term

import (
	"bytes"
	"slices"
	"strconv"
)

// Control sequences of ECMA-48 and DEC private modes. Frames use no others.
const (
	hideCursor = "\x1b[?25l"
	showCursor = "\x1b[?25h"
	wrapOff    = "\x1b[?7l" // a line that the terminal finds wider than we do must not break
	wrapOn     = "\x1b[?7h"
	clearRight = "\x1b[K"
	clearBelow = "\x1b[J"
)

// frame is what stands on the terminal, above the cursor.
type frame struct {
	lines []string // as they were written
	plain []string // the same without colours
	cols  int      // size of the terminal at that time
	rows  int
}

// height returns the rows that the frame takes now that the terminal is cols
// wide. A terminal that became narrower has broken the longer lines, as most
// do; one that cuts them instead loses as many lines above the frame.
func (f *frame) height(cols int) int {
	if cols >= f.cols {
		return len(f.plain)
	}
	n := 0
	for _, l := range f.plain {
		n += rowsOf(l, cols)
	}
	return n
}

// rowsOf returns the rows that s is broken into. A wide letter moves to the next
// row as a whole.
func rowsOf(s string, cols int) int {
	n, x := 1, 0
	for _, r := range s {
		w := runeWidth(r)
		if x+w > cols {
			n, x = n+1, 0
		}
		x += w
	}
	return n
}

// up moves the cursor to the beginning of the frame.
func (f *frame) up(b *bytes.Buffer, cols int) {
	b.WriteByte('\r')
	if n := f.height(cols); n > 0 {
		b.WriteString("\x1b[" + strconv.Itoa(n) + "A")
	}
}

// forget leaves what stands on the terminal where it is: the next frame begins
// at the cursor.
func (f *frame) forget() { *f = frame{} }

// erase appends what takes the frame off the terminal.
func (f *frame) erase(b *bytes.Buffer, cols int) {
	if len(f.lines) == 0 {
		return
	}
	f.up(b, cols)
	b.WriteString(clearBelow)
	f.forget()
}

// draw appends what replaces the frame by lines, with the lines of above put
// over it for good. Nothing is appended when nothing changed, unless all is
// set.
func (f *frame) draw(b *bytes.Buffer, above, lines []Line, cols, rows int, colour, all bool) {
	next := frame{cols: cols, rows: rows}
	for _, l := range lines {
		var text, plain bytes.Buffer
		l.render(&text, cols, colour)
		l.render(&plain, cols, false)
		next.lines = append(next.lines, text.String())
		next.plain = append(next.plain, plain.String())
	}
	all = all || len(above) > 0 || cols != f.cols || rows != f.rows
	if !all && slices.Equal(f.lines, next.lines) {
		return
	}
	b.WriteString(hideCursor)
	f.up(b, cols)
	if all {
		b.WriteString(clearBelow)
	}
	for _, l := range above {
		l.render(b, 0, colour)
		b.WriteString("\r\n")
	}
	b.WriteString(wrapOff)
	for i, text := range next.lines {
		if all || i >= len(f.lines) || f.lines[i] != text {
			b.WriteString(text)
			if Width(next.plain[i]) < cols {
				b.WriteString(clearRight)
			}
		}
		b.WriteString("\r\n")
	}
	b.WriteString(clearBelow + wrapOn + showCursor)
	*f = next
}
