package archive_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"cks-etcd/internal/archive"
	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

// memSink keeps what it is given, and whether it was closed.
type memSink struct {
	files map[string]*memFile
	fail  error // of Create
	write error // of Write
	close error // of Close
}

type memFile struct {
	bytes.Buffer
	sink   *memSink
	closed int
}

func (s *memSink) Create(name string, size int64) (archive.Staged, error) {
	if s.fail != nil {
		return nil, s.fail
	}
	if s.files == nil {
		s.files = make(map[string]*memFile)
	}
	if s.files[name] != nil {
		return nil, fmt.Errorf("%s created twice", name)
	}
	f := &memFile{sink: s}
	s.files[name] = f
	return f, nil
}

func (f *memFile) Write(b []byte) (int, error) {
	if f.sink.write != nil {
		return 0, f.sink.write
	}
	return f.Buffer.Write(b)
}

func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	return bytes.NewReader(f.Bytes()).ReadAt(b, off)
}

func (f *memFile) Close() error {
	f.closed++
	return f.sink.close
}

// verify runs Verify and checks what holds for every archive.
func verify(t *testing.T, r io.Reader, w archive.Want) (*archive.Result, *memSink, error) {
	t.Helper()
	sink := new(memSink)
	res, err := archive.Verify(t.Context(), r, w, sink)
	if (res == nil) == (err == nil) {
		t.Errorf("result %v with error %v", res, err)
	}
	for name, f := range sink.files {
		if f.closed != 1 {
			t.Errorf("%s was closed %d times", name, f.closed)
		}
	}
	return res, sink, err
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestVerifyRelease(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64", "ppc64le", "ppc64", "s390x", "riscv64", "386", "arm", "loong64", "mips", "mipsle", "mips64", "mips64le"} {
		t.Run(arch, func(t *testing.T) {
			data := archivetest.Archive("3.5.21", arch)
			got, sink, err := verify(t, bytes.NewReader(data), archive.Want{Arch: arch, SHA256: strings.ToUpper(hexSum(data))})
			if err != nil {
				t.Fatal(err)
			}
			prog := archivetest.ELF(archivetest.Program{Arch: arch, Version: "3.5.21"})
			want := &archive.Result{Version: "3.5.21", Arch: arch, SHA256: hexSum(data), Size: int64(len(data))}
			for _, name := range []string{"etcd", "etcdctl", "etcdutl"} {
				want.Binaries = append(want.Binaries, archive.Binary{
					Name: name, Size: int64(len(prog)), Version: "3.5.21", Arch: arch, SHA256: hexSum(prog),
				})
				if !bytes.Equal(sink.files[name].Bytes(), prog) {
					t.Errorf("%s was not staged as it is in the archive", name)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("result (-want +got):\n%s", diff)
			}
		})
	}
}

// The layouts in which etcd is found, and what the version then comes from.
func TestVerifyLayout(t *testing.T) {
	prog := archivetest.ELF(archivetest.Program{Version: "3.5.21"})
	bare := archivetest.ELF(archivetest.Program{Bare: true})
	deep := archivetest.File("etcd-v3.4.0-linux-amd64/Documentation/etcd", []byte("not a program"))
	for _, tt := range []struct {
		name    string
		entries []archivetest.Entry
		version string
	}{
		{"release", []archivetest.Entry{archivetest.File("etcd-v3.4.0-linux-amd64/etcd", prog), deep}, "3.5.21"},
		{"dot", []archivetest.Entry{archivetest.File("./", nil), archivetest.File("./etcd", prog)}, "3.5.21"},
		{"top", []archivetest.Entry{archivetest.File("etcd", prog)}, "3.5.21"},
		{"in a directory etcd", []archivetest.Entry{archivetest.File("etcd/", nil), archivetest.File("etcd/etcd", prog)}, "3.5.21"},
		{"dot and directory", []archivetest.Entry{archivetest.File("./etcd-v3.4.0-linux-amd64/etcd", prog)}, "3.5.21"},
		{"version of the directory", []archivetest.Entry{archivetest.File("etcd-v3.4.0-linux-amd64/etcd", bare), deep}, "3.4.0"},
		{"candidate of the directory", []archivetest.Entry{archivetest.File("./etcd-v3.6.0-rc.1-linux-amd64/etcd", bare)}, "3.6.0-rc.1"},
		{"no version", []archivetest.Entry{archivetest.File("etcd-latest/etcd", bare)}, ""},
		{"no version in the directory", []archivetest.Entry{archivetest.File("etcd-vnext-linux-amd64/etcd", bare)}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			res, _, err := verify(t, bytes.NewReader(archivetest.Gzip(archivetest.Tar(tt.entries...))), archive.Want{Arch: "amd64"})
			if err != nil {
				t.Fatal(err)
			}
			if res.Version != tt.version {
				t.Errorf("version %q, want %q", res.Version, tt.version)
			}
		})
	}
}

