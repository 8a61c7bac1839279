package isotest

import (
	"encoding/binary"
	"testing"
)

// Sectors that every image has.
const (
	primarySector = 16 // ECMA-119 8.1: the system area is sectors 0 to 15
	idTerminator  = 255
	idPrimary     = 1
	idJoliet      = 2
)

// Build lays the image out and encodes it. It fails the test when a record
// cannot be encoded at all, such as one longer than a length byte can say.
func Build(tb testing.TB, s Spec) *Image {
	tb.Helper()
	if s.BlockSize == 0 {
		s.BlockSize = SectorSize
	}
	l := &layout{
		tb: tb, spec: s, perSector: uint32(SectorSize / s.BlockSize),
		nodes: map[*Node]*place{}, areas: map[*Area]*areaPlace{},
	}
	next := uint32(primarySector + 1 + len(s.Descriptors) + 1)
	if s.Joliet != nil {
		next++
	}
	paths := next
	l.next = paths + 2

	// The first pass finds how long every directory and every continuation
	// area is, and gives each its place; the second encodes with places known.
	for _, root := range []*Node{s.Root, s.Joliet} {
		if root != nil {
			l.measure(root, root, root)
		}
	}
	img := &Image{sectors: map[int64]*[SectorSize]byte{}, l: l}
	for _, root := range []*Node{s.Root, s.Joliet} {
		if root != nil {
			l.write(img, root, root, root)
		}
	}
	for a, p := range l.areas {
		img.put(int64(p.sector)*SectorSize+int64(a.Offset), l.entries(a.Entries))
	}
	l.descriptors(img, paths)
	img.size = int64(l.next) * SectorSize
	img.put(img.size, s.Trailer)
	img.size += int64(len(s.Trailer))
	return img
}

// layout knows where everything lies.
type layout struct {
	tb        testing.TB
	spec      Spec
	perSector uint32 // logical blocks in a sector
	next      uint32 // first free sector
	nodes     map[*Node]*place
	areas     map[*Area]*areaPlace
	measuring bool // only lengths matter: areas get no place yet
}

type place struct {
	sectors []uint32 // of each extent
	sizes   []uint32
	records []int64 // byte offsets of the node's directory records
}

type areaPlace struct{ sector, size uint32 }

func (l *layout) take(n *Node, size int) uint32 {
	at := n.At
	if at == 0 {
		at = l.next
	}
	end := at + uint32((size+SectorSize-1)/SectorSize)
	l.next = max(l.next, end)
	return at
}

// measure gives n and all below it their places.
func (l *layout) measure(root, parent, n *Node) {
	if l.nodes[n] != nil || n.Raw != nil {
		return
	}
	p := &place{}
	l.nodes[n] = p
	switch {
	case n.Same != nil:
		l.measure(root, parent, n.Same)
	case n.Dir:
		l.measuring = true
		size := len(l.directory(root, parent, n, nil))
		l.measuring = false
		size = (size + SectorSize - 1) / SectorSize * SectorSize
		p.sectors, p.sizes = []uint32{l.take(n, size)}, []uint32{uint32(size)}
		// Continuation areas come after their directory and before its files:
		// readers that go through an image once rely on it.
		l.directory(root, parent, n, nil)
		for _, c := range n.Children {
			l.measure(root, n, c)
		}
	case n.Link != "":
		p.sectors, p.sizes = []uint32{0}, []uint32{0}
	default:
		for _, b := range n.pieces() {
			p.sectors = append(p.sectors, l.take(n, len(b)))
			p.sizes = append(p.sizes, uint32(len(b)))
		}
	}
}

// write encodes n and all below it.
func (l *layout) write(img *Image, root, parent, n *Node) {
	if n.Raw != nil {
		return
	}
	if n.Same != nil {
		n = n.Same // which may be in no tree of its own
	}
	p := l.nodes[n]
	if n.Dir {
		base := int64(p.sectors[0]) * SectorSize
		img.put(base, l.directory(root, parent, n, func(c *Node, off int) {
			if q := l.nodes[c]; q != nil {
				q.records = append(q.records, base+int64(off))
			}
		}))
		for _, c := range n.Children {
			l.write(img, root, n, c)
		}
		return
	}
	for i, b := range n.pieces() {
		if i < len(p.sectors) {
			img.put(int64(p.sectors[i])*SectorSize, b)
		}
	}
}

func (n *Node) pieces() [][]byte {
	if n.Pieces != nil {
		return n.Pieces
	}
	return [][]byte{n.Data}
}

