package isofs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sort"
	"time"
)

// File is a file, directory or symbolic link on an image: what a directory
// says about it. It implements [fs.FileInfo].
type File struct {
	im      *Image
	path    string // from the root of the image
	name    string
	mode    fs.FileMode
	size    int64
	modTime time.Time
	extents []extent
	ends    []int64 // of the extents, within the file
	dir     location
	link    string
	zisofs  bool
}

// location is where a directory is, as the record that leads to it says.
type location struct {
	block, size int64
	parent      int64 // block of the directory above; negative: not to be checked
}

// Modes of what Rock Ridge does not describe, as Linux sets them by default.
const (
	plainFile      = 0o555
	plainDirectory = fs.ModeDir | 0o555
)

// newFile returns a file that has no more than a path.
func (im *Image) newFile(path string) *File {
	f := &File{im: im, path: path, name: path, mode: plainFile}
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			f.name = path[i+1:]
			break
		}
	}
	return f
}

// setDirectory makes f the directory at a location.
func (f *File) setDirectory(at location) {
	f.mode = plainDirectory
	f.dir = at
	f.size = at.size
}

// setExtents gives f its content.
func (f *File) setExtents(extents []extent) {
	f.extents = extents
	f.ends = make([]int64, len(extents))
	end := int64(0)
	for i, x := range extents {
		end += x.size
		f.ends[i] = end
	}
}

// describe applies what Rock Ridge says about permissions and times.
func (f *File) describe(su *systemUse) {
	if su.hasMode {
		const (
			setuid = 0o4000
			setgid = 0o2000
			sticky = 0o1000
		)
		f.mode = f.mode.Type() | fs.FileMode(su.mode&0o777)
		for _, bit := range []struct {
			posix uint32
			mode  fs.FileMode
		}{{setuid, fs.ModeSetuid}, {setgid, fs.ModeSetgid}, {sticky, fs.ModeSticky}} {
			if su.mode&bit.posix != 0 {
				f.mode |= bit.mode
			}
		}
	}
	if !su.modTime.IsZero() {
		f.modTime = su.modTime
	}
}

// fileType returns the type bits of st_mode, as recorded in PX (RRIP 4.1.1).
func fileType(mode uint32) (fs.FileMode, error) {
	switch mode & 0o170000 {
	case 0o100000:
		return 0, nil
	case 0o040000:
		return fs.ModeDir, nil
	case 0o120000:
		return fs.ModeSymlink, nil
	case 0o010000:
		return fs.ModeNamedPipe, nil
	case 0o020000:
		return fs.ModeDevice | fs.ModeCharDevice, nil
	case 0o060000:
		return fs.ModeDevice, nil
	case 0o140000:
		return fs.ModeSocket, nil
	default:
		return 0, errors.New("its mode has no file type")
	}
}

// file makes a File of an entry in dir. The error is an *Error: the entry has
// that name, but cannot be used.
func (im *Image) file(dir *File, e *entry) (*File, error) {
	path := string(e.name)
	if dir.path != "." {
		path = dir.path + "/" + path
	}
	f := im.newFile(path)
	f.modTime = recordTime(e.date)
	wrong := func(cause error) error { return fault(e.at, cause, "the directory record of %q", path) }
	if e.wrong != nil {
		return nil, wrong(e.wrong)
	}

	su := e.system
	if su.hasChild {
		if err := im.relocate(f, su.child); err != nil {
			return nil, wrong(err)
		}
		return f, nil
	}
	isDir := e.flags&flagDirectory != 0
	var kind fs.FileMode
	if isDir {
		kind = fs.ModeDir
	}
	if su.hasMode {
		k, err := fileType(su.mode)
		if err != nil {
			return nil, wrong(err)
		}
		if (k == fs.ModeDir) != isDir {
			return nil, wrong(errors.New("its mode and its flags differ about whether it is a directory"))
		}
		kind = k
	}
	if su.hasLink && !isDir {
		kind = fs.ModeSymlink
	}
	switch {
	case isDir:
		f.setDirectory(location{block: e.block, size: e.size, parent: dir.dir.block})
	case kind == fs.ModeSymlink:
		f.mode |= kind
		f.link = string(su.link)
		f.size = int64(len(f.link))
	default:
		f.mode |= kind
		f.size = e.size
		f.setExtents(slices.Clone(e.extents))
		if su.zisofs && kind == 0 {
			f.zisofs, f.size = true, su.realSize
		}
	}
	f.describe(su)
	return f, nil
}

