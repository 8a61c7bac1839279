package isofs

import (
	"errors"
	"io"
)

// source is the image as bytes. It knows where they end, so that no read and
// no allocation follows a claim beyond that.
type source struct {
	r       io.ReaderAt
	size    int64 // bytes of the image; negative: unknown
	claimed int64 // bytes the volume descriptor claims; 0: not known yet
}

// readSome reads len(p) bytes at off. Fewer come only with an error: an
// *outsideError when the image has ended, otherwise the reader's own.
func (s *source) readSome(p []byte, off int64) (int, error) {
	if err := s.contains(off, int64(len(p))); err != nil {
		if off >= s.size {
			return 0, err
		}
		n, rerr := s.readSome(p[:s.size-off], off)
		if rerr != nil {
			err = rerr
		}
		return n, err
	}
	n, err := s.r.ReadAt(p, off)
	if n == len(p) {
		return n, nil
	}
	if err == nil || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = &outsideError{claimed: s.claimed, have: s.size, end: off + int64(n)}
	}
	return n, err
}

// contains returns an *outsideError if n bytes at off are known not to lie in
// the image.
func (s *source) contains(off, n int64) error {
	if s.size < 0 || (off <= s.size && n <= s.size-off) {
		return nil
	}
	return &outsideError{claimed: s.claimed, have: s.size, end: s.size}
}

// ended reports whether err is about the end of the image, which no other
// read behind it can mend.
func ended(err error) bool {
	_, ok := errors.AsType[*outsideError](err)
	return ok
}
