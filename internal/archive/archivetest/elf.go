package archivetest

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
)

// Program describes a small ELF program. The zero value is one for amd64.
type Program struct {
	Arch    string   // GOARCH; "" is amd64
	Version string   // of etcd, as in "3.5.21": what it prints when run, and in its build information
	Bare    bool     // without Go build information
	Type    elf.Type // 0 is ET_EXEC
	Pad     int      // bytes that are appended to its data segment
}

// Layout of the file: headers and code in a first segment, data in a second.
const (
	base     = 0x400000
	codeAt   = 0x100
	dataAt   = 0x1000
	pageSize = 0x1000
)

// ELF returns a small program with the headers of p.Arch, one segment of code,
// and one of data that holds Go build information as etcd's has it. For amd64 and
// arm64 it runs, whatever its arguments: it prints "etcd Version: " and the
// version, as etcd --version begins, and exits with status 0.
func ELF(p Program) []byte {
	if p.Arch == "" {
		p.Arch = "amd64"
	}
	if p.Type == elf.ET_NONE {
		p.Type = elf.ET_EXEC
	}
	m, ok := machine(p.Arch)
	if !ok {
		panic("archivetest: no ELF machine for GOARCH " + p.Arch)
	}
	text := "etcd Version: " + p.Version + "\n"
	code := exitCode(p.Arch, len(text))
	code = append(code, text...)

	var data []byte
	if !p.Bare {
		data = BuildInfo("go1.26.0", "path\tgo.etcd.io/etcd/server/v3\n"+
			"mod\tgo.etcd.io/etcd/server/v3\t(devel)\t\n"+
			"dep\tgo.etcd.io/etcd/api/v3\tv"+p.Version+"\n"+
			"=>\t../api\t(devel)\t\n")
	}
	data = append(data, make([]byte, 64+p.Pad)...)

	b := make([]byte, dataAt, dataAt+len(data))
	copy(b[codeAt:], code)
	b = append(b, data...)

	o := m.order
	copy(b, elf.ELFMAG)
	b[elf.EI_DATA] = byte(elf.ELFDATA2LSB)
	if o == binary.ByteOrder(binary.BigEndian) {
		b[elf.EI_DATA] = byte(elf.ELFDATA2MSB)
	}
	b[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	o.PutUint16(b[16:], uint16(p.Type))
	o.PutUint16(b[18:], uint16(m.elf))
	o.PutUint32(b[20:], uint32(elf.EV_CURRENT))

	segments := []struct {
		flags     elf.ProgFlag
		off, size uint64
	}{
		{elf.PF_R | elf.PF_X, 0, uint64(codeAt + len(code))},
		{elf.PF_R | elf.PF_W, dataAt, uint64(len(data))},
	}
	if m.is64 {
		b[elf.EI_CLASS] = byte(elf.ELFCLASS64)
		o.PutUint64(b[24:], base+codeAt)
		o.PutUint64(b[32:], 64)
		o.PutUint16(b[52:], 64)
		o.PutUint16(b[54:], 56)
		o.PutUint16(b[56:], uint16(len(segments)))
		o.PutUint16(b[58:], 64)
		for i, s := range segments {
			h := b[64+56*i:]
			o.PutUint32(h, uint32(elf.PT_LOAD))
			o.PutUint32(h[4:], uint32(s.flags))
			for j, v := range []uint64{s.off, base + s.off, base + s.off, s.size, s.size, pageSize} {
				o.PutUint64(h[8+8*j:], v)
			}
		}
		return b
	}
	b[elf.EI_CLASS] = byte(elf.ELFCLASS32)
	o.PutUint32(b[24:], base+codeAt)
	o.PutUint32(b[28:], 52)
	o.PutUint16(b[40:], 52)
	o.PutUint16(b[42:], 32)
	o.PutUint16(b[44:], uint16(len(segments)))
	o.PutUint16(b[46:], 40)
	for i, s := range segments {
		h := b[52+32*i:]
		o.PutUint32(h, uint32(elf.PT_LOAD))
		for j, v := range []uint64{s.off, base + s.off, base + s.off, s.size, s.size, uint64(s.flags), pageSize} {
			o.PutUint32(h[4+4*j:], uint32(v))
		}
	}
	return b
}

// BuildInfo returns Go build information in the format since Go 1.18, for the
// start of a data segment. The module text is what 'go version -m' prints.
func BuildInfo(goVersion, mod string) []byte {
	b := make([]byte, 32)
	copy(b, "\xff Go buildinf:")
	b[15] = 2 // the strings follow
	mark := make([]byte, 16)
	mod = string(mark) + mod + string(mark)
	for _, s := range []string{goVersion, mod} {
		b = binary.AppendUvarint(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}

type machineInfo struct {
	elf   elf.Machine
	is64  bool
	order binary.ByteOrder
}

func machine(goarch string) (machineInfo, bool) {
	m, ok := map[string]machineInfo{
		"amd64":    {elf.EM_X86_64, true, binary.LittleEndian},
		"386":      {elf.EM_386, false, binary.LittleEndian},
		"arm64":    {elf.EM_AARCH64, true, binary.LittleEndian},
		"arm":      {elf.EM_ARM, false, binary.LittleEndian},
		"ppc64le":  {elf.EM_PPC64, true, binary.LittleEndian},
		"ppc64":    {elf.EM_PPC64, true, binary.BigEndian},
		"s390x":    {elf.EM_S390, true, binary.BigEndian},
		"riscv64":  {elf.EM_RISCV, true, binary.LittleEndian},
		"loong64":  {elf.EM_LOONGARCH, true, binary.LittleEndian},
		"mips":     {elf.EM_MIPS, false, binary.BigEndian},
		"mipsle":   {elf.EM_MIPS, false, binary.LittleEndian},
		"mips64":   {elf.EM_MIPS, true, binary.BigEndian},
		"mips64le": {elf.EM_MIPS, true, binary.LittleEndian},
	}[goarch]
	return m, ok
}

// exitCode returns machine code that writes the n bytes behind it to standard
// output and exits, and a placeholder for the architectures without any.
func exitCode(goarch string, n int) []byte {
	if n > 0xffff {
		panic(fmt.Sprintf("archivetest: a text of %d bytes does not fit", n))
	}
	switch goarch {
	case "amd64":
		return []byte{
			0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
			0xbf, 1, 0, 0, 0, // mov edi, 1
			0x48, 0x8d, 0x35, 16, 0, 0, 0, // lea rsi, [rip+16]
			0xba, byte(n), byte(n >> 8), 0, 0, // mov edx, n
			0x0f, 0x05, // syscall
			0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
			0x31, 0xff, // xor edi, edi
			0x0f, 0x05, // syscall
		}
	case "arm64":
		var b []byte
		for _, op := range []uint32{
			0xd2800020,                // mov x0, #1
			0x100000e1,                // adr x1, #28
			0xd2800002 | uint32(n)<<5, // mov x2, #n
			0xd2800808,                // mov x8, #64 (write)
			0xd4000001,                // svc #0
			0xd2800000,                // mov x0, #0
			0xd2800ba8,                // mov x8, #93 (exit)
			0xd4000001,                // svc #0
		} {
			b = binary.LittleEndian.AppendUint32(b, op)
		}
		return b
	}
	return make([]byte, 16)
}
