package watch

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// A proc is a daemon that runs in this process, with a service manager.
type proc struct {
	t       *testing.T
	dir     string
	config  string
	hangup  chan os.Signal
	stop    context.CancelFunc
	done    chan struct{}
	err     error // of Run, once done is closed
	addrs   chan net.Addr
	manager *net.UnixConn // what systemd would be told
	log     syncBuffer
}

// A syncBuffer may be written while it is read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// deadline is long enough for what takes milliseconds, on any machine.
const deadline = 20 * time.Second

// start runs a daemon on f, or on the real thing if f is nil, with the
// configuration text, in which DIR stands for a directory of the test.
func start(t *testing.T, f *fakeScanner, text string) *proc {
	t.Helper()
	p := &proc{t: t, dir: t.TempDir(), hangup: make(chan os.Signal, 1), done: make(chan struct{}), addrs: make(chan net.Addr, 10)}
	p.config = filepath.Join(p.dir, "watch.yaml")
	p.write(text)
	notify := filepath.Join(p.dir, "notify")
	var err error
	if p.manager, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: notify, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.manager.Close() })
	t.Setenv("NOTIFY_SOCKET", notify)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	open := openBackend
	if f != nil {
		open = func(context.Context, Config, Options) (*backend, error) { return f.backend(), nil }
	}
	go func() {
		defer close(p.done)
		p.err = Run(ctx, Options{
			ConfigPath: p.config, Log: slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			Hangup: p.hangup, Version: "1.2.3",
			open:      open,
			listening: func(a net.Addr) { p.addrs <- a },
		})
	}()
	t.Cleanup(func() {
		stop()
		select {
		case <-p.done:
		case <-time.After(deadline):
			t.Error("Run did not end")
		}
		if t.Failed() {
			t.Logf("log:\n%s", p.log.String())
		}
	})
	return p
}

func (p *proc) write(text string) {
	p.t.Helper()
	if err := os.WriteFile(p.config, []byte(strings.ReplaceAll(text, "DIR", p.dir)), 0o600); err != nil {
		p.t.Fatal(err)
	}
}

// told waits until the service manager is told something with want in it, and
// returns all it was told up to then.
func (p *proc) told(want string) string {
	p.t.Helper()
	var all strings.Builder
	p.manager.SetReadDeadline(time.Now().Add(deadline))
	buf := make([]byte, 4096)
	for {
		n, err := p.manager.Read(buf)
		if err != nil {
			p.t.Fatalf("systemd was not told %q but:\n%s", want, all.String())
		}
		fmt.Fprintf(&all, "%s\n", buf[:n])
		if strings.Contains(string(buf[:n]), want) {
			return all.String()
		}
	}
}

// addr waits for the address of a listener.
func (p *proc) addr() string {
	p.t.Helper()
	select {
	case a := <-p.addrs:
		return a.String()
	case <-p.done:
		p.t.Fatalf("Run ended: %v", p.err)
	case <-time.After(deadline):
		p.t.Fatal("no address")
	}
	return ""
}

// reload sends SIGHUP and waits until the new configuration was read.
func (p *proc) reload() string {
	p.t.Helper()
	p.hangup <- syscall.SIGHUP
	return p.told("RELOADING=1") + p.told("READY=1") + p.told("STATUS=")
}

// over returns a client that reaches everything through a Unix socket.
func over(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		},
	}}
}

func fetch(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestRun(t *testing.T) {
	f := newFakeScanner()
	p := start(t, f, "listen: ['127.0.0.1:0', 'unix:DIR/w.sock']\n")
	tcp := p.addr()
	p.addr()
	p.told("READY=1")
	p.told("STATUS=4 ISOs: 1 included, 1 missing, 0 broken, 2 unknown; a round every 5m")
	if code, body := fetch(t, http.DefaultClient, "http://"+tcp+pathReady); code != 200 || body != "ready\n" {
		t.Errorf("over TCP: %d %q", code, body)
	}
	c := over(filepath.Join(p.dir, "w.sock"))
	if code, body := fetch(t, c, "http://etcd-fleet"+pathAdmit+"?etcd_nodes=3&iso=202"); code != 200 || !strings.Contains(body, `"allow":false`) {
		t.Errorf("over a Unix socket: %d %q", code, body)
	}
	resp, err := c.Post("http://etcd-fleet"+pathAdmit, "", strings.NewReader(`{"etcd_nodes":3,"iso":"201"}`))
	if err != nil {
		t.Fatal(err)
	}
	b, _ := io.ReadAll(resp.Body)
	resp.Body.Close()
	if !strings.Contains(string(b), `"allow":true`) {
		t.Errorf("POST over a Unix socket: %s", b)
	}
	p.stop()
	p.told("STOPPING=1")
	<-p.done
	if p.err != nil {
		t.Errorf("Run: %v", p.err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		t.Error("the backend was not closed")
	}
	if _, err := os.Lstat(filepath.Join(p.dir, "w.sock")); !os.IsNotExist(err) {
		t.Errorf("the socket is still there: %v", err)
	}
}

func TestRunFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for _, tt := range []struct {
		name, text string
		want       reason.Code
	}{
		{"configuration", "jobs: many\n", reason.Usage},
		{"token file", "token_file: DIR/none\n", reason.Usage},
		{"certificate", "tls: {cert: DIR/none, key: DIR/none}\n", reason.Usage},
		{"address", "listen: ['unix:DIR/w.sock', '" + taken.Addr().String() + "']\n", reason.ListenFailed},
	} {
		p := start(t, newFakeScanner(), tt.text)
		select {
		case <-p.done:
		case <-time.After(deadline):
			t.Fatalf("%s: Run goes on", tt.name)
		}
		if reason.Of(p.err) != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, p.err, tt.want)
		}
		if _, err := os.Lstat(filepath.Join(p.dir, "w.sock")); !os.IsNotExist(err) {
			t.Errorf("%s: the socket is still there: %v", tt.name, err)
		}
	}
}

