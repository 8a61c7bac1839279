package isofs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
)

// ErrNotISO says that there is no ISO 9660 volume descriptor where one must
// be: whatever this is, it is not an ISO 9660 image. [Open] wraps it.
var ErrNotISO = errors.New("not an ISO 9660 image")

// An Error says that the image could not be read where it matters, because of
// damage, of a failing medium, or of a feature this package does not know. It
// is never an answer about what the image holds: errors.Is(err,
// fs.ErrNotExist) is false for it, whatever the cause.
type Error struct {
	// Sector is the number of the 2048-byte sector at fault, counted from the
	// start of the image; negative where no single one is.
	Sector int64
	// What says what was being read or what is wrong, in one line.
	What string
	// Err is the cause, such as a read error; nil where What says it all.
	Err error
}

func (e *Error) Error() string {
	var b strings.Builder
	if e.Sector >= 0 {
		fmt.Fprintf(&b, "sector %d: ", e.Sector)
	}
	b.WriteString(e.What)
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap returns the cause, except one that would let the error pass for an
// answer: a device node or a URL that went away while it was read says nothing
// about the files on the image.
func (e *Error) Unwrap() error {
	if errors.Is(e.Err, fs.ErrNotExist) {
		return nil
	}
	return e.Err
}

// fault is the *Error for something wrong at the byte offset off.
func fault(off int64, cause error, format string, args ...any) *Error {
	return &Error{Sector: off / sectorSize, What: fmt.Sprintf(format, args...), Err: cause}
}

// outsideError is the cause when data lies, wholly or in part, where the image
// has ended.
type outsideError struct {
	claimed int64 // bytes the volume descriptor claims; 0: not known yet
	have    int64 // bytes of the image; negative: unknown
	end     int64 // where the reader ended, if it did so before have
}

func (e *outsideError) Error() string {
	switch {
	case e.have < 0 || e.end < e.have:
		if e.claimed > e.end {
			return fmt.Sprintf("truncated: the descriptor says %d bytes, reading ended at byte %d", e.claimed, e.end)
		}
		return fmt.Sprintf("truncated: reading ended at byte %d", e.end)
	case e.claimed > e.have:
		return fmt.Sprintf("truncated: the descriptor says %d bytes, the image has %d", e.claimed, e.have)
	default:
		return fmt.Sprintf("outside the image, which has %d bytes", e.have)
	}
}

// Unwrap makes short data what it is to every reader.
func (e *outsideError) Unwrap() error { return io.ErrUnexpectedEOF }
