package archive

import (
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

// buildPrograms builds etcd and etcdctl stand-ins that depend on etcd's API
// module in the way a release does: a version that a directory replaces.
func buildPrograms(t *testing.T, goarch string, flags ...string) string {
	t.Helper()
	if _, err := exec.LookPath("go"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("the go command is missing")
		}
		t.Skip("needs the go command")
	}
	src, out := t.TempDir(), t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module go.etcd.io/etcd/server/v3\n\ngo 1.21\n\n" +
			"require go.etcd.io/etcd/api/v3 v3.5.17\n\nreplace go.etcd.io/etcd/api/v3 => ./api\n",
		"main.go":            "package main\n\nimport \"go.etcd.io/etcd/api/v3/version\"\n\nfunc main() { println(\"etcd Version:\", version.Version) }\n",
		"api/go.mod":         "module go.etcd.io/etcd/api/v3\n\ngo 1.21\n",
		"api/version/doc.go": "package version\n\nvar Version = \"3.5.17\"\n",
	} {
		file := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "go", append([]string{"build", "-o", filepath.Join(out, "etcd")}, flags...)...)
	cmd.Dir = src
	cmd.Env = append(os.Environ(), "GOOS=linux", "GOARCH="+goarch, "CGO_ENABLED=0", "GOPROXY=off", "GOFLAGS=-mod=mod", "GOWORK=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, b)
	}
	if err := os.Link(filepath.Join(out, "etcd"), filepath.Join(out, "etcdctl")); err != nil {
		t.Fatal(err)
	}
	return out
}

// Programs that the Go toolchain built, for two architectures and in the ways
// distributions build: what is read here is what debug/buildinfo reads.
func TestVerifyGoPrograms(t *testing.T) {
	for _, tt := range []struct {
		name, arch string
		flags      []string
	}{
		{"amd64", "amd64", nil},
		{"arm64", "arm64", nil},
		{"stripped", "amd64", []string{"-trimpath", "-ldflags=-s -w"}},
		{"position independent", "amd64", []string{"-buildmode=pie"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := buildPrograms(t, tt.arch, tt.flags...)
			var b bytes.Buffer
			if err := archivetest.WriteRelease(&b, "9.9.9", tt.arch, dir); err != nil {
				t.Fatal(err)
			}
			res, err := Verify(t.Context(), &b, Want{Arch: tt.arch}, NewTempSink(t.TempDir()))
			if err != nil {
				t.Fatal(err)
			}
			if res.Version != "3.5.17" || res.Arch != tt.arch || len(res.Binaries) != 2 {
				t.Errorf("got %+v, want two programs of 3.5.17 for %s", res, tt.arch)
			}
			sameBuildInfo(t, filepath.Join(dir, "etcd"))
		})
	}
}

// sameBuildInfo holds our reader of build information against the standard one.
func sameBuildInfo(t *testing.T, file string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	want, err := buildinfo.Read(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, ownBuildInfo(t, b)); diff != "" {
		t.Errorf("build information of %s (-debug/buildinfo +own):\n%s", file, diff)
	}
}

func ownBuildInfo(t *testing.T, b []byte) *debug.BuildInfo {
	t.Helper()
	f, err := parseELF("etcd", b[:min(len(b), sniffSize)])
	if err != nil {
		t.Fatal(err)
	}
	if err := f.load("etcd", bytes.NewReader(b), int64(len(b))); err != nil {
		t.Fatal(err)
	}
	bi, err := readBuildInfo(bytes.NewReader(b), f)
	if err != nil {
		t.Fatal(err)
	}
	return bi
}

// The programs that archivetest makes up are understood by the standard
// library, and run where they can.
func TestMadeUpPrograms(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "s390x", "386", "mips"} {
		b := archivetest.ELF(archivetest.Program{Arch: arch, Version: "3.5.21"})
		if _, err := elf.NewFile(bytes.NewReader(b)); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
		want, err := buildinfo.Read(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", arch, err)
			continue
		}
		if diff := cmp.Diff(want, ownBuildInfo(t, b)); diff != "" {
			t.Errorf("%s: build information (-debug/buildinfo +own):\n%s", arch, diff)
		}
		if runtime.GOOS != "linux" || runtime.GOARCH != arch {
			continue
		}
		file := filepath.Join(t.TempDir(), "etcd")
		if err := os.WriteFile(file, b, 0o755); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), file, "--version").Output(); err != nil || string(out) != "etcd Version: 3.5.21\n" {
			t.Errorf("%s: printed %q, %v", arch, out, err)
		}
	}
}

// pointerBuildInfo returns a data segment in the format before Go 1.18, in
// which etcd 3.5.0 to 3.5.5 and 3.4 were released: two pointers to strings.
func pointerBuildInfo(order binary.ByteOrder, size int, at uint64, mod string, claim uint64) []byte {
	mark := strings.Repeat("m", 16)
	mod = mark + mod + mark
	const goVersion = "go1.16.15"
	if claim == 0 {
		claim = uint64(len(mod))
	}
	word := func(b []byte, v uint64) {
		if size == 4 {
			order.PutUint32(b, uint32(v))
		} else {
			order.PutUint64(b, v)
		}
	}
	b := make([]byte, 96)
	copy(b, buildInfoMagic)
	b[14] = byte(size)
	if order == binary.ByteOrder(binary.BigEndian) {
		b[15] = 1
	}
	word(b[16:], at+32)
	word(b[16+size:], at+48)
	word(b[32:], at+64)
	word(b[32+size:], uint64(len(goVersion)))
	word(b[48:], at+96)
	word(b[48+size:], claim)
	copy(b[64:], goVersion)
	return append(b, mod...)
}

