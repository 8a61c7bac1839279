package term

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Options say where and how a Screen shows progress.
type Options struct {
	Out      io.Writer // the terminal, or what takes plain lines
	Style    Style     // of Out; see Detect
	Plain    bool      // lines, also on a terminal
	Quiet    bool      // no progress: only notes and what Close is given
	Noun     string    // what the rows are: "etcd nodes"
	Titles   []string  // headings in place of those of NodeColumns; nil: those
	Deadline time.Time // shown in the summary; zero: none
}

const (
	// frameEvery is the least time between two frames: slow enough for a serial
	// console and a calm eye, fast enough to feel immediate.
	frameEvery = 100 * time.Millisecond
	// tickEvery is how often the times in a live table move on.
	tickEvery = time.Second
	// maxQueue is how many lines wait for a terminal that does not take them.
	// More are counted, not kept.
	maxQueue = 4096
)

// A Screen owns a terminal, or another stream, while a command runs. Its
// methods may be called by several goroutines at the same time.
type Screen struct {
	o     Options
	began time.Time

	mu      sync.Mutex
	rows    []Row
	at      map[string]int // index in rows
	said    []string       // what a plain line last said of rows[i]
	longest int            // width of the longest name
	queue   []Line         // lines to put out for good
	lost    int            // lines that the queue had no room for
	final   *finish        // set by Close

	wake    chan struct{} // rows or queue changed
	lend    chan loan
	closing chan struct{}
	done    chan struct{} // the goroutine has ended
	err     error         // why writing stopped; of the goroutine until done
}

// loan is the terminal in the hands of somebody else.
type loan struct{ begin, end chan struct{} }

type finish struct{ lines func(cols int) []Line }

// Start begins to show the nodes of names. Close must be called.
func Start(o Options, names []string) *Screen {
	s := &Screen{
		o: o, began: time.Now(), at: map[string]int{},
		wake: make(chan struct{}, 1), lend: make(chan loan),
		closing: make(chan struct{}), done: make(chan struct{}),
	}
	for _, n := range names {
		s.add(Row{Name: n, State: "waiting", Tone: Busy})
	}
	go s.run()
	return s
}

// live reports whether there is a table that is drawn in place.
func (s *Screen) live() bool {
	return s.o.Style.Live && s.o.Style.TTY != nil && !s.o.Plain && !s.o.Quiet
}

func (s *Screen) add(r Row) int {
	s.at[r.Name] = len(s.rows)
	s.rows = append(s.rows, r)
	s.said = append(s.said, says(r))
	s.longest = max(s.longest, Width(clean(r.Name)))
	return len(s.rows) - 1
}

// says is what makes two plain lines the same. Digits of a reason do not count:
// the port numbers in the cause of a refused connection differ at every try.
func says(r Row) string {
	reason := strings.Map(func(c rune) rune {
		if c >= '0' && c <= '9' {
			return '0'
		}
		return c
	}, r.Reason)
	for strings.Contains(reason, "00") {
		reason = strings.ReplaceAll(reason, "00", "0")
	}
	return r.State + "\x00" + r.Checks + "\x00" + reason
}

// maxPlainName is the width that names are filled up to in plain lines.
const maxPlainName = 40

// Update shows r in place of what was known of the node of that name. It never
// waits for the terminal.
func (s *Screen) Update(r Row) {
	s.mu.Lock()
	i, ok := s.at[r.Name]
	if !ok {
		i = s.add(Row{Name: r.Name})
	}
	s.rows[i] = r
	if !s.o.Quiet && !s.live() {
		if now := says(r); s.said[i] != now {
			s.said[i] = now
			state := r.State
			if r.Checks != "" && r.Checks != "-" {
				state += " " + r.Checks
			}
			s.push(Line{
				{Text: Elapsed(time.Since(s.began)), Pad: 7},
				{Text: r.Name, Pad: max(min(s.longest, maxPlainName), Width(clean(r.Name))) + gap},
				{Text: state, Tone: r.Tone, Pad: stateFloor + 4 + gap},
				{Text: r.Reason},
			})
		}
	}
	s.mu.Unlock()
	s.poke()
}

// Note puts one line out for good, above a live table. It is for warnings and
// log lines, and is not kept back by Quiet.
func (s *Screen) Note(l Line) {
	s.mu.Lock()
	s.push(l)
	s.mu.Unlock()
	s.poke()
}

func (s *Screen) push(l Line) {
	if len(s.queue) >= maxQueue {
		s.lost++
		return
	}
	s.queue = append(s.queue, l)
}

func (s *Screen) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// Suspend takes a live table off the terminal, runs f, which may write to the
// terminal and read from it (ask for a passphrase), and shows the table again.
// It waits for a terminal that was stopped. f must not use the screen's
// Suspend or Close.
func (s *Screen) Suspend(f func()) {
	l := loan{make(chan struct{}), make(chan struct{})}
	select {
	case s.lend <- l:
		defer close(l.end)
		<-l.begin
	case <-s.done:
	}
	f()
}

