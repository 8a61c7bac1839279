package sshnode

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/skeema/knownhosts"
	"golang.org/x/crypto/ssh"
	xknownhosts "golang.org/x/crypto/ssh/knownhosts"
)

// maxKnownHosts bounds one known_hosts file.
const maxKnownHosts = 64 << 20

// knownHosts answers what is known about host keys, and keeps our own file.
// Each file is parsed once; what this run itself learnt is kept beside it.
type knownHosts struct {
	own string // path of our own file
	log *slog.Logger

	mu      sync.Mutex
	files   map[string]*knownhosts.HostKeyDB // by path; nil: not there, or unusable
	learnt  map[string]ssh.PublicKey         // by host:port; replaces what our own file said
	pending []*recording                     // wait for the next write of our file
	writing bool
}

func newKnownHosts(own string, log *slog.Logger) *knownHosts {
	return &knownHosts{
		own:    own,
		log:    log,
		files:  make(map[string]*knownhosts.HostKeyDB),
		learnt: make(map[string]ssh.PublicKey),
	}
}

// db returns the parsed file, nil where there is none. The caller holds k.mu.
func (k *knownHosts) db(path string) *knownhosts.HostKeyDB {
	db, ok := k.files[path]
	if ok {
		return db
	}
	db, err := readKnownHosts(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// As OpenSSH does; but not silently, since a key may be in there.
		k.log.Warn("a known_hosts file is left out", "file", path, "uid", os.Getuid(), "error", err.Error())
	}
	k.files[path] = db
	return db
}

// readKnownHosts parses the file.
func readKnownHosts(path string) (*knownhosts.HostKeyDB, error) {
	if err := checkKnownHosts(path); err != nil {
		return nil, err
	}
	return knownhosts.NewDB(path)
}

// checkKnownHosts refuses what cannot be read to its end: a device, a fifo, or
// more than maxKnownHosts.
func checkKnownHosts(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() && path != os.DevNull:
		return errors.New("not a regular file")
	case info.Size() > maxKnownHosts:
		return fmt.Errorf("larger than %d bytes", maxKnownHosts)
	}
	return nil
}

// A keyStatus is what the files say about a key that a host showed.
type keyStatus uint8

const (
	keyNew     keyStatus = iota // nothing is known about the host
	keyKnown                    // it is the host's key
	keyChanged                  // the host has another key
	keyRevoked                  // the key must not be used
	keyBadCert                  // a certificate that its authority's line does not make valid
)

// A keyAnswer is a status with where it comes from.
type keyAnswer struct {
	status keyStatus
	where  []xknownhosts.KnownKey // lines that differ, or that revoke
	ownAll bool                   // all of where is from our own file
	err    error                  // of keyBadCert
}

// anyAddr stands for the address of the server, which takes no part: keys are
// looked up by name alone, as OpenSSH does with CheckHostIP=no, its default.
var anyAddr = &net.TCPAddr{IP: net.IPv4zero}

// check looks key up for h.
func (k *knownHosts) check(h hop, key ssh.PublicKey) keyAnswer {
	k.mu.Lock()
	defer k.mu.Unlock()
	a := k.lookup(h, h.keyName, key)
	if a.status == keyNew && h.plain != "" {
		// OpenSSH accepts a key that is known for the host without its port,
		// but does not count another one there as a change.
		if k.lookup(h, h.plain, key).status == keyKnown {
			a.status = keyKnown
		}
	}
	return a
}

