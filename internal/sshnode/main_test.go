package sshnode

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/sshnode/sshtest"
)

const (
	testBoot       = "2c5e7a04-5d57-4b7c-9be9-6d1c3c5e2f11"
	testInvocation = "0123456789abcdef0123456789abcdef"
)

// wellValues are those of a node that runs well.
func wellValues() sshtest.Values {
	return sshtest.Values{BootID: testBoot, Hostname: "etcd-1", Clock: "1764626400.250000000",
		Unit: sshtest.Active(testInvocation, 812, 0), CloudInit: "done"}
}

// well answers any command as a node that runs well.
func well(context.Context, sshtest.Command) sshtest.Reply {
	return sshtest.Reply{Stdout: sshtest.ProbeOutput(wellValues())}
}

// serve starts a server that ends with the test, and checks that no goroutine
// is left behind after that.
func serve(t *testing.T, cfg sshtest.Config) *sshtest.Server {
	t.Helper()
	before := runtime.NumGoroutine()
	s, err := sshtest.Start(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		noGoroutines(t, before)
	})
	return s
}

// noGoroutines waits until there are no more goroutines than before.
func noGoroutines(t *testing.T, before int) {
	t.Helper()
	var n int
	for range 200 {
		if n = runtime.NumGoroutine(); n <= before {
			return
		}
		time.Sleep(10 * time.Millisecond) // goroutines of x/crypto end just after what they serve
	}
	buf := make([]byte, 1<<20)
	t.Errorf("%d goroutines left, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
}

// A logBook keeps log lines.
type logBook struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// home makes a home directory with a private key, and returns both.
func home(t *testing.T) (dir string, key ssh.Signer) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, ".ssh"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir, writeKey(t, filepath.Join(dir, ".ssh", "id_ed25519"))
}

// writeKey makes an ed25519 key and writes it to path.
func writeKey(t *testing.T, path string) ssh.Signer {
	t.Helper()
	key := newEd25519(t)
	block, err := ssh.MarshalPrivateKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(pem.EncodeToMemory(block)))
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// write writes a file with mode 0600.
func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// read returns the content of a file, "" where there is none.
func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return string(b)
}

// dialer returns a Dialer that ends with the test. Without a home directory it
// gets one with a key.
func dialer(t *testing.T, o Options) *Dialer {
	t.Helper()
	if o.Home == "" {
		o.Home, _ = home(t)
	}
	if o.KnownHosts == "" {
		o.KnownHosts = filepath.Join(o.Home, "own_known_hosts")
	}
	if o.ConfigFile == "" {
		o.ConfigFile = NoConfig
	}
	if o.Log == nil {
		o.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// at returns the host at addr.
func at(t *testing.T, addr string) inventory.Host {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return inventory.Host{Name: addr, Addr: host, Port: n}
}

// newKey makes a host key.
func newKey(t *testing.T, kind string) ssh.Signer {
	t.Helper()
	k, err := sshtest.NewKey(kind)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// logTo returns a logger that writes to the book.
func logTo(b *logBook) *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }

// writeRSA makes an RSA key and writes it to path in the old PEM form.
func writeRSA(t *testing.T, path string) {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})))
}
