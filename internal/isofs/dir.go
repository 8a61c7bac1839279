package isofs

import (
	"bytes"
	"errors"
	"fmt"
)

const (
	// readChunk is how much of a directory is read at once: enough to make a
	// large one fast, and little to hold.
	readChunk = 32 * sectorSize
	// maxDirectory is the largest directory that is read: one of 250,000 of
	// the longest records. What claims to be larger is taken for damage, so
	// that it cannot keep the reader busy for gigabytes.
	maxDirectory = 64 << 20
	// maxBadSectors is how many sectors of a directory may be unreadable
	// before the rest is given up: a failing drive takes seconds for each.
	maxBadSectors = 8
	// maxExtents is how many extents a file may have. Linux stops there too.
	maxExtents = 100
)

// extent is a run of bytes in the image.
type extent struct{ off, size int64 }

// entry is a named directory entry: the records of one file, joined. It is
// valid only while it is visited.
type entry struct {
	at      int64 // byte offset of the (first) record in the image
	name    []byte
	flags   byte
	date    []byte
	block   int64 // of the first extent
	size    int64
	extents []extent
	system  *systemUse
	wrong   error // why it cannot be used although its name is known
}

// scanner reads a directory from its first to its last record.
type scanner struct {
	im    *Image
	dir   *File
	visit func(*entry)

	off    int64 // of the next sector in the directory
	start  int64 // byte offset of the directory in the image
	size   int64 // bytes of the directory
	chunk  int64 // bytes of the next read
	bad    int   // sectors that could not be read
	buf    []byte
	have   []byte // what of buf is still to be looked at
	index  int    // of the next record in the directory
	areas  areaReader
	su     systemUse
	name   []byte
	cur    entry  // reused for files of one extent
	open   *entry // a file whose last extent is still to come
	openID []byte
	damage error // the first thing wrong
}

// scan calls visit for every entry of dir whose name could be read, in the
// order of the directory, leaving out what Linux does not show. The error is
// the first damage to the directory itself: without one, dir holds these
// entries and no others.
func (im *Image) scan(dir *File, visit func(*entry)) error {
	s := im.newScanner(dir, visit)
	for s.next() {
	}
	return s.damage
}

func (im *Image) newScanner(dir *File, visit func(*entry)) *scanner {
	s := &scanner{im: im, dir: dir, visit: visit, areas: areaReader{im: im}}
	s.begin(dir.dir)
	return s
}

// next visits the entries of one more sector, and reports whether there is
// another.
func (s *scanner) next() bool {
	if s.off < s.size {
		sector, more := s.sector(s.off)
		if sector != nil {
			s.records(sector, s.off)
		}
		s.off += sectorSize
		if more && s.off < s.size {
			return true
		}
	}
	s.close("the directory ends before the last extent of a file")
	s.off = s.size
	return false
}

// fail notes damage at a byte offset in the directory.
func (s *scanner) fail(off int64, cause error, what string) {
	if s.damage == nil {
		s.damage = fault(s.start+off, cause, "directory %q: %s", s.dir.path, what)
	}
}

// begin finds out where the directory is and how long. Linux believes the
// directory's own first record; what differs in the one that led here is
// damage, but no reason not to look.
func (s *scanner) begin(d location) {
	s.start, s.size = d.block*s.im.blockSize, d.size
	s.chunk = min(max(roundUp(d.size), sectorSize), readChunk)
	head := s.head()
	if head == nil {
		s.size = 0
		return
	}
	dot, wrong := parseRecord(head)
	if wrong == "" {
		wrong = dot.wrongSelf()
	}
	switch {
	case wrong != "":
		s.fail(0, errors.New(wrong), "its first record is damaged")
	case dot.block != d.block:
		s.fail(0, nil, fmt.Sprintf("its first record says it is at block %d", dot.block))
		s.start, s.size, s.have = dot.block*s.im.blockSize, dot.size, nil
	case dot.size != d.size:
		s.fail(0, nil, fmt.Sprintf("its first record says it has %d bytes, the one that leads to it %d", dot.size, d.size))
		s.size = dot.size
	}
	switch {
	case s.size > maxDirectory:
		s.fail(0, nil, fmt.Sprintf("it claims %d bytes, more than are looked at", s.size))
		s.size = 0
	case s.size == 0:
		s.fail(0, nil, "it is empty")
	case s.size%sectorSize != 0:
		s.fail(0, nil, fmt.Sprintf("its %d bytes are not whole sectors", s.size))
	}
}

