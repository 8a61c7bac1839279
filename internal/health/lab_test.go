//go:build lab && linux

package health

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
)

// A member is a real etcd on the loopback interface.
type member struct {
	name         string
	client, peer string // addresses
	cmd          *exec.Cmd
}

// freeAddr returns an address of the loopback interface that nobody uses.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// startEtcd starts an etcd cluster of n members, prefix1 and so on, with more arguments.
func startEtcd(t *testing.T, prefix, scheme string, n int, args ...string) []*member {
	t.Helper()
	dir, err := lab.Etcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var members []*member
	var initial []string
	for i := range n {
		m := &member{name: fmt.Sprint(prefix, i+1), client: freeAddr(t), peer: freeAddr(t)}
		members = append(members, m)
		initial = append(initial, m.name+"=http://"+m.peer)
	}
	for _, m := range members {
		m.cmd = exec.Command(filepath.Join(dir, "etcd"), append([]string{
			"--name", m.name, "--data-dir", filepath.Join(t.TempDir(), m.name),
			"--listen-client-urls", scheme + "://" + m.client, "--advertise-client-urls", scheme + "://" + m.client,
			"--listen-peer-urls", "http://" + m.peer, "--initial-advertise-peer-urls", "http://" + m.peer,
			"--initial-cluster", strings.Join(initial, ","), "--initial-cluster-token", prefix, "--log-level", "error",
		}, args...)...)
		if err := m.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.stop() })
	}
	return members
}

// stop kills the member and waits for its end.
func (m *member) stop() {
	_ = m.cmd.Process.Kill() // it may have ended
	_ = m.cmd.Wait()
}

func targets(members []*member) []Target {
	var out []Target
	for _, m := range members {
		to := target(m.client)
		to.Name, to.Member = "node-"+m.name, m.name
		out = append(out, to)
	}
	return out
}

// settles checks until the worst finding has code want, for a minute at most.
func settles(t *testing.T, to []Target, o Options, want reason.Code) Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var last Result
	for {
		r := Check(ctx, to, o, Expect{})
		if reason.Of(r.Err()) == want {
			return r
		}
		if ctx.Err() != nil {
			t.Fatalf("got %v (%+v), want %s", last.Err(), last.Findings, want)
		}
		last = r
		time.Sleep(200 * time.Millisecond)
	}
}

// has reports whether r has a finding with code c whose message has the text.
func has(r Result, c reason.Code, text string) bool {
	for _, f := range r.Findings {
		if f.Code == c && strings.Contains(f.Message, text) {
			return true
		}
	}
	return false
}

// TestLabCluster takes a real cluster from well to no quorum.
func TestLabCluster(t *testing.T) {
	members := startEtcd(t, "a", "http", 3)
	to := targets(members)
	r := settles(t, to, Options{Settle: 30 * time.Second}, reason.Ready)
	if len(r.Findings) != 0 || r.Members != 3 || r.Voters != 3 || r.Healthy != 3 || r.ClusterID == "" || !strings.HasPrefix(r.Leader, "a") || len(r.Versions) != 1 {
		t.Errorf("a cluster that is well: %+v", r)
	}

	if r := Check(t.Context(), to, Options{}, Expect{Members: 5}); !has(r, reason.HealthMemberCount, "3 members (") {
		t.Errorf("five were expected: %+v", r.Findings)
	}
	swapped := targets(members)
	swapped[0].Member, swapped[1].Member = "a2", "a1"
	if r := Check(t.Context(), swapped, Options{}, Expect{}); !has(r, reason.HealthMemberCount, "node-a1 is member a1, not a2") {
		t.Errorf("swapped names: %+v", r.Findings)
	}
	twice := targets(members)
	twice[1].Addr = twice[0].Addr
	if r := Check(t.Context(), twice, Options{}, Expect{}); !has(r, reason.HealthMemberCount, "are the same member a1") {
		t.Errorf("one node under two names: %+v", r.Findings)
	}
	other := startEtcd(t, "b", "http", 1)
	settles(t, targets(other), Options{}, reason.Ready)
	mixed := append(targets(members)[:2], targets(other)...)
	if r := Check(t.Context(), mixed, Options{}, Expect{}); !has(r, reason.HealthSplit, "2 clusters") {
		t.Errorf("two clusters: %+v", r.Findings)
	}

	alarm(t, members[0], `{"action":"ACTIVATE","memberID":"%d","alarm":"NOSPACE"}`, r.Nodes[0].Status.MemberID)
	if r := settles(t, to, Options{}, reason.HealthAlarm); !has(r, reason.HealthAlarm, "NOSPACE on member a1") {
		t.Errorf("alarm: %+v", r.Findings)
	}
	alarm(t, members[0], `{"action":"DEACTIVATE","memberID":"%d","alarm":"NOSPACE"}`, r.Nodes[0].Status.MemberID)
	settles(t, to, Options{}, reason.Ready)

	members[0].stop()
	r = settles(t, to, Options{}, reason.HealthUnreadable)
	if !has(r, reason.HealthUnreadable, "node-a1: dial tcp") || has(r, reason.HealthNoQuorum, "") {
		t.Errorf("one member stopped: %+v", r.Findings)
	}
	members[1].stop()
	r = settles(t, to, Options{}, reason.HealthNoQuorum)
	if !has(r, reason.HealthNoQuorum, "no leader is known to node-a3") {
		t.Errorf("two members stopped: %+v", r.Findings)
	}
}

// alarm calls the maintenance service of a member.
func alarm(t *testing.T, m *member, format string, id uint64) {
	t.Helper()
	resp, err := http.Post("http://"+m.client+"/v3/maintenance/alarm", "application/json", bytes.NewReader(fmt.Appendf(nil, format, id)))
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("HTTP status %d", resp.StatusCode)
	}
}

// TestLabTLS asks a real etcd that wants certificates from its clients.
func TestLabTLS(t *testing.T) {
	dir := t.TempDir()
	ca, cert, key := certificate(t, dir)
	members := startEtcd(t, "tls", "https", 1, "--cert-file", cert, "--key-file", key, "--trusted-ca-file", ca, "--client-cert-auth")
	to := targets(members)
	good, err := LoadTLS(ca, cert, key)
	if err != nil {
		t.Fatal(err)
	}
	settles(t, to, Options{TLS: good}, reason.Ready)
	if got := Ask(t.Context(), to[0], Options{}); got.Err == nil || !strings.Contains(got.Err.Error(), "speaks TLS") {
		t.Errorf("without TLS: %v", got.Err)
	}
	anonymous, err := LoadTLS(ca, "", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := Ask(t.Context(), to[0], Options{TLS: anonymous}); reason.Of(got.Err) != reason.HealthUnreadable || !strings.Contains(got.Err.Error(), "certificate") {
		t.Errorf("without client certificate: %v", got.Err)
	}
	plain := startEtcd(t, "plain", "http", 1)
	settles(t, targets(plain), Options{}, reason.Ready)
	if got := Ask(t.Context(), targets(plain)[0], Options{TLS: good}); got.Err == nil || !strings.Contains(got.Err.Error(), "does not speak TLS") {
		t.Errorf("TLS to a plain port: %v", got.Err)
	}
}

// certificate writes a certificate for 127.0.0.1 that is its own CA.
func certificate(t *testing.T, dir string) (ca, cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lab"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kb, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: kb}} {
		if err := os.WriteFile(name, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, cert, key
}