func TestVerifyDamaged(t *testing.T) {
	seen := make(map[reason.Code]bool)
	for _, arch := range []string{"amd64", "arm64"} {
		for _, tt := range archivetest.Cases(arch) {
			seen[tt.Code] = true
			t.Run(arch+"/"+tt.Name, func(t *testing.T) {
				_, _, err := verify(t, bytes.NewReader(tt.Data), archive.Want{Arch: arch})
				if got := reason.Of(err); got != tt.Code {
					t.Fatalf("code %s (%v), want %s", got, err, tt.Code)
				}
				if !strings.Contains(err.Error(), tt.Text) {
					t.Errorf("message %q does not contain %q", err, tt.Text)
				}
				if n := len(err.Error()); n > 300 {
					t.Errorf("message of %d bytes", n)
				}
			})
		}
	}
	// Every code of the archive has a case here, or a test of its own below.
	for _, i := range reason.All() {
		switch c := i.Code; c {
		case reason.ArchiveMissing, reason.ArchiveUnreadable, reason.ArchiveDigest:
		default:
			if strings.HasPrefix(string(c), "archive-") && !seen[c] {
				t.Errorf("no case for %s", c)
			}
		}
	}
}

// A valid archive that is cut anywhere is truncated, never anything else.
func TestVerifyCutAnywhere(t *testing.T) {
	data := archivetest.Archive("3.5.21", "amd64")
	for n := 1; n < len(data); n++ {
		_, _, err := verify(t, bytes.NewReader(data[:n]), archive.Want{Arch: "amd64"})
		if got := reason.Of(err); got != reason.ArchiveTruncated {
			t.Fatalf("cut to %d of %d bytes: %v", n, len(data), err)
		}
	}
}

// A valid archive with one wrong bit is corrupt or, where the bit makes the
// stream go on past the end, truncated: never a verdict about its contents. Some
// bits do not matter, such as the length of a Huffman code that is not used.
func TestVerifyFlipAnywhere(t *testing.T) {
	data := archivetest.Archive("3.5.21", "amd64")
	want, _, err := verify(t, bytes.NewReader(data), archive.Want{Arch: "amd64"})
	if err != nil {
		t.Fatal(err)
	}
	unchanged := 0
	for i := range data {
		if i == 0 || i == 1 || i >= 3 && i < 10 {
			continue // magic; flags, time and system, which no checksum covers
		}
		for bit := range 8 {
			b := bytes.Clone(data)
			b[i] ^= 1 << bit
			res, _, err := verify(t, bytes.NewReader(b), archive.Want{Arch: "amd64"})
			switch reason.Of(err) {
			case reason.ArchiveChecksum, reason.ArchiveTruncated:
			case reason.Ready:
				if diff := cmp.Diff(want.Binaries, res.Binaries); diff != "" {
					t.Fatalf("bit %d of byte %d changed (-want +got):\n%s", bit, i, diff)
				}
				unchanged++
			default:
				t.Fatalf("bit %d of byte %d: %v", bit, i, err)
			}
		}
	}
	if limit := 8 * len(data) / 20; unchanged > limit {
		t.Errorf("%d of %d bits went unnoticed, want at most %d", unchanged, 8*len(data), limit)
	}
}

func TestVerifyDigest(t *testing.T) {
	data := archivetest.Archive("3.5.21", "amd64")
	other := hexSum([]byte("another file"))
	_, _, err := verify(t, bytes.NewReader(data), archive.Want{SHA256: other})
	if got := reason.Of(err); got != reason.ArchiveDigest || !strings.Contains(err.Error(), other) || !strings.Contains(err.Error(), hexSum(data)) {
		t.Errorf("got %v, want %s with both digests", err, reason.ArchiveDigest)
	}
	// Another file explains every fault of its contents, but not of the way it came.
	for _, tt := range []struct {
		name string
		data []byte
		want reason.Code
	}{
		{"no etcd", archivetest.Gzip(archivetest.Tar(archivetest.File("x", nil))), reason.ArchiveDigest},
		{"no tar", archivetest.Gzip([]byte("text")), reason.ArchiveDigest},
		{"wrong architecture", archivetest.Archive("3.5.21", "arm64"), reason.ArchiveDigest},
		{"truncated", data[:len(data)/2], reason.ArchiveTruncated},
		{"not gzip", []byte("<html>"), reason.ArchiveNotGzip},
	} {
		if _, _, err := verify(t, bytes.NewReader(tt.data), archive.Want{Arch: "amd64", SHA256: other}); reason.Of(err) != tt.want {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.want)
		}
	}
	for _, bad := range []string{"abc", strings.Repeat("z", 64), strings.Repeat("0", 66)} {
		if _, _, err := verify(t, bytes.NewReader(data), archive.Want{SHA256: bad}); reason.Of(err) != reason.Usage {
			t.Errorf("digest %q: got %v, want %s", bad, err, reason.Usage)
		}
	}
}

