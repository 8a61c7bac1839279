package isotest

import "encoding/binary"

// Entry is a system use entry. It is encoded once its image is laid out, and
// its length must not depend on the layout.
type Entry func(*layout) []byte

// Area is a continuation area (SUSP 5.1). Entries may hold a CE that leads
// back to the area itself.
type Area struct {
	Entries []Entry
	// Offset is where in its sector the area begins.
	Offset int
	// Sector is where the area lies; 0 lets Build choose.
	Sector uint32
}

// Bytes is an entry of the given bytes, well formed or not.
func Bytes(b ...byte) Entry { return func(*layout) []byte { return b } }

// SU is an entry of the signature, version 1, with the given data.
func SU(sig string, data ...byte) Entry {
	return Bytes(append([]byte{sig[0], sig[1], byte(4 + len(data)), 1}, data...)...)
}

// SP is the SUSP indicator (SUSP 5.3).
func SP(skip byte) Entry { return SU("SP", 0xbe, 0xef, skip) }

// ER names an extension (SUSP 5.5); descriptor and source are left empty.
func ER(id string) Entry {
	return SU("ER", append([]byte{byte(len(id)), 0, 0, 1}, id...)...)
}

// NM is an alternate name (RRIP 4.1.4). Flag 1 says that another NM follows.
func NM(flags byte, name string) Entry {
	return SU("NM", append([]byte{flags}, name...)...)
}

// PX holds POSIX attributes in the 36 bytes of RRIP 1.09.
func PX(mode uint32) Entry { return SU("PX", px(mode)...) }

// PX44 holds them in the 44 bytes of RRIP 1.12, with a file serial number.
func PX44(mode, serial uint32) Entry { return SU("PX", append(px(mode), both32(serial)...)...) }

func px(mode uint32) []byte {
	b := both32(mode)
	b = append(b, both32(1)...) // links
	b = append(b, both32(0)...) // user
	return append(b, both32(0)...)
}

// SL is a symbolic link of one component record (RRIP 4.1.3), recorded as it
// is; "/" is the root component.
func SL(target string) Entry {
	b := []byte{0}
	for i, c := range splitLink(target) {
		switch {
		case c == "" && i == 0:
			b = append(b, 8, 0)
		case c == ".":
			b = append(b, 2, 0)
		case c == "..":
			b = append(b, 4, 0)
		default:
			b = append(append(b, 0, byte(len(c))), c...)
		}
	}
	return SU("SL", b...)
}

func splitLink(s string) []string {
	var parts []string
	start := 0
	for i := 0; i <= len(s); i++ {
		if i == len(s) || s[i] == '/' {
			parts = append(parts, s[start:i])
			start = i + 1
		}
	}
	return parts
}

// CL says that the record stands for the relocated directory n (RRIP 4.1.5.1).
func CL(n *Node) Entry {
	return func(l *layout) []byte { return suBlock("CL", l.block(n, 0)) }
}

// PL names the original parent of a relocated directory (RRIP 4.1.5.2).
func PL(n *Node) Entry {
	return func(l *layout) []byte { return suBlock("PL", l.block(n, 0)) }
}

// CLBlock and PLBlock name any block.
func CLBlock(block uint32) Entry { return Bytes(suBlock("CL", block)...) }
func PLBlock(block uint32) Entry { return Bytes(suBlock("PL", block)...) }

// RE marks a relocated directory where it is stored (RRIP 4.1.5.3).
func RE() Entry { return SU("RE") }

// ZF says that the file is compressed with zisofs to a real size of n bytes.
func ZF(n uint32) Entry {
	return SU("ZF", append([]byte{'p', 'z', 4, 15}, both32(n)...)...)
}

// CE continues the entries in an area.
func CE(a *Area) Entry {
	return func(l *layout) []byte {
		sector, size := l.area(a)
		return ce(sector*l.perSector, uint32(a.Offset), size)
	}
}

// CEBlock continues them at any block, offset and length.
func CEBlock(block, offset, size uint32) Entry { return Bytes(ce(block, offset, size)...) }

func ce(block, offset, size uint32) []byte {
	b := []byte{'C', 'E', 28, 1}
	b = append(b, both32(block)...)
	b = append(b, both32(offset)...)
	return append(b, both32(size)...)
}

func suBlock(sig string, block uint32) []byte {
	return append([]byte{sig[0], sig[1], 12, 1}, both32(block)...)
}

// both32 is the both-byte order format of ECMA-119 7.3.3.
func both32(v uint32) []byte {
	b := binary.LittleEndian.AppendUint32(nil, v)
	return binary.BigEndian.AppendUint32(b, v)
}

func both16(v uint16) []byte {
	b := binary.LittleEndian.AppendUint16(nil, v)
	return binary.BigEndian.AppendUint16(b, v)
}
