package sshnode

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"cks-etcd/internal/reason"
)

const (
	// maxOutput bounds each of the two streams of a command.
	maxOutput = 64 << 10
	// closeWait is how long a server may take to close the channel of a command
	// whose whole answer is there. The answer does not depend on it.
	closeWait = time.Second
)

// An output is what running a command gave.
type output struct {
	stdout, stderr []byte
	status         int    // exit status, -1 where the server sent none
	signal         string // that ended it, "" none
	doing          string // the last thing that was being done, for messages
	opened         bool   // the server opened the channel: it was alive
	refused        bool   // the server said no, and err is what it said
	cut            bool   // there was more output than maxOutput
	clean          bool   // the connection can be used for more
	err            error
}

// errTooMuch says that a command's output does not end.
var errTooMuch = fmt.Errorf("it answers with more than %d KiB", maxOutput>>10)

// A sink keeps a stream up to maxOutput bytes, and refuses more.
type sink struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	whole chan struct{} // closed when the end of the frame is there; nil: not looked for
	over  bool
}

// Write keeps p, or fails with errTooMuch.
func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.buf.Len()+len(p) > maxOutput {
		s.over = true
		return 0, errTooMuch
	}
	s.buf.Write(p)
	if s.whole != nil && framed(s.buf.Bytes()) {
		close(s.whole)
		s.whole = nil
	}
	return len(p), nil
}

// run runs the command over l until its channel is closed, its frame is
// complete, or ctx ends, which cuts the connection.
func run(ctx context.Context, l *link, command string) (out output) {
	out.status = -1
	stop := context.AfterFunc(ctx, l.cut)
	defer func() {
		if !stop() {
			out.clean = false
		}
	}()
	out.doing = "opening a session"
	ch, reqs, err := l.client().OpenChannel("session", nil)
	if err != nil {
		var no *ssh.OpenChannelError
		out.err, out.refused = err, errors.As(err, &no)
		out.clean = out.refused
		return out
	}
	out.opened, out.doing = true, "running the probe"

	whole := make(chan struct{})
	stdout, stderr := &sink{whole: whole}, &sink{}
	var readers sync.WaitGroup
	for _, s := range []struct {
		to   *sink
		from io.Reader
	}{{stdout, ch}, {stderr, ch.Stderr()}} {
		readers.Go(func() {
			if _, err := io.Copy(s.to, s.from); errors.Is(err, errTooMuch) {
				l.cut() // it would wait for ever for room in its window
			}
		})
	}

	ok, err := ch.SendRequest("exec", true, ssh.Marshal(struct{ Command string }{command}))
	if err == nil && !ok {
		out.refused = true
		err = errors.New("the server refuses to run commands")
	}
	if err != nil {
		// Nothing is known about what the channel will still do, so the
		// connection is not kept.
		out.err = err
		l.cut()
		go ssh.DiscardRequests(reqs)
	} else {
		_ = ch.CloseWrite() // an error shows in what follows
		out.clean = wait(l, reqs, whole, &out)
	}
	readers.Wait()
	out.stdout, out.stderr = stdout.buf.Bytes(), stderr.buf.Bytes()
	out.cut = stdout.over || stderr.over
	switch {
	case out.cut:
		out.err, out.clean = errTooMuch, false
	case out.err == nil && out.status < 0 && out.signal == "" && !framed(out.stdout):
		// Either the server closed the channel without a status, or the
		// connection ended. A live server answers any request.
		if _, _, err := l.client().SendRequest("keepalive@openssh.com", true, nil); err != nil {
			out.err = err
		}
	}
	return out
}

// wait takes the requests of the channel until it is closed, and reports
// whether it was. A whole answer shortens the wait.
func wait(l *link, reqs <-chan *ssh.Request, whole <-chan struct{}, out *output) bool {
	var late <-chan time.Time
	for {
		select {
		case r, ok := <-reqs:
			if !ok {
				return true
			}
			switch r.Type {
			case "exit-status": // RFC 4254, section 6.10
				if len(r.Payload) == 4 {
					out.status = int(binary.BigEndian.Uint32(r.Payload))
				}
			case "exit-signal":
				var sig struct {
					Name string
					Core bool
					Rest []byte `ssh:"rest"`
				}
				if ssh.Unmarshal(r.Payload, &sig) == nil {
					out.signal = reason.Line(sig.Name)
				}
			}
			if r.WantReply {
				_ = r.Reply(false, nil)
			}
		case <-whole:
			whole = nil
			t := time.NewTimer(closeWait)
			defer t.Stop()
			late = t.C
		case <-late:
			l.cut()
			for range reqs { // ends with the connection
			}
			return false
		}
	}
}

// quote words the beginning of what the command wrote, "" nothing.
func (o output) quote() string {
	for _, b := range [][]byte{o.stdout, o.stderr} {
		if s := firstLine(b); s != "" {
			return fmt.Sprintf("; it wrote %q", s)
		}
	}
	return ""
}

// maxQuoted bounds what is quoted of a node's output.
const maxQuoted = 200

// firstLine returns the first line of b with something on it, ready for a message.
func firstLine(b []byte) string {
	for l := range bytes.Lines(b) {
		if s := reason.Line(string(l[:min(len(l), maxQuoted)])); s != "" {
			return s
		}
	}
	return ""
}
