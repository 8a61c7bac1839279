package sshnode

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode/sshtest"
	"cks-etcd/internal/stability"
)

func newEd25519(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// wants fails the test unless err has the code, and its message all the parts.
func wants(t *testing.T, err error, code reason.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("got no error, want %s", code)
	}
	if got := reason.Of(err); got != code {
		t.Errorf("got code %s, want %s: %v", got, code, err)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("the message lacks %q: %v", p, err)
		}
	}
	if got := err.Error(); got != reason.Line(got) {
		t.Errorf("the message is not one printable line: %q", got)
	}
}

func TestProbe(t *testing.T) {
	s := serve(t, sshtest.Config{Command: well})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	if n.LoggedIn() {
		t.Error("logged in before the first probe")
	}
	for range 3 {
		o, err := n.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := stability.Sample{At: o.At, State: stability.Active, Invocation: testInvocation, MainPID: 812,
			ActiveSince: 123456789, BootID: testBoot, Detail: "running"}
		if diff := cmp.Diff(want, o.Sample); diff != "" {
			t.Errorf("sample (-want +got):\n%s", diff)
		}
		if o.HasMarker || o.State != nil || o.CloudInit != "done" || o.Hostname != "etcd-1" || o.Clock.Unix() != 1764626400 || !o.UnitLoaded() {
			t.Errorf("got %+v", o)
		}
	}
	if !n.LoggedIn() {
		t.Error("not logged in after three probes")
	}
	if got := n.Stats(); got.Dials != 1 || got.Handshakes != 1 || got.Commands != 3 || got.Read == 0 || got.Written == 0 {
		t.Errorf("three probes cost %+v, want one dial and one handshake", got)
	}
}

// A connection that died between two probes is made anew within the probe.
func TestRedial(t *testing.T) {
	s := serve(t, sshtest.Config{Command: well})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	for range 3 {
		if _, err := n.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Drop()
	}
	if got := n.Stats().Handshakes; got != 3 {
		t.Errorf("got %d handshakes, want 3", got)
	}
}

// TestFaults: every way to fail ends in time, with its own reason, and leaves
// no goroutine behind.
func TestFaults(t *testing.T) {
	const limit = 400 * time.Millisecond
	tests := []struct {
		name  string
		cfg   sshtest.Config
		code  reason.Code
		parts []string
	}{
		{"close at once", sshtest.Config{Fault: sshtest.CloseAtOnce}, reason.SSHHandshake, []string{"before its SSH banner"}},
		{"accepts and says nothing", sshtest.Config{Fault: sshtest.Silent}, reason.SSHHandshake, []string{"sent no SSH banner in 4"}},
		{"stalls in key exchange", sshtest.Config{Fault: sshtest.StallKex}, reason.SSHHandshake, []string{"did not finish the key exchange in"}},
		{"stalls in authentication", sshtest.Config{Fault: sshtest.StallAuth}, reason.SSHHandshake, []string{"as cloud: no answer to the login in"}},
		{"stalls in opening a session", sshtest.Config{Fault: sshtest.StallOpen}, reason.NodeUnreachable, []string{"opening a session: no answer in"}},
		{"stalls in the command", sshtest.Config{Fault: sshtest.StallCommand}, reason.ProbeUnreadable, []string{"running the probe: no answer in"}},
		{"megabytes before the banner", sshtest.Config{Fault: sshtest.HugeBanner}, reason.SSHHandshake, []string{"SSH banner", "xxx"}},
		{"login banners without end", sshtest.Config{Fault: sshtest.HugeAuthBanner}, reason.SSHHandshake, []string{"256 KiB"}},
		{"not SSH", sshtest.Config{Fault: sshtest.NotSSH}, reason.SSHHandshake, []string{"HTTP/1.1 400 Bad Request"}},
		{"endless output", sshtest.Config{Fault: sshtest.EndlessOutput}, reason.ProbeUnreadable, []string{"more than 64 KiB"}},
		{"endless errors", sshtest.Config{Fault: sshtest.EndlessStderr}, reason.ProbeUnreadable, []string{"more than 64 KiB"}},
		{"no exit status", sshtest.Config{Fault: sshtest.NoExitStatus}, reason.ProbeUnreadable, []string{"without answer and exit status"}},
		{"no sessions", sshtest.Config{Fault: sshtest.RefuseSession}, reason.ProbeUnreadable, []string{"not here"}},
		{"no commands", sshtest.Config{Fault: sshtest.RefuseExec}, reason.ProbeUnreadable, []string{"refuses to run commands"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Command = well
			s := serve(t, tt.cfg)
			n := dialer(t, Options{ConnectTimeout: limit, CommandTimeout: limit}).Node(at(t, s.Addr()))
			begin := time.Now()
			_, err := n.Probe(t.Context())
			if took := time.Since(begin); took > limit+time.Second {
				t.Errorf("took %v", took)
			}
			wants(t, err, tt.code, append(tt.parts, s.Addr())...)
		})
	}
}

