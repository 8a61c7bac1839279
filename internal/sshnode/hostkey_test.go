package sshnode

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode/sshtest"
)

// keyLine returns a known_hosts line.
func keyLine(addr string, k ssh.Signer) string {
	return xknownhosts.Line([]string{addr}, k.PublicKey()) + "\n"
}

func fingerprint(k ssh.Signer) string { return ssh.FingerprintSHA256(k.PublicKey()) }

func TestHostKeyPolicies(t *testing.T) {
	right, other, rsa := newKey(t, "ed25519"), newKey(t, "ed25519"), newKey(t, "ecdsa")
	s := serve(t, sshtest.Config{Command: well, HostKeys: []ssh.Signer{right, rsa}})
	addr := s.Addr()
	tests := []struct {
		name   string
		policy HostKeyPolicy
		own    string // our file
		user   string // the user's
		pin    string
		change bool // AllowHostKeyChange
		code   reason.Code
		parts  []string
		after  string // our file afterwards; "same": as before
	}{
		{name: "unknown", after: keyLine(addr, right)},
		{name: "unknown, strict", policy: Strict, code: reason.SSHHostKeyUnknown, parts: []string{fingerprint(right)}, after: "same"},
		{name: "unknown, off", policy: Off, after: "same"},
		{name: "known to us", own: keyLine(addr, right), after: "same"},
		{name: "known to the user", user: keyLine(addr, right), policy: Strict, after: "same"},
		{name: "known by its second key", user: keyLine(addr, rsa), policy: Strict, after: "same"},
		{name: "known without port", user: keyLine("127.0.0.1", right), policy: Strict, after: "same"},
		{name: "another key without port", user: keyLine("127.0.0.1", other), after: keyLine(addr, right)},
		{name: "wildcard", user: "* " + strings.SplitN(keyLine("x", right), " ", 2)[1], policy: Strict, after: "same"},
		{name: "changed, ours", own: "# mine\n" + keyLine(addr, other), code: reason.SSHHostKeyChanged,
			parts: []string{fingerprint(right), fingerprint(other), "own:2"}, after: "same"},
		{name: "changed, user's", user: keyLine(addr, other), code: reason.SSHHostKeyChanged,
			parts: []string{fingerprint(right), fingerprint(other), "known_hosts:1"}, after: "same"},
		{name: "changed, off", policy: Off, user: keyLine(addr, other), after: "same"},
		{name: "changed while booting, ours", change: true, own: keyLine("x", other) + keyLine(addr, other),
			after: keyLine("x", other) + keyLine(addr, right)},
		{name: "changed while booting, user's", change: true, user: keyLine(addr, other), code: reason.SSHHostKeyChanged, after: "same"},
		{name: "changed while booting, both", change: true, own: keyLine(addr, other), user: keyLine(addr, other), code: reason.SSHHostKeyChanged, after: "same"},
		{name: "changed while booting, strict", policy: Strict, change: true, own: keyLine(addr, other), code: reason.SSHHostKeyChanged, after: "same"},
		{name: "pinned", pin: strings.SplitN(keyLine("x", right), " ", 2)[1], policy: Strict, user: keyLine(addr, other), after: "same"},
		{name: "pinned fingerprint", pin: fingerprint(right), after: "same"},
		{name: "pinned fingerprint of the second key", pin: fingerprint(rsa), after: "same"},
		{name: "pinned to another", pin: fingerprint(other), policy: Off, change: true, code: reason.SSHHostKeyChanged,
			parts: []string{fingerprint(right), fingerprint(other)}, after: "same"},
		{name: "pinned to another key", pin: strings.SplitN(keyLine("x", other), " ", 2)[1], code: reason.SSHHostKeyChanged, after: "same"},
		{name: "bad pin", pin: "ssh-ed25519 AAAA", code: reason.Usage, after: "same"},
		{name: "revoked", user: "@revoked * " + strings.SplitN(keyLine("x", right), " ", 2)[1], own: keyLine(addr, right), policy: Off,
			code: reason.SSHHostKeyChanged, parts: []string{"revoked", "known_hosts:1"}, after: "same"},
		{name: "garbage in the file", user: "garbage\n" + keyLine(addr, right), policy: Strict, after: "same"},
		{name: "nothing but garbage", user: "garbage\n", after: keyLine(addr, right)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir, _ := home(t)
			own := filepath.Join(dir, "own")
			if tt.own != "" {
				write(t, own, tt.own)
			}
			if tt.user != "" {
				write(t, filepath.Join(dir, ".ssh", "known_hosts"), tt.user)
			}
			h := at(t, addr)
			h.HostKey = tt.pin
			n := dialer(t, Options{Home: dir, KnownHosts: own, HostKeys: tt.policy}).Node(h)
			n.AllowHostKeyChange(tt.change)
			_, err := n.Probe(t.Context())
			if tt.code != "" {
				wants(t, err, tt.code, tt.parts...)
			} else if err != nil {
				t.Fatal(err)
			}
			want := tt.after
			if want == "same" {
				want = tt.own
			}
			if got := read(t, own); got != want {
				t.Errorf("our file holds\n%swant\n%s", got, want)
			}
		})
	}
}