// directory encodes the records of n. found, when not nil, is told where each
// child's records begin.
func (l *layout) directory(root, parent, n *Node, found func(c *Node, off int)) []byte {
	var b []byte
	add := func(rec []byte, straddle bool) int {
		if used := len(b) % SectorSize; !straddle && used+len(rec) > SectorSize {
			b = append(b, make([]byte, SectorSize-used)...)
		}
		b = append(b, rec...)
		return len(b) - len(rec)
	}
	primary := root == l.spec.Root // Joliet records carry no entries
	dot := l.record(n, 0)
	dot.ID = []byte{0}
	if primary {
		dot.System = l.system(n, root == n, true)
	}
	edit(n.Dot, &dot)
	add(l.encode(dot), n.Straddle)
	dotdot := l.record(parent, 0)
	dotdot.ID = []byte{1}
	if primary {
		dotdot.System = l.parentSystem(parent)
	}
	edit(n.DotDot, &dotdot)
	add(l.encode(dotdot), n.Straddle)

	for _, c := range n.Children {
		b = append(b, make([]byte, c.Gap)...)
		if c.Raw != nil {
			add(c.Raw, true)
			continue
		}
		owner := c
		if c.Same != nil {
			owner = c.Same
		}
		count := len(owner.pieces())
		for i := range count {
			r := l.record(c, i)
			if i < count-1 {
				r.Flags |= FlagMultiExtent
			}
			if primary {
				r.System = l.system(c, false, false)
			}
			edit(c.Edit, &r)
			off := add(l.encode(r), n.Straddle)
			if found != nil {
				found(c, off)
			}
		}
	}
	return b
}

// parentSystem is for "..": the parent's attributes, none of its extra entries.
func (l *layout) parentSystem(parent *Node) []byte {
	p := *parent
	p.DotSUSP = nil
	return l.system(&p, false, true)
}

// record fills in what the standard asks of the record of extent i.
func (l *layout) record(n *Node, i int) Record {
	r := Record{
		l: l, Piece: i, Len: -1, IDLen: -1, ID: []byte(n.ID), Volume: 1,
		Date: [7]byte{126, 1, 2, 3, 4, 5, 0}, // 2026-01-02 03:04:05 UTC
	}
	if n.Dir {
		r.Flags = FlagDirectory
	}
	r.Extent, r.Size = l.block(n, i), l.sizeOf(n, i)
	return r
}

func (l *layout) block(n *Node, i int) uint32 {
	if n.Same != nil {
		n = n.Same
	}
	if p := l.nodes[n]; p != nil && i < len(p.sectors) {
		return p.sectors[i] * l.perSector
	}
	return 0
}

func (l *layout) sizeOf(n *Node, i int) uint32 {
	if n.Same != nil {
		n = n.Same
	}
	if p := l.nodes[n]; p != nil && i < len(p.sizes) {
		return p.sizes[i]
	}
	return 0
}

// system makes the system use field of a record.
func (l *layout) system(n *Node, rootDot, dot bool) []byte {
	var b []byte
	s := l.spec
	skip := s.Skip
	if s.XA {
		skip = 14
		b = append(b, 0, 0, 0, 0, 0x0d, 0x55, 'X', 'A', 0, 0, 0, 0, 0, 0)
	} else if !rootDot {
		for range skip {
			b = append(b, 0xaa)
		}
	}
	if s.RockRidge && rootDot && !s.NoSP {
		b = append(b, SP(byte(skip))(l)...)
	}
	if s.RockRidge && !n.NoSUSP {
		mode := n.mode()
		if n.PX44 {
			b = append(b, PX44(mode, 7)(l)...)
		} else {
			b = append(b, PX(mode)(l)...)
		}
		if !dot && n.Name != "" {
			b = append(b, NM(0, n.Name)(l)...)
		}
		if n.Link != "" {
			b = append(b, SL(n.Link)(l)...)
		}
	}
	if s.RockRidge && rootDot && !s.NoER {
		id := s.ERID
		if id == "" {
			id = "RRIP_1991A"
		}
		b = append(b, ER(id)(l)...)
	}
	if dot {
		return append(b, l.entries(n.DotSUSP)...)
	}
	return append(b, l.entries(n.SUSP)...)
}

// mode of PX: st_mode with the file type (RRIP 4.1.1).
func (n *Node) mode() uint32 {
	const typeDir, typeLink, typeFile = 0o40000, 0o120000, 0o100000
	perm := n.Mode
	if perm&^0o7777 != 0 {
		return perm
	}
	switch {
	case n.Link != "":
		return typeLink | 0o777
	case n.Dir && perm == 0:
		return typeDir | 0o755
	case n.Dir:
		return typeDir | perm
	case perm == 0:
		return typeFile | 0o644
	}
	return typeFile | perm
}