// lookup is check for one host:port. The caller holds k.mu.
func (k *knownHosts) lookup(h hop, name string, key ssh.PublicKey) keyAnswer {
	var a keyAnswer
	known := false
	a.ownAll = true
	learnt, have := k.learnt[name]
	if have && equalKeys(learnt, key) {
		known = true
	}
	cert, isCert := key.(*ssh.Certificate)
	for _, path := range k.paths(h) {
		db := k.db(path)
		if db == nil {
			continue
		}
		check := db.HostKeyCallback()
		var revoked *xknownhosts.RevokedError
		plain := []ssh.PublicKey{key}
		if isCert {
			plain = []ssh.PublicKey{cert.Key, cert.SignatureKey}
		}
		for _, p := range plain {
			if errors.As(check(name, anyAddr, p), &revoked) {
				return keyAnswer{status: keyRevoked, where: []xknownhosts.KnownKey{revoked.Revoked}}
			}
		}
		if isCert && !k.hasAuthority(db, name, cert.SignatureKey) {
			continue
		}
		if path == k.own && have {
			continue // our file said it at the start; this run knows better
		}
		err := check(name, anyAddr, key)
		var mismatch *xknownhosts.KeyError
		switch {
		case err == nil:
			known = true
		case isCert:
			a.err = err
		case errors.As(err, &mismatch):
			for _, w := range mismatch.Want {
				if k.hasAuthority(db, name, w.Key) {
					continue // says nothing about plain keys
				}
				a.where = append(a.where, w)
				a.ownAll = a.ownAll && path == k.own
			}
		}
	}
	if have && !known && !isCert {
		a.where = append(a.where, xknownhosts.KnownKey{Key: learnt, Filename: k.own})
	}
	switch {
	case known:
		a.status = keyKnown
	case a.err != nil:
		a.status = keyBadCert
	case len(a.where) > 0:
		a.status = keyChanged
	}
	return a
}

// paths returns the files to look in, ours first.
func (k *knownHosts) paths(h hop) []string {
	if slices.Contains(h.known, k.own) { // ssh_config names our file: it is still ours
		return append([]string{k.own}, slices.DeleteFunc(slices.Clone(h.known), func(s string) bool { return s == k.own })...)
	}
	return append([]string{k.own}, h.known...)
}

// hasAuthority says whether key is that of a @cert-authority line for the host.
func (k *knownHosts) hasAuthority(db *knownhosts.HostKeyDB, name string, key ssh.PublicKey) bool {
	return slices.ContainsFunc(db.HostKeys(name), func(p knownhosts.PublicKey) bool {
		return p.Cert && equalKeys(p.PublicKey, key)
	})
}

// algorithms returns the host key algorithms to offer to h, in order:
// certificates where an authority is known, those of known keys (B38), then
// the other plain ones. Without a known authority no certificate is asked for,
// since it could not be verified.
func (k *knownHosts) algorithms(h hop) []string {
	k.mu.Lock()
	var certs, plain []string
	for _, name := range []string{h.keyName, h.plain} {
		if name == "" {
			continue
		}
		if key, ok := k.learnt[name]; ok {
			plain = append(plain, algorithmsOf(key.Type())...)
		}
		for _, path := range k.paths(h) {
			db := k.db(path)
			if db == nil {
				continue
			}
			for _, key := range db.HostKeys(name) {
				if key.Cert {
					certs = certAlgorithms()
				} else {
					plain = append(plain, algorithmsOf(key.Type())...)
				}
			}
		}
	}
	k.mu.Unlock()
	return unique(slices.Concat(certs, plain, plainAlgorithms()))
}

// plainAlgorithms lists the host key algorithms without certificates in
// OpenSSH's order of preference. ssh-rsa comes last, for servers that know no
// other (SHA-1 is weak, yet better than a node that cannot be asked).
func plainAlgorithms() []string {
	return []string{
		ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA,
	}
}

// certAlgorithms lists the algorithms of host certificates.
func certAlgorithms() []string {
	return []string{
		ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01, ssh.CertAlgoECDSA521v01,
		ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01,
	}
}

// algorithmsOf returns the signature algorithms of a type of key (RFC 8332, section 2).
func algorithmsOf(keyType string) []string {
	if keyType == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256, ssh.KeyAlgoRSA}
	}
	return []string{keyType}
}

// unique returns s without repetitions, in order.
func unique(s []string) []string {
	var out []string
	for _, v := range s {
		if !slices.Contains(out, v) {
			out = append(out, v)
		}
	}
	return out
}

// equalKeys says whether a and b are the same key.
func equalKeys(a, b ssh.PublicKey) bool { return bytes.Equal(a.Marshal(), b.Marshal()) }

// A recording is a key that is to be written to our file.
type recording struct {
	name    string // host:port
	key     ssh.PublicKey
	replace bool // instead of the host's keys that are there
	done    chan error
}

// errOtherKey says that somebody else recorded another key of the host meanwhile.
var errOtherKey = errors.New("another process has just recorded another key")

