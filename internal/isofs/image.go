package isofs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf16"
)

const (
	// sectorSize is the logical sector of ECMA-119 6.1.2.
	sectorSize = 2048
	// systemArea is the number of sectors before the first volume descriptor
	// (ECMA-119 6.2.1).
	systemArea = 16
	// maxDescriptors is how many sectors are searched for volume descriptors:
	// as many as Linux looks at.
	maxDescriptors = 84
	// descriptorRead is the number of sectors of the first read: an ordinary
	// image has a primary, a Joliet and a terminating descriptor.
	descriptorRead = 3
)

// Volume descriptor types (ECMA-119 8.1.1).
const (
	typePrimary       = 1
	typeSupplementary = 2
	typeTerminator    = 255
)

// Image is an ISO 9660 image. It is safe for concurrent use if its reader is.
// It implements [io/fs.FS], [io/fs.ReadDirFS], [io/fs.ReadFileFS],
// [io/fs.StatFS] and [io/fs.ReadLinkFS], all without following symbolic links.
type Image struct {
	src       source
	blockSize int64
	names     Names
	rock      rockRidge
	skip      int // bytes before the system use entries of a record (SUSP 5.3)
	root      *File
	// rootHead is the root's first sector, which Open had to read anyway.
	rootHead []byte
	volumeID string
	digest   [sha256.Size]byte
}

// rockRidge is how much is made of the entries in system use fields.
type rockRidge uint8

const (
	rockOff   rockRidge = iota // none of it
	rockLoose                  // what reads well, for nothing announced them
	rockOn                     // everything, and what reads badly is damage
)

// Open reads the volume descriptors of the image in r and the first record of
// its root directory. size is the number of bytes in r; negative means that it
// is not known, and the end is where r says so.
//
// The error wraps [ErrNotISO] if there is no volume descriptor, and is an
// [*Error] if reading failed or if what was found is damaged. An image that is
// shorter than its descriptor claims opens as long as its root is there.
func Open(r io.ReaderAt, size int64) (*Image, error) { return OpenSession(r, size, 0) }

// OpenSession is like [Open] for the session that begins at the given sector.
// An optical drive names that of its last session (CDROMMULTISESSION), which
// is the one Linux mounts; everywhere else it is 0.
func OpenSession(r io.ReaderAt, size, sector int64) (*Image, error) {
	if sector < 0 {
		return nil, fmt.Errorf("cannot open a session at sector %d", sector)
	}
	im := &Image{src: source{r: r, size: size}}
	d, err := im.readDescriptors(sector + systemArea)
	if err != nil {
		return nil, err
	}
	im.digest = d.digest
	im.volumeID = d.volumeID()
	base := d.base()
	im.src.claimed, im.blockSize, err = volumeSize(base, d.at)
	if err != nil {
		return nil, err
	}
	if err := im.chooseNames(base, d); err != nil {
		return nil, err
	}
	return im, nil
}

// Names returns the names the image is read through: those that a Linux node
// would show.
func (im *Image) Names() Names { return im.names }

// VolumeID returns the volume identifier (ECMA-119 8.4.7) without the spaces
// around it. Characters that do not print are shown as "?".
func (im *Image) VolumeID() string { return im.volumeID }

// Size returns the number of bytes the volume descriptor claims (ECMA-119
// 8.4.8 and 8.4.12): more than there are when the image is truncated, fewer
// when it is padded.
func (im *Image) Size() int64 { return im.src.claimed }

// Digest returns the SHA-256 of the volume descriptors that [Open] looked at,
// which tells one medium from another: they hold the volume's name, size,
// times and the place of its root.
func (im *Image) Digest() [sha256.Size]byte { return im.digest }

// descriptors are the volume descriptors that matter.
type descriptors struct {
	primary []byte
	joliet  []byte
	at      int64 // byte offset of the one that base returns
	digest  [sha256.Size]byte
}

// base returns the descriptor that speaks for the volume: Linux uses the
// Joliet one alone if it comes before any primary one.
func (d *descriptors) base() []byte {
	if d.primary != nil {
		return d.primary
	}
	return d.joliet
}