// head returns the first sector of the directory, nil if it cannot be read,
// and leaves it to be looked at again.
func (s *scanner) head() []byte {
	if s.dir == s.im.root {
		s.have = s.im.rootHead
	} else if s.fill(0); len(s.have) == 0 {
		return nil
	}
	return s.have[:sectorSize]
}

// sector returns the sector at off, nil if it cannot be read, and whether to
// go on after it.
func (s *scanner) sector(off int64) (sector []byte, more bool) {
	if len(s.have) == 0 {
		s.chunk = min(s.chunk, roundUp(s.size)-off)
		if more := s.fill(off); len(s.have) == 0 {
			return nil, more
		}
		if s.bad == 0 {
			s.chunk = readChunk
		}
	}
	sector, s.have = s.have[:sectorSize], s.have[sectorSize:]
	return sector, true
}

// fill reads the next chunk, at off. When that fails it goes on by single
// sectors, so that a bad one does not hide the others; more is false when
// there is no point in trying the next one.
func (s *scanner) fill(off int64) (more bool) {
	if int64(len(s.buf)) < s.chunk {
		s.buf = make([]byte, s.chunk)
	}
	n, err := s.im.src.readSome(s.buf[:s.chunk], s.start+off)
	if n < sectorSize && s.chunk > sectorSize && !ended(err) {
		s.chunk = sectorSize
		n, err = s.im.src.readSome(s.buf[:s.chunk], s.start+off)
	}
	s.have = s.buf[:n-n%sectorSize]
	if len(s.have) > 0 {
		return true
	}
	s.fail(off, err, "cannot read it")
	s.bad++
	return !ended(err) && s.bad < maxBadSectors
}

// records reads the records of the sector at off.
func (s *scanner) records(sector []byte, off int64) {
	for pos := 0; pos < len(sector) && off+int64(pos) < s.size; {
		at := off + int64(pos)
		if sector[pos] == 0 {
			// The rest of a sector is unused, and zero (ECMA-119 6.8.1.1).
			switch {
			case pos == 0:
				s.fail(at, nil, "a sector holds no record")
			case len(bytes.TrimLeft(sector[pos:], "\x00")) > 0:
				s.fail(at, nil, "a directory record has length 0")
			}
			return
		}
		rec, wrong := parseRecord(sector[pos:])
		if wrong != "" {
			s.fail(at, nil, wrong)
			if rec.length == 0 {
				return
			}
		} else {
			s.record(&rec, at)
		}
		s.index++
		pos += rec.length
	}
}