// relocate makes f the directory at block, which CL points to (RRIP 4.1.5.1).
// As in Linux everything about it is what the directory itself says.
func (im *Image) relocate(f *File, block int64) error {
	off := block * im.blockSize
	head := make([]byte, sectorSize)
	if _, err := im.src.readSome(head, off); err != nil {
		return fault(off, err, "cannot read the relocated directory")
	}
	dot, wrong := parseRecord(head)
	if wrong == "" {
		wrong = dot.wrongSelf()
	}
	if wrong == "" && dot.block != block {
		wrong = "its first record names another place"
	}
	if wrong != "" {
		return fault(off, errors.New(wrong), "the relocated directory is damaged")
	}
	// Its second record names the directory that it was moved to.
	f.setDirectory(location{block: block, size: dot.size, parent: -1})
	f.modTime = recordTime(dot.date)
	if len(dot.system) > im.skip {
		var su systemUse
		su.parse(dot.system[im.skip:], (&areaReader{im: im}).read)
		if su.hasChild {
			return fault(off, nil, "the relocated directory says that it was relocated")
		}
		if su.wrong == nil {
			f.describe(&su)
		}
	}
	return nil
}

// Name returns the last element of the file's path, as the image spells it.
func (f *File) Name() string { return f.name }

// Size returns the length in bytes: of the content, of the target of a
// symbolic link, or of the records of a directory. It is what the image
// claims; [File.CheckExtents] tells whether there can be so much.
func (f *File) Size() int64 { return f.size }

// Mode returns type and permissions: those of Rock Ridge, else those that
// Linux shows without, 0555.
func (f *File) Mode() fs.FileMode { return f.mode }

// ModTime returns the time of the last modification, or the recording time
// without Rock Ridge; the zero time if none is recorded.
func (f *File) ModTime() time.Time { return f.modTime }

// IsDir reports whether the file is a directory.
func (f *File) IsDir() bool { return f.mode.IsDir() }

// Sys returns nil.
func (f *File) Sys() any { return nil }

// Link returns the target of a symbolic link, "" for everything else.
func (f *File) Link() string { return f.link }

// Reader returns the content, from its first to its last byte; each call
// returns a new reader. Data that ends early is an [*Error] that wraps
// [io.ErrUnexpectedEOF], never an early end; a read error keeps its cause.
// Reading a directory or a symbolic link fails, and so does reading a file
// that is compressed on the image (zisofs), although Linux may do that.
func (f *File) Reader() *io.SectionReader { return io.NewSectionReader(content{f}, 0, f.size) }

// CheckExtents returns an [*Error] unless all content lies in the image. If
// the size of the image is not known, it reads the last byte of each extent.
func (f *File) CheckExtents() error {
	for _, x := range f.extents {
		err := f.im.src.contains(x.off, x.size)
		at := x.off
		if err == nil && f.im.src.size < 0 {
			at = x.off + x.size - 1
			_, err = f.im.src.readSome(make([]byte, 1), at)
		}
		if err != nil {
			return fault(at, err, "the content of %q", f.path)
		}
	}
	return nil
}

// content is the file's bytes as an io.ReaderAt.
type content struct{ f *File }

func (c content) ReadAt(p []byte, off int64) (n int, err error) {
	f := c.f
	switch {
	case f.IsDir():
		return 0, &Error{Sector: -1, What: fmt.Sprintf("cannot read %q", f.path), Err: errors.New("it is a directory")}
	case f.mode.Type() == fs.ModeSymlink:
		return 0, &Error{Sector: -1, What: fmt.Sprintf("cannot read %q", f.path), Err: errors.New("it is a symbolic link, which is not followed")}
	case f.zisofs:
		return 0, &Error{Sector: -1, What: fmt.Sprintf("cannot read %q", f.path), Err: errors.New("it is compressed with zisofs, which is not supported")}
	case off < 0:
		return 0, fs.ErrInvalid
	}
	i := sort.Search(len(f.ends), func(i int) bool { return f.ends[i] > off })
	for ; n < len(p); i++ {
		if i == len(f.extents) {
			return n, io.EOF
		}
		x := f.extents[i]
		skip := off + int64(n) - (f.ends[i] - x.size)
		want := p[n : n+int(min(int64(len(p)-n), x.size-skip))]
		got, err := f.im.src.readSome(want, x.off+skip)
		n += got
		if err != nil {
			return n, fault(x.off+skip+int64(got), err, "cannot read %q", f.path)
		}
	}
	return n, nil
}
