package sshnode

import (
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"

	"cks-etcd/internal/reason"
)

// keyRules are a node's own rules about its host key.
type keyRules struct {
	// mayChange: a key that only our own file contradicts is accepted, since the
	// node is booting and its first boot makes new host keys (B41).
	mayChange bool
}

// An acceptance is what to do about an accepted host key after the login.
type acceptance struct {
	key     ssh.PublicKey
	record  bool
	replace bool // the host's keys in our file
}

// A pinError says that a host key is not the pinned one.
type pinError struct {
	err   *reason.Error
	shown ssh.PublicKey
	retry bool // the pin is a fingerprint, so the server may have its key in another type
}

// Error returns the message.
func (e *pinError) Error() string { return e.err.Error() }

// Unwrap returns the error with the code.
func (e *pinError) Unwrap() error { return e.err }

// parsePin reads a pinned host key. The key is nil for a fingerprint.
func parsePin(pin string) (ssh.PublicKey, error) {
	if strings.HasPrefix(pin, "SHA256:") {
		return nil, nil
	}
	key, _, _, rest, err := ssh.ParseAuthorizedKey([]byte(pin))
	if err != nil || len(strings.TrimSpace(string(rest))) > 0 {
		return nil, errors.New("it is neither one public key nor a SHA256: fingerprint")
	}
	return key, nil
}

// checkHostKey decides about the key that h showed. Its errors carry the codes
// ssh-host-key-changed and ssh-host-key-unknown.
func (d *Dialer) checkHostKey(h hop, key ssh.PublicKey, rules keyRules) (*acceptance, error) {
	a := &acceptance{key: key}
	shown := key.Type() + " " + ssh.FingerprintSHA256(key)
	known := d.known.check(h, key)
	if known.status == keyRevoked {
		return nil, reason.New(reason.SSHHostKeyChanged, "%s shows %s, which is revoked in %s", h, shown, lines(known.where))
	}
	if h.pin != "" {
		want, err := parsePin(h.pin)
		if err != nil {
			return nil, reason.New(reason.Usage, "cannot use the host key given for %s: %w", h, err)
		}
		plain := key
		if cert, ok := key.(*ssh.Certificate); ok {
			plain = cert.Key
		}
		fp := strings.TrimRight(h.pin, "=") // some tools pad base64
		if want != nil {
			fp = ssh.FingerprintSHA256(want)
		}
		if ssh.FingerprintSHA256(plain) != fp {
			return nil, &pinError{
				err: reason.New(reason.SSHHostKeyChanged, "%s shows %s, but %s is pinned for it", h, shown, fp).
					WithHint("if the node was created anew, replace its pinned key; otherwise find out who answers"),
				shown: key,
				retry: want == nil,
			}
		}
		return a, nil
	}
	if d.opts.HostKeys == Off || known.status == keyKnown {
		return a, nil
	}
	switch known.status {
	case keyBadCert:
		return nil, reason.New(reason.SSHHostKeyChanged, "%s shows a host certificate that is not valid for it: %w", h, known.err)
	case keyChanged:
		if d.opts.HostKeys == AcceptNew && rules.mayChange && known.ownAll {
			a.record, a.replace = true, true
			return a, nil
		}
		return nil, changed(h, shown, known.where)
	}
	if d.opts.HostKeys == Strict {
		return nil, reason.New(reason.SSHHostKeyUnknown, "%s shows %s, which is in no known_hosts file (%s)",
			h, shown, strings.Join(d.known.paths(h), ", "))
	}
	a.record = true
	return a, nil
}

// changed is the error for a host whose key differs from the known ones. It
// names both sides, and where the known ones stand.
func changed(h hop, shown string, where []xknownhosts.KnownKey) error {
	err := reason.New(reason.SSHHostKeyChanged, "%s shows %s, but %s is known", h, shown, lines(where))
	if len(where) > 0 && where[0].Line > 0 {
		return err.WithHint(fmt.Sprintf(
			"if the node was created anew, run 'ssh-keygen -f %s -R %q'; otherwise find out who answers",
			where[0].Filename, xknownhosts.Normalize(h.keyName)))
	}
	return err
}

// maxLinesNamed bounds how many known keys a message names.
const maxLinesNamed = 3

// lines words known keys as "ssh-ed25519 SHA256:... (file:line)".
func lines(where []xknownhosts.KnownKey) string {
	var parts []string
	for i, w := range where {
		if i == maxLinesNamed {
			parts = append(parts, fmt.Sprintf("%d more", len(where)-i))
			break
		}
		at := fmt.Sprintf("%s:%d", w.Filename, w.Line)
		if w.Line == 0 {
			at = "seen by this run"
		}
		parts = append(parts, fmt.Sprintf("%s %s (%s)", w.Key.Type(), ssh.FingerprintSHA256(w.Key), at))
	}
	return strings.Join(parts, ", ")
}

// remember keeps an accepted key, now that the login succeeded. A file that
// cannot be written costs a warning, as with OpenSSH.
func (d *Dialer) remember(h hop, a *acceptance) error {
	if a == nil || !a.record {
		return nil
	}
	err := d.known.record(h.keyName, a.key, a.replace)
	switch {
	case errors.Is(err, errOtherKey):
		return reason.New(reason.SSHHostKeyChanged, "%s shows %s: %w (%s)", h, ssh.FingerprintSHA256(a.key), err, d.known.own)
	case err != nil:
		d.log.Warn("cannot keep a host key", "host", h.addr(), "file", d.known.own, "error", reason.Line(err.Error()))
	case a.replace:
		d.log.Warn("a booting node has a new host key", "host", h.addr(), "key", ssh.FingerprintSHA256(a.key))
	}
	return nil
}