// The answer counts as soon as it is whole, whatever the channel does after it.
func TestChannelNeverClosed(t *testing.T) {
	s := serve(t, sshtest.Config{Command: well, Fault: sshtest.NeverClose})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	begin := time.Now()
	for range 2 {
		if _, err := n.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took > 2*closeWait+time.Second {
		t.Errorf("took %v", took)
	}
}

// A cancelled context ends every stage at once.
func TestCancel(t *testing.T) {
	for _, f := range []sshtest.Fault{sshtest.Silent, sshtest.StallKex, sshtest.StallAuth, sshtest.StallOpen, sshtest.StallCommand} {
		t.Run(fmt.Sprint(f), func(t *testing.T) {
			s := serve(t, sshtest.Config{Command: well, Fault: f})
			n := dialer(t, Options{}).Node(at(t, s.Addr()))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(150*time.Millisecond, cancel)
			begin := time.Now()
			_, err := n.Probe(ctx)
			if took := time.Since(begin); took > time.Second {
				t.Errorf("took %v", took)
			}
			wants(t, err, reason.Interrupted)
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%v is not context.Canceled", err)
			}
		})
	}
}

// The caller's deadline is not an interrupt: the reason says what was waited for.
func TestCallersDeadline(t *testing.T) {
	s := serve(t, sshtest.Config{Fault: sshtest.Silent})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := n.Probe(ctx)
	wants(t, err, reason.SSHHandshake, "sent no SSH banner in 2")
}

func TestCloseDuringProbe(t *testing.T) {
	s := serve(t, sshtest.Config{Fault: sshtest.StallCommand})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	done := make(chan error)
	go func() {
		_, err := n.Probe(context.Background())
		done <- err
	}()
	for {
		if _, _, commands := s.Stats(); commands > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	n.Close()
	wants(t, <-done, reason.Interrupted)
	_, err := n.Probe(t.Context())
	wants(t, err, reason.Interrupted, "closed")
}

// A reset at any message is a reason or, when it comes late enough, no matter.
func TestResetAtEveryMessage(t *testing.T) {
	codes := map[reason.Code]int{}
	s := serve(t, sshtest.Config{Command: well})
	for cut := 1; ; cut++ {
		s.Change(func(c *sshtest.Config) { c.CutAfter = cut })
		d := dialer(t, Options{})
		begin := time.Now()
		_, err := d.Node(at(t, s.Addr())).Probe(t.Context())
		if took := time.Since(begin); took > time.Second {
			t.Errorf("cut at write %d: took %v", cut, took)
		}
		d.Close()
		if err == nil {
			if cut < 8 {
				t.Errorf("cut at write %d: no error", cut)
			}
			break
		}
		code := reason.Of(err)
		codes[code]++
		if code != reason.SSHHandshake && code != reason.NodeUnreachable {
			t.Errorf("cut at write %d: %v", cut, err)
		}
		if cut == 60 {
			t.Fatalf("still %v", err)
		}
	}
	if codes[reason.SSHHandshake] == 0 || codes[reason.NodeUnreachable] == 0 {
		t.Errorf("got %v", codes)
	}
}

func TestRefused(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := ln.Addr().String()
	ln.Close()
	_, err = dialer(t, Options{}).Node(at(t, addr)).Probe(t.Context())
	wants(t, err, reason.NodeUnreachable, "connecting to "+addr+": connect: connection refused")
}

func TestResolve(t *testing.T) {
	h := at(t, "127.0.0.1:22")
	h.Addr = "etcd1.invalid" // RFC 2606
	_, err := dialer(t, Options{ConnectTimeout: 5 * time.Second}).Node(h).Probe(t.Context())
	wants(t, err, reason.NodeResolve, "etcd1.invalid")
}

func TestForward(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "etcd")
			c.Close()
		}
	}()
	s := serve(t, sshtest.Config{Command: well, Forward: true})
	n := dialer(t, Options{}).Node(at(t, s.Addr()))
	for range 2 {
		c, err := n.Forward(t.Context(), ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if b, err := io.ReadAll(c); string(b) != "etcd" || err != nil {
			t.Errorf("got %q, %v", b, err)
		}
		c.Close()
		s.Drop()
	}
	if _, err := n.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	dead := ln.Addr().String()
	ln.Close()
	_, err = n.Forward(t.Context(), dead)
	wants(t, err, reason.HealthUnreadable, dead, "refused")
	s.Drop()
	s.Change(func(c *sshtest.Config) { c.Fault = sshtest.StallOpen })
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err = n.Forward(ctx, dead); err == nil || time.Since(begin) > time.Second {
		t.Errorf("got %v after %v", err, time.Since(begin))
	}
}