// Without a wanted architecture, the programs still have to agree.
func TestVerifyMixedArch(t *testing.T) {
	mixed := archivetest.Gzip(archivetest.Tar(
		archivetest.File("etcd", archivetest.ELF(archivetest.Program{Arch: "amd64"})),
		archivetest.File("etcdctl", archivetest.ELF(archivetest.Program{Arch: "arm64"})),
	))
	_, _, err := verify(t, bytes.NewReader(mixed), archive.Want{})
	if reason.Of(err) != reason.ArchiveWrongArch || !strings.Contains(err.Error(), "etcdctl in it is for arm64, etcd is for amd64") {
		t.Errorf("got %v", err)
	}
	res, _, err := verify(t, bytes.NewReader(archivetest.Archive("3.5.21", "arm64")), archive.Want{})
	if err != nil || res.Arch != "arm64" {
		t.Errorf("got %+v, %v", res, err)
	}
}

// What follows the gzip stream: as gzip(1) treats it.
func TestVerifyAfterTheStream(t *testing.T) {
	plain := archivetest.Tar(archivetest.Release("3.5.21", "amd64")...)
	good := archivetest.Gzip(plain)
	split := append(archivetest.Gzip(plain[:700]), archivetest.Gzip(nil)...)
	split = append(split, archivetest.Gzip(plain[700:])...)
	concat := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for _, tt := range []struct {
		name     string
		data     []byte
		trailing int64
		code     reason.Code
	}{
		{"several members", split, 0, reason.Ready},
		{"zero padding", concat(good, make([]byte, 200_000)), 0, reason.Ready},
		{"garbage", concat(good, []byte("garbage")), 7, reason.Ready},
		{"padding, then a page", concat(good, make([]byte, 2048), []byte("<html>")), 6, reason.Ready},
		{"tar data after the end marker", archivetest.Gzip(concat(plain, []byte("more"))), 0, reason.Ready},
		{"second member cut", concat(good, good[:len(good)/2]), 0, reason.ArchiveTruncated},
		{"second member corrupt", concat(good, good[:len(good)-8], make([]byte, 8)), 0, reason.ArchiveChecksum},
		{"second member has no header", concat(good, []byte("\x1f\x8b\xff\xff\xff\xff\xff\xff\xff\xff\xff")), 0, reason.ArchiveChecksum},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for name, r := range map[string]io.Reader{
				"whole":          bytes.NewReader(tt.data),
				"halves":         iotest.HalfReader(bytes.NewReader(tt.data)),
				"data with EOF":  iotest.DataErrReader(bytes.NewReader(tt.data)),
				"byte for byte":  iotest.OneByteReader(bytes.NewReader(tt.data)),
				"without ReadAt": io.MultiReader(bytes.NewReader(tt.data)),
			} {
				res, _, err := verify(t, r, archive.Want{Arch: "amd64"})
				if reason.Of(err) != tt.code {
					t.Fatalf("%s: got %v, want %s", name, err, tt.code)
				}
				if err != nil {
					continue
				}
				if res.Trailing != tt.trailing || res.Size != int64(len(tt.data)) || res.SHA256 != hexSum(tt.data) {
					t.Errorf("%s: got %+v, want %d bytes with digest %s, %d trailing", name, res, len(tt.data), hexSum(tt.data), tt.trailing)
				}
			}
		})
	}
}

// A medium that fails at any byte is a medium that fails, whatever was read
// before, and the cause stays.
func TestVerifyReadError(t *testing.T) {
	inputs := map[string][]byte{
		"valid":      archivetest.Archive("3.5.21", "amd64"),
		"wrong arch": archivetest.Archive("3.5.21", "arm64"),
	}
	for name, data := range inputs {
		for n := 0; n <= len(data); n += 7 {
			r := io.MultiReader(bytes.NewReader(data[:n]), iotest.ErrReader(syscall.EIO))
			_, _, err := verify(t, r, archive.Want{Arch: "amd64"})
			if reason.Of(err) != reason.ArchiveUnreadable || !errors.Is(err, syscall.EIO) {
				t.Fatalf("%s: EIO at byte %d: got %v", name, n, err)
			}
		}
	}
	// A file that is shorter than its directory record says is no end of file.
	r := io.MultiReader(bytes.NewReader(inputs["valid"][:900]), iotest.ErrReader(fmt.Errorf("extent: %w", io.ErrUnexpectedEOF)))
	if _, _, err := verify(t, r, archive.Want{}); reason.Of(err) != reason.ArchiveUnreadable || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("short extent: got %v", err)
	}
	if _, _, err := verify(t, stuck{}, archive.Want{}); reason.Of(err) != reason.ArchiveUnreadable {
		t.Errorf("reader that gives nothing: got %v", err)
	}
}

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

