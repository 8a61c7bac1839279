package term

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// vt is a terminal: what ECMA-48 says of the few sequences that frames use,
// with scrollback, and lines that are broken anew when the width changes, as
// most terminals do (reflow), or cut, as xterm does.
type vt struct {
	mu       sync.Mutex
	cols     int
	rows     int
	lines    []vtLine // scrollback and screen
	top      int      // first line of the screen
	x, y     int      // y counts from the first of lines
	pending  bool     // the cursor hangs behind the last column
	wrap     bool
	visible  bool
	reflow   bool
	strange  []string // what a frame must not send
	largest  int      // bytes of the largest write
	writes   int
	written  time.Time // of the last write
	coloured bool
	changes  chan Change
}

type vtLine struct {
	cells  []string // a letter with its marks; "" is the right half of a wide one
	broken bool     // goes on in the next line
}

func newVT(cols, rows int, reflow bool) *vt {
	return &vt{cols: cols, rows: rows, wrap: true, visible: true, reflow: reflow, lines: []vtLine{{}}, changes: make(chan Change, 1)}
}

func (v *vt) Size() (int, int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.cols, v.rows, nil
}

func (v *vt) Watch() (<-chan Change, func()) { return v.changes, func() {} }

func (v *vt) Write(p []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.writes++
	v.written = time.Now()
	v.largest = max(v.largest, len(p))
	if !utf8.Valid(p) {
		v.odd("invalid UTF-8")
	}
	s := string(p)
	for s != "" {
		if rest, ok := strings.CutPrefix(s, "\x1b["); ok {
			i := strings.IndexFunc(rest, func(r rune) bool { return r >= 0x40 })
			if i < 0 {
				v.odd("sequence without an end")
				break
			}
			v.control(rest[:i], rest[i])
			s = rest[i+1:]
			continue
		}
		r, n := utf8.DecodeRuneInString(s)
		s = s[n:]
		switch {
		case r == '\r':
			v.x, v.pending = 0, false
		case r == '\n':
			v.down()
		case r < ' ' || r >= 0x7f && r < 0xa0:
			v.odd(fmt.Sprintf("control character %q", r))
		default:
			v.put(r)
		}
	}
	return len(p), nil
}

func (v *vt) odd(s string) { v.strange = append(v.strange, s) }

func (v *vt) control(args string, end byte) {
	v.pending = v.pending && end == 'm'
	switch {
	case end == 'm':
		v.coloured = true
	case end == 'A':
		n, err := strconv.Atoi(args)
		if err != nil || n < 1 {
			v.odd("CSI " + args + "A")
		}
		v.y = max(v.y-n, v.top)
	case end == 'K' && args == "":
		v.line(v.y).cells = v.line(v.y).cells[:min(v.x, len(v.line(v.y).cells))]
		v.line(v.y).broken = false
	case end == 'J' && args == "":
		l := v.line(v.y)
		l.cells, l.broken = l.cells[:min(v.x, len(l.cells))], false
		v.lines = v.lines[:v.y+1]
	case args == "?25" && (end == 'h' || end == 'l'):
		v.visible = end == 'h'
	case args == "?7" && (end == 'h' || end == 'l'):
		v.wrap = end == 'h'
	default:
		v.odd("CSI " + args + string(end))
	}
}

func (v *vt) line(y int) *vtLine {
	for len(v.lines) <= y {
		v.lines = append(v.lines, vtLine{})
	}
	return &v.lines[y]
}

func (v *vt) down() {
	v.pending = false
	v.y++
	v.line(v.y)
	v.top = max(v.top, v.y-v.rows+1)
}

func (v *vt) put(r rune) {
	w := runeWidth(r)
	if w == 0 {
		x := v.x - 1
		if v.pending {
			x = v.x
		}
		l := v.line(v.y)
		if x > 0 && x < len(l.cells) && l.cells[x] == "" {
			x-- // the left half of a wide letter
		}
		if x >= 0 && x < len(l.cells) {
			l.cells[x] += string(r)
		}
		return
	}
	if v.pending || v.x+w > v.cols {
		if v.wrap {
			v.line(v.y).broken = true
			v.down()
			v.x = 0
		} else {
			v.x = max(v.cols-w, 0)
		}
		v.pending = false
	}
	l := v.line(v.y)
	for len(l.cells) < v.x+w {
		l.cells = append(l.cells, " ")
	}
	l.cells[v.x] = string(r)
	if w == 2 {
		l.cells[v.x+1] = ""
	}
	v.x += w
	if v.x >= v.cols {
		v.x, v.pending = v.cols-1, true
	}
}

// resize gives the terminal another size, as a user does.
func (v *vt) resize(cols, rows int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.reflow && cols != v.cols {
		var out []vtLine
		y, x := 0, 0
		for i := 0; i < len(v.lines); i++ {
			first := i
			cells := v.lines[i].cells
			for v.lines[i].broken && i+1 < len(v.lines) {
				i++
				cells = append(cells[:len(cells):len(cells)], v.lines[i].cells...)
			}
			begin := len(out)
			for len(cells) > cols {
				n := cols
				if cells[n] == "" { // a wide letter moves as a whole
					n--
				}
				out = append(out, vtLine{cells[:n:n], true})
				cells = cells[n:]
			}
			out = append(out, vtLine{cells, false})
			if v.y >= first && v.y <= i {
				y, x = begin, 0 // the cursor is always at a beginning between frames
				if v.x != 0 {
					v.odd("resized with the cursor inside a line")
				}
			}
		}
		v.lines, v.y, v.x = out, y, x
	}
	v.cols, v.rows, v.pending = cols, rows, false
	last := v.y
	for i := range v.lines {
		if len(v.lines[i].cells) > 0 {
			last = max(last, i)
		}
	}
	v.top = max(0, last-rows+1)
}

func (v *vt) text(y int) string {
	if y < 0 || y >= len(v.lines) {
		return ""
	}
	return strings.TrimRight(strings.Join(v.lines[y].cells, ""), " ")
}

// above returns the n lines above the cursor.
func (v *vt) above(n int) []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last(n)
}

func (v *vt) last(n int) []string {
	var out []string
	for y := v.y - n; y < v.y; y++ {
		out = append(out, v.text(y))
	}
	return out
}

// all returns scrollback and screen, without the lines from the cursor on.
func (v *vt) all() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.last(v.y)
}

// sane reports what is wrong with a terminal between two frames.
func (v *vt) sane() error {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case len(v.strange) > 0:
		return fmt.Errorf("strange output: %q", v.strange[0])
	case !v.visible:
		return fmt.Errorf("the cursor is hidden")
	case !v.wrap:
		return fmt.Errorf("lines do not wrap")
	case v.x != 0:
		return fmt.Errorf("the cursor is in column %d", v.x)
	}
	for y := v.y; y < len(v.lines); y++ {
		if t := v.text(y); t != "" {
			return fmt.Errorf("below the frame stands %q", t)
		}
	}
	return nil
}
