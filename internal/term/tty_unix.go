//go:build unix

package term

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
	xterm "golang.org/x/term"
)

// fileTTY is a terminal that is a file.
type fileTTY struct{ f *os.File }

// openTTY returns the terminal that f is, or nil.
func openTTY(f *os.File) TTY {
	t := fileTTY{f}
	if _, _, err := t.Size(); err != nil {
		return nil
	}
	return t
}

// Size asks the kernel. It goes through SyscallConn, since Fd would make the
// file block for the rest of the program.
func (t fileTTY) Size() (cols, rows int, err error) {
	c, err := t.f.SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	if cerr := c.Control(func(fd uintptr) { cols, rows, err = xterm.GetSize(int(fd)) }); cerr != nil {
		return 0, 0, cerr
	}
	return cols, rows, err
}

// Watch turns SIGWINCH and SIGCONT into changes.
func (t fileTTY) Watch() (<-chan Change, func()) {
	signals := make(chan os.Signal, 4)
	changes := make(chan Change, 1)
	quit, done := make(chan struct{}), make(chan struct{})
	signal.Notify(signals, unix.SIGWINCH, unix.SIGCONT)
	go func() {
		defer close(done)
		for {
			c := Resized
			select {
			case sig := <-signals:
				if sig == unix.SIGCONT {
					c = Resumed
				}
			case <-quit:
				return
			}
			select {
			case changes <- c:
			case <-quit:
				return
			}
		}
	}()
	return changes, func() {
		signal.Stop(signals)
		close(quit)
		<-done
	}
}
