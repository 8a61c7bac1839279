package term

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

const hostile = "\x1b]0;owned\x07\x1b[2J\x1b[99Ared\r\nnext\x00\u202egnp\u009b1A\xff漢字e\u0301\u0301\u0301\u0301\u0301"

func names(n int) (out []string) {
	for i := range n {
		out = append(out, fmt.Sprintf("etcd%d.example", i+1))
	}
	return out
}

func live(v *vt) Options {
	return Options{Out: v, Style: Style{TTY: v, Live: true, Colour: true}, Noun: "etcd nodes"}
}

func closeScreen(t *testing.T, s *Screen, final func(int) []Line) {
	t.Helper()
	if err := s.Close(t.Context(), final); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// op is one thing that happens while a screen is shown.
type op struct {
	kind       int // 0 to 4: update, 5: note, 6: resize, 7: nothing
	node       int
	state      int
	reason     string
	cols, rows int
	pause      time.Duration
}

var opStates = []Row{
	{State: "active", Tone: Good, Checks: "2/2"}, {State: "activating", Tone: Busy, Checks: "-"},
	{State: "failed", Tone: Bad}, {State: "unreachable", Tone: Warn}, {State: "booting", Tone: Busy},
}

func drawOps(t *rapid.T, nodes int, tall bool) []op {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) op {
		o := op{
			kind:   rapid.IntRange(0, 7).Draw(t, "kind"),
			node:   rapid.IntRange(0, nodes-1).Draw(t, "node"),
			state:  rapid.IntRange(0, len(opStates)-1).Draw(t, "state"),
			reason: rapid.OneOf(rapid.SampledFrom([]string{"", "connection refused", hostile, strings.Repeat("long ", 80), "漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字漢字"}), rapid.String()).Draw(t, "reason"),
			cols:   rapid.IntRange(4, 120).Draw(t, "cols"),
			rows:   rapid.IntRange(2, 40).Draw(t, "rows"),
			pause:  time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond,
		}
		if tall {
			o.rows = 1000
		}
		return o
	}), 1, 30).Draw(t, "ops")
}

// play runs ops on a live screen and looks at the terminal after each of them.
func play(t *testing.T, v *vt, nodes int, ops []op, look func(s *Screen) error) (err error) {
	synctest.Test(t, func(t *testing.T) {
		v.changes = make(chan Change, 1)
		s := Start(live(v), names(nodes))
		for i, o := range ops {
			switch o.kind {
			case 5:
				s.Note(Text(fmt.Sprintf("note %d", i)))
			case 6:
				synctest.Wait()
				v.resize(o.cols, o.rows)
				select {
				case v.changes <- Resized:
				default:
				}
			case 7:
			default:
				r := opStates[o.state]
				r.Name, r.Since, r.Reason = names(nodes)[o.node], time.Now(), o.reason
				s.Update(r)
			}
			time.Sleep(o.pause)
			synctest.Wait()
			if err = v.sane(); err != nil {
				err = fmt.Errorf("after %d: %w", i, err)
				break
			}
		}
		time.Sleep(frameEvery)
		synctest.Wait()
		if err == nil {
			err = look(s)
		}
		closeScreen(t, s, func(cols int) []Line { return []Line{Text("end")} })
		if err == nil {
			err = v.sane()
		}
		if got := v.above(1); err == nil && got[0] != "end" {
			err = fmt.Errorf("the last line is %q", got[0])
		}
	})
	return err
}

// wantFrame is the frame that must stand on the terminal, without colours.
// The last write said what has been true since; had it not, there were another.
func wantFrame(s *Screen, t *vt) (out []string) {
	_, v := s.take() // nothing waits any more
	v.now = t.written
	cols, rows := t.cols, t.rows
	for _, l := range v.lines(cols, rows-1) {
		var b bytes.Buffer
		l.render(&b, cols, false)
		out = append(out, strings.TrimRight(b.String(), " "))
	}
	return out
}

