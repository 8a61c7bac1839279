package archive

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash"
	"io"

	"cks-etcd/internal/reason"

	"github.com/klauspost/compress/gzip"
)

const (
	// readSize is how much of the input is asked for at a time. Media are read
	// in larger pieces by the kernel's read-ahead.
	readSize = 64 << 10

	// ratioFloor is where the ratio begins to matter: below it a bomb does no
	// harm, and small archives may well be mostly padding.
	ratioFloor = 16 << 20

	// extraFieldLimit bounds the extra fields of all gzip members together. A
	// member may have 64 KiB; bgzip(1) writes 6 bytes for each 64 KiB of data.
	extraFieldLimit = 1 << 20
)

// source is the compressed input: it counts and hashes every byte, and keeps
// the reason why there are no more.
type source struct {
	ctx    context.Context
	r      io.Reader
	limit  int64
	n      int64
	digest hash.Hash
	err    error // outcome of the first failed read, never io.EOF
}

// Read implements io.Reader.
func (s *source) Read(b []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	if s.ctx.Err() != nil {
		s.err = s.ctxError()
		return 0, s.err
	}
	n, err := s.r.Read(b)
	s.digest.Write(b[:n])
	s.n += int64(n)
	switch {
	case err != nil && err != io.EOF:
		s.err = reason.New(reason.ArchiveUnreadable, "at byte %d: %w", s.n, err)
		if s.ctx.Err() != nil { // the reader may have given up for the same reason
			s.err = s.ctxError()
		}
		err = s.err
	case s.n > s.limit:
		s.err = reason.New(reason.ArchiveTooLarge, "it has more than %d bytes", s.limit)
		err = s.err
	}
	return n, err
}

// ctxError is the outcome when ctx has ended. A cause that has a code keeps it.
func (s *source) ctxError() error {
	err, cause := s.ctx.Err(), context.Cause(s.ctx)
	var re *reason.Error
	switch {
	case errors.As(cause, &re):
		return fmt.Errorf("cannot verify the etcd archive: %w", cause)
	case errors.Is(err, context.DeadlineExceeded):
		return reason.New(reason.ArchiveUnreadable, "reading was stopped after %d bytes: %w", s.n, err)
	case cause != err:
		return reason.New(reason.Interrupted, "the etcd archive was read to byte %d: %w: %w", s.n, err, cause)
	}
	return reason.New(reason.Interrupted, "the etcd archive was read to byte %d: %w", s.n, err)
}

// plain is the uncompressed stream: all members of the gzip file (RFC 1952,
// section 2.2) one after the other. It never returns data along with an error,
// and its error stays.
type plain struct {
	src      *source
	br       *bufio.Reader
	z        *gzip.Reader
	limits   Limits
	member   int    // number of the current member, from 1
	out      int64  // uncompressed bytes so far
	head     []byte // the first of them
	budget   int64  // bytes that may be read before it is set again; -1 for any number
	fields   int64  // bytes of the members' extra fields so far
	trailing int64  // bytes after the last member that are not zero
	err      error  // io.EOF, or the outcome
}

func newPlain(src *source, l Limits) *plain {
	return &plain{src: src, br: bufio.NewReaderSize(src, readSize), limits: l, budget: -1}
}

// open reads the first gzip header, or says what the input is instead.
func (p *plain) open() error {
	b, err := p.br.Peek(sniffSize)
	switch {
	case len(b) < 2 && err != io.EOF:
		return p.fail(p.gzipError(err))
	case len(b) == 0:
		return p.fail(reason.New(reason.ArchiveEmpty, "it has 0 bytes"))
	case len(b) < 2 && b[0] == gzipMagic[0]:
		return p.fail(reason.New(reason.ArchiveTruncated, "it ends after 1 byte"))
	case !isGzip(b):
		return p.fail(reason.New(reason.ArchiveNotGzip, "it is %s", whatIs(b)))
	}
	return p.nextMember()
}

// nextMember starts the gzip member that begins here.
func (p *plain) nextMember() error {
	p.member++
	var err error
	if p.z == nil {
		p.z, err = gzip.NewReader(p.br)
	} else {
		err = p.z.Reset(p.br)
	}
	if err != nil {
		return p.fail(p.gzipError(err))
	}
	if p.fields += int64(len(p.z.Extra)); p.fields > extraFieldLimit {
		return p.fail(reason.New(reason.ArchiveTooLarge, "the extra fields of its first %d gzip members have %d bytes", p.member, p.fields))
	}
	p.z.Multistream(false) // the next header is looked at here, since what follows may be padding
	return nil
}

