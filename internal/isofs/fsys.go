package isofs

import (
	"errors"
	"io"
	"io/fs"
	"slices"
	"strings"
)

// maxEntries is how many entries a listing may have: five times what the
// largest directories that were seen hold, in a few hundred megabytes.
const maxEntries = 500_000

var (
	_ fs.ReadDirFS  = (*Image)(nil)
	_ fs.ReadFileFS = (*Image)(nil)
	_ fs.StatFS     = (*Image)(nil)
	_ fs.ReadLinkFS = (*Image)(nil)
)

// Open opens the named file for reading ([fs.FS]). A symbolic link is not
// followed: it opens, tells what it is, and cannot be read. Errors are those of
// [Image.Lookup] in a [*fs.PathError].
func (im *Image) Open(name string) (fs.File, error) {
	f, err := im.lookup("open", name)
	if err != nil {
		return nil, err
	}
	if f.IsDir() {
		return &openDir{f: f}, nil
	}
	return &openFile{SectionReader: f.Reader(), f: f}, nil
}

// Stat describes the named file ([fs.StatFS]), which it does not follow if it
// is a symbolic link.
func (im *Image) Stat(name string) (fs.FileInfo, error) {
	f, err := im.lookup("stat", name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Lstat is the same as [Image.Stat] ([fs.ReadLinkFS]).
func (im *Image) Lstat(name string) (fs.FileInfo, error) {
	f, err := im.lookup("lstat", name)
	if err != nil {
		return nil, err
	}
	return f, nil
}

// ReadLink returns the target of the named symbolic link ([fs.ReadLinkFS]).
func (im *Image) ReadLink(name string) (string, error) {
	f, err := im.lookup("readlink", name)
	if err != nil {
		return "", err
	}
	if f.mode.Type() != fs.ModeSymlink {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: fs.ErrInvalid}
	}
	return f.link, nil
}

// ReadFile returns the content of the named file ([fs.ReadFileFS]).
func (im *Image) ReadFile(name string) ([]byte, error) {
	f, err := im.lookup("readfile", name)
	if err != nil {
		return nil, err
	}
	if err := f.CheckExtents(); err != nil {
		return nil, &fs.PathError{Op: "readfile", Path: name, Err: err}
	}
	// Grow with what is read, not to what is claimed.
	data, err := io.ReadAll(f.Reader())
	if err != nil {
		return data, &fs.PathError{Op: "readfile", Path: name, Err: err}
	}
	return data, nil
}

// ReadDir lists the named directory by name ([fs.ReadDirFS]). If it is
// damaged, the entries that could be read come with an [*Error]. Each entry's
// Info returns a [*File].
func (im *Image) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := im.lookup("readdir", name)
	if err != nil {
		return nil, err
	}
	if !f.IsDir() {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: errors.New("not a directory")}
	}
	list, err := im.list(f)
	if err != nil {
		err = &fs.PathError{Op: "readdir", Path: name, Err: err}
	}
	return list, err
}

// lookup is Lookup with a *fs.PathError that names op.
func (im *Image) lookup(op, name string) (*File, error) {
	f, err := im.Lookup(name)
	if err == nil {
		return f, nil
	}
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		err = pe.Err
	}
	return nil, &fs.PathError{Op: op, Path: name, Err: err}
}

// list returns the entries of dir, sorted, and the first thing wrong with the
// directory or with one of its entries.
func (im *Image) list(dir *File) ([]fs.DirEntry, error) {
	var list []fs.DirEntry
	var first error
	fail := func(err error) {
		if first == nil {
			first = err
		}
	}
	damage := im.scan(dir, func(e *entry) {
		if len(list) == maxEntries {
			fail(fault(e.at, nil, "directory %q holds more than %d entries", dir.path, maxEntries))
			return
		}
		f, err := im.file(dir, e)
		if err != nil {
			fail(err)
			return
		}
		list = append(list, fs.FileInfoToDirEntry(f))
	})
	if damage != nil {
		fail(damage)
	}
	slices.SortStableFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	unique := slices.CompactFunc(list, func(a, b fs.DirEntry) bool {
		same := a.Name() == b.Name()
		if same {
			fail(fault(dir.dir.block*im.blockSize, nil, "directory %q holds %q more than once", dir.path, a.Name()))
		}
		return same
	})
	return unique, first
}

// openFile is a file that is not a directory.
type openFile struct {
	*io.SectionReader
	f *File
}

func (o *openFile) Stat() (fs.FileInfo, error) { return o.f, nil }
func (o *openFile) Close() error               { return nil }

// openDir is a directory; it is read at the first call of ReadDir.
type openDir struct {
	f    *File
	list []fs.DirEntry
	err  error // damage, to be reported after the entries
	read bool
}

func (o *openDir) Stat() (fs.FileInfo, error) { return o.f, nil }
func (o *openDir) Close() error               { return nil }

func (o *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: o.f.path, Err: errors.New("is a directory")}
}

// ReadDir implements [fs.ReadDirFile].
func (o *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if !o.read {
		o.list, o.err = o.f.im.list(o.f)
		o.read = true
	}
	if n <= 0 {
		list, err := o.list, o.err
		o.list, o.err = nil, nil
		return list, o.pathError(err)
	}
	if len(o.list) == 0 {
		if err := o.err; err != nil {
			o.err = nil
			return nil, o.pathError(err)
		}
		return nil, io.EOF
	}
	n = min(n, len(o.list))
	list := slices.Clone(o.list[:n])
	o.list = o.list[n:]
	return list, nil
}

func (o *openDir) pathError(err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: "readdir", Path: o.f.path, Err: err}
}