// Whatever happens in whatever order, on whatever size: the frame stands whole
// above the cursor, and the terminal is sane after every write.
func TestFrameStandsWhole(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes := rapid.IntRange(1, 60).Draw(rt, "nodes")
		v := newVT(rapid.IntRange(4, 120).Draw(rt, "width"), rapid.IntRange(2, 40).Draw(rt, "height"), rapid.Bool().Draw(rt, "reflow"))
		ops := drawOps(rt, nodes, false)
		err := play(t, v, nodes, ops, func(s *Screen) error {
			want := wantFrame(s, v)
			if len(want) >= v.rows {
				return fmt.Errorf("a frame of %d lines in %d rows", len(want), v.rows)
			}
			if diff := cmp.Diff(want, v.above(len(want))); diff != "" {
				return fmt.Errorf("%dx%d (-want +got):\n%s", v.cols, v.rows, diff)
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

// On a terminal with room, nothing is left of earlier frames, nothing above is
// lost, and every note stands there once, in order, however the width changes.
func TestNothingLeftBehind(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		nodes := rapid.IntRange(1, 20).Draw(rt, "nodes")
		v := newVT(80, 1000, true)
		fmt.Fprintf(v, "$ etcd-fleet\r\n")
		ops := drawOps(rt, nodes, true)
		want := []string{"$ etcd-fleet"}
		for i, o := range ops {
			if o.kind == 5 {
				want = append(want, fmt.Sprintf("note %d", i))
			}
		}
		err := play(t, v, nodes, ops, func(s *Screen) error {
			v.resize(200, 1000) // joins what is broken only for its width
			v.changes <- Resized
			time.Sleep(2 * frameEvery)
			synctest.Wait()
			if diff := cmp.Diff(append(slices.Clone(want), wantFrame(s, v)...), v.all()); diff != "" {
				return fmt.Errorf("(-want +got):\n%s", diff)
			}
			return nil
		})
		if err != nil {
			rt.Fatal(err)
		}
	})
}

func TestFiveHundredNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVT(80, 10, true)
		s := Start(live(v), names(500))
		for i, n := range names(500) {
			r := Row{Name: n, State: "active", Tone: Good, Checks: "2/2", Since: time.Now()}
			switch {
			case i == 250:
				r = Row{Name: n, State: "failed", Tone: Bad, Since: time.Now(), Reason: "etcd archive missing"}
			case i == 100:
				r = Row{Name: n, State: "unreachable", Tone: Warn, Reason: "connection refused"}
			case i >= 460:
				r = Row{Name: n, State: "activating", Tone: Busy}
			}
			s.Update(r)
		}
		time.Sleep(10*time.Second + 2*frameEvery)
		synctest.Wait()
		want := []string{
			"NODE             STATE        FOR   CHECKS  REASON",
			"etcd251.example  failed       10s   -       etcd archive missing",
			"etcd101.example  unreachable  -     -       connection refused",
			"etcd461.example  activating   -     -",
			"etcd462.example  activating   -     -",
			"etcd463.example  activating   -     -",
			"etcd464.example  activating   -     -",
			"… and 36 more activating",
			"500 etcd nodes: 1 failed, 1 unreachable, 40 activating, 458 active (10s)",
		}
		if diff := cmp.Diff(want, v.above(9)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		closeScreen(t, s, nil)
		if diff := cmp.Diff(want, v.above(9)); diff != "" {
			t.Errorf("after Close (-want +got):\n%s", diff)
		}
		if err := v.sane(); err != nil {
			t.Error(err)
		}
	})
}