// Read implements io.Reader.
func (p *plain) Read(b []byte) (int, error) {
	if p.err != nil {
		return 0, p.err
	}
	if len(b) == 0 {
		return 0, nil
	}
	if p.budget >= 0 {
		if p.budget == 0 {
			return 0, p.fail(reason.New(reason.ArchiveTooLarge, "at byte %d of the tar the headers of one entry take more than %d bytes", p.out, metaLimit))
		}
		b = b[:min(int64(len(b)), p.budget)]
	}
	for {
		if p.src.ctx.Err() != nil { // a bomb needs no read of the input for megabytes
			return 0, p.fail(p.src.ctxError())
		}
		n, err := p.z.Read(b)
		if err != nil && err != io.EOF {
			return 0, p.fail(p.gzipError(err))
		}
		if n > 0 {
			if err := p.account(b[:n]); err != nil {
				return 0, err
			}
			return n, nil
		}
		if err == io.EOF {
			if err := p.endMember(); err != nil {
				return 0, err
			}
		}
	}
}

// account counts what was read and holds it against the limits.
func (p *plain) account(b []byte) error {
	p.out += int64(len(b))
	if p.budget >= 0 {
		p.budget -= int64(len(b))
	}
	if room := sniffSize - len(p.head); room > 0 {
		p.head = append(p.head, b[:min(room, len(b))]...)
	}
	if p.out > p.limits.Bytes {
		return p.fail(reason.New(reason.ArchiveTooLarge, "uncompressed it has more than %d bytes", p.limits.Bytes))
	}
	if in := p.src.n - int64(p.br.Buffered()); p.out > ratioFloor && p.out/p.limits.Ratio > in {
		return p.fail(reason.New(reason.ArchiveTooLarge, "%d bytes of it become %d, more than %d times as many", in, p.out, p.limits.Ratio))
	}
	return nil
}

// endMember goes on to the next member. After the last one it reads the input
// to its end, and returns io.EOF. As with gzip(1), zeros may follow (padding to
// a block of the medium), and anything else is ignored but counted.
func (p *plain) endMember() error {
	b, _ := p.br.Peek(2)
	if isGzip(b) {
		return p.nextMember()
	}
	for {
		b, err := p.br.Peek(1)
		if len(b) == 0 {
			if p.src.err != nil {
				return p.fail(p.src.err)
			}
			if err != io.EOF {
				return p.fail(p.gzipError(err))
			}
			return p.fail(io.EOF)
		}
		b, _ = p.br.Peek(p.br.Buffered())
		for _, c := range b {
			if c != 0 {
				p.trailing++
			}
		}
		p.br.Discard(len(b)) // what is buffered can be discarded
	}
}

// drain reads to the end of the input, through buf. It returns nil when everything was
// intact, and else the outcome.
func (p *plain) drain(buf []byte) error {
	for p.err == nil {
		p.Read(buf)
	}
	if p.err == io.EOF {
		return nil
	}
	return p.err
}

// atEnd reports whether the reader above was told that the stream has ended.
func (p *plain) atEnd() bool { return p.err == io.EOF }

// failed reports whether the stream ended with something else than its end.
func (p *plain) failed() bool { return p.err != nil && p.err != io.EOF }

func (p *plain) fail(err error) error {
	p.err = err
	return err
}

// gzipError turns an error of the decompressor into an outcome.
func (p *plain) gzipError(err error) error {
	at := p.src.n - int64(p.br.Buffered())
	switch {
	case p.src.err != nil:
		return p.src.err
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return reason.New(reason.ArchiveTruncated, "it ends after %d bytes, inside the gzip stream", at)
	case errors.Is(err, io.ErrNoProgress):
		return reason.New(reason.ArchiveUnreadable, "at byte %d: %w", at, err)
	case errors.Is(err, gzip.ErrChecksum):
		return reason.New(reason.ArchiveChecksum, "CRC-32 or length is not that of the data (gzip member %d, which ends at byte %d)", p.member, at)
	case errors.Is(err, gzip.ErrHeader):
		return reason.New(reason.ArchiveChecksum, "the header of gzip member %d is damaged", p.member)
	}
	return reason.New(reason.ArchiveChecksum, "the compressed data is damaged near byte %d: %w", at, err)
}
