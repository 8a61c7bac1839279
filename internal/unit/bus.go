package unit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"
	"github.com/godbus/dbus/v5"

	"cks-etcd/internal/reason"
)

// Limits of the conversation with systemd.
const (
	// connectTimeout bounds one attempt to connect. A daemon that accepts and
	// then says nothing must not use up the caller's whole time, since there is
	// a second way to systemd.
	connectTimeout = 10 * time.Second
	// callTimeout bounds one method call. systemd answers within milliseconds; a
	// reload of a busy machine takes seconds.
	callTimeout = 60 * time.Second
)

// conn is what this package uses of a connection to systemd. *sd.Conn is the
// real one; tests put their own here.
type conn interface {
	ReloadContext(ctx context.Context) error
	EnableUnitFilesContext(ctx context.Context, files []string, runtime, force bool) (bool, []sd.EnableUnitFileChange, error)
	// StartUnitContext and RestartUnitContext return as soon as the job is queued.
	// Its result is sent to ch when the signal JobRemoved arrives, if ever.
	StartUnitContext(ctx context.Context, name, mode string, ch chan<- string) (int, error)
	RestartUnitContext(ctx context.Context, name, mode string, ch chan<- string) (int, error)
	// GetAllPropertiesContext returns the properties of all interfaces of a unit.
	GetAllPropertiesContext(ctx context.Context, unit string) (map[string]any, error)
	Connected() bool
	Close()
}

// sockets say where systemd is reached.
type sockets struct {
	System  string // socket of the system bus
	Private string // systemd's own socket, for root only; "" to do without
}

// defaultSockets are where systemd and D-Bus put them.
func defaultSockets() sockets {
	return sockets{System: "/run/dbus/system_bus_socket", Private: "/run/systemd/private"}
}

// A Bus is a connection to the systemd of this machine. It is renewed when it is
// lost (systemd re-executed, D-Bus restarted: "dbus: connection closed by user",
// B84). It may be used by several goroutines.
type Bus struct {
	dial func(ctx context.Context) (conn, error)
	poll time.Duration // see pollInterval

	// lock holds one token. A channel, not a mutex: whoever waits for another's
	// dialling still ends with its own context.
	lock   chan struct{}
	cur    conn // nil after a loss
	closed bool
}

// Connect reaches systemd by the system bus, or as root by systemd's private
// socket where there is no bus. The error's code is bus-unreachable and names
// both causes. ctx covers no more than the connecting. Close the Bus when done.
func Connect(ctx context.Context) (*Bus, error) { return defaultSockets().connect(ctx) }

// connect is Connect with other sockets.
func (s sockets) connect(ctx context.Context) (*Bus, error) {
	b := newBus(s.dial)
	if _, err := b.get(ctx); err != nil {
		return nil, err
	}
	return b, nil
}

func newBus(dial func(context.Context) (conn, error)) *Bus {
	return &Bus{dial: dial, poll: pollInterval, lock: make(chan struct{}, 1)}
}

// dial tries the sockets in turn.
func (s sockets) dial(ctx context.Context) (conn, error) {
	c, err := dialSocket(ctx, s.System, true)
	if err == nil {
		return c, nil
	}
	err = fmt.Errorf("system bus: %w", err)
	switch {
	case ctx.Err() != nil:
	case s.Private == "":
	case os.Geteuid() != 0:
		err = fmt.Errorf("%w; systemd's private socket is for root only", err)
	default:
		c, perr := dialSocket(ctx, s.Private, false)
		if perr == nil {
			return c, nil
		}
		err = fmt.Errorf("%w; private socket: %w", err, perr)
	}
	return nil, reason.New(reason.BusUnreachable, "%w", err)
}

// dialSocket connects to one socket. The library would bind the connection's
// whole life to the context of its dialling; here ctx ends with the dialling.
func dialSocket(ctx context.Context, socket string, bus bool) (conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	var stops []func() bool
	c, err := sd.NewConnection(func() (*dbus.Conn, error) {
		var d net.Dialer
		raw, err := d.DialContext(ctx, "unix", socket)
		if err != nil {
			return nil, err
		}
		// The handshake knows no context: closing the socket ends its reads.
		stops = append(stops, context.AfterFunc(ctx, func() { raw.Close() }))
		bc, err := handshake(raw, bus)
		if err != nil {
			raw.Close()
			return nil, fmt.Errorf("%s: %w", socket, err)
		}
		return bc, nil
	})
	late := false
	for _, stop := range stops {
		late = !stop() || late
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return nil, fmt.Errorf("%s: no answer: %w", socket, ctx.Err())
	case err != nil:
		return nil, err
	case late:
		c.Close()
		return nil, fmt.Errorf("%s: no answer: %w", socket, ctx.Err())
	}
	return c, nil
}

