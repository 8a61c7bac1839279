package term

import (
	"fmt"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// openPTY returns a pseudo-terminal: our end of it, and the terminal.
func openPTY(t *testing.T) (ours, tty *os.File) {
	t.Helper()
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ours.Close() })
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tty.Close() })
	return ours, tty
}

func TestRealTerminal(t *testing.T) {
	ours, tty := openPTY(t)
	resize := func(cols, rows uint16) {
		t.Helper()
		if err := unix.IoctlSetWinsize(int(ours.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows}); err != nil {
			t.Fatal(err)
		}
	}
	env := func(string) string { return "xterm" }
	if s := Detect(tty, env); s.Live {
		t.Error("a terminal of 0x0 is taken for one with a size")
	}
	resize(90, 33)
	s := Detect(tty, env)
	if !s.Live {
		t.Fatal("not taken for a terminal")
	}
	changes, stop := s.TTY.Watch()
	resize(70, 20)
	if err := unix.Kill(os.Getpid(), unix.SIGWINCH); err != nil { // it is not our controlling terminal
		t.Fatal(err)
	}
	select {
	case c := <-changes:
		if c != Resized {
			t.Errorf("change %d", c)
		}
	case <-time.After(10 * time.Second):
		t.Error("no change was reported")
	}
	stop()
	if cols, rows, err := s.TTY.Size(); cols != 70 || rows != 20 || err != nil {
		t.Errorf("%dx%d %v, want 70x20", cols, rows, err)
	}

	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if s := Detect(file, env); s.Live || s.Colour {
		t.Error("a file is taken for a terminal")
	}
}
