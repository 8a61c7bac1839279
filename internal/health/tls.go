package health

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"

	"cks-etcd/internal/reason"
)

// maxPEM bounds a file of certificates or a key.
const maxPEM = 1 << 20

// A TLS is how to talk to etcd where it asks for TLS.
type TLS struct {
	roots *x509.CertPool // nil: the system's
	certs []tls.Certificate
}

// LoadTLS reads the files of the CA, and of the client's certificate and key,
// which go together. Each may be "". With all of them empty the system's CAs
// are used. Errors carry the code usage and name the file.
func LoadTLS(ca, cert, key string) (*TLS, error) {
	t := &TLS{}
	if ca != "" {
		b, err := readPEM(ca)
		if err != nil {
			return nil, err
		}
		t.roots = x509.NewCertPool()
		if !t.roots.AppendCertsFromPEM(b) {
			return nil, reason.New(reason.Usage, "cannot use %s: it holds no certificate in PEM form", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, reason.New(reason.Usage, "cannot use a client certificate without its key, or a key without its certificate")
	}
	if cert != "" {
		c, err := readPEM(cert)
		if err != nil {
			return nil, err
		}
		k, err := readPEM(key)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(c, k)
		if err != nil {
			return nil, reason.New(reason.Usage, "cannot use %s with %s: %w", cert, key, err)
		}
		t.certs = []tls.Certificate{pair}
	}
	return t, nil
}

// readPEM reads a small file.
func readPEM(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot read it: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxPEM+1))
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot read it: %w", err)
	}
	if len(b) > maxPEM {
		return nil, reason.New(reason.Usage, "cannot use %s: longer than %d bytes", name, maxPEM)
	}
	return b, nil
}

// config returns the settings for one target. Certificates of etcd often carry
// the node's address and not the loopback's that it is asked at; SSH has shown
// already which node this is, so any name of the node will do.
func (t *TLS) config(to Target) *tls.Config {
	names := []string{"localhost"}
	if host, _, err := net.SplitHostPort(to.Addr); err == nil {
		names = append(names, host)
	}
	if to.Host != "" {
		names = append(names, to.Host)
	}
	return &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: t.certs,
		// VerifyConnection below verifies the chain, by several names.
		InsecureSkipVerify: true,
		VerifyConnection:   func(cs tls.ConnectionState) error { return t.verify(cs, names) },
	}
}

// verify checks the server's certificates against the CAs, and its name
// against names.
func (t *TLS) verify(cs tls.ConnectionState, names []string) error {
	if len(cs.PeerCertificates) == 0 {
		return errors.New("the server has no certificate")
	}
	between := x509.NewCertPool()
	for _, c := range cs.PeerCertificates[1:] {
		between.AddCert(c)
	}
	leaf := cs.PeerCertificates[0]
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: t.roots, Intermediates: between}); err != nil {
		return fmt.Errorf("cannot trust etcd's certificate: %w", err)
	}
	var first error
	for _, n := range names {
		err := leaf.VerifyHostname(n)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
	}
	return fmt.Errorf("etcd's certificate is for none of %v: %w", names, first)
}
