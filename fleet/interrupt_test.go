//go:build linux

package main

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/sshnode/sshtest"
)

// errInterrupt is what a signal ends a run with.
var errInterrupt = errors.New("interrupt signal received")

// writeIdentity writes a new private key, encrypted where passphrase is not "".
func writeIdentity(t *testing.T, passphrase string) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// startNode starts an SSH server that ends with the test.
func startNode(t *testing.T, cfg sshtest.Config) string {
	t.Helper()
	s, err := sshtest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s.Addr()
}

// activeNode answers as a node that is well.
func activeNode(context.Context, sshtest.Command) sshtest.Reply {
	return sshtest.Reply{Stdout: sshtest.ProbeOutput(sshtest.Values{
		BootID: "2c5e7a04-5d57-4b7c-9be9-000000000001", Hostname: "etcd-1", CloudInit: "done",
		Unit: sshtest.Active(strings.Repeat("a", 32), 1000, 0), Clock: fmt.Sprint(time.Now().Unix()),
	})}
}

// A runner is the program in a goroutine.
type runner struct {
	*testing.T
	interrupt context.CancelCauseFunc
	ended     chan error
	began     time.Time
}

// begin runs the program with standard flags added to args.
func begin(t *testing.T, std streams, key string, args ...string) *runner {
	t.Helper()
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &runner{t, cancel, make(chan error, 1), time.Now()}
	args = append([]string{"etcd-fleet", args[0], args[1], "--ssh-config", "none", "-i", key,
		"--known-hosts", filepath.Join(t.TempDir(), "known_hosts")}, args[2:]...)
	go func() { r.ended <- run(ctx, args, std) }()
	t.Cleanup(func() { cancel(nil) })
	return r
}

// end waits for the program, and wants that exit status.
func (r *runner) end(want int) {
	r.Helper()
	select {
	case err := <-r.ended:
		if got := reason.Exit(err); got != want {
			r.Errorf("exit status %d, want %d: %v", got, want, err)
		}
	case <-time.After(10 * time.Second):
		r.Fatal("it does not end")
	}
}

// A notice is a writer that closes its channel when it was given a text.
type notice struct {
	io.Writer
	text string
	seen chan struct{}
}

func (n *notice) Write(p []byte) (int, error) {
	if n.text != "" && bytes.Contains(p, []byte(n.text)) {
		n.text = ""
		close(n.seen)
	}
	return n.Writer.Write(p)
}

// TestInterruptReport: whatever the format, a run that is interrupted ends with
// a whole report of what is known.
func TestInterruptReport(t *testing.T) {
	key := writeIdentity(t, "")
	well := startNode(t, sshtest.Config{Command: activeNode})
	silent := startNode(t, sshtest.Config{Fault: sshtest.Silent})
	for _, format := range formats {
		t.Run(format, func(t *testing.T) {
			var out, log bytes.Buffer
			// The first check of the node that is well, on whichever stream it shows.
			to := &notice{&log, "active", make(chan struct{})}
			std := streams{strings.NewReader(""), &out, to}
			if format == "jsonl" {
				to.Writer = &out
				std.out, std.err = to, &log
			}
			r := begin(t, std, key, "nodes", "wait", "-o", format, well, silent)
			select {
			case <-to.seen:
			case <-time.After(10 * time.Second):
				t.Fatal("the first look is not shown")
			}
			r.interrupt(errInterrupt)
			r.end(reason.ExitInterrupted)
			text := out.Bytes()
			switch format {
			case "table":
				if s := out.String(); !strings.Contains(s, well) || !strings.Contains(s, silent) || !strings.Contains(s, "interrupted: ") {
					t.Errorf("the table is not whole: %s", s)
				}
				return
			case "junit":
				var suites struct {
					Errors int `xml:"errors,attr"`
				}
				if err := xml.Unmarshal(text, &suites); err != nil || suites.Errors != 3 {
					t.Errorf("%v, %d errors, want one for each node and one for the run: %s", err, suites.Errors, text)
				}
				return
			case "jsonl":
				lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
				text = lines[len(lines)-1]
			}
			var got report.Report
			if err := json.Unmarshal(text, &got); err != nil {
				t.Fatalf("%v: %s", err, text)
			}
			if got.Exit != reason.ExitInterrupted || got.Problem == nil || got.Problem.Code != reason.Interrupted || len(got.Nodes) != 2 || got.Nodes[0].Last == nil {
				t.Errorf("exit status %d, problem %+v, nodes %+v", got.Exit, got.Problem, got.Nodes)
			}
		})
	}
}

// TestInterruptInput: a list of hosts that does not end does not hold the program.
func TestInterruptInput(t *testing.T) {
	in, w := io.Pipe()
	defer w.Close()
	r := begin(t, streams{in, io.Discard, io.Discard}, "none", "nodes", "wait", "-")
	r.interrupt(errInterrupt)
	r.end(reason.ExitInterrupted)
}

// TestInterruptPassphrase: nobody has to type a passphrase to end the program,
// and the terminal echoes again afterwards.
func TestInterruptPassphrase(t *testing.T) {
	ours, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	if err := unix.IoctlSetPointerInt(int(ours.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(int(ours.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	echo := func() bool {
		s, err := unix.IoctlGetTermios(int(tty.Fd()), unix.TCGETS)
		if err != nil {
			t.Fatal(err)
		}
		return s.Lflag&unix.ECHO != 0
	}
	var log bytes.Buffer
	node := startNode(t, sshtest.Config{Command: activeNode})
	r := begin(t, streams{tty, io.Discard, &log}, writeIdentity(t, "secret"), "nodes", "status", node)
	for end := time.Now().Add(10 * time.Second); echo(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("no passphrase is asked for")
		}
	}
	asked := time.Now()
	r.interrupt(errInterrupt)
	r.end(reason.ExitInterrupted)
	if took := time.Since(asked); took > time.Second {
		t.Errorf("it took %v to end", took)
	}
	if !echo() {
		t.Error("the terminal does not echo any more")
	}
	if !strings.Contains(log.String(), "passphrase of ") {
		t.Errorf("the prompt does not name the key: %q", log.String())
	}
	_, _ = ours.WriteString("\n") // ends the read that was left behind
}

// TestHealthDeadline: an etcd that accepts and says nothing does not move the deadline.
func TestHealthDeadline(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	const timeout = 2 * time.Second
	node := startNode(t, sshtest.Config{Command: activeNode, Forward: true})
	_, port, _ := net.SplitHostPort(silent.Addr().String())
	var out bytes.Buffer
	r := begin(t, streams{strings.NewReader(""), &out, io.Discard}, writeIdentity(t, ""),
		"nodes", "wait", "--checks", "1", "--health", "--health-port", port, "--timeout", timeout.String(), "-o", "json", node)
	r.end(reason.ExitUnknown)
	if took := time.Since(r.began); took > timeout+time.Second {
		t.Errorf("it took %v with a timeout of %v", took, timeout)
	}
	var got report.Report
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Health == nil || got.Health.Code != reason.HealthUnreadable || got.Nodes[0].Code != reason.Ready {
		t.Errorf("health %+v, node %+v", got.Health, got.Nodes[0])
	}
}
