package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/reason"
)

// A tracer marks the errors of the reader below, so that a failing medium is
// told from an image that contradicts itself, and makes reads end with ctx.
type tracer struct {
	ctx context.Context
	r   io.ReaderAt
}

// ReadAt implements io.ReaderAt.
func (t *tracer) ReadAt(p []byte, off int64) (int, error) {
	if t.ctx.Err() != nil {
		return 0, &readError{reason.Ended(t.ctx, "reading the ISO")}
	}
	n, err := t.r.ReadAt(p, off)
	_, coded := errors.AsType[*reason.Error](err)
	if err == nil || !coded && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)) {
		return n, err
	}
	return n, &readError{err}
}

// A readError is an error of the medium. It does not unwrap: whatever the cause
// is, it says nothing about the files on the image.
type readError struct{ cause error }

func (e *readError) Error() string { return e.cause.Error() }

// unsure is the outcome when err kept a question from being answered.
func (c *checker) unsure(err error) *reason.Error {
	if re, ok := errors.AsType[*readError](err); ok {
		if coded, ok := errors.AsType[*reason.Error](re.cause); ok {
			return coded
		}
		what := strings.TrimSuffix(err.Error(), ": "+re.Error())
		return reason.New(reason.ISOUnreadable, "%s: %w", what, re.cause)
	}
	if c.truncated() && errors.Is(err, io.ErrUnexpectedEOF) {
		return reason.New(reason.ISOTruncated, "%s", c.shortfall())
	}
	return reason.New(reason.ISODamaged, "%w", err)
}

// truncated reports whether there is less than the volume descriptor claims.
func (c *checker) truncated() bool { return 0 <= c.size && c.size < c.claims }

// shortfall compares what there is with what should be.
func (c *checker) shortfall() string {
	claims, have := amount(c.claims), amount(c.size)
	if claims == have {
		claims, have = fmt.Sprintf("%d bytes", c.claims), fmt.Sprintf("%d bytes", c.size)
	}
	return fmt.Sprintf("the descriptor says %s, the file has %s", claims, have)
}

// amount words a number of bytes in decimal units, as CloudStack shows sizes.
func amount(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{1e9, "GB"}, {1e6, "MB"}, {1e3, "kB"}} {
		if n >= 10*u.size {
			return fmt.Sprintf("%d %s", (n+u.size/2)/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

// unopened is the outcome when the image could not be opened.
func (c *checker) unopened(err error) *reason.Error {
	if !errors.Is(err, isofs.ErrNotISO) {
		return c.unsure(err)
	}
	what := strings.TrimPrefix(err.Error(), isofs.ErrNotISO.Error()+": ")
	// A failed download leaves an empty file or the server's error page.
	head := make([]byte, min(max(c.size, 0), headSize))
	if n, err := c.raw.ReadAt(head, 0); n == len(head) && (err == nil || err == io.EOF) {
		if fault := notGzip(head); fault == nil {
			what = "it is a gzip stream"
		} else if fault.Err != nil && (c.size == 0 || fault.Code == reason.ArchiveNotGzip) {
			what = fault.Err.Error()
		}
	}
	return reason.New(reason.NotISO, "%s", what)
}

// claimed returns the bytes that the first volume descriptor claims, 0 when it
// cannot be told, for an image that ends before its root directory.
func (c *checker) claimed() int64 {
	var d [sectorSize]byte
	if n, _ := c.raw.ReadAt(d[:], firstDescriptor*sectorSize); n < len(d) || string(d[:6]) != "\x01CD001" {
		return 0
	}
	// Volume Space Size and Logical Block Size (ECMA-119 8.4.8 and 8.4.12).
	return int64(binary.LittleEndian.Uint32(d[80:])) * int64(binary.LittleEndian.Uint16(d[128:]))
}

// notFound is the outcome when looking for a file ended with err, which is
// neither yes nor no.
func (c *checker) notFound(name string, err error) *reason.Error {
	for i, b := range name {
		if b != '/' {
			continue
		}
		dir, err := c.img.Lookup(name[:i])
		if err != nil {
			break
		}
		if dir.Mode().Type() == fs.ModeSymlink {
			return linked(name, name[:i], dir.Link())
		}
	}
	return c.unsure(err)
}

// linked is the outcome when the link at leads on to another path. Following it
// would answer about another file than the one asked for.
func linked(name, at, target string) *reason.Error {
	if at != name {
		name += ": " + at
	}
	return reason.New(reason.ISOUnreadable, "%s is a symbolic link to %q, which is not followed", name, target).
		WithHint("ask for the file that the link leads to with --file")
}

// missing is the outcome for a file that is certainly not there. Where there is
// something else under its name, what says so.
func (c *checker) missing(name, what string) *reason.Error {
	code := reason.FileMissing
	if name == EtcdArchive {
		code = reason.ArchiveMissing
	}
	if what != "" {
		return reason.New(code, "%s is %s", name, what)
	}
	list := c.beside(name)
	if len(list) == 0 {
		return reason.New(code, "%s is not on the ISO", name)
	}
	e := reason.New(code, "%s is not on the ISO (%s holds %s)", name, path.Dir(name), strings.Join(list, ", "))
	if c.img.Names() == isofs.Plain {
		e = e.WithHint("the ISO's names may be mangled; rebuild it with Rock Ridge, as mkisofs -R writes it")
	}
	return e
}

// beside names the first few files in the directory where name should be: an
// archive for another architecture, or one under its release's own name.
func (c *checker) beside(name string) []string {
	const few = 3
	dir := path.Dir(name)
	if dir == "." {
		return nil
	}
	f, err := c.img.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil
	}
	entries, _ := d.ReadDir(few) // what cannot be read is not worth naming
	var list []string
	for _, e := range entries {
		list = append(list, fmt.Sprintf("%q", e.Name()))
	}
	return list
}