// handshake authenticates by the socket's credentials (EXTERNAL) and, on a bus
// but not on systemd's private socket, says Hello.
func handshake(raw net.Conn, bus bool) (*dbus.Conn, error) {
	bc, err := dbus.NewConn(raw)
	if err != nil {
		return nil, err
	}
	if err := bc.Auth([]dbus.Auth{dbus.AuthExternal(strconv.Itoa(os.Getuid()))}); err != nil {
		bc.Close()
		return nil, err
	}
	if bus {
		if err := bc.Hello(); err != nil {
			bc.Close()
			return nil, err
		}
	}
	return bc, nil
}

// Close ends the connection for good. Calls under way end with an error.
func (b *Bus) Close() {
	b.lock <- struct{}{}
	defer func() { <-b.lock }()
	b.closed = true
	if b.cur != nil {
		b.cur.Close()
		b.cur = nil
	}
}

// get returns the connection, made anew if there is none.
func (b *Bus) get(ctx context.Context) (conn, error) { return b.renew(ctx, nil) }

// renew returns a connection that is not old.
func (b *Bus) renew(ctx context.Context, old conn) (conn, error) {
	select {
	case b.lock <- struct{}{}:
	case <-ctx.Done():
		return nil, cannotTell(ctx, "cannot reach systemd", ctx.Err())
	}
	defer func() { <-b.lock }()
	if b.closed {
		return nil, reason.New(reason.BusUnreachable, "the connection was closed")
	}
	if b.cur != nil && (b.cur == old || !b.cur.Connected()) {
		b.cur.Close()
		b.cur = nil
	}
	if b.cur == nil {
		c, err := b.dial(ctx)
		if err != nil {
			return nil, err
		}
		b.cur = c
	}
	return b.cur, nil
}

// call runs f, which must be safe to run twice, and once more over a new
// connection if the first was lost on the way.
func (b *Bus) call(ctx context.Context, f func(context.Context, conn) error) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	c, err := b.get(ctx)
	if err != nil {
		return err
	}
	if err = f(ctx, c); err == nil || ctx.Err() != nil || !lost(c, err) {
		return err
	}
	first := err
	if c, err = b.renew(ctx, c); err != nil {
		return fmt.Errorf("%w (the connection was lost: %w)", err, first)
	}
	return f(ctx, c)
}

// lost reports whether err says that the connection broke, or that systemd left
// the bus for a moment, rather than that systemd answered.
func lost(c conn, err error) bool {
	if !c.Connected() {
		return true
	}
	for _, e := range []error{dbus.ErrClosed, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, syscall.EPIPE, syscall.ECONNRESET} {
		if errors.Is(err, e) {
			return true
		}
	}
	switch errorName(err) {
	case "org.freedesktop.DBus.Error.NoReply", "org.freedesktop.DBus.Error.Disconnected",
		"org.freedesktop.DBus.Error.NameHasNoOwner", "org.freedesktop.DBus.Error.ServiceUnknown":
		return true
	}
	return false
}

// errorName returns the D-Bus name of an error that the other side answered with.
func errorName(err error) string {
	if e, ok := errors.AsType[dbus.Error](err); ok {
		return e.Name
	}
	if e, ok := errors.AsType[*dbus.Error](err); ok && e != nil {
		return e.Name
	}
	return ""
}

// cannotTell words an error of a call that systemd did not answer, or refused to
// this user. It never says anything about the unit.
func cannotTell(ctx context.Context, what string, err error) error {
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return reason.New(reason.Interrupted, "%s: %w", what, ctx.Err())
	case ctx.Err() != nil:
		return reason.New(reason.BusUnreachable, "%s: no answer in time: %w", what, ctx.Err())
	}
	if reason.Of(err) != reason.Internal {
		return err
	}
	switch errorName(err) {
	case "org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired":
		return reason.New(reason.NotPermitted, "%s: %w", what, err)
	}
	return reason.New(reason.BusUnreachable, "%s: %w", what, err)
}