// Every byte of a frame is accounted for: at most 12 bytes a column (a letter
// of 4 with two marks), and the sequences around a line.
func TestFramesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const cols, rows = 80, 24
		v := newVT(cols, rows, true)
		s := Start(live(v), names(500))
		for i := range 5000 {
			s.Update(Row{Name: names(500)[i%500], State: "failed", Tone: Bad, Reason: strings.Repeat("e\u0301\u0301\u0301\u0301\u0301\u0301", 2000) + hostile})
			if i%50 == 0 {
				time.Sleep(time.Millisecond)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if most := rows * (cols*12 + 100); v.largest > most {
			t.Errorf("a frame of %d bytes, want at most %d", v.largest, most)
		}
		// 1.1 s at ten frames a second, and the first one.
		if v.writes > 13 {
			t.Errorf("%d frames in 1.1 s", v.writes)
		}
		closeScreen(t, s, nil)
		if err := v.sane(); err != nil {
			t.Error(err)
		}
	})
}

// A table that says nothing new is not drawn again.
func TestCalm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVT(80, 24, true)
		s := Start(live(v), names(3))
		time.Sleep(100*time.Second + 500*time.Millisecond)
		synctest.Wait()
		if v.writes > 102 {
			t.Errorf("%d frames in 100 s in which nothing but the time changed", v.writes)
		}
		if v.largest > 1000 {
			t.Errorf("a frame of %d bytes", v.largest)
		}
		closeScreen(t, s, nil)
	})
}

func TestNoColour(t *testing.T) {
	for _, colour := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			v := newVT(80, 24, true)
			o := live(v)
			o.Style.Colour = colour
			s := Start(o, names(3))
			time.Sleep(time.Second)
			synctest.Wait()
			closeScreen(t, s, func(int) []Line { return []Line{{{Text: "done", Tone: Good}}} })
			if v.coloured != colour {
				t.Errorf("coloured %v, want %v", v.coloured, colour)
			}
		})
	}
}

func TestNarrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVT(20, 10, true)
		s := Start(live(v), []string{"203.0.113.10:50000", "203.0.113.10:50001"})
		s.Update(Row{Name: "203.0.113.10:50001", State: "failed", Tone: Bad, Reason: "etcd archive missing"})
		time.Sleep(time.Second)
		synctest.Wait()
		want := []string{"NODE      STATE", "203…0000  waiting", "203…0001  failed", "2 etcd nodes: 1 fai…"}
		if diff := cmp.Diff(want, v.above(4)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
		closeScreen(t, s, nil)
	})
}

// After Ctrl-Z and fg the table begins anew below what others wrote.
func TestResumed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVT(80, 24, true)
		s := Start(live(v), names(1))
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		fmt.Fprint(v, "$ fg\r\n")
		v.changes <- Resumed
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := v.above(4)[0]; got != "$ fg" {
			t.Errorf("above the table stands %q", got)
		}
		closeScreen(t, s, nil)
	})
}

func TestSuspend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		v := newVT(80, 24, true)
		s := Start(live(v), names(2))
		time.Sleep(time.Second)
		s.Suspend(func() {
			if got := v.all(); len(got) != 0 {
				t.Errorf("on the terminal stands %q", got)
			}
			fmt.Fprint(v, "passphrase: \r\n")
			s.Update(Row{Name: "etcd1.example", State: "booting"})
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := v.all(); len(got) != 1 {
				t.Errorf("the table was drawn meanwhile: %q", got)
			}
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if got := v.all(); len(got) != 5 || got[0] != "passphrase:" {
			t.Errorf("then %q", got)
		}
		closeScreen(t, s, nil)
		ran := false
		s.Suspend(func() { ran = true })
		if !ran {
			t.Error("Suspend after Close ran nothing")
		}
	})
}

