package archive

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"strings"

	"cks-etcd/internal/reason"
)

const (
	// copySize is how much of a program is copied at a time.
	copySize = 64 << 10

	// metaLimit bounds what the tar reader takes in for one entry besides its
	// data: the header block and the pax, GNU long name and sparse map records
	// before it. archive/tar itself allows 1 MiB of pax records, which it turns
	// into 20 MiB of maps.
	metaLimit = 64 << 10

	// plainMeta is what an entry of any common tar needs of that: a pax header
	// with its block of records, the entry's own header, and the padding before.
	plainMeta = 4 * 512

	// extraLimit bounds what all entries together take beyond plainMeta, since
	// the collector lets garbage grow to as much as the rest of the process has.
	extraLimit = 256 << 10
)

// verifier is one run of Verify.
type verifier struct {
	want   Want
	sink   Sink
	src    *source
	plain  *plain
	tar    *tar.Reader
	buf    []byte
	first  string // name of the first entry, for the message that no etcd is there
	count  int    // entries so far
	filled int64  // bytes of the entries so far, holes of sparse files included
	extra  int64  // bytes of headers so far, beyond plainMeta for each entry
	staged []*program
}

// program is one that was given to the sink.
type program struct {
	name   string // "etcd", ...
	entry  string // its name in the archive
	size   int64
	digest hash.Hash
	elf    *elfFile
	file   Staged
}

func newVerifier(ctx context.Context, r io.Reader, w Want, s Sink) (*verifier, error) {
	if w.SHA256 != "" {
		if d, err := hex.DecodeString(w.SHA256); err != nil || len(d) != sha256.Size {
			return nil, reason.New(reason.Usage, "%q is not a SHA-256 digest of %d hex digits", w.SHA256, 2*sha256.Size)
		}
	}
	w.Limits = w.Limits.withDefaults()
	src := &source{ctx: ctx, r: r, limit: w.Limits.Bytes, digest: sha256.New()}
	return &verifier{want: w, sink: s, src: src, plain: newPlain(src, w.Limits), buf: make([]byte, copySize)}, nil
}

// run verifies the archive. An error that is about the contents stands only
// when the rest of the gzip stream is intact.
func (v *verifier) run() (*Result, error) {
	if err := v.plain.open(); err != nil {
		return nil, err
	}
	v.tar = tar.NewReader(v.plain)
	err := v.walk()
	if v.plain.failed() {
		return nil, v.plain.err
	}
	var se *sinkError
	if errors.As(err, &se) || reason.Of(err) == reason.ArchiveTooLarge {
		return nil, err
	}
	// Also after the tar's end marker: its padding, and the CRC behind it.
	derr := v.plain.drain(v.buf)
	if derr != nil && (err == nil || reason.Of(derr) != reason.ArchiveTooLarge) {
		return nil, derr
	}
	digest := hex.EncodeToString(v.src.digest.Sum(nil))
	if want := strings.ToLower(v.want.SHA256); want != "" && want != digest && derr == nil {
		return nil, reason.New(reason.ArchiveDigest, "SHA-256 is %s, expected is %s", digest, want)
	}
	if err != nil {
		return nil, err
	}
	return v.finish(digest)
}

// walk goes through the tar up to its end marker and stages the programs.
func (v *verifier) walk() error {
	for {
		h, err := v.next()
		if err == io.EOF {
			return v.end()
		}
		if err != nil {
			return v.tarError(err)
		}
		if h.Typeflag == tar.TypeXGlobalHeader {
			continue // records for all entries, as 'git archive' writes; nothing is extracted
		}
		if err := checkName(h.Name); err != nil {
			return err
		}
		if name, ok := programName(h); ok {
			if err := v.take(name, h); err != nil {
				return err
			}
		}
		// Skipped here and not by the tar reader, so that what the tar reader
		// takes on its own is nothing but headers.
		if _, err := v.copy(io.Discard); err != nil {
			return err
		}
	}
}

// next returns the next entry within the limits. The error is io.EOF at the
// end of the tar, marked or not.
func (v *verifier) next() (*tar.Header, error) {
	v.plain.budget = metaLimit
	h, err := v.tar.Next()
	v.extra += max(metaLimit-v.plain.budget-plainMeta, 0)
	v.plain.budget = -1
	if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // checkName says more about such a path
		return nil, err
	}
	if v.count++; v.count > v.want.Limits.Entries {
		return nil, reason.New(reason.ArchiveTooLarge, "it has more than %d entries", v.want.Limits.Entries)
	}
	if v.extra > extraLimit {
		return nil, reason.New(reason.ArchiveTooLarge, "the headers of its first %d entries are longer than usual by %d bytes", v.count, v.extra)
	}
	if v.count == 1 {
		v.first = h.Name
	}
	if hasData(h.Typeflag) {
		// The size of a sparse file is a claim that no data has to back.
		if h.Size > v.want.Limits.Bytes-v.filled {
			return nil, reason.New(reason.ArchiveTooLarge, "with %q it has more than %d bytes", h.Name, v.want.Limits.Bytes)
		}
		v.filled += h.Size
	}
	return h, nil
}

// end judges the end of the tar: two blocks of zeros (POSIX.1-2017 pax, ustar
// interchange format), which archive/tar does not insist on.
func (v *verifier) end() error {
	if !v.plain.atEnd() {
		return nil
	}
	if v.plain.out == 0 {
		return reason.New(reason.ArchiveEmpty, "it is a gzip stream of 0 bytes")
	}
	return reason.New(reason.ArchiveNoEnd, "the tar ends after %d bytes and %d entries without two blocks of zeros", v.plain.out, v.count)
}