// record takes one well-formed record.
func (s *scanner) record(rec *record, at int64) {
	switch {
	case s.index == 0 && rec.special(idSelf):
		return
	case s.index == 1 && rec.special(idParent):
		// Linux does not look at this, but a pointer that was bent often leads
		// to a directory from elsewhere. Some directories are recorded as
		// their own parent: all of xorriso's in a Joliet tree, and those that
		// genisoimage relocates without Rock Ridge.
		if p := s.dir.dir.parent; p >= 0 && rec.block != p && rec.block*s.im.blockSize != s.start {
			s.fail(at, nil, fmt.Sprintf("its second record says that block %d holds the directory above, which is at block %d", rec.block, p))
		}
		return
	case s.index < 2:
		s.fail(at, nil, `it does not begin with "." and ".."`)
	}
	if rec.special(idSelf) || rec.special(idParent) {
		s.fail(at, nil, `a name is "." or ".."`)
		return
	}
	if rec.flags&flagAssociated != 0 {
		return
	}
	if s.open != nil {
		if bytes.Equal(rec.id, s.openID) {
			s.extend(rec)
			return
		}
		s.close("the last extent of a file is missing")
	}
	hidden, err := s.readName(rec)
	if err != nil {
		s.fail(at, err, "a directory record cannot be read")
		return
	}
	if hidden {
		return
	}
	s.cur = entry{
		at: s.start + at, name: s.name, flags: rec.flags, date: rec.date,
		block: rec.block, extents: s.cur.extents[:0], system: &s.su,
	}
	e := &s.cur
	if rec.flags&flagMultiExtent != 0 {
		// Records of one file may lie in different sectors.
		e = new(s.cur)
		e.extents = nil
		e.name, e.date = bytes.Clone(e.name), bytes.Clone(e.date)
		su := s.su
		su.name, su.link = nil, bytes.Clone(su.link)
		e.system = &su
		s.open, s.openID = e, bytes.Clone(rec.id)
		s.extend(rec)
		return
	}
	s.add(e, rec)
	s.visit(e)
}

// extend adds rec to the file that is open, and visits it after its last.
func (s *scanner) extend(rec *record) {
	e := s.open
	if rec.flags&flagDirectory != 0 {
		e.wrong = errors.New("a directory has several extents")
	}
	if rec.flags&flagMultiExtent != 0 && rec.size%s.im.blockSize != 0 {
		e.wrong = errors.New("an extent that is not the last ends within a block")
	}
	s.add(e, rec)
	if rec.flags&flagMultiExtent == 0 {
		s.open = nil
		s.visit(e)
	}
}

// add adds the extent of rec.
func (s *scanner) add(e *entry, rec *record) {
	if rec.gaps {
		e.wrong = errors.New("interleaved files are not supported")
	}
	if len(e.extents) == maxExtents {
		e.wrong = fmt.Errorf("a file has more than %d extents", maxExtents)
		return
	}
	e.size += rec.size
	if rec.size > 0 {
		e.extents = append(e.extents, extent{rec.block * s.im.blockSize, rec.size})
	}
}

// close gives up the file that is open, whose last extent did not come.
func (s *scanner) close(why string) {
	if e := s.open; e != nil {
		s.open = nil
		e.wrong = errors.New(why)
		s.visit(e)
	}
}

// readName sets su and name to what rec says. Hidden entries are not shown.
func (s *scanner) readName(rec *record) (hidden bool, err error) {
	s.su.reset()
	s.name = s.name[:0]
	if s.im.names == Joliet {
		if s.name, err = appendJoliet(s.name, rec.id); err != nil {
			return false, err
		}
		return false, checkName(s.name)
	}
	if s.im.rock != rockOff && len(rec.system) > s.im.skip {
		s.su.parse(rec.system[s.im.skip:], s.areas.read)
		if s.su.wrong != nil {
			if s.im.rock == rockOn || unread(s.su.wrong) {
				return false, s.su.wrong
			}
			s.su.reset()
		}
	}
	switch {
	case s.su.hidden:
		return true, nil
	case s.su.dotName:
		return false, errors.New(`a name is "." or ".."`)
	case s.su.hasName && !s.su.nameless:
		s.name = append(s.name, s.su.name...)
	default:
		if bytes.IndexByte(rec.id, 0) >= 0 {
			return false, errors.New("a name contains a NUL byte")
		}
		s.name = appendPlain(s.name, rec.id)
	}
	return false, checkName(s.name)
}

// wrongSelf says why rec cannot be the first record of a directory, which
// describes the directory itself (ECMA-119 6.8.2.2).
func (rec *record) wrongSelf() string {
	switch {
	case !rec.special(idSelf):
		return "the directory does not begin with its own record"
	case rec.flags&flagDirectory == 0:
		return "the directory says that it is none"
	}
	return ""
}

// roundUp returns n rounded up to whole sectors.
func roundUp(n int64) int64 { return (n + sectorSize - 1) / sectorSize * sectorSize }