// buffer is a stream that is no terminal.
type buffer struct {
	mu sync.Mutex
	b  strings.Builder
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func TestPlainLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out buffer
		s := Start(Options{Out: &out, Noun: "etcd nodes"}, names(2))
		say := func(r Row) { s.Update(r); time.Sleep(3 * time.Second) }
		say(Row{Name: "etcd1.example", State: "waiting", Tone: Busy})
		say(Row{Name: "etcd1.example", State: "activating", Tone: Busy, Checks: "-"})
		say(Row{Name: "etcd1.example", State: "activating", Tone: Busy, Checks: "-"})
		say(Row{Name: "etcd2.example", State: "unreachable", Tone: Warn, Reason: "read 127.0.0.1:4711: reset"})
		say(Row{Name: "etcd2.example", State: "unreachable", Tone: Warn, Reason: "read 127.0.0.1:815: reset"})
		say(Row{Name: "etcd1.example", State: "active", Tone: Busy, Checks: "1/2"})
		say(Row{Name: "etcd1.example", State: "active", Tone: Good, Checks: "2/2"})
		s.Note(Text("warning: " + hostile))
		say(Row{Name: "etcd2.example", State: "failed", Tone: Bad, Reason: "etcd archive missing"})
		closeScreen(t, s, func(cols int) []Line {
			if cols != 0 {
				t.Errorf("%d columns, want any number", cols)
			}
			return []Line{Text("1 of 2 etcd nodes failed")}
		})
		want := `3s     etcd1.example  activating
9s     etcd2.example  unreachable     read 127.0.0.1:4711: reset
15s    etcd1.example  active 1/2
18s    etcd1.example  active 2/2
warning: ?]0;owned??[2J?[99Ared next??gnp?1A?漢字é́
21s    etcd2.example  failed          etcd archive missing
1 of 2 etcd nodes failed
`
		if diff := cmp.Diff(want, out.b.String()); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tty := range []bool{false, true} {
			v := newVT(80, 24, true)
			o := Options{Out: v, Quiet: true}
			if tty {
				o = live(v)
				o.Quiet = true
			}
			s := Start(o, names(2))
			s.Update(Row{Name: "etcd1.example", State: "failed"})
			time.Sleep(time.Minute)
			s.Note(Text("host keys are not checked"))
			closeScreen(t, s, nil)
			if v.writes != 1 {
				t.Errorf("terminal %v: %d writes, want that of the note", tty, v.writes)
			}
		}
	})
}

type brokenWriter struct {
	err error
	n   int
}

func (w *brokenWriter) Write([]byte) (int, error) { w.n++; return 0, w.err }

func TestWriterErrors(t *testing.T) {
	full := errors.New("no space left on device")
	for _, tt := range []struct{ err, want error }{
		{syscall.EPIPE, nil},
		{full, full},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &brokenWriter{err: tt.err}
			s := Start(Options{Out: w}, nil)
			for i := range 100 {
				s.Update(Row{Name: fmt.Sprint("n", i), State: "failed"})
				time.Sleep(time.Second)
			}
			if err := s.Close(t.Context(), nil); !errors.Is(err, tt.want) {
				t.Errorf("Close: %v, want %v", err, tt.want)
			}
			if w.n != 1 {
				t.Errorf("%d writes, want none after the first error", w.n)
			}
		})
	}
}

// stopped is a terminal after Ctrl-S.
type stopped struct{ goOn chan struct{} }

func (w stopped) Write(p []byte) (int, error) { <-w.goOn; return len(p), nil }

// A terminal that takes nothing holds up neither the checks nor the end.
func TestStoppedTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := stopped{make(chan struct{})}
		s := Start(Options{Out: w}, names(10))
		s.Note(Text("the terminal stops at this"))
		synctest.Wait()
		began := time.Now()
		for i := range 3 * maxQueue {
			s.Update(Row{Name: names(10)[i%10], State: fmt.Sprint("state", i)})
			s.Note(Text("note"))
		}
		if d := time.Since(began); d != 0 {
			t.Errorf("updates took %s", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.Close(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Close: %v, want the end of its context", err)
		}
		s.mu.Lock()
		if len(s.queue) > maxQueue || s.lost == 0 {
			t.Errorf("%d lines wait, %d were let go", len(s.queue), s.lost)
		}
		s.mu.Unlock()
		close(w.goOn)
		<-s.done
	})
}
