package sshnode

import (
	"context"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode/sshtest"
)

func TestKeyFiles(t *testing.T) {
	dir, _ := home(t)
	p := func(name string) string { return filepath.Join(dir, name) }
	writeKey(t, p("good"))
	writeKey(t, p("open"))
	if err := os.Chmod(p("open"), 0o640); err != nil {
		t.Fatal(err)
	}
	write(t, p("garbage"), "not a key\n")
	write(t, p("public"), "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIhqJ8WpYcDBHXmKDoCqWrVOrXnyDnvVYdtBBMDsDjzP me\n")
	block, err := ssh.MarshalPrivateKeyWithPassphrase(newEd25519(t), "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, p("locked"), string(pem.EncodeToMemory(block)))
	if err := os.Mkdir(p("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	ask := func(answer string, err error) func(string) ([]byte, error) {
		return func(string) ([]byte, error) { return []byte(answer), err }
	}
	s := serve(t, sshtest.Config{Command: well})
	tests := []struct {
		name  string
		files []string
		ask   func(string) ([]byte, error)
		parts []string // of the error; nil: works
	}{
		{"good", []string{"good"}, nil, nil},
		{"one of two", []string{"garbage", "good"}, nil, nil},
		{"not there", []string{"none"}, nil, []string{"none", "uid", "no such file"}},
		{"world-readable", []string{"open"}, nil, []string{"open", "0640"}},
		{"garbage", []string{"garbage"}, nil, []string{"garbage", "no key found"}},
		{"public", []string{"public"}, nil, []string{"public key"}},
		{"directory", []string{"dir"}, nil, []string{"not a regular file"}},
		{"encrypted, no terminal", []string{"locked"}, nil, []string{"locked", "encrypted"}},
		{"encrypted, wrong passphrase", []string{"locked"}, ask("wrong", nil), []string{"locked", "passphrase"}},
		{"encrypted, cancelled", []string{"locked"}, ask("", errors.New("no answer")), []string{"locked", "no answer"}},
		{"encrypted", []string{"locked"}, ask("secret", nil), nil},
		{"all are named", []string{"garbage", "open"}, nil, []string{"garbage", "open"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := Options{Home: dir, Passphrase: tt.ask}
			for _, f := range tt.files {
				o.KeyFiles = append(o.KeyFiles, p(f))
			}
			_, err := dialer(t, o).Node(at(t, s.Addr())).Probe(t.Context())
			if tt.parts == nil {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			wants(t, err, reason.SSHKeyUnusable, tt.parts...)
		})
	}
}

func TestNoKeyAtAll(t *testing.T) {
	_, err := dialer(t, Options{Home: t.TempDir()}).Node(at(t, "127.0.0.1:1")).Probe(t.Context())
	wants(t, err, reason.SSHKeyUnusable, "id_rsa", "uid")
}

// A person who does not answer holds up nothing but the node that waits.
func TestPassphraseDoesNotHoldUp(t *testing.T) {
	dir, _ := home(t)
	block, err := ssh.MarshalPrivateKeyWithPassphrase(newEd25519(t), "", []byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "locked"), string(pem.EncodeToMemory(block)))
	answer := make(chan struct{})
	defer close(answer)
	d := dialer(t, Options{Home: dir, KeyFiles: []string{filepath.Join(dir, "locked")}, Passphrase: func(string) ([]byte, error) {
		<-answer
		return nil, errors.New("gone")
	}})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	begin := time.Now()
	if _, err := d.Node(at(t, "127.0.0.1:1")).Probe(ctx); err == nil || time.Since(begin) > time.Second {
		t.Errorf("got %v after %v", err, time.Since(begin))
	}
}

func TestAuthRefused(t *testing.T) {
	dir, _ := home(t)
	other := newKey(t, "ed25519").PublicKey()
	tests := []struct {
		name  string
		cfg   sshtest.Config
		parts []string
	}{
		{"another key", sshtest.Config{Authorized: []ssh.PublicKey{other}}, []string{"as cloud", "id_ed25519 is not accepted", "publickey"}},
		{"password only", sshtest.Config{Password: true}, []string{"does not accept keys, only password"}},
		{"banner", sshtest.Config{Authorized: []ssh.PublicKey{other}, AuthBanner: "\x1b[31mSystem is\r\nbooting up."},
			[]string{"?[31mSystem is booting up."}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, tt.cfg)
			_, err := dialer(t, Options{Home: dir}).Node(at(t, s.Addr())).Probe(t.Context())
			wants(t, err, reason.SSHAuthRefused, append(tt.parts, s.Addr())...)
		})
	}
}

