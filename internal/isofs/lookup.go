package isofs

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// maxDepth is how many elements a path may have. Rock Ridge lifts the limit of
// eight that ECMA-119 6.8.2.1 sets; no tree that somebody made comes near this.
const maxDepth = 256

// Lookup returns the file of that name. Names follow the rules of
// [fs.ValidPath]: relative to the root, separated by slashes, the root itself
// being ".".
//
// The error is [fs.ErrInvalid] for any other name, and [fs.ErrNotExist] only
// after every directory asked was read to its end and was intact. Otherwise it
// is an [*Error]: the medium could not be read, a directory is damaged, the
// record of the file is damaged, two files have the name, or the path leads
// through a symbolic link. Links are never followed; a link at the end of the
// path is returned as what it is.
//
// The content of the file is not looked at: see [File.CheckExtents].
func (im *Image) Lookup(name string) (*File, error) {
	if !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "lookup", Path: name, Err: fs.ErrInvalid}
	}
	f := im.root
	if name == "." {
		return f, nil
	}
	elements := strings.Split(name, "/")
	if len(elements) > maxDepth {
		return nil, &Error{Sector: -1, What: fmt.Sprintf("a path of %d elements is deeper than is looked at", len(elements))}
	}
	passed := make([]*File, 0, len(elements))
	for _, element := range elements {
		switch {
		case f.mode.Type() == fs.ModeSymlink:
			return nil, &Error{Sector: -1, What: fmt.Sprintf("cannot look for %q: %q is a symbolic link to %q, which is not followed", name, f.path, f.link)}
		case !f.IsDir():
			// A record of that name which is damaged may be the directory.
			if err := im.misled(append(passed, f)); err != nil {
				return nil, cannotTell(element, err)
			}
			return nil, notExist(name)
		}
		passed = append(passed, f)
		next, err := im.find(f, element)
		switch {
		case err != nil:
			return nil, err
		case next == nil:
			if err := im.misled(passed); err != nil {
				return nil, cannotTell(element, err)
			}
			return nil, notExist(name)
		case next.IsDir() && slices.ContainsFunc(passed, func(d *File) bool { return d.dir.block == next.dir.block }):
			return nil, fault(next.dir.block*im.blockSize, nil, "directory %q contains itself", next.path)
		}
		f = next
	}
	return f, nil
}

func notExist(name string) error {
	return &fs.PathError{Op: "lookup", Path: name, Err: fs.ErrNotExist}
}

// find returns the entry of dir that has the wanted name, nil without an error
// if there is certainly none. The directory is always read to its end, for a
// second entry of that name makes the first one doubtful.
func (im *Image) find(dir *File, wanted string) (*File, error) {
	var (
		found *File
		err   error
		hits  int
		again int64
	)
	match := im.names.matcher(wanted)
	damage := im.scan(dir, func(e *entry) {
		if !match(e.name) {
			return
		}
		if hits++; hits == 1 {
			found, err = im.file(dir, e)
		} else {
			again = e.at
		}
	})
	switch {
	case hits > 1:
		return nil, fault(again, nil, "directory %q holds %q %d times", dir.path, wanted, hits)
	case hits == 1:
		return found, err
	case damage != nil:
		return nil, cannotTell(wanted, damage)
	}
	return nil, nil
}

// misled says why a path may have led to a wrong file: a directory on it is
// damaged, or one directory that has two names in another is two, one of which
// was mistaken for it. Only an absence needs to know.
func (im *Image) misled(path []*File) error {
	for i, next := range path[1:] {
		names := 0
		damage := im.scan(path[i], func(e *entry) {
			if e.flags&flagDirectory != 0 && next.IsDir() && e.block == next.dir.block {
				names++
			}
		})
		switch {
		case names > 1:
			return fault(next.dir.block*im.blockSize, nil, "directory %q holds directory %q under %d names", path[i].path, next.path, names)
		case damage != nil:
			return damage
		}
	}
	return nil
}

// cannotTell is the error when damage may be why wanted was not found.
func cannotTell(wanted string, damage error) error {
	e, ok := errors.AsType[*Error](damage)
	if !ok {
		e = &Error{Sector: -1, What: damage.Error()}
	}
	return &Error{
		Sector: e.Sector,
		What:   fmt.Sprintf("cannot tell whether %q is there: %s", wanted, e.What),
		Err:    e.Err,
	}
}
