package term

import (
	"errors"
	"io"
	"os"
	"syscall"
)

// A Change is what can happen to a terminal under a running program.
type Change uint8

const (
	Resized Change = iota // it may have another size
	Resumed               // the program was stopped and goes on; others wrote meanwhile
)

// A TTY is what a Screen must know of a terminal besides writing to it.
type TTY interface {
	// Size returns the columns and rows. An error, or a 0, means not known.
	Size() (cols, rows int, err error)
	// Watch reports changes until stop is called. A change may be missed when
	// others wait in the channel already; the size is asked for at every frame.
	Watch() (changes <-chan Change, stop func())
}

// Style is how output may look on a writer.
type Style struct {
	TTY    TTY  // nil: not a terminal, or its size is not known
	Colour bool // colours may be used
	Live   bool // the cursor may be moved
}

// Detect finds out what may be written to w: an *os.File that is a terminal
// gets colours and a live table, as far as NO_COLOR and TERM allow. A nil
// getenv is os.Getenv.
func Detect(w io.Writer, getenv func(string) string) Style {
	f, ok := w.(*os.File)
	if !ok {
		return Style{}
	}
	tty := openTTY(f)
	if tty == nil {
		return Style{}
	}
	return styleOf(tty, getenv)
}

// styleOf applies the environment and the size to a terminal.
func styleOf(tty TTY, getenv func(string) string) Style {
	if getenv == nil {
		getenv = os.Getenv
	}
	name := getenv("TERM")
	s := Style{TTY: tty, Live: name != "" && name != "dumb"}
	s.Colour = s.Live && getenv("NO_COLOR") == ""
	if cols, rows, err := tty.Size(); err != nil || cols <= 0 || rows <= 0 {
		// A serial console often claims 0 x 0: a table cannot be drawn in place.
		s.TTY, s.Live = nil, false
	}
	return s
}

// gone reports whether err says that nobody reads any more: a closed pipe, or a
// terminal that was hung up (EIO).
func gone(err error, terminal bool) bool {
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) || terminal && errors.Is(err, syscall.EIO)
}
