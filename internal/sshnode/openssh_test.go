package sshnode

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/reason"
)

// An sshd is a real OpenSSH server on the loopback interface.
type sshd struct {
	dir, addr, user string
	key             string // private key that may log in
	marker          string // path of a marker that exists
	cmd             *exec.Cmd
}

// tool returns the path of a program. Without it the test is skipped, or fails
// in CI.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, p := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

// shell runs a command that must succeed, and returns its output.
func shell(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(tool(t, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// startSSHD starts an sshd with these lines in its configuration, which may
// use %s for its directory.
func startSSHD(t *testing.T, lines ...string) *sshd {
	t.Helper()
	path := tool(t, "sshd")
	if os.Getuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil { // its privilege separation directory
			t.Fatal(err)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := &sshd{dir: t.TempDir(), user: me.Username}
	if os.Getuid() != 0 && me.Username == "" {
		t.Skip("the test's user has no name")
	}
	s.key, s.marker = filepath.Join(s.dir, "id"), filepath.Join(s.dir, "marker")
	for _, kind := range []string{"ed25519", "ecdsa"} {
		shell(t, "ssh-keygen", "-q", "-t", kind, "-N", "", "-f", filepath.Join(s.dir, "host_"+kind))
	}
	writeRSA(t, s.key)
	write(t, s.key+".pub", shell(t, "ssh-keygen", "-y", "-f", s.key))
	write(t, filepath.Join(s.dir, "authorized"), read(t, s.key+".pub"))
	write(t, s.marker, "etcd archive missing: x\n")
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.addr = ln.Addr().String()
	ln.Close()
	_, port, _ := net.SplitHostPort(s.addr)
	conf := strings.Join(append(lines, // the first value of a keyword counts
		"ListenAddress 127.0.0.1", "Port "+port, "PidFile none", "UsePAM no", "StrictModes no", "PermitRootLogin yes",
		"HostKey %s/host_ecdsa", "HostKey %s/host_ed25519", "AuthorizedKeysFile %s/authorized",
		"PasswordAuthentication no", "KbdInteractiveAuthentication no", "LogLevel VERBOSE"), "\n") + "\n"
	write(t, filepath.Join(s.dir, "conf"), strings.ReplaceAll(conf, "%s", s.dir))
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	s.cmd = exec.Command(path, "-D", "-e", "-f", filepath.Join(s.dir, "conf"))
	s.cmd.Stderr = log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.cmd.Process.Signal(syscall.SIGCONT)
		_ = s.cmd.Process.Signal(syscall.SIGTERM)
		_ = s.cmd.Wait()
		log.Close()
		if t.Failed() {
			t.Log(read(t, filepath.Join(s.dir, "log")))
		}
	})
	for range 100 {
		if c, err := net.Dial("tcp", s.addr); err == nil {
			c.Close()
			return s
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("sshd does not listen: %s", read(t, filepath.Join(s.dir, "log")))
	return nil
}

// options are those to log in to s with; the marker is there.
func (s *sshd) options() Options {
	return Options{Home: s.dir, KeyFiles: []string{s.key}, User: s.user, Marker: s.marker, KnownHosts: filepath.Join(s.dir, "own")}
}

// host is s as an operator names it.
func (s *sshd) host() inventory.Host { return inventory.Host{Name: s.addr} }

// mustProbe probes s, which has a marker.
func (s *sshd) mustProbe(t *testing.T, o Options) Observation {
	t.Helper()
	got, err := dialer(t, o).Node(s.host()).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if !got.HasMarker || got.Marker != "etcd archive missing: x" || got.BootID == "" || time.Since(got.Clock).Abs() > time.Minute {
		t.Errorf("got %+v", got)
	}
	return got
}

// ssh runs the real client against s.
func (s *sshd) ssh(args ...string) (string, error) {
	_, port, _ := net.SplitHostPort(s.addr)
	out, err := exec.Command("ssh", append([]string{"-F", "none", "-o", "BatchMode=yes", "-o", "GlobalKnownHostsFile=none",
		"-i", s.key, "-p", port}, append(args, s.user+"@127.0.0.1", "true")...)...).CombinedOutput()
	return string(out), err
}

func TestRealSSHD(t *testing.T) {
	tool(t, "ssh")
	s := startSSHD(t)
	n := dialer(t, s.options()).Node(s.host())
	for range 2 {
		if _, err := n.Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if got := n.Stats(); got.Handshakes != 1 || got.Commands != 2 {
		t.Errorf("got %+v", got)
	}

	t.Run("OpenSSH reads our file", func(t *testing.T) {
		out, err := s.ssh("-o", "StrictHostKeyChecking=yes", "-o", "UserKnownHostsFile="+filepath.Join(s.dir, "own"))
		if err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	t.Run("we read OpenSSH's hashed file", func(t *testing.T) {
		file := filepath.Join(s.dir, ".ssh", "known_hosts")
		write(t, file, "")
		out, err := s.ssh("-o", "StrictHostKeyChecking=accept-new", "-o", "HashKnownHosts=yes", "-o", "UserKnownHostsFile="+file,
			"-o", "HostKeyAlgorithms=ecdsa-sha2-nistp256")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if got := read(t, file); !strings.HasPrefix(got, "|1|") {
			t.Fatalf("not hashed: %s", got)
		}
		o := s.options()
		o.KnownHosts, o.HostKeys = filepath.Join(s.dir, "none"), Strict
		s.mustProbe(t, o)
	})
	t.Run("our file after ssh-keygen -H", func(t *testing.T) {
		shell(t, "ssh-keygen", "-q", "-H", "-f", filepath.Join(s.dir, "own"))
		o := s.options()
		o.HostKeys = Strict
		s.mustProbe(t, o)
	})
	t.Run("no systemd or no unit", func(t *testing.T) {
		o := s.options()
		o.Marker = filepath.Join(s.dir, "none")
		got, err := dialer(t, o).Node(s.host()).Probe(t.Context())
		if _, serr := os.Stat("/run/systemd/system"); serr == nil {
			if err != nil || got.UnitLoaded() {
				t.Errorf("got %+v, %v", got, err)
			}
			return
		}
		wants(t, err, reason.ProbeUnreadable, "systemctl", s.addr)
	})
	t.Run("frozen", func(t *testing.T) {
		if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		o := s.options()
		o.ConnectTimeout = 300 * time.Millisecond
		n := dialer(t, o).Node(s.host())
		begin := time.Now()
		_, err := n.Probe(t.Context())
		if took := time.Since(begin); took > 1300*time.Millisecond {
			t.Errorf("took %v", took)
		}
		wants(t, err, reason.SSHHandshake, "sent no SSH banner")
		if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		s.mustProbe(t, s.options())
	})
}

func TestRealHostCertificate(t *testing.T) {
	s := startSSHD(t, "HostCertificate %s/host_ed25519-cert.pub")
	ca := filepath.Join(s.dir, "ca")
	shell(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ca)
	_, port, _ := net.SplitHostPort(s.addr)
	line := func(marker, file string) string {
		return fmt.Sprintf("%s [127.0.0.1]:%s %s", marker, port, read(t, file))
	}
	file := filepath.Join(s.dir, ".ssh", "known_hosts")
	o := s.options()
	o.HostKeys = Strict

	// sshd reads the certificate for each connection.
	certify := func(principal string) {
		shell(t, "ssh-keygen", "-q", "-s", ca, "-I", "host", "-h", "-n", principal, filepath.Join(s.dir, "host_ed25519.pub"))
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for range 100 { // it starts anew, under the same process id
			if out, err := s.ssh("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null"); err == nil {
				return
			} else if !strings.Contains(out, "refused") {
				t.Fatal(out)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	certify("127.0.0.1")
	write(t, file, line("@cert-authority", ca+".pub"))
	s.mustProbe(t, o)

	write(t, file, line("@cert-authority", ca+".pub")+line("@revoked", filepath.Join(s.dir, "host_ed25519.pub")))
	_, err := dialer(t, o).Node(s.host()).Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, "revoked", "known_hosts:2")

	write(t, file, line("@cert-authority", ca+".pub")+line("@revoked", ca+".pub"))
	_, err = dialer(t, o).Node(s.host()).Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, "revoked")

	certify("other.example")
	write(t, file, line("@cert-authority", ca+".pub"))
	_, err = dialer(t, o).Node(s.host()).Probe(t.Context())
	wants(t, err, reason.SSHHostKeyChanged, "certificate", "principal")
}

func TestRealLogin(t *testing.T) {
	tests := []struct {
		name  string
		conf  []string
		code  reason.Code // "": works
		parts []string
	}{
		{"RSA by SHA-512 only", []string{"PubkeyAcceptedAlgorithms rsa-sha2-512"}, "", nil},
		{"RSA by SHA-256 only", []string{"PubkeyAcceptedAlgorithms rsa-sha2-256"}, "", nil},
		{"RSA by SHA-1 only", []string{"PubkeyAcceptedAlgorithms ssh-rsa"}, "", nil},
		{"no RSA", []string{"PubkeyAcceptedAlgorithms ssh-ed25519"}, reason.SSHAuthRefused, []string{"is not accepted"}},
		{"passwords only", []string{"PubkeyAuthentication no", "PasswordAuthentication yes"}, reason.SSHAuthRefused, []string{"only password"}},
		{"banner", []string{"Banner %s/banner", "AuthorizedKeysFile none"}, reason.SSHAuthRefused, []string{"go away ?[1m"}},
		{"old key exchange", []string{"KexAlgorithms diffie-hellman-group1-sha1"}, reason.SSHHandshake, []string{"key exchange", "diffie-hellman-group1-sha1"}},
		{"old cipher", []string{"Ciphers 3des-cbc"}, reason.SSHHandshake, []string{"cipher", "3des-cbc"}},
		{"unknown MAC", []string{"Ciphers aes128-ctr", "MACs umac-64@openssh.com"}, reason.SSHHandshake, []string{"MAC", "umac-64@openssh.com"}},
		{"noise around", []string{`ForceCommand echo hello; echo oops >&2; eval "$SSH_ORIGINAL_COMMAND"`}, "", nil},
		{"another command", []string{`ForceCommand echo Please use the console`}, reason.ProbeUnreadable, []string{"Please use the console", "exit status 0"}},
		{"exit", []string{`ForceCommand exit 3`}, reason.ProbeUnreadable, []string{"exit status 3"}},
		{"killed", []string{`ForceCommand kill -9 $$`}, reason.ProbeUnreadable, []string{"KILL"}},
		{"no sessions", []string{"MaxSessions 0"}, reason.ProbeUnreadable, []string{"opening a session"}},
		{"restricted shell", []string{`ForceCommand bash -r -c "$SSH_ORIGINAL_COMMAND"`}, reason.ProbeUnreadable, []string{"restricted"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := startSSHD(t, tt.conf...)
			write(t, filepath.Join(s.dir, "banner"), "go away \x1b[1m\n")
			if tt.code == "" {
				s.mustProbe(t, s.options())
				return
			}
			_, err := dialer(t, s.options()).Node(s.host()).Probe(t.Context())
			wants(t, err, tt.code, append(tt.parts, s.addr)...)
		})
	}
}

func TestRealMaxStartups(t *testing.T) {
	s := startSSHD(t, "MaxStartups 1")
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Read(make([]byte, 3)); err != nil { // it counts now
		t.Fatal(err)
	}
	_, err = dialer(t, s.options()).Node(s.host()).Probe(t.Context())
	wants(t, err, reason.SSHHandshake, "before its SSH banner")
	c.Close()
}

func TestRealJump(t *testing.T) {
	jump, target := startSSHD(t), startSSHD(t)
	o := target.options()
	o.ConfigFile = filepath.Join(target.dir, "config")
	host, port, _ := net.SplitHostPort(jump.addr)
	write(t, o.ConfigFile, fmt.Sprintf("Host bastion\n  HostName %s\n  Port %s\n  User %s\n  IdentityFile %s\n  HostKeyAlias the-bastion\n",
		host, port, jump.user, jump.key))
	h := target.host()
	h.Jump = "bastion"
	got, err := dialer(t, o).Node(h).Probe(t.Context())
	if err != nil || !got.HasMarker {
		t.Fatalf("got %+v, %v", got, err)
	}
	if own := read(t, o.KnownHosts); !strings.Contains(own, "the-bastion ssh-ed25519 ") || strings.Count(own, "\n") != 2 {
		t.Errorf("our file: %s", own)
	}
}
