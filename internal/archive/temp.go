package archive

import (
	"errors"
	"fmt"
	"os"
)

// TempSink is a Sink for those who verify and install nothing. Its files have
// no name in the file system, so nothing is left of them however the process
// ends.
type TempSink struct {
	dir   string
	files []*tempFile
}

// NewTempSink returns a sink with files in dir, or in the system's directory
// for temporary files when dir is "". They take as much space as the programs
// have, some 75 MiB, until Verify returns.
func NewTempSink(dir string) *TempSink { return &TempSink{dir: dir} }

// Create implements Sink. It does not use the size, which is a mere claim.
func (s *TempSink) Create(name string, _ int64) (Staged, error) {
	f, err := os.CreateTemp(s.dir, name+"-*")
	if err != nil {
		return nil, fmt.Errorf("cannot create a temporary file: %w", err)
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(fmt.Errorf("cannot unlink a temporary file: %w", err), f.Close())
	}
	t := &tempFile{File: f}
	s.files = append(s.files, t)
	return t, nil
}

// Close closes the files that Verify has not closed. The sink can be used again.
func (s *TempSink) Close() error {
	var errs []error
	for _, f := range s.files {
		errs = append(errs, f.Close())
	}
	s.files = nil
	return errors.Join(errs...)
}

// tempFile is a file that can be closed twice.
type tempFile struct {
	*os.File
	closed bool
}

// Close implements io.Closer.
func (t *tempFile) Close() error {
	if t.closed {
		return nil
	}
	t.closed = true
	return t.File.Close()
}