// cloud-init makes new host keys at the first boot (B41): before the first
// login nothing is recorded, after it a change is one.
func TestHostKeyOfABootingNode(t *testing.T) {
	keys := []ssh.Signer{newKey(t, "ed25519"), newKey(t, "ed25519"), newKey(t, "ed25519"), newKey(t, "ed25519")}
	dir, login := home(t)
	own := filepath.Join(dir, "own")
	s := serve(t, sshtest.Config{Command: well, HostKeys: keys[:1], Authorized: []ssh.PublicKey{keys[0].PublicKey()}})
	write(t, own, keyLine(s.Addr(), keys[3])) // from a VM that had this address before
	n := dialer(t, Options{Home: dir, KnownHosts: own}).Node(at(t, s.Addr()))

	_, err := n.Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, fingerprint(keys[0]), fingerprint(keys[3]))

	n.AllowHostKeyChange(true)
	for i := range 2 { // authorized_keys are not written yet; the key changes in between
		s.Change(func(c *sshtest.Config) { c.HostKeys = keys[i : i+1] })
		_, err := n.Probe(t.Context())
		wants(t, err, reason.SSHAuthRefused)
		if got, want := read(t, own), keyLine(s.Addr(), keys[3]); got != want {
			t.Fatalf("recorded before a login:\n%s", got)
		}
	}
	s.Change(func(c *sshtest.Config) { c.Authorized = []ssh.PublicKey{login.PublicKey()} })
	if _, err := n.Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, want := read(t, own), keyLine(s.Addr(), keys[1]); got != want {
		t.Errorf("our file holds\n%swant\n%s", got, want)
	}
	s.Change(func(c *sshtest.Config) { c.HostKeys = keys[2:3] })
	s.Drop()
	_, err = n.Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, fingerprint(keys[1]), fingerprint(keys[2]))
}

