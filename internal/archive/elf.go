package archive

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"cks-etcd/internal/reason"
)

// The ELF file header and the program headers are decoded here, with
// debug/elf's types. elf.NewFile also reads every section header and the
// section names, as many as a file claims to have; to run a program the kernel
// needs neither.

const (
	elfHeader32, elfHeader64 = 52, 64 // Elf32_Ehdr, Elf64_Ehdr
	progSize32, progSize64   = 32, 56 // Elf32_Phdr, Elf64_Phdr

	// maxProgBytes is what Linux accepts as size of the program header table
	// (load_elf_phdrs in fs/binfmt_elf.c).
	maxProgBytes = 64 << 10

	// maxDynamicBytes is how far the dynamic section is looked at for the flag
	// that tells a static position independent program from a library.
	maxDynamicBytes = 16 << 10
)

// elfFile is what of an ELF program matters here.
type elfFile struct {
	arch  string // GOARCH
	typ   elf.Type
	is64  bool
	order binary.ByteOrder
	entry uint64
	phoff uint64
	phnum int
	progs []elf.ProgHeader
}

// parseELF decodes the ELF header at the start of head, which holds the file's
// first bytes, and refuses what cannot be a program. The name is for messages.
func parseELF(name string, head []byte) (*elfFile, error) {
	if len(head) < elf.EI_NIDENT || string(head[:4]) != elf.ELFMAG {
		what := whatIs(head)
		if len(head) >= 4 && string(head[:4]) == elf.ELFMAG {
			what = fmt.Sprintf("an ELF file cut to %d bytes", len(head))
		}
		return nil, reason.New(reason.ArchiveNotELF, "%s is %s", name, what)
	}
	bad := func(format string, args ...any) (*elfFile, error) {
		return nil, reason.New(reason.ArchiveNotExecutable, "%s %s", name, fmt.Sprintf(format, args...))
	}

	f := new(elfFile)
	size, progSize := elfHeader32, progSize32
	switch elf.Class(head[elf.EI_CLASS]) {
	case elf.ELFCLASS32:
	case elf.ELFCLASS64:
		f.is64, size, progSize = true, elfHeader64, progSize64
	default:
		return bad("is ELF of an unknown class (%d)", head[elf.EI_CLASS])
	}
	switch elf.Data(head[elf.EI_DATA]) {
	case elf.ELFDATA2LSB:
		f.order = binary.LittleEndian
	case elf.ELFDATA2MSB:
		f.order = binary.BigEndian
	default:
		return bad("is ELF of an unknown byte order (%d)", head[elf.EI_DATA])
	}
	if len(head) < size {
		return bad("is an ELF file cut to %d bytes", len(head))
	}
	switch abi := elf.OSABI(head[elf.EI_OSABI]); abi {
	case elf.ELFOSABI_FREEBSD, elf.ELFOSABI_NETBSD, elf.ELFOSABI_OPENBSD, elf.ELFOSABI_SOLARIS:
		return nil, reason.New(reason.ArchiveNotELF, "%s is for %s", name, strings.TrimPrefix(abi.String(), "ELFOSABI_"))
	}

	f.typ = elf.Type(f.order.Uint16(head[16:]))
	machine := elf.Machine(f.order.Uint16(head[18:]))
	f.arch = goarch(machine, f.is64, f.order)
	var phentsize int
	if f.is64 {
		f.entry = f.order.Uint64(head[24:])
		f.phoff = f.order.Uint64(head[32:])
		phentsize, f.phnum = int(f.order.Uint16(head[54:])), int(f.order.Uint16(head[56:]))
	} else {
		f.entry = uint64(f.order.Uint32(head[24:]))
		f.phoff = uint64(f.order.Uint32(head[28:]))
		phentsize, f.phnum = int(f.order.Uint16(head[42:])), int(f.order.Uint16(head[44:]))
	}

	switch {
	case f.typ == elf.ET_REL:
		return bad("is an object file, not a program")
	case f.typ == elf.ET_CORE:
		return bad("is a core dump, not a program")
	case f.typ != elf.ET_EXEC && f.typ != elf.ET_DYN:
		return bad("is ELF of type %s, not a program", f.typ)
	case f.phnum == 0:
		return bad("has nothing to load: no program headers")
	case phentsize != progSize || f.phnum*progSize > maxProgBytes:
		return bad("has a program header table that Linux does not load (%d of %d bytes)", f.phnum, phentsize)
	}
	return f, nil
}

