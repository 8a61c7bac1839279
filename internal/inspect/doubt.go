package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"cks-etcd/internal/isofs"
)

const (
	sectorSize      = 2048 // ECMA-119 6.1.2
	firstDescriptor = 16   // ECMA-119 6.2.1
	// maxDescriptors is how many sectors are searched for volume descriptors, as
	// in Linux and package isofs.
	maxDescriptors = 84
)

// doubt says why a file that was not found may be there all the same: one bit
// of damage in the right place leaves an image that is well formed, and shown
// by Linux without the file. nil: it certainly is not there.
func (c *checker) doubt(name string) error {
	// Rock Ridge records whether a file is a directory twice, and its names do
	// not depend on any other descriptor than the first.
	if c.img.Names() == isofs.RockRidge {
		return nil
	}
	if err := c.doubtDescriptors(); err != nil {
		return err
	}
	return c.doubtWay(name)
}

// doubtDir says why the directory of that name may be a file: it does not read
// as a directory. nil: it is one.
func (c *checker) doubtDir(name string) error {
	if _, err := c.img.Lookup(path.Join(name, "etcd")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// doubtWay looks for a directory on the way to name that is recorded as a file.
func (c *checker) doubtWay(name string) error {
	for i, b := range name {
		if b != '/' {
			continue
		}
		f, err := c.img.Lookup(name[:i])
		if errors.Is(err, fs.ErrNotExist) {
			return nil // not even that is there
		}
		if err != nil {
			return err
		}
		if f.IsDir() {
			continue
		}
		// A directory begins with a record of itself (ECMA-119 6.8.2.2 and 9.1).
		var head [34]byte
		if f.Size() < int64(len(head)) {
			return nil
		}
		if _, err := f.Reader().ReadAt(head[:], 0); err != nil {
			return err
		}
		const directory = 0x02 // ECMA-119 9.1.6
		if int(head[0]) >= len(head) && head[25]&directory != 0 && head[32] == 1 && head[33] == 0 {
			return &isofs.Error{Sector: -1, What: fmt.Sprintf("%q is recorded as a file and holds a directory", name[:i])}
		}
		return nil
	}
	return nil
}

// doubtDescriptors looks for a volume descriptor that may have been the one of
// the Joliet names: where that is damaged, Linux shows the plain names, among
// which hardly any is the wanted one.
func (c *checker) doubtDescriptors() error {
	var d [sectorSize]byte
	for n := int64(firstDescriptor); n < firstDescriptor+maxDescriptors; n++ {
		if k, err := c.raw.ReadAt(d[:], n*sectorSize); k < len(d) {
			return &isofs.Error{Sector: n, What: "cannot read the volume descriptors", Err: err}
		}
		what := ""
		switch kind := d[0]; { // ECMA-119 8.1.1
		case string(d[1:6]) != "CD001":
			what = "there is no volume descriptor where one must be"
		case kind == 255: // the end of the set
			return nil
		case kind == 0 && !bytes.HasPrefix(d[7:], []byte("EL TORITO SPECIFICATION")):
			what = "it is a boot record of an unknown kind"
		case kind == 2 && !joliet(d[88:120]) && !blank(d[88:120]): // ECMA-119 8.5.6
			what = "it is a supplementary volume descriptor of an unknown kind"
		case kind > 2:
			what = fmt.Sprintf("it is a volume descriptor of the unknown type %d", kind)
		}
		if what != "" {
			return &isofs.Error{Sector: n, What: "cannot tell which names the image has: " + what}
		}
	}
	return &isofs.Error{Sector: firstDescriptor + maxDescriptors, What: "the volume descriptors do not end"}
}

// joliet reports whether escape sequences are those of UCS-2 level 1, 2 or 3.
func joliet(escapes []byte) bool {
	return string(escapes[:2]) == "%/" && strings.IndexByte("@CE", escapes[2]) >= 0
}

// blank reports whether there are none, as in the enhanced volume descriptor of
// ISO 9660:1999.
func blank(escapes []byte) bool { return len(bytes.Trim(escapes, "\x00 ")) == 0 }
