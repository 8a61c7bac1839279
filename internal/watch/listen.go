package watch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

const (
	// maxConns bounds the connections of one listener. What comes then waits in
	// the kernel's queue.
	maxConns = 512
	// socketMode lets the daemon's group ask, and nobody else.
	socketMode = 0o660
	// bindTime bounds waiting for another daemon that is binding in the same
	// directory right now. Binding takes milliseconds.
	bindTime = 5 * time.Second
	// dialTime bounds finding out whether a socket that is there has a daemon.
	dialTime = 2 * time.Second
)

// A listener accepts connections on one address. Over TCP it speaks TLS while
// there is a certificate, so that a reload can bring a new one.
type listener struct {
	net.Listener
	addr   Address
	tls    *atomic.Pointer[tls.Config] // of nil: plain; never for Unix sockets
	slots  chan struct{}               // one for each connection that is open
	closed chan struct{}
	once   sync.Once
	remove func() // removes the name of a Unix socket
}

// listen opens an address. The error is reason.ListenFailed.
func listen(ctx context.Context, a Address, conf *atomic.Pointer[tls.Config]) (*listener, error) {
	l := &listener{addr: a, tls: conf, slots: make(chan struct{}, maxConns), closed: make(chan struct{}), remove: func() {}}
	var err error
	if a.Network == "unix" {
		l.Listener, l.remove, err = listenUnix(ctx, a.Addr)
	} else {
		l.Listener, err = (&net.ListenConfig{}).Listen(ctx, "tcp", a.Addr)
	}
	if err != nil {
		return nil, reason.New(reason.ListenFailed, "%s: %w", a, err)
	}
	return l, nil
}

// Accept waits for a connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.closed:
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
		return nil, err
	}
	c = &conn{Conn: c, free: sync.OnceFunc(func() { <-l.slots })}
	if l.addr.Network == "tcp" {
		if conf := l.tls.Load(); conf != nil {
			c = tls.Server(c, conf)
		}
	}
	return c, nil
}

// Close stops listening. The name of a Unix socket goes first: as long as it is
// there somebody answers, and so nobody takes it for a stale one.
func (l *listener) Close() error {
	var err error
	l.once.Do(func() {
		l.remove()
		close(l.closed)
		err = l.Listener.Close()
	})
	return err
}

// isClosed reports whether Close was called.
func (l *listener) isClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// A conn frees its slot when it is closed.
type conn struct {
	net.Conn
	free func()
}

func (c *conn) Close() error {
	defer c.free()
	return c.Conn.Close()
}

// listenUnix listens on a Unix socket at path, and returns what removes it again.
//
// The socket is made under another name in a directory that nobody else may
// enter, gets its mode there, and is then renamed: at no time can it be reached
// with another mode, and one that a killed daemon left behind is replaced
// without a moment in which there is none. What is there and is no socket, or
// has somebody listening, is left alone. A lock on the directory keeps two
// daemons from doing so at the same time.
func listenUnix(ctx context.Context, path string) (net.Listener, func(), error) {
	dir := filepath.Dir(path)
	unlock, err := lockDir(ctx, dir)
	if err != nil {
		return nil, nil, err
	}
	defer unlock()
	if err := checkStale(ctx, path); err != nil {
		return nil, nil, err
	}
	private := filepath.Join(dir, ".w"+unixfs.RandomHex(3))
	if err := os.Mkdir(private, 0o700); err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(private)
	made := filepath.Join(private, "s")
	l, err := (&net.ListenConfig{}).Listen(ctx, "unix", made)
	if err != nil {
		return nil, nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false) // it has another name by then
	err = os.Chmod(made, socketMode)
	var ours fs.FileInfo
	if err == nil {
		ours, err = os.Lstat(made)
	}
	if err == nil {
		err = os.Rename(made, path)
	}
	if err != nil {
		return nil, nil, errors.Join(err, l.Close())
	}
	return l, func() { removeSocket(path, ours) }, nil
}

// removeSocket removes the socket at path if it still is ours.
func removeSocket(path string, ours fs.FileInfo) {
	if is, err := os.Lstat(path); err == nil && os.SameFile(is, ours) {
		os.Remove(path)
	}
}

// checkStale reports whether a new socket may take the place of what is at path.
func checkStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case info.Mode().Type() != fs.ModeSocket:
		return errors.New("there is something that is no socket, and it is left alone")
	}
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err == nil {
		c.Close()
		return errors.New("another process listens there")
	}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil // its process is gone
	}
	return fmt.Errorf("cannot tell whether another process listens there: %w", err)
}

// lockDir takes the lock of flock(2) on a directory, and returns what releases it.
func lockDir(ctx context.Context, dir string) (unlock func(), err error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, bindTime)
	defer cancel()
	for {
		err := unixfs.TryLock(f)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", dir, err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another process holds the lock on %s", dir)
		}
	}
}