func (l *layout) entries(entries []Entry) []byte {
	var b []byte
	for _, e := range entries {
		b = append(b, e(l)...)
	}
	return b
}

// area gives a continuation area its place when it is first asked for.
func (l *layout) area(a *Area) (sector, size uint32) {
	if l.measuring {
		return 0, 0
	}
	p := l.areas[a]
	if p == nil {
		p = &areaPlace{sector: a.Sector}
		l.areas[a] = p // before its entries are encoded: they may lead back here
		if p.sector == 0 {
			p.sector = l.next
			l.next++
		}
		p.size = uint32(len(l.entries(a.Entries)))
		if a.Sector == 0 && a.Offset+int(p.size) > SectorSize {
			l.next++
		}
	}
	return p.sector, p.size
}

func edit(f func(*Record), r *Record) {
	if f != nil {
		f(r)
	}
}

// encode makes the bytes of a directory record (ECMA-119 9.1).
func (l *layout) encode(r Record) []byte {
	b := []byte{0, r.XattrLen}
	b = append(b, lsbMSB(r.Extent, r.MSBExtent)...)
	b = append(b, lsbMSB(r.Size, r.MSBSize)...)
	b = append(b, r.Date[:]...)
	b = append(b, r.Flags, r.UnitSize, r.GapSize)
	b = append(b, both16(r.Volume)...)
	if r.IDLen < 0 {
		r.IDLen = len(r.ID)
	}
	b = append(append(b, byte(r.IDLen)), r.ID...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	b = append(b, r.System...)
	if len(b)%2 == 1 {
		b = append(b, 0)
	}
	if r.Len < 0 {
		if r.Len = len(b); r.Len > 255 {
			l.tb.Fatalf("isotest: record of %q is %d bytes long", r.ID, r.Len)
		}
	}
	b[0] = byte(r.Len)
	return b
}

func lsbMSB(v uint32, msb *uint32) []byte {
	b := both32(v)
	if msb != nil {
		binary.BigEndian.PutUint32(b[4:], *msb)
	}
	return b
}

// descriptors writes the volume descriptors (ECMA-119 8) and path tables that
// hold the root alone: no reader of trees needs more.
func (l *layout) descriptors(img *Image, paths uint32) {
	table := []byte{1, 0, 0, 0, 0, 0, 1, 0, 0, 0}
	binary.LittleEndian.PutUint32(table[2:], l.block(l.spec.Root, 0))
	img.put(int64(paths)*SectorSize, table)
	table = []byte{1, 0, 0, 0, 0, 0, 0, 1, 0, 0}
	binary.BigEndian.PutUint32(table[2:], l.block(l.spec.Root, 0))
	img.put(int64(paths+1)*SectorSize, table)

	at := int64(primarySector)
	img.put(at*SectorSize, l.descriptor(idPrimary, l.spec.Root, paths))
	at++
	for _, d := range l.spec.Descriptors {
		img.put(at*SectorSize, d)
		at++
	}
	if l.spec.Joliet != nil {
		img.put(at*SectorSize, l.descriptor(idJoliet, l.spec.Joliet, paths))
		at++
	}
	img.put(at*SectorSize, append([]byte{idTerminator}, "CD001\x01"...))
}

func (l *layout) descriptor(kind byte, root *Node, paths uint32) []byte {
	b := make([]byte, SectorSize)
	b[0] = kind
	copy(b[1:], "CD001\x01")
	text := func(at, size int, s string) {
		for i := range size {
			b[at+i] = ' '
		}
		copy(b[at:at+size], s)
	}
	text(8, 32, "LINUX")
	text(190, 623, "")
	if kind == idJoliet {
		text(8, 32, UCS2("LINUX"))
		text(40, 32, UCS2(l.spec.VolumeID))
		copy(b[88:], "%/E") // UCS-2 level 3
	} else {
		text(40, 32, l.spec.VolumeID)
	}
	copy(b[80:], both32(l.next*l.perSector))
	copy(b[120:], both16(1))
	copy(b[124:], both16(1))
	copy(b[128:], both16(uint16(l.spec.BlockSize)))
	copy(b[132:], both32(10))
	binary.LittleEndian.PutUint32(b[140:], paths*l.perSector)
	binary.BigEndian.PutUint32(b[148:], (paths+1)*l.perSector)
	r := l.record(root, 0)
	r.ID = []byte{0}
	edit(root.Edit, &r)
	copy(b[156:156+34], l.encode(r))
	for _, at := range []int{813, 830, 847, 864} {
		copy(b[at:], "0000000000000000\x00")
	}
	b[881] = 1
	return b
}
