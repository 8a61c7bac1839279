package media

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"cks-etcd/internal/isofs"
)

// An identity tells one medium from another in the same place.
type identity struct {
	digest [sha256.Size]byte
	size   int64 // of the device; -1 when unknown
}

// A volume is an open ISO: an image read from its device, or a mounted one.
type volume interface {
	// stat describes the file name. It never follows a symlink in an image.
	// The error is fs.ErrNotExist only when the file is certainly not there.
	stat(name string) (fs.FileInfo, error)

	// open returns the contents of the regular file name. Reads that come
	// short end with an error other than io.EOF.
	open(name string) (io.ReadCloser, int64, error)

	// list returns the names of up to n entries of a directory, in any order,
	// and nothing when it cannot be read.
	list(dir string, n int) []string

	volumeID() string // "" when it cannot be told
	names() string    // the kind of names the files are found by
	id() identity
	io.Closer
}

// openImage opens the ISO on d. Errors are those of system.openDevice, or of
// isofs.OpenSession.
func openImage(sys system, d device) (volume, error) {
	dk, err := sys.openDevice(d)
	if err != nil {
		return nil, &openError{err}
	}
	img, err := isofs.OpenSession(dk, dk.size(), dk.session())
	if err != nil {
		dk.Close()
		return nil, err
	}
	return &image{Image: img, disk: dk}, nil
}

// An openError says that a device or mount could not be opened at all.
type openError struct{ error }

func (e *openError) Unwrap() error { return e.error }

type image struct {
	*isofs.Image
	disk disk
}

func (v *image) stat(name string) (fs.FileInfo, error) {
	f, err := v.Lookup(name)
	if err != nil {
		return nil, err
	}
	if f.Mode().IsRegular() {
		// A file that ends outside of the image is as good as unreadable.
		if err := f.CheckExtents(); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (v *image) open(name string) (io.ReadCloser, int64, error) {
	f, err := v.Lookup(name)
	if err != nil {
		return nil, 0, err
	}
	if !f.Mode().IsRegular() {
		return nil, 0, notRegular(f)
	}
	return io.NopCloser(f.Reader()), f.Size(), nil
}

func (v *image) list(dir string, n int) []string { return listDir(v.Image, dir, n) }
func (v *image) volumeID() string                { return v.VolumeID() }
func (v *image) names() string                   { return v.Names().String() }
func (v *image) id() identity                    { return identity{v.Digest(), v.disk.size()} }
func (v *image) Close() error                    { return v.disk.Close() }

// openMounted opens the mounted ISO m. What identifies it is the archive as
// the mount shows it, since its volume descriptors are out of sight.
func openMounted(sys system, m mount, archive string) (volume, error) {
	t, err := sys.openMount(m)
	if err != nil {
		return nil, &openError{err}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s %q", m.num, m.point)
	if i, err := t.Stat(archive); err == nil {
		fmt.Fprintf(h, " %d %s", i.Size(), i.ModTime().UTC())
	}
	v := &mounted{tree: t, ident: identity{size: -1}}
	h.Sum(v.ident.digest[:0])
	return v, nil
}

type mounted struct {
	tree
	ident identity
}

func (v *mounted) stat(name string) (fs.FileInfo, error) { return v.tree.Stat(name) }

func (v *mounted) open(name string) (io.ReadCloser, int64, error) {
	f, err := v.tree.Open(name)
	if err != nil {
		return nil, 0, err
	}
	i, err := f.Stat()
	if err == nil && !i.Mode().IsRegular() {
		err = notRegular(i)
	}
	if err != nil {
		f.Close()
		return nil, 0, err
	}
	return &exactly{f, i.Size()}, i.Size(), nil
}

func (v *mounted) list(dir string, n int) []string { return listDir(v.tree, dir, n) }
func (v *mounted) volumeID() string                { return "" }
func (v *mounted) names() string                   { return "mounted" }
func (v *mounted) id() identity                    { return v.ident }

// exactly reads a file that must have left bytes still.
type exactly struct {
	fs.File
	left int64
}

func (e *exactly) Read(p []byte) (int, error) {
	n, err := e.File.Read(p)
	e.left -= int64(n)
	if errors.Is(err, io.EOF) && e.left > 0 {
		err = fmt.Errorf("%d bytes missing at its end: %w", e.left, io.ErrUnexpectedEOF)
	}
	return n, err
}

func notRegular(i fs.FileInfo) error {
	return fmt.Errorf("%s is %s", i.Name(), modeName(i.Mode()))
}

func modeName(m fs.FileMode) string {
	switch {
	case m.IsRegular():
		return "a file"
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link"
	}
	return "a special file"
}

func listDir(fsys fs.FS, dir string, n int) []string {
	f, err := fsys.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	d, ok := f.(fs.ReadDirFile)
	if !ok {
		return nil
	}
	entries, _ := d.ReadDir(n)
	var list []string
	for _, e := range entries {
		list = append(list, strings.TrimSuffix(path.Base(e.Name()), "/"))
	}
	return list
}