// Many nodes, several dialers: every key ends up in the file, once, beside what
// was there.
func TestRecordManyAtOnce(t *testing.T) {
	dir := t.TempDir()
	own := filepath.Join(dir, "a", "b", "own")
	write(t, own, "# kept\nno line break at the end")
	var wg sync.WaitGroup
	var want []string
	for i := range 4 {
		k := newKnownHosts(own, nil)
		for j := range 25 {
			name, key := fmt.Sprintf("host%d-%d:22", i, j%20), newKey(t, "ed25519").PublicKey()
			if j >= 20 {
				name = "same:22"
				key = keyFixed(t)
			}
			want = append(want, xknownhosts.Line([]string{name}, key))
			wg.Go(func() {
				if err := k.record(name, key, true); err != nil {
					t.Error(err)
				}
			})
		}
	}
	wg.Wait()
	got := read(t, own)
	if !strings.HasPrefix(got, "# kept\nno line break at the end\n") {
		t.Errorf("lost what was there:\n%s", got)
	}
	names := map[string]int{}
	for _, l := range strings.Split(got, "\n") {
		names[strings.SplitN(l, " ", 2)[0]]++
	}
	for _, w := range want {
		if n := strings.SplitN(w, " ", 2)[0]; names[n] != 1 {
			t.Errorf("%s stands there %d times", n, names[n])
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "a", "b", ".known_hosts-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// keyFixed returns the same key each time.
func keyFixed(t *testing.T) ssh.PublicKey {
	t.Helper()
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIIhqJ8WpYcDBHXmKDoCqWrVOrXnyDnvVYdtBBMDsDjzP"))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// Another process recorded another key between our look and our write.
func TestRecordConflict(t *testing.T) {
	own := filepath.Join(t.TempDir(), "own")
	k := newKnownHosts(own, nil)
	if err := k.record("h:22", newKey(t, "ed25519").PublicKey(), false); err != nil {
		t.Fatal(err)
	}
	before := read(t, own)
	if err := newKnownHosts(own, nil).record("h:22", newKey(t, "ed25519").PublicKey(), false); err != errOtherKey {
		t.Errorf("got %v, want %v", err, errOtherKey)
	}
	if got := read(t, own); got != before {
		t.Errorf("got\n%swant\n%s", got, before)
	}
}

// A file that cannot be written costs a warning, not the look.
func TestKnownHostsCannotBeWritten(t *testing.T) {
	dir, _ := home(t)
	write(t, filepath.Join(dir, "file"), "")
	var log logBook
	s := serve(t, sshtest.Config{Command: well})
	n := dialer(t, Options{Home: dir, KnownHosts: filepath.Join(dir, "file", "own"), Log: logTo(&log)}).Node(at(t, s.Addr()))
	for range 2 {
		if _, err := n.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.Drop()
	}
	if !strings.Contains(log.String(), "cannot keep a host key") {
		t.Errorf("no warning: %s", log.String())
	}
	s.Change(func(c *sshtest.Config) { c.HostKeys = []ssh.Signer{newKey(t, "ed25519")} })
	_, err := n.Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, "seen by this run") // by this run's memory
}

func TestWithoutHost(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{"[h]:50000 ssh-ed25519 AAAA\n", ""},
		{"a,[h]:50000,b ssh-ed25519 AAAA c\n", "a,b ssh-ed25519 AAAA c\n"},
	} {
		if got := withoutHost(tt.line, "h:50000"); got != tt.want {
			t.Errorf("%q: got %q, want %q", tt.line, got, tt.want)
		}
	}
}

func TestOffIsLoud(t *testing.T) {
	var log logBook
	dialer(t, Options{HostKeys: Off, Log: logTo(&log)})
	if !strings.Contains(log.String(), "WARN") || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("got %q, want one warning", log.String())
	}
}

func TestUnreadableKnownHosts(t *testing.T) {
	dir, _ := home(t)
	if err := os.Mkdir(filepath.Join(dir, ".ssh", "known_hosts"), 0o700); err != nil {
		t.Fatal(err)
	}
	var log logBook
	s := serve(t, sshtest.Config{Command: well})
	if _, err := dialer(t, Options{Home: dir, Log: logTo(&log)}).Node(at(t, s.Addr())).Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "known_hosts") {
		t.Errorf("no warning: %q", log.String())
	}
}

// TestOddKnownHosts: what cannot be read to its end is neither read nor
// replaced, and the login goes on.
func TestOddKnownHosts(t *testing.T) {
	dir, _ := home(t)
	own := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(own, 0o600); err != nil {
		t.Fatal(err)
	}
	var log logBook
	s := serve(t, sshtest.Config{Command: well})
	if _, err := dialer(t, Options{Home: dir, KnownHosts: own, Log: logTo(&log)}).Node(at(t, s.Addr())).Probe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(log.String(), "cannot keep a host key") {
		t.Errorf("no warning: %q", log.String())
	}
	if info, err := os.Lstat(own); err != nil || info.Mode()&os.ModeNamedPipe == 0 {
		t.Errorf("%v %v, want the fifo", info, err)
	}
}
