package marker

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/unixfs"
)

// noReason is the line of a marker for which the caller had none.
const noReason = "etcd setup failed without a reason"

// Write makes the file path hold exactly line and a line break, with mode 0644
// whatever the umask, atomically: a reader sees the old content or the new one.
// line goes through reason.Line; an empty one gets a text that says so.
//
// Whatever sits at path is replaced and nothing is followed: of a link the link
// itself, its target stays untouched; a directory, empty or not, is moved aside
// to a name beside it that begins with that of path. The directory of path must
// exist and must not be a link; it is not made, because it is somebody's home.
func Write(path, line string) error {
	text := reason.Line(line)
	if text == "" {
		text = noReason
	}
	if err := write(path, []byte(text+"\n")); err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// Remove removes what Write wrote. It is nil when there is nothing at path or
// path's directory does not exist. A link is removed itself, a directory is
// moved aside as Write does.
func Remove(path string) error {
	d, err := openDir(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	defer d.close()
	if err := d.remove(); err != nil {
		return fmt.Errorf("cannot remove %s: %w", path, err)
	}
	return nil
}

// Read returns the line of the marker at path, see ParseLine. It does not follow
// a link at path and does not wait for a pipe: what is no regular file is an
// error. errors.Is(err, fs.ErrNotExist) tells that there is no marker.
func Read(path string) (string, error) {
	b, err := read(path, maxMarker)
	if err != nil {
		return "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	return ParseLine(b), nil
}

// WriteState writes s to path as Write does a line. Fields are first brought to
// the form that State documents: lines made printable, the class taken from the
// code, a missing hint too. The directory of path is made with mode 0755 when it
// is missing. A Result that is none, or that contradicts the code, is an error.
func WriteState(path string, s State) error {
	b, err := encode(s)
	if err == nil {
		err = unixfs.MakeDirs(filepath.Dir(filepath.Clean(path)))
	}
	if err == nil {
		err = write(path, b)
	}
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", path, err)
	}
	return nil
}

// ReadState reads what WriteState wrote, under the conditions of Read and
// ParseState.
func ReadState(path string) (State, error) {
	b, err := read(path, maxState+1)
	if err != nil {
		return State{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	s, err := ParseState(b)
	if err != nil {
		return State{}, fmt.Errorf("%s: %w", path, err)
	}
	return s, nil
}

func write(path string, data []byte) error {
	d, err := openDir(path)
	if err != nil {
		return err
	}
	defer d.close()
	return d.replace(data)
}

// read returns the first limit bytes of the regular file path.
func read(path string, limit int64) ([]byte, error) {
	// O_NONBLOCK: opening a pipe without a writer must not wait for one.
	var fd int
	err := unixfs.Retry(func() (err error) {
		fd, err = unix.Open(path, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
		return err
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, errors.New("it is a symbolic link")
	}
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	return io.ReadAll(io.LimitReader(f, limit))
}