// volumeID decodes ECMA-119 8.4.7, or 8.5 in Joliet's UCS-2.
func (d *descriptors) volumeID() string {
	id := string(d.base()[40:72])
	if d.primary == nil {
		u := make([]uint16, 0, 16)
		for b := d.joliet[40:72]; len(b) > 0; b = b[2:] {
			u = append(u, binary.BigEndian.Uint16(b))
		}
		id = string(utf16.Decode(u))
	}
	return strings.TrimSpace(strings.Map(func(r rune) rune {
		switch {
		case r == 0:
			return ' '
		case !unicode.IsPrint(r):
			return '?'
		}
		return r
	}, id))
}

// readDescriptors looks for volume descriptors from the given sector on, as
// far as Linux looks: to the terminator, or to the first Joliet descriptor.
func (im *Image) readDescriptors(first int64) (*descriptors, error) {
	d := &descriptors{}
	sum := sha256.New()
	seen := false
	buf := make([]byte, descriptorRead*sectorSize)
	var have []byte
	for n := int64(0); n < maxDescriptors; n++ {
		at := (first + n) * sectorSize
		if len(have) == 0 {
			want := buf[:min(int64(len(buf)), (maxDescriptors-n)*sectorSize)]
			got, err := im.src.readSome(want, at)
			have = want[:got-got%sectorSize]
			if len(have) == 0 {
				return nil, noDescriptor(d, seen, at, err)
			}
		}
		sector := have[:sectorSize]
		have = have[sectorSize:]
		if string(sector[9:14]) == "CDROM" && string(sector[1:6]) != "CD001" {
			return nil, fault(at, nil, "the volume is in High Sierra format, which is not supported")
		}
		if string(sector[1:6]) != "CD001" { // ECMA-119 8.1.2
			continue
		}
		seen = true
		sum.Write(sector)
		done := false
		switch sector[0] {
		case typeTerminator:
			done = true
		case typePrimary:
			if d.primary == nil {
				d.primary, d.at = bytes.Clone(sector), at
			}
		case typeSupplementary:
			// Joliet: UCS-2 level 1, 2 or 3 (ECMA-119 8.5.6). Linux ends its
			// search at any escape sequence that begins like theirs.
			if done = string(sector[88:90]) == "%/"; done && strings.IndexByte("@CE", sector[90]) >= 0 {
				d.joliet = bytes.Clone(sector)
				if d.primary == nil {
					d.at = at
				}
			}
		}
		if done {
			break
		}
	}
	switch {
	case !seen:
		return nil, fmt.Errorf("%w: no volume descriptor in sectors %d to %d", ErrNotISO, first, first+maxDescriptors-1)
	case d.base() == nil:
		return nil, fault(first*sectorSize, nil, "there is no primary volume descriptor")
	}
	sum.Sum(d.digest[:0])
	return d, nil
}

// noDescriptor is the error when the sector at off should be a descriptor, or
// might be one, and cannot be read.
func noDescriptor(d *descriptors, seen bool, off int64, cause error) error {
	if !seen && ended(cause) {
		return fmt.Errorf("%w: no volume descriptor, and reading ended in sector %d", ErrNotISO, off/sectorSize)
	}
	if outside, ok := errors.AsType[*outsideError](cause); ok && d.primary != nil {
		if claimed, _, err := volumeSize(d.primary, d.at); err == nil {
			outside.claimed = claimed
		}
	}
	return fault(off, cause, "cannot read the volume descriptors")
}

// volumeSize returns the bytes that the descriptor at off claims for its
// volume, and the size of its logical blocks.
func volumeSize(desc []byte, off int64) (size, blockSize int64, err error) {
	blockSize = int64(binary.LittleEndian.Uint16(desc[128:]))
	switch blockSize {
	case 512, 1024, 2048:
	default:
		return 0, 0, fault(off, nil, "the volume descriptor has logical blocks of %d bytes", blockSize)
	}
	return int64(binary.LittleEndian.Uint32(desc[80:])) * blockSize, blockSize, nil
}

