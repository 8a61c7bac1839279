package isofs

import (
	"errors"
	"io"
	"io/fs"
	"math"
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
	return newLister(dir).rest()
}

// A lister lists a directory, as far as it is asked to: a directory of 64 MiB
// takes hundreds of megabytes to list, and nothing to name its first three
// entries.
type lister struct {
	dir   *File
	scan  *scanner
	list  []fs.DirEntry // what was read and not handed out yet
	wrong error         // the first thing wrong, to be reported after the entries
	ended bool          // the directory was read to its end
}

func newLister(dir *File) *lister {
	l := &lister{dir: dir}
	l.scan = dir.im.newScanner(dir, l.add)
	return l
}

func (l *lister) fail(err error) {
	if l.wrong == nil {
		l.wrong = err
	}
}

// add takes one entry of the directory.
func (l *lister) add(e *entry) {
	if len(l.list) == maxEntries {
		l.fail(fault(e.at, nil, "directory %q holds more than %d entries", l.dir.path, maxEntries))
		return
	}
	f, err := l.dir.im.file(l.dir, e)
	if err != nil {
		l.fail(err)
		return
	}
	l.list = append(l.list, fs.FileInfoToDirEntry(f))
}

// read reads on until there are n entries, or there are no more.
func (l *lister) read(n int) {
	for len(l.list) < n && !l.ended {
		if l.ended = !l.scan.next(); l.ended && l.scan.damage != nil {
			l.fail(l.scan.damage)
		}
	}
}

// some returns up to n entries in the order of the directory; at its end what
// is wrong with it, once, and then io.EOF.
func (l *lister) some(n int) ([]fs.DirEntry, error) {
	l.read(n)
	if len(l.list) == 0 {
		if err := l.wrong; err != nil {
			l.wrong = nil
			return nil, err
		}
		return nil, io.EOF
	}
	n = min(n, len(l.list))
	list := slices.Clone(l.list[:n])
	l.list = slices.Delete(l.list, 0, n)
	return list, nil
}

// rest returns all that is left, sorted, and what is wrong.
func (l *lister) rest() ([]fs.DirEntry, error) {
	l.read(math.MaxInt)
	slices.SortStableFunc(l.list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	unique := slices.CompactFunc(l.list, func(a, b fs.DirEntry) bool {
		same := a.Name() == b.Name()
		if same {
			l.fail(fault(l.dir.dir.block*l.dir.im.blockSize, nil, "directory %q holds %q more than once", l.dir.path, a.Name()))
		}
		return same
	})
	err := l.wrong
	l.list, l.wrong = nil, nil
	return unique, err
}

// openFile is a file that is not a directory.
type openFile struct {
	*io.SectionReader
	f *File
}

func (o *openFile) Stat() (fs.FileInfo, error) { return o.f, nil }
func (o *openFile) Close() error               { return nil }

// openDir is a directory; it is read as far as ReadDir is asked to.
type openDir struct {
	f    *File
	list *lister // nil before the first call of ReadDir
}

func (o *openDir) Stat() (fs.FileInfo, error) { return o.f, nil }
func (o *openDir) Close() error               { return nil }

func (o *openDir) Read([]byte) (int, error) {
	return 0, &fs.PathError{Op: "read", Path: o.f.path, Err: errors.New("is a directory")}
}

// ReadDir implements [fs.ReadDirFile]. With n > 0 the entries come in the order
// of the directory, of which no more is read than they need; two of the same
// name are found only by a call without a limit.
func (o *openDir) ReadDir(n int) ([]fs.DirEntry, error) {
	if o.list == nil {
		o.list = newLister(o.f)
	}
	read := o.list.rest
	if n > 0 {
		read = func() ([]fs.DirEntry, error) { return o.list.some(n) }
	}
	list, err := read()
	if err != nil && err != io.EOF {
		err = &fs.PathError{Op: "readdir", Path: o.f.path, Err: err}
	}
	return list, err
}
