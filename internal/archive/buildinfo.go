package archive

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"runtime/debug"
)

// The Go build information of a program is found and decoded here, for a known
// ELF file and within bounds; its text is then runtime/debug's. debug/buildinfo
// does the same for every kind of executable, but allocates up to 10 MiB for a
// string because its length says so, and then as much as the file has. The
// tests hold the two against each other. The format is described in
// debug/buildinfo and cmd/link/internal/ld (buildinfo).

const (
	buildInfoMagic  = "\xff Go buildinf:"
	buildInfoAlign  = 16
	buildInfoHeader = 32

	// maxBuildInfo bounds each string of the build information. That of etcd
	// 3.6 has 7 KiB.
	maxBuildInfo = 128 << 10

	// maxBuildSearch is how much of the data segments is searched for the build
	// information. The linker puts it at the beginning of one.
	maxBuildSearch = 16 << 20

	// buildChunk is searched at a time; a multiple of buildInfoAlign.
	buildChunk = 64 << 10
)

// errNoBuildInfo is returned by readBuildInfo where there is no build
// information, or none that can be understood.
var errNoBuildInfo = errors.New("no Go build information")

// readBuildInfo returns the Go build information of the program f in r. The
// error is errNoBuildInfo, or that of r.
func readBuildInfo(r io.ReaderAt, f *elfFile) (*debug.BuildInfo, error) {
	b := &buildInfo{r: r, f: f}
	addr, err := b.find()
	if err != nil {
		return nil, err
	}
	head, err := b.bytes(addr, buildInfoHeader)
	if err != nil {
		return nil, err
	}
	const inline = 2 // flag: the strings follow the header (Go 1.18 and later)
	var goVersion, mod string
	if head[15]&inline != 0 {
		at := addr + buildInfoHeader
		if goVersion, at, err = b.varString(at); err == nil {
			mod, _, err = b.varString(at)
		}
	} else {
		goVersion, mod, err = b.pointed(head)
	}
	if err != nil {
		return nil, err
	}
	// The module information stands between two marks of 16 bytes.
	if len(mod) < 33 || mod[len(mod)-17] != '\n' {
		return nil, errNoBuildInfo
	}
	bi, err := debug.ParseBuildInfo(mod[16 : len(mod)-16])
	if err != nil {
		return nil, errNoBuildInfo
	}
	bi.GoVersion = goVersion
	return bi, nil
}

type buildInfo struct {
	r io.ReaderAt
	f *elfFile
}

// find returns the address of the build information: the first magic at an
// aligned address in a segment of writable data. There are two of these where
// data is read-only after relocation: it is then in the second.
func (b *buildInfo) find() (uint64, error) {
	left := uint64(maxBuildSearch)
	buf := make([]byte, buildChunk)
	for _, p := range b.f.progs {
		if p.Type != elf.PT_LOAD || p.Flags&(elf.PF_X|elf.PF_W) != elf.PF_W {
			continue
		}
		// Up to the first aligned address, which a short segment does not have.
		skip := min(-p.Vaddr%buildInfoAlign, p.Filesz)
		for at := skip; at < p.Filesz && left > 0; {
			chunk := buf[:min(buildChunk, p.Filesz-at, left)]
			if err := readAt(b.r, chunk, int64(p.Off+at)); err != nil {
				return 0, err
			}
			if i := alignedMagic(chunk); i >= 0 {
				return p.Vaddr + at + uint64(i), nil
			}
			at += uint64(len(chunk))
			left -= uint64(len(chunk))
		}
	}
	return 0, errNoBuildInfo
}

// alignedMagic returns the offset of the magic in b, or -1. It cannot lie across
// the end of an aligned chunk.
func alignedMagic(b []byte) int {
	for i := 0; i < len(b); i++ {
		j := bytes.Index(b[i:], []byte(buildInfoMagic))
		if j < 0 {
			return -1
		}
		if i += j; i%buildInfoAlign == 0 {
			return i
		}
	}
	return -1
}

// bytes returns n bytes at an address, all of which the file must hold.
func (b *buildInfo) bytes(addr uint64, n int) ([]byte, error) {
	for _, p := range b.f.progs {
		if p.Type != elf.PT_LOAD || addr < p.Vaddr || addr-p.Vaddr >= p.Filesz {
			continue
		}
		if uint64(n) > p.Filesz-(addr-p.Vaddr) {
			return nil, errNoBuildInfo
		}
		buf := make([]byte, n)
		return buf, readAt(b.r, buf, int64(p.Off+(addr-p.Vaddr)))
	}
	return nil, errNoBuildInfo
}

// varString returns the string at addr, which begins with its length as a
// varint, and the address after it.
func (b *buildInfo) varString(addr uint64) (string, uint64, error) {
	const longest = 3 // bytes of a varint up to maxBuildInfo
	head, err := b.bytes(addr, longest)
	if err != nil {
		return "", 0, err
	}
	length, n := binary.Uvarint(head)
	if n <= 0 || length > maxBuildInfo {
		return "", 0, errNoBuildInfo
	}
	addr += uint64(n)
	s, err := b.bytes(addr, int(length))
	return string(s), addr + length, err
}

// pointed returns the two strings of the format before Go 1.18, where the
// header points to two Go string headers: pointer and length.
func (b *buildInfo) pointed(head []byte) (goVersion, mod string, err error) {
	size := int(head[14])
	var order binary.ByteOrder = binary.LittleEndian
	if head[15]&1 != 0 {
		order = binary.BigEndian
	}
	word := func(p []byte) uint64 { return order.Uint64(p) }
	switch size {
	case 4:
		word = func(p []byte) uint64 { return uint64(order.Uint32(p)) }
	case 8:
	default:
		return "", "", errNoBuildInfo
	}
	str := func(addr uint64) (string, error) {
		h, err := b.bytes(addr, 2*size)
		if err != nil {
			return "", err
		}
		length := word(h[size:])
		if length > maxBuildInfo {
			return "", errNoBuildInfo
		}
		s, err := b.bytes(word(h), int(length))
		return string(s), err
	}
	if goVersion, err = str(word(head[16:])); err != nil {
		return "", "", err
	}
	mod, err = str(word(head[16+size:]))
	return goVersion, mod, err
}
