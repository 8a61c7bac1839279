package archivetest

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"slices"

	"cks-etcd/internal/reason"
)

// Case is an archive that is not valid, and why.
type Case struct {
	Name string
	Data []byte
	Code reason.Code // what archive.Verify says
	Text string      // part of the message
}

// Cases returns one archive or more for every archive-* code that depends on
// the bytes alone, for nodes of the given architecture: all but
// archive-unreadable and archive-digest, which need a reader or a digest.
func Cases(arch string) []Case {
	other := "arm64"
	if arch == other {
		other = "amd64"
	}
	dir := Dir(Version, arch)
	prog := ELF(Program{Arch: arch, Version: Version})
	good := Archive(Version, arch)
	plain := Tar(Release(Version, arch)...)
	pack := func(entries ...Entry) []byte { return Gzip(Tar(entries...)) }
	with := func(e Entry) []byte { return pack(File(dir+"etcd", prog), e) }
	link := func(name string, typeflag byte, target string) Entry {
		return Entry{Header: tar.Header{Name: name, Typeflag: typeflag, Linkname: target}}
	}

	html := []byte("<!DOCTYPE html>\n<html><head><title>404 Not Found</title></head><body>no</body></html>\n")
	xml := []byte(`<?xml version="1.0" encoding="UTF-8"?><Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message></Error>`)

	return []Case{
		{"empty", nil, reason.ArchiveEmpty, "0 bytes"},
		{"gzip of nothing", Gzip(nil), reason.ArchiveEmpty, "gzip stream of 0 bytes"},

		{"html", html, reason.ArchiveNotGzip, `an HTML page ("404 Not Found")`},
		{"xml", xml, reason.ArchiveNotGzip, `an XML document ("NoSuchKey")`},
		{"plain tar", plain, reason.ArchiveNotGzip, "a tar archive that is not compressed"},
		{"zip", []byte("PK\x03\x04\x14\x00\x00\x00"), reason.ArchiveNotGzip, "a zip archive"},
		{"xz", []byte("\xfd7zXZ\x00\x00\x04"), reason.ArchiveNotGzip, "an xz stream"},
		{"zstd", []byte("\x28\xb5\x2f\xfd\x04\x58"), reason.ArchiveNotGzip, "a zstd stream"},
		{"bzip2", []byte("BZh91AY&SY"), reason.ArchiveNotGzip, "a bzip2 stream"},
		{"program", prog, reason.ArchiveNotGzip, "an ELF program"},
		{"text", []byte("404 page not found\n"), reason.ArchiveNotGzip, `a text ("404 page not found")`},
		{"json", []byte("{\"message\": \"Not Found\"}\n"), reason.ArchiveNotGzip, `a JSON text`},
		{"zeros", make([]byte, 4096), reason.ArchiveNotGzip, "nothing but zero bytes"},
		{"noise", []byte("\x93\x00\xfe\x80\x01"), reason.ArchiveNotGzip, "begins with 93 00 fe 80 01"},

		{"one byte", good[:1], reason.ArchiveTruncated, "after 1 byte"},
		{"cut header", good[:7], reason.ArchiveTruncated, "after 7 bytes"},
		{"cut in half", good[:len(good)/2], reason.ArchiveTruncated, "inside the gzip stream"},
		{"cut trailer", good[:len(good)-3], reason.ArchiveTruncated, "inside the gzip stream"},

		{"crc", flip(good, len(good)-8), reason.ArchiveChecksum, "CRC-32"},
		{"length", flip(good, len(good)-1), reason.ArchiveChecksum, "CRC-32 or length"},
		{"method", flip(good, 2), reason.ArchiveChecksum, "header of gzip member 1"},

		{"html in gzip", Gzip(html), reason.ArchiveTarDamaged, "no tar but an HTML page"},
		{"gzip in gzip", Gzip(good), reason.ArchiveTarDamaged, "no tar but a gzip stream"},
		{"program in gzip", Gzip(prog), reason.ArchiveTarDamaged, "no tar but an ELF program"},
		{"tar checksum", Gzip(flip(plain, 512+10)), reason.ArchiveTarDamaged, "after entry 1"},

		{"no end marker", Gzip(plain[:len(plain)-1024]), reason.ArchiveNoEnd, "without two blocks of zeros"},
		{"half an end marker", Gzip(plain[:len(plain)-512]), reason.ArchiveNoEnd, "without two blocks of zeros"},
		{"cut before compression", Gzip(plain[:len(plain)/2]), reason.ArchiveNoEnd, "in the middle of an entry"},

		{"empty tar", Gzip(make([]byte, 10240)), reason.ArchiveNoEtcd, "no entries"},
		{"no etcd", pack(File(dir+"etcdctl", prog), File(dir+"README.md", nil)), reason.ArchiveNoEtcd, "none of its 2 entries"},
		{"etcd too deep", pack(File(dir+"Documentation/etcd", prog)), reason.ArchiveNoEtcd, "none of its 1 entries"},
		{"etcd is a directory", pack(File(dir+"etcd/", nil), File(dir+"etcd/main.go", nil)), reason.ArchiveNoEtcd, "none of its 2 entries"},

		{"two etcd", pack(File(dir+"etcd", prog), File("etcd", prog)), reason.ArchiveTwoEtcd, dir + "etcd"},
		{"same etcd twice", pack(File("./etcd", prog), File("etcd", prog)), reason.ArchiveTwoEtcd, "./etcd"},
		{"two etcdctl", pack(File(dir+"etcd", prog), File(dir+"etcdctl", prog), File("etcdctl", prog)), reason.ArchiveTwoEtcd, "etcdctl is there"},

		{"empty program", pack(File(dir+"etcd", nil)), reason.ArchiveNotELF, "etcd is empty"},
		{"script", pack(File(dir+"etcd", []byte("#!/bin/sh\nexec true\n"))), reason.ArchiveNotELF, "etcd is a script"},
		{"macOS", pack(File(dir+"etcd", []byte("\xcf\xfa\xed\xfe\x07\x00\x00\x01\x03\x00\x00\x00"))), reason.ArchiveNotELF, "a macOS program"},
		{"Windows", pack(File(dir+"etcd", []byte("MZ\x90\x00\x03\x00\x00\x00"))), reason.ArchiveNotELF, "a Windows program"},
		{"FreeBSD", pack(File(dir+"etcd", set(prog, elf.EI_OSABI, byte(elf.ELFOSABI_FREEBSD)))), reason.ArchiveNotELF, "etcd is for FREEBSD"},
		{"page as etcdctl", with(File(dir+"etcdctl", html)), reason.ArchiveNotELF, "etcdctl is an HTML page"},

		{"wrong arch", Archive(Version, other), reason.ArchiveWrongArch, "is for " + other + ", and not for " + arch},
		{"wrong arch of etcdctl", with(File(dir+"etcdctl", ELF(Program{Arch: other}))), reason.ArchiveWrongArch, "etcdctl in it is for " + other},

		{"object file", pack(File(dir+"etcd", ELF(Program{Arch: arch, Type: elf.ET_REL}))), reason.ArchiveNotExecutable, "an object file"},
		{"core dump", pack(File(dir+"etcd", ELF(Program{Arch: arch, Type: elf.ET_CORE}))), reason.ArchiveNotExecutable, "a core dump"},
		{"library", pack(File(dir+"etcd", ELF(Program{Arch: arch, Type: elf.ET_DYN}))), reason.ArchiveNotExecutable, "a shared library"},
		{"program cut before packing", pack(File(dir+"etcd", prog[:dataAt+10])), reason.ArchiveNotExecutable, "is cut"},
		{"program cut in its header", pack(File(dir+"etcd", prog[:40])), reason.ArchiveNotExecutable, "cut to 40 bytes"},

		{"absolute name", with(File("/etc/passwd", nil)), reason.ArchiveUnsafeName, `"/etc/passwd" is absolute`},
		{"parent name", with(File(dir+"../../etc/passwd", nil)), reason.ArchiveUnsafeName, "leaves its directory"},
		{"backslash", with(File(`etcd-v3\etcd`, nil)), reason.ArchiveUnsafeName, "backslash"},
		{"control character", with(File(dir+"a\nb", nil)), reason.ArchiveUnsafeName, "control character"},
		{"symbolic link", pack(link(dir+"etcd", tar.TypeSymlink, "etcd.real")), reason.ArchiveNotExecutable, `a symbolic link to "etcd.real"`},
		{"symbolic link within", pack(link(dir+"etcd", tar.TypeSymlink, "../bin/etcd")), reason.ArchiveNotExecutable, "a symbolic link"},
		{"symbolic link outside", pack(link(dir+"etcd", tar.TypeSymlink, "../../bin/sh")), reason.ArchiveUnsafeName, "leaves its directory"},
		{"absolute symbolic link", pack(link(dir+"etcd", tar.TypeSymlink, "/bin/sh")), reason.ArchiveUnsafeName, `a symbolic link to "/bin/sh", which is absolute`},
		{"hard link", pack(File(dir+"README.md", nil), link(dir+"etcd", tar.TypeLink, dir+"README.md")), reason.ArchiveNotExecutable, "a hard link"},
		{"hard link outside", pack(link(dir+"etcd", tar.TypeLink, "../etc/passwd")), reason.ArchiveUnsafeName, "a hard link"},
		{"device", with(link(dir+"etcdctl", tar.TypeChar, "")), reason.ArchiveNotExecutable, "a device"},
		{"pipe", with(link(dir+"etcdutl", tar.TypeFifo, "")), reason.ArchiveNotExecutable, "a named pipe"},

		{"too many entries", manyEntries(2_001), reason.ArchiveTooLarge, "more than 2000 entries"},
		{"bomb", bomb(dir, 17<<20), reason.ArchiveTooLarge, "more than 100 times"},
		{"program too large", claim(dir+"etcd", 257<<20), reason.ArchiveTooLarge, "etcd has 269484032 bytes"},
		{"tar too large", claim(dir+"README.md", 2<<30), reason.ArchiveTooLarge, "more than 1073741824 bytes"},
	}
}

func flip(b []byte, at int) []byte { return set(b, at, b[at]^0x01) }

func set(b []byte, at int, v byte) []byte {
	b = slices.Clone(b)
	b[at] = v
	return b
}

func manyEntries(n int) []byte {
	entries := make([]Entry, n)
	for i := range entries {
		entries[i] = File("docs/", nil)
	}
	return Gzip(Tar(entries...))
}

func bomb(dir string, size int) []byte {
	return Gzip(Tar(File(dir+"zeros", make([]byte, size))))
}

// claim returns an archive whose only header claims a size that the archive
// does not have.
func claim(name string, size int64) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o755, Size: size}); err != nil {
		panic("archivetest: " + err.Error())
	}
	b.Write(make([]byte, 4096))
	return Gzip(b.Bytes())
}
