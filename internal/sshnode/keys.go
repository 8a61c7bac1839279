package sshnode

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"cks-etcd/internal/reason"
)

// maxKeyFile bounds a private key file; the largest RSA keys have a few
// kilobytes (OpenSSH's own limit is 1 MiB).
const maxKeyFile = 1 << 20

// A keyFile is a private key to offer.
type keyFile struct {
	path  string
	named bool // by the operator: it must be usable
}

// A keyring loads each private key once, however many nodes use it.
type keyring struct {
	passphrase func(string) ([]byte, error)
	mu         sync.Mutex
	entries    map[string]*keyEntry
}

// A keyEntry is the outcome of loading one file.
type keyEntry struct {
	done   chan struct{} // closed when the rest is set
	signer ssh.Signer
	err    error
}

func newKeyring(passphrase func(string) ([]byte, error)) *keyring {
	return &keyring{passphrase: passphrase, entries: make(map[string]*keyEntry)}
}

// signer returns the key in the file. Loading may wait for a person who types
// a passphrase; when ctx ends first, loading goes on for whoever asks next.
func (k *keyring) signer(ctx context.Context, path string) (ssh.Signer, error) {
	k.mu.Lock()
	e := k.entries[path]
	if e == nil {
		e = &keyEntry{done: make(chan struct{})}
		k.entries[path] = e
		go func() {
			defer close(e.done)
			e.signer, e.err = loadKey(path, k.passphrase)
		}()
	}
	k.mu.Unlock()
	select {
	case <-e.done:
		return e.signer, e.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// loadKey reads a private key as ssh(1) does, and refuses what it refuses.
func loadKey(path string, passphrase func(string) ([]byte, error)) (ssh.Signer, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a fifo must not block
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	// sshkey_perm_ok: the rule holds for the user's own files only.
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == os.Getuid() && info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("mode %04o lets others read or change it; run 'chmod 600' on it", info.Mode().Perm())
	}
	b, err := io.ReadAll(io.LimitReader(f, maxKeyFile+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxKeyFile {
		return nil, fmt.Errorf("larger than %d bytes: not a private key", maxKeyFile)
	}
	raw, err := ssh.ParseRawPrivateKey(b)
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		if passphrase == nil {
			return nil, errors.New("encrypted, and there is no terminal to ask for its passphrase")
		}
		pass, perr := passphrase(path)
		if perr != nil {
			return nil, fmt.Errorf("encrypted: %w", perr)
		}
		raw, err = ssh.ParseRawPrivateKeyWithPassphrase(b, pass)
		clear(pass)
		if err != nil {
			err = fmt.Errorf("encrypted, and the passphrase does not fit: %w", err)
		}
	}
	if err != nil {
		if strings.HasPrefix(strings.TrimSpace(string(b)), "ssh-") || strings.HasPrefix(string(b), "ecdsa-") {
			return nil, errors.New("holds a public key; name the private one")
		}
		return nil, err
	}
	return ssh.NewSignerFromKey(raw)
}

// An identity is a key that can be offered.
type identity struct {
	name   string // for messages
	signer ssh.Signer
}

// offers returns the signers in the order in which the server is asked about
// them. An RSA key is offered with SHA-512 first; at the end once more with
// SHA-256 and with SHA-1, since sshd lists in server-sig-algs what it was built
// with, not what PubkeyAcceptedAlgorithms leaves of it, and servers without
// that list know SHA-1 only (B44). Asking signs nothing.
func offers(ids []identity) []ssh.Signer {
	var first, again []ssh.Signer
	for _, id := range ids {
		as, ok := id.signer.(ssh.AlgorithmSigner)
		if !ok || id.signer.PublicKey().Type() != ssh.KeyAlgoRSA {
			first = append(first, id.signer)
			continue
		}
		algs := []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
		for i := range algs {
			s, err := ssh.NewSignerWithAlgorithms(as, algs[i:])
			switch {
			case err != nil: // a signer that does not know them all says itself what it knows
				if i == 0 {
					first = append(first, id.signer)
				}
			case i == 0:
				first = append(first, s)
			default:
				again = append(again, s)
			}
		}
	}
	return append(first, again...)
}

// identities returns the keys to offer to h and, one line each, why others
// cannot be used. It fails with the code ssh-key-unusable when nothing is left
// that could be offered.
func (d *Dialer) identities(ctx context.Context, h hop) (ids []identity, unusable []string, err error) {
	var absent []string
	for _, f := range h.keys {
		s, err := d.keys.signer(ctx, f.path)
		switch {
		case ctx.Err() != nil:
			return nil, nil, fmt.Errorf("loading private key %s: %w", f.path, context.Cause(ctx))
		case err == nil:
			ids = append(ids, identity{f.path, s})
		case errors.Is(err, fs.ErrNotExist) && !f.named:
			absent = append(absent, f.path)
		default:
			var pe *fs.PathError
			if errors.As(err, &pe) { // the path is said already
				err = pe.Err
			}
			unusable = append(unusable, fmt.Sprintf("%s (as uid %d): %v", f.path, os.Getuid(), err))
		}
	}
	if len(ids) > 0 || d.opts.Agent {
		return ids, unusable, nil
	}
	if len(unusable) == 0 {
		return nil, nil, reason.New(reason.SSHKeyUnusable, "%s: there is no key to log in with; looked for %s (as uid %d)",
			h, strings.Join(absent, ", "), os.Getuid())
	}
	return nil, nil, reason.New(reason.SSHKeyUnusable, "%s", strings.Join(unusable, "; "))
}

// An agentConn is a connection to the SSH agent. Every exchange over it ends
// when its deadline passes, so a dead agent costs time but never hangs (B47).
type agentConn struct {
	conn net.Conn
}

// agentWait bounds the connect to the agent and the list of its keys, beyond
// which it counts as dead, for the rest of the run.
const agentWait = 5 * time.Second

// errAgentDead is the cause of not asking the agent again.
var errAgentDead = errors.New("agent: it gave no answer before")

// agent connects to the agent at SSH_AUTH_SOCK and lists its keys, where that
// is asked for. The connection serves one login, of at most that long.
func (d *Dialer) agent(ctx context.Context, login time.Duration) (*agentConn, []identity, error) {
	if !d.opts.Agent {
		return nil, nil, nil
	}
	if d.agentDead.Load() {
		return nil, nil, errAgentDead
	}
	sock := os.Getenv("SSH_AUTH_SOCK")
	if sock == "" {
		return nil, nil, errors.New("agent: SSH_AUTH_SOCK is not set")
	}
	wait := min(agentWait, login)
	dialer := net.Dialer{Timeout: wait}
	c, err := dialer.DialContext(ctx, "unix", sock)
	if err != nil {
		return nil, nil, fmt.Errorf("agent at %s: %w", sock, cause(err))
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	a := &agentConn{conn: c}
	err = c.SetDeadline(time.Now().Add(wait))
	if err == nil {
		var signers []ssh.Signer
		if signers, err = agent.NewClient(c).Signers(); err == nil {
			err = c.SetDeadline(time.Now().Add(login))
			ids := make([]identity, 0, len(signers))
			for _, s := range signers {
				ids = append(ids, identity{"agent's " + ssh.FingerprintSHA256(s.PublicKey()), s})
			}
			if err == nil {
				return a, ids, nil
			}
		}
	}
	a.Close()
	if ctx.Err() == nil && d.agentDead.CompareAndSwap(false, true) {
		d.log.Warn("the SSH agent gives no answer and is not asked again", "socket", sock, "error", reason.Line(err.Error()))
	}
	return nil, nil, fmt.Errorf("agent at %s gives no answer in %v: %w", sock, wait, cause(err))
}

// Close ends what is asked of the agent.
func (a *agentConn) Close() error {
	if a == nil {
		return nil
	}
	return a.conn.Close()
}
