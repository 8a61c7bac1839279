//go:build lab && linux

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A site is the nodes, and what a client needs to reach them.
type site struct {
	dir    string
	addrs  []string // of the nodes, without ports
	config string   // ssh_config
	hosts  string   // file with one address a line
	home   string   // home directory of the clients
	sshds  []*exec.Cmd
}

// systemctl answers as systemd does for an etcd that is active.
const systemctl = `#!/bin/sh
case $1 in
is-active) echo active ;;
show) cat <<END
LoadState=loaded
UnitFileState=enabled
ActiveState=active
SubState=running
Result=success
Type=exec
ExecMainCode=0
ExecMainStatus=0
NRestarts=0
MainPID=4242
InvocationID=0123456789abcdef0123456789abcdef
ActiveEnterTimestampMonotonic=123456789
RestartUSec=5s
END
;;
*) exit 1 ;;
esac
`

// listenPatience is how long all sshds together may take to listen.
const listenPatience = time.Minute

// sshdPath finds sshd, which insists on being called by its whole path.
func sshdPath() (string, error) {
	for _, p := range []string{"/usr/sbin/sshd", "sshd"} {
		if path, err := exec.LookPath(p); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", errors.New("sshd is not installed (openssh-server)")
}

// startSite starts n nodes at 127.0.1.1 and on.
func startSite(ctx context.Context, n int) (_ *site, err error) {
	dir, err := os.MkdirTemp("", "etcd-bench-")
	if err != nil {
		return nil, err
	}
	s := &site{dir: dir, config: filepath.Join(dir, "ssh_config"), hosts: filepath.Join(dir, "hosts"), home: filepath.Join(dir, "home")}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	for i := range n {
		s.addrs = append(s.addrs, fmt.Sprintf("127.0.1.%d", i+1))
	}
	port, err := s.freePort()
	if err != nil {
		return nil, err
	}
	if err := s.files(ctx, port); err != nil {
		return nil, err
	}
	if err := s.start(ctx, port); err != nil {
		return nil, err
	}
	return s, nil
}

// freePort finds a port that is free at every node's address.
func (s *site) freePort() (int, error) {
	for range 20 {
		port := 0
		var held []net.Listener
		var err error
		for _, a := range s.addrs {
			var ln net.Listener
			if ln, err = net.Listen("tcp", net.JoinHostPort(a, strconv.Itoa(port))); err != nil {
				break
			}
			held = append(held, ln)
			port = ln.Addr().(*net.TCPAddr).Port
		}
		for _, ln := range held {
			ln.Close()
		}
		if err == nil {
			return port, nil
		}
	}
	return 0, errors.New("cannot find a port that is free at all loopback addresses")
}

// files writes keys, configurations and the systemctl of the nodes.
func (s *site) files(ctx context.Context, port int) error {
	me, err := user.Current()
	if err != nil {
		return err
	}
	bin := filepath.Join(s.dir, "bin")
	// The nodes' accounts have a home of their own, too: start files of this
	// machine's user would be most of what is measured.
	if err := errors.Join(os.Mkdir(s.home, 0o700), os.Mkdir(filepath.Join(s.dir, "node"), 0o700), os.Mkdir(bin, 0o755)); err != nil {
		return err
	}
	if os.Getuid() == 0 { // sshd's privilege separation directory
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"id", "host"} {
		out, err := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(s.dir, name)).CombinedOutput()
		if err != nil {
			return fmt.Errorf("cannot make a key: %w: %s", err, out)
		}
	}
	hostKey, err := os.ReadFile(filepath.Join(s.dir, "host.pub"))
	if err != nil {
		return err
	}
	var known strings.Builder
	for _, a := range s.addrs {
		fmt.Fprintf(&known, "[%s]:%d %s", a, port, hostKey)
	}
	lines := func(format string, args ...any) string { return fmt.Sprintf(strings.TrimPrefix(format, "\n"), args...) }
	write := func(path, text string, mode os.FileMode) {
		err = errors.Join(err, os.WriteFile(path, []byte(text), mode))
	}
	write(filepath.Join(s.dir, "known_hosts"), known.String(), 0o600)
	write(s.hosts, strings.Join(s.addrs, "\n")+"\n", 0o600)
	write(filepath.Join(bin, "systemctl"), systemctl, 0o755)
	write(s.config, lines(`
Host 127.0.1.*
  Port %d
  User %s
  IdentityFile %[3]s/id
  IdentitiesOnly yes
  UserKnownHostsFile %[3]s/known_hosts
  GlobalKnownHostsFile none
  StrictHostKeyChecking yes
  BatchMode yes
`, port, me.Username, s.dir), 0o600)
	write(filepath.Join(s.dir, "sshd_config"), lines(`
Port %d
HostKey %[2]s/host
AuthorizedKeysFile %[2]s/id.pub
SetEnv PATH=%[2]s/bin:/usr/local/bin:/usr/bin:/bin HOME=%[2]s/node
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
PasswordAuthentication no
KbdInteractiveAuthentication no
PrintMotd no
PrintLastLog no
LogLevel ERROR
Subsystem sftp internal-sftp
`, port, s.dir), 0o600)
	return err
}

// start starts an sshd for each node, and waits until they listen.
func (s *site) start(ctx context.Context, port int) error {
	path, err := sshdPath()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "sshd.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	for _, a := range s.addrs {
		cmd := exec.Command(path, "-D", "-e", "-f", filepath.Join(s.dir, "sshd_config"), "-o", "ListenAddress="+a)
		cmd.Stderr = log
		if err := cmd.Start(); err != nil {
			return err
		}
		s.sshds = append(s.sshds, cmd)
	}
	ctx, cancel := context.WithTimeout(ctx, listenPatience)
	defer cancel()
	for _, a := range s.addrs {
		for {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort(a, strconv.Itoa(port)))
			if err == nil {
				c.Close()
				break
			}
			select {
			case <-time.After(20 * time.Millisecond):
			case <-ctx.Done():
				text, _ := os.ReadFile(log.Name())
				return fmt.Errorf("cannot reach the sshd at %s: %w: %s", a, err, text)
			}
		}
	}
	return nil
}

// close ends the nodes and removes all files.
func (s *site) close() error {
	for _, cmd := range s.sshds {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range s.sshds {
		_ = cmd.Wait() // says that it was ended by a signal
	}
	return os.RemoveAll(s.dir)
}