func TestVerifySinkError(t *testing.T) {
	noSpace := reason.New(reason.NoSpace, "/opt/bin: %w", syscall.ENOSPC)
	data := archivetest.Archive("3.5.21", "amd64")
	for name, sink := range map[string]*memSink{
		"create": {fail: noSpace},
		"write":  {write: noSpace},
		"close":  {close: noSpace},
	} {
		res, err := archive.Verify(t.Context(), bytes.NewReader(data), archive.Want{}, sink)
		if res != nil || reason.Of(err) != reason.NoSpace || !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s: got %v, %v", name, res, err)
		}
	}
}

func TestVerifyContext(t *testing.T) {
	data := archivetest.Archive("3.5.21", "amd64")
	held := reason.New(reason.ISOUnreadable, "the drive is gone")
	for _, tt := range []struct {
		name string
		ctx  func(context.Context) (context.Context, context.CancelFunc)
		code reason.Code
		is   error
	}{
		{"cancel", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, reason.Interrupted, context.Canceled},
		{"deadline", func(ctx context.Context) (context.Context, context.CancelFunc) { return context.WithTimeout(ctx, 0) },
			reason.ArchiveUnreadable, context.DeadlineExceeded},
		{"cause", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(io.ErrClosedPipe)
			return ctx, func() {}
		}, reason.Interrupted, io.ErrClosedPipe},
		{"cause with a code", func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancelCause(ctx)
			cancel(held)
			return ctx, func() {}
		}, reason.ISOUnreadable, held},
	} {
		ctx, cancel := tt.ctx(t.Context())
		_, err := archive.Verify(ctx, bytes.NewReader(data), archive.Want{}, new(memSink))
		cancel()
		if reason.Of(err) != tt.code || !errors.Is(err, tt.is) {
			t.Errorf("%s: got %v, want %s wrapping %v", tt.name, err, tt.code, tt.is)
		}
	}
	// In the middle: the second read finds that the context has ended.
	ctx, cancel := context.WithCancel(t.Context())
	r := io.MultiReader(bytes.NewReader(data[:500]), readFunc(func([]byte) (int, error) { cancel(); return 0, errors.New("gave up") }))
	if _, err := archive.Verify(ctx, r, archive.Want{}, new(memSink)); reason.Of(err) != reason.Interrupted || !errors.Is(err, context.Canceled) {
		t.Errorf("in the middle: got %v", err)
	}
}

type readFunc func([]byte) (int, error)

func (f readFunc) Read(b []byte) (int, error) { return f(b) }

func TestVerifyLimits(t *testing.T) {
	data := archivetest.Archive("3.5.21", "amd64")
	for name, l := range map[string]archive.Limits{
		"compressed": {Bytes: int64(len(data)) - 1},
		"tar":        {Bytes: 16 << 10},
		"program":    {Binary: 4096},
		"entries":    {Entries: 6},
	} {
		if _, _, err := verify(t, bytes.NewReader(data), archive.Want{Limits: l}); reason.Of(err) != reason.ArchiveTooLarge {
			t.Errorf("%s: got %v", name, err)
		}
	}
	plain := archivetest.Tar(archivetest.Release("3.5.21", "amd64")...)
	if _, _, err := verify(t, bytes.NewReader(data), archive.Want{Limits: archive.Limits{Bytes: int64(len(plain)), Entries: 7}}); err != nil {
		t.Errorf("exactly at the limits: %v", err)
	}
	// An input without an end is given up.
	endless := io.MultiReader(bytes.NewReader(data), readFunc(func(b []byte) (int, error) { clear(b); return len(b), nil }))
	if _, _, err := verify(t, endless, archive.Want{Limits: archive.Limits{Bytes: 1 << 20}}); reason.Of(err) != reason.ArchiveTooLarge {
		t.Errorf("endless: got %v", err)
	}
}

func TestTempSink(t *testing.T) {
	dir := t.TempDir()
	sink := archive.NewTempSink(dir)
	for range 2 { // it can be used again
		res, err := archive.Verify(t.Context(), bytes.NewReader(archivetest.Archive("3.5.21", "arm64")), archive.Want{}, sink)
		if err != nil || res.Version != "3.5.21" {
			t.Fatalf("got %+v, %v", res, err)
		}
	}
	if err := sink.Close(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	if _, err := archive.NewTempSink(dir+"/none").Create("etcd", 1); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("missing directory: got %v", err)
	}
}
