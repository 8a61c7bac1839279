// Package isotest builds ISO 9660 images byte by byte, for tests that need
// what no mastering tool will write: records that lie, names that hurt,
// loops, and images of any size in a few kilobytes of memory.
//
// A tree of [Node] values describes what is recorded; [Build] lays it out and
// returns an [Image], an [io.ReaderAt] that keeps only the sectors that were
// written. Everything not said is recorded as the standards ask, so a test
// says only what is wrong:
//
//	wanted := isotest.File("etcd-linux-amd64.tar.gz", data)
//	wanted.Edit = func(r *isotest.Record) { r.Extent = 1 << 30 }
//	img := isotest.Build(t, isotest.Spec{
//		RockRidge: true,
//		Root:      isotest.Dir("", isotest.Dir("etcd", wanted)),
//	})
//	_, err := isofs.Open(img, img.Size())
//
// Damage that is easier to name by place is written afterwards with
// [Image.WriteAt], at offsets found by [Image.Record] and [Image.Extent].
//
// Clauses are those of ECMA-119 (3rd edition), the System Use Sharing
// Protocol 1.12 (SUSP) and the Rock Ridge Interchange Protocol 1.12 (RRIP).
package isotest

import (
	"strings"
	"unicode/utf16"
)

// SectorSize is the logical sector of every image (ECMA-119 6.1.2).
const SectorSize = 2048

// File flags of a directory record (ECMA-119 9.1.6).
const (
	FlagHidden      = 0x01
	FlagDirectory   = 0x02
	FlagAssociated  = 0x04
	FlagMultiExtent = 0x80
)

// Spec describes an image.
type Spec struct {
	VolumeID string

	// Root is the tree of the primary volume descriptor.
	Root *Node
	// Joliet is the tree of a supplementary descriptor whose escape sequence
	// is UCS-2 level 3; nil records none. Its identifiers are UCS-2, see
	// [ToJoliet].
	Joliet *Node

	// RockRidge adds PX, NM and SL entries to the records of Root, and SP and
	// ER to its first record.
	RockRidge bool
	NoSP      bool // leave out SP (SUSP 5.3)
	NoER      bool // leave out ER (SUSP 5.5)
	// ERID is the extension that ER names; "" is RRIP_1991A.
	ERID string
	// Skip is LEN_SKP of SP: so many bytes of filler precede the entries in
	// every record but the root's first.
	Skip int
	// XA puts the 14 bytes of CD-ROM XA before the entries in every record,
	// the root's first included, and makes SP skip them.
	XA bool

	// BlockSize is the logical block size: 512, 1024 or 2048; 0 is 2048.
	BlockSize int
	// Descriptors are recorded between the primary and the supplementary
	// descriptor; shorter ones are padded to a sector.
	Descriptors [][]byte
	// Trailer is appended after the last sector the descriptor counts.
	Trailer []byte
}

// Node is a file, a directory, a symbolic link, or raw bytes in a directory.
// The zero value of a field asks for what the standards ask for.
type Node struct {
	// ID is the file identifier (ECMA-119 9.1.11), byte for byte.
	ID string
	// Name is the alternate name (NM, RRIP 4.1.4); "" records no NM.
	Name string

	Dir      bool
	Children []*Node
	Link     string // target of a symbolic link, recorded as SL
	Data     []byte
	// Pieces makes a file of several extents, one directory record each
	// (ECMA-119 9.1.6, bit 7). Data is ignored.
	Pieces [][]byte
	// Same shares the extents of another node, which another tree may hold.
	Same *Node
	// At is the sector of the first extent; 0 lets Build choose. Sectors
	// beyond 32 bits of bytes are fine: the image is sparse.
	At uint32

	Mode   uint32 // of PX; 0 is 0755 for directories, 0644 for files
	NoSUSP bool   // leave out PX, NM and SL although Spec.RockRidge is set
	PX44   bool   // PX of RRIP 1.12 (with the file serial number), not of 1.09
	// SUSP entries follow the ones that are recorded by themselves.
	SUSP []Entry
	// DotSUSP entries follow those of the directory's own first record.
	DotSUSP []Entry

	// Edit changes the record in its parent (the root's: in the volume
	// descriptor) before it is encoded, once for each extent. It is called
	// several times and must always do the same.
	Edit func(*Record)
	// Dot and DotDot do so for the first two records of a directory.
	Dot, DotDot func(*Record)

	// Raw takes the place of the whole directory record.
	Raw []byte
	// Gap is a number of zero bytes before the record.
	Gap int
	// Straddle lets the records in this directory cross sectors, which
	// ECMA-119 6.8.1.1 forbids.
	Straddle bool
}

// Record is a directory record before it is encoded (ECMA-119 9.1). Len and
// IDLen are what the bytes claim, Len -1 and IDLen -1 the truth.
type Record struct {
	Piece     int // which extent of the file, from 0; not recorded
	Len       int
	XattrLen  byte
	Extent    uint32
	Size      uint32
	MSBExtent *uint32 // the big-endian copy; nil is the same as Extent
	MSBSize   *uint32
	Date      [7]byte
	Flags     byte
	UnitSize  byte
	GapSize   byte
	Volume    uint16
	IDLen     int
	ID        []byte
	// System is the system use field (ECMA-119 9.1.13).
	System []byte

	l *layout
}

// Point makes the record lead to the first extent of another node, which may
// be one of its own ancestors.
func (r *Record) Point(n *Node) { r.Extent, r.Size = r.l.block(n, 0), r.l.sizeOf(n, 0) }

// Dir makes a directory of the name, with an identifier of d-characters.
func Dir(name string, children ...*Node) *Node {
	return &Node{ID: dirID(name), Name: name, Dir: true, Children: children}
}

// File makes a file of the name, with a level 2 identifier and version 1.
func File(name string, data []byte) *Node {
	return &Node{ID: fileID(name), Name: name, Data: data}
}

// Link makes a symbolic link.
func Link(name, target string) *Node {
	return &Node{ID: fileID(name), Name: name, Link: target}
}

// Raw places bytes where a directory record is expected.
func Raw(b ...byte) *Node { return &Node{Raw: b} }

// ToJoliet copies a tree with its names as UCS-2 identifiers. Files share the
// extents of the originals. Edits and entries are not copied.
func ToJoliet(n *Node) *Node {
	j := &Node{ID: UCS2(n.Name), Name: n.Name, Dir: n.Dir}
	if !n.Dir {
		j.Same = n
	}
	for _, c := range n.Children {
		if c.Raw == nil {
			j.Children = append(j.Children, ToJoliet(c))
		}
	}
	return j
}

// UCS2 encodes a name as Joliet records it: 16 bits a character, big-endian.
func UCS2(s string) string {
	var b strings.Builder
	for _, u := range utf16.Encode([]rune(s)) {
		b.WriteByte(byte(u >> 8))
		b.WriteByte(byte(u))
	}
	return b.String()
}

func dirID(name string) string {
	return strings.Map(dChar, strings.ToUpper(name))
}

func fileID(name string) string {
	stem, ext := name, ""
	if i := strings.LastIndexByte(name, '.'); i >= 0 {
		stem, ext = name[:i], name[i+1:]
	}
	return dirID(stem) + "." + dirID(ext) + ";1"
}

func dChar(r rune) rune {
	if r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
		return r
	}
	return '_'
}