func TestReload(t *testing.T) {
	f := newFakeScanner()
	p := start(t, f, "listen: ['unix:DIR/a.sock']\njobs: 2\n")
	p.addr()
	p.told("READY=1")
	p.told("STATUS=4 ISOs")

	// One that cannot be used changes nothing, whatever its fault.
	for name, text := range map[string]string{
		"configuration": "jobs: many\n",
		"listener":      "listen: ['unix:DIR/b.sock', 'unix:DIR/none/c.sock']\njobs: 3\n",
		"token":         "listen: ['unix:DIR/b.sock']\ntoken_file: DIR/none\njobs: 3\n",
	} {
		p.write(text)
		said := p.reload()
		if !strings.Contains(said, "MONOTONIC_USEC=") || !strings.Contains(said, "STATUS=old configuration in use: ") {
			t.Errorf("%s: systemd was told:\n%s", name, said)
		}
		f.mu.Lock()
		if f.config.Jobs != 2 {
			t.Errorf("%s: jobs is %d, want 2", name, f.config.Jobs)
		}
		f.mu.Unlock()
		if code, body := fetch(t, over(filepath.Join(p.dir, "a.sock")), "http://x"+pathMetrics); code != 200 || !strings.Contains(body, "etcd_fleet_config_last_reload_successful 0") {
			t.Errorf("%s: the old listener gives %d", name, code)
		}
		if _, err := os.Lstat(filepath.Join(p.dir, "b.sock")); !os.IsNotExist(err) {
			t.Errorf("%s: a listener was left: %v", name, err)
		}
	}

	f.mu.Lock()
	rounds := f.rounds
	f.mu.Unlock()
	p.write("listen: ['unix:DIR/b.sock']\njobs: 4\n")
	if said := p.reload(); strings.Contains(said, "old configuration") {
		t.Errorf("systemd was told:\n%s", said)
	}
	p.told("STATUS=4 ISOs") // after the round that a reload begins
	f.mu.Lock()
	if f.config.Jobs != 4 || f.rounds != rounds+1 {
		t.Errorf("jobs is %d, want 4; %d rounds, want %d", f.config.Jobs, f.rounds, rounds+1)
	}
	f.mu.Unlock()
	if code, _ := fetch(t, over(filepath.Join(p.dir, "b.sock")), "http://x"+pathHealth); code != 200 {
		t.Errorf("the new listener gives %d", code)
	}
	if _, err := net.Dial("unix", filepath.Join(p.dir, "a.sock")); err == nil {
		t.Error("the old listener is still there")
	}
}

// An address that overlaps one in use cannot be changed to by a reload, and what is
// said about it names the way out. One that somebody else has is another matter.
func TestReloadOverlap(t *testing.T) {
	dir := t.TempDir()
	certificate(t, dir, "w")
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	old := free.Addr().String()
	free.Close()
	_, port, _ := net.SplitHostPort(old)
	guard := fmt.Sprintf("tls: {cert: %[1]s/w.crt, key: %[1]s/w.key}\ntoken_file: %[1]s/token\n", dir)
	p := start(t, newFakeScanner(), "listen: ['"+old+"']\n"+guard)
	p.addr()
	p.told("STATUS=4 ISOs")
	for _, tt := range []struct {
		listen  string
		restart bool
	}{
		{"0.0.0.0:" + port, true},
		{"localhost:" + port, true},
		{old + "', '0.0.0.0:" + port, false}, // a restart would not help
		{taken.Addr().String(), false},
	} {
		p.write("listen: ['" + tt.listen + "']\n" + guard)
		said := p.reload()
		if !strings.Contains(said, "STATUS=old configuration in use: cannot listen") || strings.Contains(said, old+", on which the daemon listens until it is restarted") != tt.restart {
			t.Errorf("%s: want a restart to be named %v; systemd was told:\n%s", tt.listen, tt.restart, said)
		}
	}
}

