package watch

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"cks-etcd/internal/reason"
)

const (
	maxTokenFile = 4096    // bytes
	maxPEM       = 1 << 20 // bytes of a file of certificates
	// minToken is the shortest token in characters: sixteen random ones cannot
	// be guessed over a network.
	minToken = 16
)

// A digest is that of the token that a caller must show. With digests,
// comparing takes the same time for every length.
type digest [sha256.Size]byte

// matches reports whether s is the token.
func (d *digest) matches(s string) bool {
	sum := sha256.Sum256([]byte(s))
	return subtle.ConstantTimeCompare(sum[:], d[:]) == 1
}

// A guard is who may ask: what is read from the files of a configuration, and
// read again at a reload.
type guard struct {
	tls   *tls.Config // nil: plain HTTP
	token *digest     // nil: none is asked for
}

// readGuard reads the files that c names.
func readGuard(c Config) (guard, error) {
	var g guard
	var err error
	if c.TokenFile != "" {
		if g.token, err = readToken(c.TokenFile); err != nil {
			return guard{}, reason.New(reason.Usage, "cannot use token_file: %w", err)
		}
	}
	if c.TLS != nil {
		if g.tls, err = readTLS(*c.TLS); err != nil {
			return guard{}, reason.New(reason.Usage, "cannot use tls: %w", err)
		}
	}
	return g, nil
}

func readToken(path string) (*digest, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if mode := info.Mode(); mode&0o007 != 0 {
		return nil, fmt.Errorf("everybody may use %s (mode %04o); chmod it to 0640 or 0600", path, mode.Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTokenFile+1))
	if err != nil {
		return nil, err
	}
	s := strings.TrimSpace(string(b))
	switch {
	case len(b) > maxTokenFile:
		return nil, fmt.Errorf("%s is longer than %d bytes", path, maxTokenFile)
	case len(s) < minToken:
		return nil, fmt.Errorf("the token in %s is shorter than %d characters", path, minToken)
	case strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }):
		return nil, fmt.Errorf("%s must hold one token, without white space in it", path)
	}
	sum := digest(sha256.Sum256([]byte(s)))
	return &sum, nil
}

func readTLS(t TLS) (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(t.Cert, t.Key)
	if err != nil {
		return nil, err
	}
	c := &tls.Config{
		MinVersion:   tls.VersionTLS12,
		Certificates: []tls.Certificate{cert},
		NextProtos:   []string{"http/1.1"},
	}
	if t.ClientCA != "" {
		f, err := os.Open(t.ClientCA)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxPEM))
		if err != nil {
			return nil, err
		}
		c.ClientCAs = x509.NewCertPool()
		if !c.ClientCAs.AppendCertsFromPEM(b) {
			return nil, errors.New("no certificate in " + t.ClientCA)
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}