func TestBuildInfoOfOldGo(t *testing.T) {
	const mod = "path\tgo.etcd.io/etcd/server/v3\nmod\tgo.etcd.io/etcd/server/v3\t(devel)\t\ndep\tgo.etcd.io/etcd/api/v3\tv3.5.4\n=>\t../api\t(devel)\t\n"
	for arch, tt := range map[string]struct {
		order binary.ByteOrder
		size  int
	}{"amd64": {binary.LittleEndian, 8}, "s390x": {binary.BigEndian, 8}, "386": {binary.LittleEndian, 4}} {
		b := archivetest.ELF(archivetest.Program{Arch: arch, Bare: true, Pad: 1024})
		copy(b[0x1000:], pointerBuildInfo(tt.order, tt.size, 0x401000, mod, 0))
		want, err := buildinfo.Read(bytes.NewReader(b))
		if err != nil {
			t.Fatalf("%s: %v", arch, err)
		}
		got := ownBuildInfo(t, b)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: build information (-debug/buildinfo +own):\n%s", arch, diff)
		}
		if v := etcdVersion(got); v != "3.5.4" {
			t.Errorf("%s: version %q", arch, v)
		}
	}
}

func TestEtcdVersion(t *testing.T) {
	api := func(v string, replace *debug.Module) *debug.BuildInfo {
		return &debug.BuildInfo{Deps: []*debug.Module{{Path: "x"}, {Path: apiModule, Version: v, Replace: replace}}}
	}
	main := func(path, v string) *debug.BuildInfo {
		return &debug.BuildInfo{Main: debug.Module{Path: path, Version: v}}
	}
	for _, tt := range []struct {
		name, want string
		bi         *debug.BuildInfo
	}{
		{"plain", "3.6.4", api("v3.6.4", nil)},
		{"replaced by a directory", "3.5.21", api("v3.5.21", &debug.Module{Path: "../api", Version: "(devel)"})},
		{"replaced by a version", "3.5.22", api("v3.5.21", &debug.Module{Path: "example.org/api", Version: "v3.5.22"})},
		{"candidate", "3.6.0-rc.1", api("v3.6.0-rc.1", nil)},
		{"workspace", "", api("(devel)", nil)},
		{"placeholder", "", api("v0.0.0", nil)},
		{"from a commit", "", api("v3.6.0-alpha.0.0.20240911093424-0123456789ab", nil)},
		{"stamped main module", "3.6.4", main("go.etcd.io/etcd/server/v3", "v3.6.4+dirty")},
		{"etcd 3.4", "", main("go.etcd.io/etcd", "(devel)")},
		{"another program", "", main("example.org/etcd", "v3.6.4")},
	} {
		if got := etcdVersion(tt.bi); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.name, got, tt.want)
		}
	}
}

// Which programs are refused, beyond the cases of archivetest.
func TestELFTypes(t *testing.T) {
	pie := func(mark bool, tag elf.DynTag) []byte {
		b := archivetest.ELF(archivetest.Program{Type: elf.ET_DYN, Bare: true})
		binary.LittleEndian.PutUint16(b[56:], 3) // a third program header: the dynamic section
		h := b[64+2*56 : 64+3*56]
		binary.LittleEndian.PutUint32(h, uint32(elf.PT_DYNAMIC))
		binary.LittleEndian.PutUint64(h[8:], 0x1000)
		binary.LittleEndian.PutUint64(h[32:], 32)
		if mark {
			binary.LittleEndian.PutUint64(b[0x1000:], uint64(tag))
			binary.LittleEndian.PutUint64(b[0x1008:], uint64(elf.DF_1_PIE))
		}
		return b
	}
	edit := func(at int, v uint16) []byte {
		b := archivetest.ELF(archivetest.Program{})
		binary.LittleEndian.PutUint16(b[at:], v)
		return b
	}
	for _, tt := range []struct {
		name string
		b    []byte
		code reason.Code
	}{
		{"static position independent", pie(true, elf.DT_FLAGS_1), reason.Ready},
		{"library with other flags", pie(true, elf.DT_FLAGS), reason.ArchiveNotExecutable},
		{"library", pie(false, 0), reason.ArchiveNotExecutable},
		{"class", edit(4, 0x0107), reason.ArchiveNotExecutable},
		{"byte order", edit(5, 0x0107), reason.ArchiveNotExecutable},
		{"machine of no GOARCH", edit(18, uint16(elf.EM_SPARCV9)), reason.ArchiveWrongArch},
		{"unknown machine", edit(18, 0x7777), reason.ArchiveWrongArch},
		{"no program headers", edit(56, 0), reason.ArchiveNotExecutable},
		{"many program headers", edit(56, 0xffff), reason.ArchiveNotExecutable},
		{"more program headers than bytes", edit(56, 1000), reason.ArchiveNotExecutable},
		{"odd program headers", edit(54, 57), reason.ArchiveNotExecutable},
		{"program headers elsewhere", edit(38, 0xffff), reason.ArchiveNotExecutable},
		{"no entry point", edit(24, 0), reason.ArchiveNotExecutable},
		{"no code", edit(68, uint16(elf.PF_R)), reason.ArchiveNotExecutable},
	} {
		if tt.name == "no entry point" {
			clear(tt.b[24:32])
		}
		data := archivetest.Gzip(archivetest.Tar(archivetest.File("etcd", tt.b)))
		_, err := Verify(t.Context(), bytes.NewReader(data), Want{Arch: "amd64"}, NewTempSink(t.TempDir()))
		if got := reason.Of(err); got != tt.code {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.code)
		}
	}
}