// Close ends the screen and waits for its goroutine. A live table is replaced
// by the lines that final returns for a terminal of cols columns (0: lines may
// be of any length), or stays as it is when final is nil. An error of the
// writer is returned, but for one that says that nobody reads any more. A
// terminal that takes nothing (Ctrl-S) keeps Close until ctx ends; its cause is
// returned then, and the goroutine ends when the terminal goes on.
func (s *Screen) Close(ctx context.Context, final func(cols int) []Line) error {
	s.mu.Lock()
	first := s.final == nil
	if first {
		s.final = &finish{final}
	}
	s.mu.Unlock()
	if first {
		close(s.closing)
	}
	select {
	case <-s.done:
	case <-ctx.Done():
		return fmt.Errorf("cannot write to the terminal: %w", context.Cause(ctx))
	}
	if s.err != nil && !gone(s.err, s.o.Style.TTY != nil) {
		return fmt.Errorf("cannot write progress: %w", s.err)
	}
	return nil
}

// run is the goroutine that owns the terminal.
func (s *Screen) run() {
	defer close(s.done)
	var f frame
	var changes <-chan Change
	var tick <-chan time.Time
	if s.live() {
		var stop func()
		changes, stop = s.o.Style.TTY.Watch()
		defer stop()
		t := time.NewTicker(tickEvery)
		defer t.Stop()
		tick = t.C
	}
	cols, rows := s.size(0, 0)
	pace := time.NewTimer(0)
	defer pace.Stop()
	all := false
	for {
		// A frame is due once frameEvery has passed since the last one.
		select {
		case <-pace.C:
		case <-s.closing:
		}
		select {
		case <-s.closing:
			cols, rows = s.size(cols, rows)
			s.finish(&f, cols, rows)
			return
		default:
		}
		cols, rows = s.size(cols, rows)
		s.show(&f, cols, rows, all)
		all = false
		select {
		case <-s.wake:
		case <-tick:
		case c := <-changes:
			all = true
			if c == Resumed {
				f.forget()
			}
		case l := <-s.lend:
			var b bytes.Buffer
			cols, rows = s.size(cols, rows)
			f.erase(&b, cols)
			s.write(b.Bytes())
			close(l.begin)
			<-l.end
			all = true
		case <-s.closing:
		}
		if s.live() {
			pace.Reset(frameEvery)
		} else {
			pace.Reset(0)
		}
	}
}

// size asks the terminal, and keeps what is known when it does not say.
func (s *Screen) size(cols, rows int) (int, int) {
	if s.o.Style.TTY == nil {
		return 0, 0
	}
	if c, r, err := s.o.Style.TTY.Size(); err == nil && c > 0 && r > 0 {
		return c, r
	}
	return cols, rows
}

// take returns what is to be written, and empties the queue.
func (s *Screen) take() (queue []Line, v view) {
	s.mu.Lock()
	defer s.mu.Unlock()
	queue, s.queue = s.queue, nil
	if s.lost > 0 {
		queue = append(queue, Text(fmt.Sprintf("%d more lines are not shown: nobody read them in time", s.lost)))
		s.lost = 0
	}
	v = view{noun: s.o.Noun, now: time.Now(), started: s.began, deadline: s.o.Deadline, longest: s.longest, titles: s.o.Titles}
	if s.live() {
		v.rows = append(v.rows, s.rows...)
	}
	return queue, v
}

// show writes one frame, or the plain lines that wait.
func (s *Screen) show(f *frame, cols, rows int, all bool) {
	queue, v := s.take()
	var b bytes.Buffer
	switch {
	case s.live():
		// The cursor needs the row below the frame. Two rows have no room for more
		// than the summary, one has none at all: there only what is final is said.
		var lines []Line
		if rows > 1 {
			lines = v.lines(cols, rows-1)
		}
		f.draw(&b, queue, lines, cols, rows, s.o.Style.Colour, all)
	default:
		for _, l := range queue {
			l.render(&b, 0, s.o.Style.Colour)
			b.WriteByte('\n')
		}
	}
	s.write(b.Bytes())
}

// finish writes what stays.
func (s *Screen) finish(f *frame, cols, rows int) {
	s.mu.Lock()
	final := s.final.lines
	s.mu.Unlock()
	if final == nil {
		s.show(f, cols, rows, false)
		return
	}
	queue, _ := s.take()
	eol := "\n"
	var b bytes.Buffer
	if s.live() {
		eol = "\r\n"
		f.erase(&b, cols)
	}
	for _, l := range append(queue, final(cols)...) {
		l.render(&b, 0, s.o.Style.Colour)
		b.WriteString(eol)
	}
	s.write(b.Bytes())
}

// write writes b, unless writing failed before.
func (s *Screen) write(b []byte) {
	if len(b) == 0 || s.err != nil {
		return
	}
	n, err := s.o.Out.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		s.err = err
	}
}