// certificate writes a new certificate for 127.0.0.1 and its key.
func certificate(t *testing.T, dir, name string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	for file, b := range map[string]*pem.Block{name + ".crt": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: keyDER}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool.AddCert(parsed)
	return pool
}

func trusting(pool *x509.CertPool, certs ...tls.Certificate) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: certs}}}
}

func TestTLS(t *testing.T) {
	dir := t.TempDir()
	old := certificate(t, dir, "w")
	if err := os.WriteFile(filepath.Join(dir, "token"), []byte("0123456789abcdef"), 0o600); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("listen: ['0.0.0.0:0', 'unix:DIR/w.sock']\ntls: {cert: %[1]s/w.crt, key: %[1]s/w.key}\ntoken_file: %[1]s/token\n", dir)
	p := start(t, newFakeScanner(), text)
	_, port, err := net.SplitHostPort(p.addr())
	if err != nil {
		t.Fatal(err)
	}
	base := "https://127.0.0.1:" + port
	p.told("STATUS=4 ISOs")
	if code, _ := fetch(t, trusting(old), base+pathReady); code != 200 {
		t.Errorf("readyz without a token: %d", code)
	}
	if code, _ := fetch(t, trusting(old), base+pathISOs); code != 401 {
		t.Errorf("isos without a token: %d", code)
	}
	r, _ := http.NewRequest(http.MethodGet, base+pathISOs, nil)
	r.Header.Set("Authorization", "Bearer 0123456789abcdef")
	resp, err := trusting(old).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("isos with the token: %d", resp.StatusCode)
	}
	if code, _ := fetch(t, over(filepath.Join(p.dir, "w.sock")), "http://x"+pathISOs); code != 200 {
		t.Errorf("isos over the Unix socket: %d", code)
	}
	if resp, err := http.Get("http://127.0.0.1:" + port + pathHealth); err == nil {
		resp.Body.Close()
		if resp.StatusCode == 200 {
			t.Error("plain HTTP is answered")
		}
	}
	old11 := trusting(old)
	old11.Transport.(*http.Transport).TLSClientConfig.MaxVersion = tls.VersionTLS11
	if _, err := old11.Get(base + pathHealth); err == nil {
		t.Error("TLS 1.1 is answered")
	}

	// A new certificate comes with a reload, on the same listener.
	renewed := certificate(t, dir, "w")
	p.reload()
	if _, err := trusting(old).Get(base + pathHealth); err == nil {
		t.Error("the old certificate is in use after the reload")
	}
	if code, _ := fetch(t, trusting(renewed), base+pathHealth); code != 200 {
		t.Errorf("after the reload: %d", code)
	}
	// A key that does not fit changes nothing.
	if err := os.WriteFile(filepath.Join(dir, "w.key"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.told("STATUS=4 ISOs")
	if said := p.reload(); !strings.Contains(said, "old configuration in use") {
		t.Errorf("systemd was told:\n%s", said)
	}
	if code, _ := fetch(t, trusting(renewed), base+pathHealth); code != 200 {
		t.Errorf("after the reload with a bad key: %d", code)
	}
}

func TestClientCertificate(t *testing.T) {
	dir := t.TempDir()
	pool := certificate(t, dir, "w")
	certificate(t, dir, "client")
	p := start(t, newFakeScanner(), fmt.Sprintf("listen: ['127.0.0.1:0']\ntls: {cert: %[1]s/w.crt, key: %[1]s/w.key, client_ca: %[1]s/client.crt}\n", dir))
	base := "https://" + p.addr()
	if _, err := trusting(pool).Get(base + pathHealth); err == nil {
		t.Error("a client without a certificate is answered")
	}
	cert, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	if code, _ := fetch(t, trusting(pool, cert), base+pathHealth); code != 200 {
		t.Errorf("with a certificate: %d", code)
	}
}

// TestWatchdog: systemd hears that the daemon lives while the scan loop gets on,
// and not while it is stuck, though the main loop and the server go on.
func TestWatchdog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "20000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	d := newDaemon(t, newFakeScanner(), config(t, ""))
	hourAgo := time.Now().Add(-time.Hour)
	d.pulse.at.Store(&hourAgo)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.loop(ctx) }()
	buf := make([]byte, 4096)
	manager.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // twenty times the interval
	if n, err := manager.Read(buf); err == nil {
		t.Errorf("while stuck systemd is told %q", buf[:n])
	}
	d.pulse.beat()
	manager.SetReadDeadline(time.Now().Add(deadline))
	if n, err := manager.Read(buf); string(buf[:n]) != "WATCHDOG=1" {
		t.Errorf("after a beat systemd is told %q, %v", buf[:n], err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestStuck is about the decision alone: what the watchdog is told with time.
func TestStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t, newFakeScanner(), config(t, "look_timeout: 1m\nread_timeout: 30s\n"))
		bound := d.current.Load().bound()
		if want := time.Minute + beatSlack; bound != want {
			t.Errorf("the bound is %s, want %s", bound, want)
		}
		if got := d.pulse.age(); got != 0 {
			t.Errorf("before the first beat: %s", got)
		}
		ctx, cancel := context.WithCancel(t.Context())
		f := d.current.Load().scanner.(*fakeScanner)
		release := make(chan struct{})
		f.round = func(context.Context) scan.Round {
			f.round = nil  // the others take no time
			for range 10 { // looks that take almost all their time
				time.Sleep(bound - time.Second)
				d.pulse.beat()
			}
			<-release
			return scan.Round{Started: time.Now()}
		}
		done := make(chan struct{})
		go func() { defer close(done); d.scanLoop(ctx) }()
		for range 9 {
			time.Sleep(bound - time.Second)
			if d.pulse.age() > bound {
				t.Error("a long round counts as stuck")
			}
		}
		time.Sleep(3 * bound)
		if d.pulse.age() <= bound {
			t.Error("a round that does not end does not count as stuck")
		}
		close(release)
		// Between rounds the loop beats all the time.
		for range 20 {
			time.Sleep(7 * time.Second)
			if got := d.pulse.age(); got > beatEvery {
				t.Errorf("%s without a beat between rounds", got)
			}
		}
		cancel()
		d.current.Load().end()
		<-done
	})
}