// A server without server-sig-algs is of the time of ssh-rsa with SHA-1;
// one with the extension gets SHA-2 (B44).
func TestRSA(t *testing.T) {
	dir := t.TempDir()
	tests := []struct {
		name string
		algs []string
	}{
		{"modern", []string{ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSASHA512}},
		{"old", []string{ssh.KeyAlgoRSA}},
	}
	file := filepath.Join(dir, "id_rsa")
	writeRSA(t, file)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, sshtest.Config{Command: well, PublicKeyAlgorithms: tt.algs})
			if _, err := dialer(t, Options{Home: dir, KeyFiles: []string{file}}).Node(at(t, s.Addr())).Probe(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The part of the negotiation that failed is named (B33).
func TestNoCommonAlgorithm(t *testing.T) {
	tests := []struct {
		name  string
		cfg   ssh.Config
		parts []string
	}{
		{"kex", ssh.Config{KeyExchanges: []string{"diffie-hellman-group1-sha1"}}, []string{"key exchange", "diffie-hellman-group1-sha1"}},
		{"cipher", ssh.Config{Ciphers: []string{"aes128-cbc"}}, []string{"cipher", "aes128-cbc"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := serve(t, sshtest.Config{Command: well, Crypto: tt.cfg})
			_, err := dialer(t, Options{}).Node(at(t, s.Addr())).Probe(t.Context())
			wants(t, err, reason.SSHHandshake, tt.parts...)
		})
	}
	t.Run("host key", func(t *testing.T) {
		s := serve(t, sshtest.Config{Command: well})
		h := at(t, s.Addr())
		h.HostKey = string(ssh.MarshalAuthorizedKey(newKey(t, "ecdsa").PublicKey()))
		_, err := dialer(t, Options{}).Node(h).Probe(t.Context())
		wants(t, err, reason.SSHHandshake, "host key", "it offers ssh-ed25519")
	})
}

// startAgent serves an SSH agent with the key; mute: it never answers.
func startAgent(t *testing.T, key any, mute bool) {
	t.Helper()
	sock := filepath.Join(t.TempDir(), "agent")
	ln, err := net.Listen("unix", sock)
	if err != nil {
		t.Fatal(err)
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			if !mute {
				go func() { agent.ServeAgent(ring, c); c.Close() }()
			}
		}
	}()
	t.Cleanup(func() { ln.Close() })
	t.Setenv("SSH_AUTH_SOCK", sock)
}

func TestAgent(t *testing.T) {
	key := newEd25519(t)
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	s := serve(t, sshtest.Config{Command: well, Authorized: []ssh.PublicKey{signer.PublicKey()}})
	t.Run("asked", func(t *testing.T) {
		startAgent(t, key, false)
		if _, err := dialer(t, Options{Home: dir, Agent: true}).Node(at(t, s.Addr())).Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("not asked", func(t *testing.T) {
		startAgent(t, key, false)
		_, err := dialer(t, Options{Home: dir}).Node(at(t, s.Addr())).Probe(t.Context())
		wants(t, err, reason.SSHKeyUnusable)
	})
	t.Run("mute", func(t *testing.T) {
		startAgent(t, key, true)
		begin := time.Now()
		_, err := dialer(t, Options{Home: dir, Agent: true, ConnectTimeout: 300 * time.Millisecond}).Node(at(t, s.Addr())).Probe(t.Context())
		if took := time.Since(begin); took > time.Second {
			t.Errorf("took %v", took)
		}
		wants(t, err, reason.SSHAuthRefused, "agent", "gives no answer in 300ms")
	})
	t.Run("dead socket", func(t *testing.T) {
		t.Setenv("SSH_AUTH_SOCK", filepath.Join(dir, "gone"))
		_, err := dialer(t, Options{Home: dir, Agent: true}).Node(at(t, s.Addr())).Probe(t.Context())
		wants(t, err, reason.SSHAuthRefused, "agent", "gone")
	})
}

func TestJump(t *testing.T) {
	dir, _ := home(t)
	target := serve(t, sshtest.Config{Command: well})
	second := serve(t, sshtest.Config{Forward: true})
	first := serve(t, sshtest.Config{Forward: true})
	h := at(t, target.Addr())
	h.Jump = "ssh://ops@" + first.Addr() + "," + second.Addr()
	o := Options{Home: dir, CommandTimeout: 500 * time.Millisecond, ConnectTimeout: 500 * time.Millisecond}
	d := dialer(t, o)
	n := d.Node(h)
	for range 2 {
		if _, err := n.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Stats(); got.Handshakes != 3 || got.Commands != 2 {
		t.Errorf("got %+v, want 3 handshakes and 2 commands", got)
	}
	if got := strings.Count(read(t, filepath.Join(dir, "own_known_hosts")), "\n"); got != 3 {
		t.Errorf("got %d known hosts, want one a hop", got)
	}
	// A host key of a jump host may never change.
	n.AllowHostKeyChange(true)
	n2 := d.Node(h)
	n2.AllowHostKeyChange(true)
	second.Change(func(c *sshtest.Config) { c.HostKeys = []ssh.Signer{newKey(t, "ed25519")} })
	_, err := n2.Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, "jump host "+second.Addr())

	// Deadlines hold behind a jump host, too.
	for _, f := range []sshtest.Fault{sshtest.Silent, sshtest.StallKex, sshtest.StallAuth, sshtest.StallOpen, sshtest.StallCommand} {
		target.Change(func(c *sshtest.Config) { c.Fault = f })
		h.Jump = first.Addr()
		n := d.Node(h)
		begin := time.Now()
		_, err := n.Probe(t.Context())
		if took := time.Since(begin); err == nil || took > 1500*time.Millisecond {
			t.Errorf("fault %d: got %v after %v", f, err, took)
		}
		n.Close()
	}
	h.Jump = first.Addr()
	h.Port = 1
	_, err = d.Node(h).Probe(t.Context())
	wants(t, err, reason.NodeUnreachable, "127.0.0.1:1", "refused")
	h.Jump = "127.0.0.1:1"
	_, err = d.Node(h).Probe(t.Context())
	wants(t, err, reason.Usage, "loop")
}
