//go:build lab && vm && linux

package vmlab

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// qmp is qemu's monitor (QEMU Machine Protocol Specification). It serves one command at a time.
type qmp struct {
	conn    io.ReadWriteCloser
	replies chan qmpReply
	onEvent func(qmpReply) // called for each event, one after the other

	mu sync.Mutex // held during a command
}

// qmpReply is a message from qemu: an answer, an event, or the greeting.
type qmpReply struct {
	Return json.RawMessage
	Error  *qmpError
	Event  string
	Data   json.RawMessage
	QMP    json.RawMessage
	err    error
}

// qmpError is an answer that says no.
type qmpError struct{ Class, Desc string }

func (e *qmpError) Error() string { return e.Desc }

// newQMP greets qemu on the other end of conn, which is the caller's to close.
func newQMP(ctx context.Context, conn io.ReadWriteCloser, onEvent func(qmpReply)) (*qmp, error) {
	q := &qmp{conn: conn, onEvent: onEvent, replies: make(chan qmpReply, 1)} // room for the last one, the error that ends read
	go q.read()
	if err := q.do(ctx, "qmp_capabilities", nil); err != nil {
		return nil, err
	}
	return q, nil
}

// read hands answers to do until the connection is closed.
func (q *qmp) read() {
	defer close(q.replies)
	in := json.NewDecoder(q.conn)
	for {
		var r qmpReply
		if r.err = in.Decode(&r); r.err != nil {
			q.replies <- r
			return
		}
		switch {
		case r.Event != "":
			q.onEvent(r)
		case r.Return != nil || r.Error != nil:
			q.replies <- r
		}
	}
}

// do runs a command. That qemu says no is a *qmpError. After any other error the monitor is of no more use.
func (q *qmp) do(ctx context.Context, command string, args any) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	msg := map[string]any{"execute": command}
	if args != nil {
		msg["arguments"] = args
	}
	if err := json.NewEncoder(q.conn).Encode(msg); err != nil {
		return fmt.Errorf("cannot send %s to qemu: %w", command, err)
	}
	select {
	case r, ok := <-q.replies:
		switch {
		case !ok:
			return fmt.Errorf("cannot run %s: qemu is gone", command)
		case r.err != nil:
			return fmt.Errorf("cannot read qemu's answer to %s: %w", command, r.err)
		case r.Error != nil:
			return r.Error
		}
		return nil
	case <-ctx.Done():
		q.conn.Close() // the answer to come is nobody's
		return fmt.Errorf("waiting for qemu's answer to %s: %w", command, context.Cause(ctx))
	}
}