// record adds the key to our file, or puts it in the place of the one that is
// there. It returns when the file is written. Hosts that are recorded at the
// same time share one write, since a thousand nodes must not cost a thousand
// fsyncs.
func (k *knownHosts) record(name string, key ssh.PublicKey, replace bool) error {
	r := &recording{name: name, key: key, replace: replace, done: make(chan error, 1)}
	k.mu.Lock()
	k.pending = append(k.pending, r)
	if k.writing {
		k.mu.Unlock()
		return <-r.done
	}
	k.writing = true
	for len(k.pending) > 0 {
		batch := k.pending
		k.pending = nil
		k.mu.Unlock()
		errs, err := update(k.own, batch)
		k.mu.Lock()
		for i, b := range batch {
			e := err
			if e == nil {
				e = errs[i]
			}
			if !errors.Is(e, errOtherKey) {
				// Also where the file cannot be written: this run goes on by it.
				k.learnt[b.name] = b.key
			}
			b.done <- e
		}
	}
	k.writing = false
	k.mu.Unlock()
	return <-r.done
}

// update rewrites the file at path under its lock: the batch is added, and all
// other lines stay as they are, those that another process added included. The
// new file takes the old one's place at once, so a reader sees either whole.
func update(path string, batch []*recording) (errs []error, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		path = target // a rename would put a file in the link's place
	}
	if path == os.DevNull { // the way to keep nothing; a rename would replace the device
		_, errs = merge("", batch)
		return errs, nil
	}
	if err := checkKnownHosts(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	unlock, err := lockFile(path+".lock", lockWait)
	if err != nil {
		return nil, err
	}
	defer unlock()
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	lines, errs := merge(string(old), batch)
	if lines == string(old) {
		return errs, nil
	}
	return errs, replaceFile(path, []byte(lines))
}

// merge applies the batch to the text of a known_hosts file.
func merge(old string, batch []*recording) (text string, errs []error) {
	errs = make([]error, len(batch))
	if old != "" && !strings.HasSuffix(old, "\n") {
		old += "\n"
	}
	lines := strings.SplitAfter(old, "\n")
	for i, r := range batch {
		have, other := false, false
		for j, l := range lines {
			key, ok := lineOf(l, r.name)
			switch {
			case !ok:
			case equalKeys(key, r.key):
				have = true
			case r.replace:
				lines[j] = withoutHost(l, r.name)
			default:
				other = true
			}
		}
		switch {
		case have:
		case other:
			errs[i] = errOtherKey
		default:
			lines = append(lines, xknownhosts.Line([]string{r.name}, r.key)+"\n")
		}
	}
	return strings.Join(lines, ""), errs
}

// lineOf returns the key of a known_hosts line without marker that names the
// host literally or hashed. Lines with wildcards are the user's, not ours.
func lineOf(line, name string) (ssh.PublicKey, bool) {
	fields := strings.Fields(line)
	if len(fields) < 3 || strings.HasPrefix(fields[0], "#") || strings.HasPrefix(fields[0], "@") {
		return nil, false
	}
	if !slices.ContainsFunc(strings.Split(fields[0], ","), func(p string) bool { return names(p, name) }) {
		return nil, false
	}
	_, _, key, _, _, err := ssh.ParseKnownHosts([]byte(line))
	if err != nil {
		return nil, false
	}
	return key, true
}

// names says whether the host field p of a line stands for exactly name.
func names(p, name string) bool {
	if strings.HasPrefix(p, "|1|") {
		return hashedFor(p, xknownhosts.Normalize(name))
	}
	return strings.EqualFold(p, xknownhosts.Normalize(name))
}

// withoutHost returns the line without that host, "" where no other is left.
func withoutHost(line, name string) string {
	hosts, rest, _ := strings.Cut(strings.TrimLeft(line, " \t"), " ")
	kept := slices.DeleteFunc(strings.Split(hosts, ","), func(p string) bool { return names(p, name) })
	if len(kept) == 0 {
		return ""
	}
	return strings.Join(kept, ",") + " " + rest
}

// lockWait bounds the wait for another process that writes our file, which
// takes it milliseconds. Past it the login goes on and the key is not kept.
const lockWait = time.Second
