//go:build vm && linux

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/vmlab/wire"
)

// server answers requests.
type server struct {
	events recorder

	mu   sync.Mutex // guards what follows
	out  *json.Encoder
	held map[string]*os.File // drives kept open
}

// serve answers requests until the channel breaks.
func serve() error {
	port, err := openPort()
	if err != nil {
		return err
	}
	defer port.Close()
	s := &server{out: json.NewEncoder(port), held: make(map[string]*os.File)}
	if err := s.events.start(); err != nil {
		return err
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return err
	}
	if err := s.send(wire.Reply{Boot: strings.TrimSpace(string(boot))}); err != nil {
		return err
	}
	in := json.NewDecoder(port)
	for {
		var q wire.Request
		if err := in.Decode(&q); err != nil {
			return fmt.Errorf("cannot read a request: %w", err)
		}
		go func() {
			r, err := s.answer(q)
			if err != nil {
				r.Err = err.Error()
			}
			r.ID = q.ID
			if err := s.send(r); err != nil {
				fmt.Fprintln(os.Stderr, "guest: cannot send a reply:", err)
			}
		}()
	}
}

// openPort finds the channel among the virtio ports. Its driver was loaded before the root file system was mounted.
func openPort() (*os.File, error) {
	names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil || strings.TrimSpace(string(b)) != wire.Port {
			continue
		}
		// Opened without Go's poller: a blocking descriptor waits until the host has something to say.
		path := filepath.Join("/dev", filepath.Base(filepath.Dir(name)))
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
	return nil, errors.New("there is no virtio port " + wire.Port)
}

func (s *server) send(r wire.Reply) error {
	r.Uptime = uptime()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.out.Encode(r)
}

func uptime() float64 {
	var ts unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts) != nil {
		return -1
	}
	return float64(ts.Sec) + float64(ts.Nsec)/1e9
}

func (s *server) answer(q wire.Request) (r wire.Reply, err error) {
	switch {
	case q.Exec != nil:
		r.Exec, err = run(*q.Exec)
	case q.Await != nil:
		err = await(*q.Await)
	case q.Drive != nil:
		r.Drive, err = s.drive(*q.Drive)
	case q.List != nil:
		r.List, err = list(q.List.Path)
	case q.Events != nil:
		r.Events = s.events.all()
	default:
		err = errors.New("a request without anything to do")
	}
	return r, err
}

func run(e wire.Exec) (*wire.Output, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.Timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, e.Args[0], e.Args[1:]...)
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LC_ALL=C.UTF-8"}
	cmd.WaitDelay = time.Second
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if ctx.Err() != nil {
		return nil, fmt.Errorf("%s did not end within %v", strings.Join(e.Args, " "), e.Timeout)
	}
	out := &wire.Output{Stdout: stdout.String(), Stderr: stderr.String()}
	if err != nil {
		out.Exit = -1
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return &wire.Output{Stdout: out.Stdout, Stderr: out.Stderr, Exit: exit.ExitCode()}, nil
	}
	return out, err
}

// awaitPoll is how often a path is looked for. A look is one system call.
const awaitPoll = 50 * time.Millisecond

func await(a wire.Await) error {
	for end := time.Now().Add(a.Timeout); ; time.Sleep(awaitPoll) {
		if _, err := os.Lstat(a.Path); err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s did not appear within %v", a.Path, a.Timeout)
		}
	}
}