// load reads the program headers of a whole file of size bytes, and refuses a
// file that is cut or that is no program. An error of r is returned wrapped.
func (f *elfFile) load(name string, r io.ReaderAt, size int64) error {
	bad := func(format string, args ...any) error {
		return reason.New(reason.ArchiveNotExecutable, "%s %s", name, fmt.Sprintf(format, args...))
	}
	progSize := progSize32
	if f.is64 {
		progSize = progSize64
	}
	if !within(f.phoff, uint64(f.phnum*progSize), size) {
		return bad("is cut: its program headers at byte %d are not in its %d bytes", f.phoff, size)
	}
	buf := make([]byte, f.phnum*progSize)
	if err := readAt(r, buf, int64(f.phoff)); err != nil {
		return fmt.Errorf("cannot read the staged %s: %w", name, err)
	}
	f.progs = make([]elf.ProgHeader, f.phnum)
	for i := range f.progs {
		f.progs[i] = f.prog(buf[i*progSize:])
	}

	var code, interp, pie bool
	for _, p := range f.progs {
		switch p.Type {
		case elf.PT_LOAD:
			if !within(p.Off, p.Filesz, size) {
				return bad("is cut: it has %d bytes, a segment of %d bytes begins at byte %d", size, p.Filesz, p.Off)
			}
			code = code || p.Flags&elf.PF_X != 0 && p.Filesz > 0
		case elf.PT_INTERP:
			interp = true
		case elf.PT_DYNAMIC:
			if !within(p.Off, p.Filesz, size) {
				return bad("is cut: it has %d bytes, its dynamic section begins at byte %d", size, p.Off)
			}
			dyn := make([]byte, min(p.Filesz, maxDynamicBytes))
			if err := readAt(r, dyn, int64(p.Off)); err != nil {
				return fmt.Errorf("cannot read the staged %s: %w", name, err)
			}
			pie = pie || f.isPIE(dyn)
		}
	}
	switch {
	case !code:
		return bad("has no code to load")
	case f.entry == 0:
		return bad("has no entry point")
	case f.typ == elf.ET_DYN && !interp && !pie:
		return bad("is a shared library, not a program")
	}
	return nil
}

// prog decodes one program header.
func (f *elfFile) prog(b []byte) elf.ProgHeader {
	u32 := func(at int) uint64 { return uint64(f.order.Uint32(b[at:])) }
	h := elf.ProgHeader{Type: elf.ProgType(u32(0))}
	if f.is64 {
		h.Flags = elf.ProgFlag(u32(4))
		h.Off, h.Vaddr = f.order.Uint64(b[8:]), f.order.Uint64(b[16:])
		h.Filesz, h.Memsz = f.order.Uint64(b[32:]), f.order.Uint64(b[40:])
		return h
	}
	h.Off, h.Vaddr = u32(4), u32(8)
	h.Filesz, h.Memsz = u32(16), u32(20)
	h.Flags = elf.ProgFlag(u32(24))
	return h
}

// isPIE reports whether a dynamic section marks a position independent program.
func (f *elfFile) isPIE(dyn []byte) bool {
	word := 4
	if f.is64 {
		word = 8
	}
	for ; len(dyn) >= 2*word; dyn = dyn[2*word:] {
		var tag, val uint64
		if f.is64 {
			tag, val = f.order.Uint64(dyn), f.order.Uint64(dyn[word:])
		} else {
			tag, val = uint64(f.order.Uint32(dyn)), uint64(f.order.Uint32(dyn[word:]))
		}
		switch elf.DynTag(tag) {
		case elf.DT_NULL:
			return false
		case elf.DT_FLAGS_1:
			return elf.DynFlag1(val)&elf.DF_1_PIE != 0
		}
	}
	return false
}

// goarch returns the GOARCH that runs programs for m, and a description of m
// that is no GOARCH where there is none.
func goarch(m elf.Machine, is64 bool, order binary.ByteOrder) string {
	little := order == binary.ByteOrder(binary.LittleEndian)
	switch {
	case m == elf.EM_X86_64 && is64 && little:
		return "amd64"
	case m == elf.EM_386 && !is64 && little:
		return "386"
	case m == elf.EM_AARCH64 && is64 && little:
		return "arm64"
	case m == elf.EM_ARM && !is64 && little:
		return "arm"
	case m == elf.EM_PPC64 && is64 && little:
		return "ppc64le"
	case m == elf.EM_PPC64 && is64:
		return "ppc64"
	case m == elf.EM_S390 && is64 && !little:
		return "s390x"
	case m == elf.EM_RISCV && is64 && little:
		return "riscv64"
	case m == elf.EM_LOONGARCH && is64 && little:
		return "loong64"
	case m == elf.EM_MIPS && !is64 && little:
		return "mipsle"
	case m == elf.EM_MIPS && !is64:
		return "mips"
	case m == elf.EM_MIPS && little:
		return "mips64le"
	case m == elf.EM_MIPS:
		return "mips64"
	}
	bits, end := 32, "big"
	if is64 {
		bits = 64
	}
	if little {
		end = "little"
	}
	name, ok := strings.CutPrefix(m.String(), "EM_")
	if !ok {
		name = fmt.Sprintf("machine %d", uint16(m))
	}
	return fmt.Sprintf("%s (%d bits, %s endian)", strings.ToLower(name), bits, end)
}

// within reports whether n bytes from off on lie inside a file of size bytes.
func within(off, n uint64, size int64) bool {
	return size >= 0 && off <= uint64(size) && n <= uint64(size)-off
}

// readAt fills b, of which the caller knows that it is in the file.
func readAt(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	switch {
	case n == len(b):
		return nil
	case err == nil || err == io.EOF:
		return io.ErrUnexpectedEOF
	}
	return err
}
