package term

import (
	"bytes"
	"io"
	"strings"
)

// A Tone says what a piece of text means to the reader, and so its colour.
type Tone uint8

const (
	Plain  Tone = iota
	Strong      // bold: a heading
	Faint       // less important than what is around it
	Good        // green: as it should be
	Busy        // cyan: on its way
	Warn        // yellow: not known, or not as it should be
	Bad         // red: failed
)

// sgr holds the parameters of Select Graphic Rendition (ECMA-48, 8.3.117). The
// sixteen basic colours follow the theme of the reader's terminal.
var sgr = [...]string{Plain: "", Strong: "1", Faint: "2", Good: "32", Busy: "36", Warn: "33", Bad: "31"}

// A Cell is a piece of a line.
type Cell struct {
	Text string
	Tone Tone
	Pad  int // columns to fill with spaces after the text, unless the line ends
}

// A Line is what stands in one line of output.
type Line []Cell

// Text returns a line of one plain cell.
func Text(s string) Line { return Line{{Text: s}} }

// render appends l to b, cut to cols columns when cols is above 0.
func (l Line) render(b *bytes.Buffer, cols int, colour bool) {
	last := len(l) - 1
	for last >= 0 && l[last].Text == "" {
		last--
	}
	used := 0
	for i, c := range l[:last+1] {
		text := clean(c.Text)
		if cols > 0 {
			text = cutEnd(text, cols-used)
		}
		code := ""
		if colour && text != "" {
			code = sgr[c.Tone]
		}
		if code != "" {
			b.WriteString("\x1b[" + code + "m")
		}
		b.WriteString(text)
		if code != "" {
			b.WriteString("\x1b[0m")
		}
		w := Width(text)
		used += w
		if i == last {
			break
		}
		pad := max(c.Pad-w, 0)
		if cols > 0 {
			pad = min(pad, cols-used)
		}
		b.WriteString(strings.Repeat(" ", pad))
		used += pad
	}
}

// String returns the line without colours.
func (l Line) String() string {
	var b bytes.Buffer
	l.render(&b, 0, false)
	return b.String()
}

// WriteLines writes each of lines and a line feed to w in one write. Colours
// are for terminals; see [Detect].
func WriteLines(w io.Writer, lines []Line, colour bool) error {
	var b bytes.Buffer
	for _, l := range lines {
		l.render(&b, 0, colour)
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := w.Write(b.Bytes())
	return err
}