// tarError turns an error of the tar reader into an outcome. Errors of the
// stream below are found in v.plain and do not come here to be judged.
func (v *verifier) tarError(err error) error {
	var re *reason.Error
	switch {
	case errors.As(err, &re):
		return err
	case v.count == 0 && !isTar(v.plain.head):
		return reason.New(reason.ArchiveTarDamaged, "what it holds is no tar but %s", whatIs(v.plain.head))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return reason.New(reason.ArchiveNoEnd, "the tar ends after %d bytes, in the middle of an entry", v.plain.out)
	}
	return reason.New(reason.ArchiveTarDamaged, "after entry %d, at byte %d: %w", v.count, v.plain.out, err)
}

// take stages a program.
func (v *verifier) take(name string, h *tar.Header) error {
	if what := kind(h.Typeflag); what != "" {
		return notRegular(h, what)
	}
	for _, p := range v.staged {
		if p.name == name {
			return reason.New(reason.ArchiveTwoEtcd, "%s is there as %q and as %q", name, p.entry, h.Name)
		}
	}
	if h.Size > v.want.Limits.Binary {
		return reason.New(reason.ArchiveTooLarge, "%s has %d bytes, more than %d", name, h.Size, v.want.Limits.Binary)
	}

	head := make([]byte, min(h.Size, sniffSize))
	if _, err := io.ReadFull(v.tar, head); err != nil {
		return v.tarError(err)
	}
	ef, err := parseELF(name, head)
	if err != nil {
		return err
	}
	if err := v.checkArch(name, ef.arch); err != nil {
		return err
	}

	p := &program{name: name, entry: h.Name, size: h.Size, digest: sha256.New(), elf: ef}
	p.file, err = v.sink.Create(name, h.Size)
	if err != nil {
		return &sinkError{fmt.Errorf("cannot stage %s: %w", name, err)}
	}
	v.staged = append(v.staged, p)
	if err := p.write(head); err != nil {
		return err
	}
	n, err := v.copy(p)
	if err == nil && n+int64(len(head)) != h.Size {
		err = reason.New(reason.ArchiveTarDamaged, "%s has %d bytes, not the %d of its header", name, n+int64(len(head)), h.Size)
	}
	return err
}

// checkArch compares a program's architecture with the node's, or where that
// does not matter with the programs' before it.
func (v *verifier) checkArch(name, arch string) error {
	switch {
	case v.want.Arch != "" && arch != v.want.Arch:
		return reason.New(reason.ArchiveWrongArch, "%s in it is for %s, and not for %s", name, arch, v.want.Arch)
	case v.want.Arch == "" && len(v.staged) > 0 && arch != v.staged[0].elf.arch:
		return reason.New(reason.ArchiveWrongArch, "%s in it is for %s, %s is for %s", name, arch, v.staged[0].name, v.staged[0].elf.arch)
	}
	return nil
}

// copy moves the rest of the tar's current entry to w and returns how much it
// was.
func (v *verifier) copy(w io.Writer) (int64, error) {
	var total int64
	for {
		if err := v.src.ctx.Err(); err != nil { // a hole is filled without a read below
			return total, v.plain.fail(v.src.ctxError())
		}
		n, err := v.tar.Read(v.buf)
		total += int64(n)
		if n > 0 {
			if _, werr := w.Write(v.buf[:n]); werr != nil {
				return total, werr
			}
		}
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, v.tarError(err)
		}
	}
}

// finish judges the programs of an archive that is intact and has this digest.
func (v *verifier) finish(digest string) (*Result, error) {
	res := &Result{SHA256: digest, Size: v.src.n, Trailing: v.plain.trailing}
	byName := make(map[string]*program, len(v.staged))
	for _, p := range v.staged {
		byName[p.name] = p
	}
	if byName["etcd"] == nil {
		if v.count == 0 {
			return nil, reason.New(reason.ArchiveNoEtcd, "the tar has no entries")
		}
		return nil, reason.New(reason.ArchiveNoEtcd, "none of its %d entries is the program; the first is %q", v.count, v.first)
	}
	for _, name := range programs() {
		p := byName[name]
		if p == nil {
			continue
		}
		if err := p.elf.load(p.name, p.file, p.size); err != nil {
			return nil, err
		}
		version := ""
		switch bi, err := readBuildInfo(p.file, p.elf); {
		case err == nil:
			version = etcdVersion(bi)
		case !errors.Is(err, errNoBuildInfo):
			return nil, fmt.Errorf("cannot read the staged %s: %w", p.name, err)
		}
		if version == "" {
			version = dirVersion(p.entry)
		}
		res.Binaries = append(res.Binaries, Binary{
			Name: p.name, Size: p.size, Version: version, Arch: p.elf.arch,
			SHA256: hex.EncodeToString(p.digest.Sum(nil)),
		})
	}
	res.Version, res.Arch = res.Binaries[0].Version, res.Binaries[0].Arch
	return res, nil
}

// close closes what was staged and returns the first error.
func (v *verifier) close() error {
	var first error
	for _, p := range v.staged {
		if err := p.file.Close(); err != nil && first == nil {
			first = &sinkError{fmt.Errorf("cannot close the staged %s: %w", p.name, err)}
		}
	}
	return first
}

func (p *program) write(b []byte) error {
	_, err := p.Write(b)
	return err
}

// Write implements io.Writer. Its errors are the sink's.
func (p *program) Write(b []byte) (int, error) {
	p.digest.Write(b)
	n, err := p.file.Write(b)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	if err != nil {
		return n, &sinkError{fmt.Errorf("cannot stage %s: %w", p.name, err)}
	}
	return n, nil
}

// sinkError marks an error of the sink: it says nothing about the archive.
type sinkError struct{ err error }

func (e *sinkError) Error() string { return e.err.Error() }
func (e *sinkError) Unwrap() error { return e.err }