// chooseNames decides which tree is shown, and sets the root.
func (im *Image) chooseNames(base []byte, d *descriptors) error {
	head, dot, err := im.readRoot(base, d.at)
	if err != nil {
		return err
	}
	su := im.announced(dot.system)
	im.skip = su.skip
	announced := su.sp || su.rr || unread(su.wrong)
	switch {
	case su.er && d.joliet != nil && d.primary != nil && emptyRoot(head[:im.blockSize]):
		im.names, im.rock = Joliet, rockOff
	case su.er:
		im.names, im.rock = RockRidge, rockOn
	case announced && su.wrong != nil:
		return fault(im.root.dir.block*im.blockSize, su.wrong, "cannot tell which names the image has")
	case d.joliet != nil:
		im.names, im.rock = Joliet, rockOff
	case announced:
		im.names, im.rock = RockRidge, rockOn
	default:
		im.names, im.rock = Plain, rockLoose
	}
	if im.names == Joliet && d.primary != nil {
		if head, dot, err = im.readRoot(d.joliet, d.at); err != nil {
			return err
		}
	}
	im.rootHead = head
	if im.rock == rockOn {
		im.root.describe(&su)
	}
	return nil
}

// readRoot sets the root to that of a volume descriptor, and returns its first
// sector and first record.
func (im *Image) readRoot(desc []byte, at int64) (head []byte, dot record, err error) {
	// The root's directory record is part of the descriptor (ECMA-119 8.4.18).
	rec, wrong := parseRecord(desc[156:190])
	if wrong != "" {
		return nil, dot, fault(at, errors.New(wrong), "the volume descriptor names no root directory")
	}
	im.root = im.newFile(".")
	im.root.setDirectory(location{block: rec.block, size: rec.size, parent: rec.block})
	off := rec.block * im.blockSize
	head = make([]byte, sectorSize)
	if _, err := im.src.readSome(head, off); err != nil {
		return nil, dot, fault(off, err, "cannot read the root directory")
	}
	if dot, wrong = parseRecord(head); wrong == "" {
		wrong = dot.wrongSelf()
	}
	if wrong != "" {
		return nil, dot, fault(off, errors.New(wrong), "the root directory is damaged")
	}
	im.root.size = dot.size
	im.root.modTime = recordTime(dot.date)
	return head, dot, nil
}

// announced reads the system use field of the root's first record: the entries
// may come after the attributes of CD-ROM XA, and only SP tells.
func (im *Image) announced(area []byte) systemUse {
	more := (&areaReader{im: im}).read
	var plain, xa systemUse
	plain.parse(area, more)
	if plain.sp || plain.er || len(area) <= xaLength {
		return plain
	}
	xa.parse(area[xaLength:], more)
	if xa.sp || xa.er {
		return xa
	}
	return plain
}

// unread reports whether system use entries end with wrong because a
// continuation area could not be read: nobody knows what it says.
func unread(wrong error) bool {
	_, ok := errors.AsType[*Error](wrong)
	return ok
}

// emptyRoot reports whether the first block of a root directory holds fewer
// than three records, which makes Linux prefer the Joliet tree.
func emptyRoot(block []byte) bool {
	n := 0
	for at := 0; at < len(block) && block[at] != 0; at += int(block[at]) {
		n++
	}
	return n < 3
}

// areaReader reads continuation areas (SUSP 5.1) and keeps the last block, as
// the areas of one directory follow each other.
type areaReader struct {
	im    *Image
	buf   []byte
	block int64
	have  int // bytes of block in buf
}

func (a *areaReader) read(block, offset, size uint32) ([]byte, error) {
	bs := a.im.blockSize
	// Linux refuses an area that leaves its block.
	if end := int64(offset) + int64(size); end > bs {
		return nil, fmt.Errorf("a continuation area ends at byte %d of a block of %d bytes", end, bs)
	}
	end := int(offset + size)
	if a.have < end || a.block != int64(block) {
		if a.buf == nil {
			a.buf = make([]byte, bs)
		}
		off := int64(block) * bs
		n, err := a.im.src.readSome(a.buf, off)
		a.block, a.have = int64(block), n
		if n < end {
			return nil, fault(off, err, "cannot read a continuation area")
		}
	}
	return a.buf[offset:end], nil
}