// Row 3 of what the system must do: every 5 minutes, unless told otherwise.
func TestRow3EveryFiveMinutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeScanner()
		start := time.Now()
		var began []time.Duration
		f.round = func(context.Context) scan.Round {
			began = append(began, time.Since(start))
			time.Sleep(time.Minute)
			return scan.Round{Started: time.Now()}
		}
		d := newDaemon(t, f, config(t, ""))
		ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
		defer cancel()
		d.scanLoop(ctx)
		want := []time.Duration{0, 5 * time.Minute, 10 * time.Minute}
		if !slices.Equal(began, want) {
			t.Errorf("rounds began at %v, want %v", began, want)
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon(t, newFakeScanner(), config(t, "interval: 5m\n"))
		took := func(began time.Time) time.Duration {
			now := time.Now()
			d.pause(t.Context(), began)
			return time.Since(now)
		}
		if got, want := took(time.Now()), 5*time.Minute; got != want {
			t.Errorf("after a round of no time: %s, want %s", got, want)
		}
		if got, want := took(time.Now().Add(-time.Minute)), 4*time.Minute; got != want {
			t.Errorf("after a round of a minute: %s, want %s", got, want)
		}
		if got, want := took(time.Now().Add(-time.Hour)), minPause; got != want {
			t.Errorf("after a round of an hour: %s, want %s", got, want)
		}
		poke(d.hint)
		if got, want := took(time.Now()), minInterval; got != want {
			t.Errorf("with a hint: %s, want %s", got, want)
		}
		poke(d.kick)
		if got := took(time.Now()); got != 0 {
			t.Errorf("with a new configuration: %s, want none", got)
		}
		go func() {
			time.Sleep(time.Minute)
			next := *d.current.Load()
			next.Interval = 2 * time.Minute
			d.current.Store(&next)
		}()
		if got, want := took(time.Now()), 2*time.Minute; got < want || got > want+beatEvery {
			t.Errorf("with a shorter interval meanwhile: %s, want %s", got, want)
		}
	})
}

// TestStopLetsRequestsThrough: a request that waits for a look when the daemon
// stops is answered, and allowed.
func TestStopLetsRequestsThrough(t *testing.T) {
	f := newFakeScanner()
	asked := make(chan struct{})
	f.look = func(ctx context.Context, _, _ string) (answers.Answer, error) {
		close(asked)
		<-ctx.Done()
		return answers.Answer{}, ctx.Err()
	}
	p := start(t, f, "listen: ['unix:DIR/w.sock']\nadmit_wait: 1m\n")
	p.addr()
	p.told("STATUS=4 ISOs")
	answer := make(chan string, 1)
	go func() {
		resp, err := over(filepath.Join(p.dir, "w.sock")).Get("http://x" + pathAdmit + "?etcd_nodes=3&iso=203")
		if err != nil {
			answer <- err.Error()
			return
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		answer <- string(b)
	}()
	<-asked
	p.stop()
	if got := <-answer; !strings.Contains(got, `"allow":true,"checked":false`) {
		t.Errorf("got %s", got)
	}
	<-p.done
	if p.err != nil {
		t.Errorf("Run: %v", p.err)
	}
}
