package inspect_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/isofs/isotest"
	"cks-etcd/internal/media"
	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

// kubernetes builds an image byte by byte, with what is in etcd/.
func kubernetes(t testing.TB, etcd ...*isotest.Node) (*isotest.Image, *isotest.Node) {
	t.Helper()
	dir := isotest.Dir("etcd", etcd...)
	root := isotest.Dir("", dir,
		isotest.Dir("docker", isotest.File("pause.tar", []byte("x"))),
		isotest.Dir("k8s", isotest.File("kubeadm", []byte("#!"))),
		isotest.File("network.yaml", []byte("---\n")))
	return isotest.Build(t, isotest.Spec{RockRidge: true, VolumeID: "CDROM", Root: root}), dir
}

func archiveNode(data []byte) *isotest.Node { return isotest.File("etcd-linux-amd64.tar.gz", data) }

// one asks for one file, and holds what every result promises.
func one(t *testing.T, r io.ReaderAt, size int64, q inspect.Request) (inspect.Image, inspect.Result) {
	t.Helper()
	return oneCtx(t, t.Context(), r, size, q)
}

func oneCtx(t *testing.T, ctx context.Context, r io.ReaderAt, size int64, q inspect.Request) (inspect.Image, inspect.Result) {
	t.Helper()
	img, list := inspect.Check(ctx, r, size, q)
	if len(list) != 1 {
		t.Fatalf("%d results, want 1", len(list))
	}
	promised(t, list[0])
	return img, list[0]
}

func promised(t testing.TB, res inspect.Result) {
	t.Helper()
	coded, ok := res.Err.(*reason.Error)
	switch {
	case res.Value.Yes() != (res.Err == nil), res.Err != nil && !ok:
		t.Errorf("%s is %s with the error %v", res.File, res.Value, res.Err)
	case res.Value.No() != (ok && reason.Lookup(coded.Code).Exit == reason.ExitNo):
		t.Errorf("%s is %s with the code %s", res.File, res.Value, coded.Code)
	}
}

func wantResult(t *testing.T, got inspect.Result, value inspect.Value, code reason.Code, text string) {
	t.Helper()
	if got.Value != value {
		t.Errorf("value is %s (%v), want %s", got.Value, got.Err, value)
	}
	if got.Err == nil {
		if code != "" {
			t.Errorf("no error, want the code %s", code)
		}
		return
	}
	if c := reason.Of(got.Err); c != code {
		t.Errorf("code is %s (%v), want %s", c, got.Err, code)
	}
	if !strings.Contains(got.Err.Error(), text) {
		t.Errorf("error is %q, want it to hold %q", got.Err, text)
	}
}

func TestRequest(t *testing.T) {
	img, _ := kubernetes(t, archiveNode(archivetest.Archive("3.5.21", "amd64")))
	files := []string{"/etcd/etcd-linux-amd64.tar.gz", "./network.yaml", "docker", "k8s/kubeadm", "absent/file", "network.yaml/x", "../x", "", "/"}
	info, got := inspect.Check(t.Context(), img, img.Size(), inspect.Request{Files: files})
	if info.Err != nil || info.Kubernetes != inspect.Yes || info.VolumeID != "CDROM" || info.Names != "Rock Ridge" ||
		len(info.Digest) != 64 || info.Claims != img.Size() {
		t.Errorf("image is %+v", info)
	}
	var lines []string
	for _, r := range got {
		promised(t, r)
		line := fmt.Sprintf("%s %s %d", r.File, r.Value, r.Size)
		if r.Err != nil {
			line += " " + r.Err.Error()
		}
		lines = append(lines, line)
	}
	want := []string{
		fmt.Sprintf("etcd/etcd-linux-amd64.tar.gz included %d", len(archivetest.Archive("3.5.21", "amd64"))),
		"network.yaml included 4",
		"docker missing 0 file missing: docker is a directory",
		"k8s/kubeadm included 2",
		"absent/file missing 0 file missing: absent/file is not on the ISO",
		"network.yaml/x missing 0 file missing: network.yaml/x is not on the ISO",
		`../x unknown 0 usage: "../x" is no path on an ISO`,
		`. unknown 0 usage: "" is no path on an ISO`,
		". missing 0 file missing: . is a directory",
	}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("results (-want +got):\n%s", diff)
	}
	if got[0].Version != "3.5.21" || got[0].Arch != "amd64" {
		t.Errorf("etcd is %q for %q", got[0].Version, got[0].Arch)
	}
}

// The node agent and the fleet tell a Kubernetes ISO by the same files, and
// look for the archive in the same place.
func TestSameAsMedia(t *testing.T) {
	if inspect.EtcdArchive != media.DefaultArchive {
		t.Errorf("the archive is %q here and %q there", inspect.EtcdArchive, media.DefaultArchive)
	}
	for _, name := range append(media.KubernetesFiles(), "network.yaml") {
		dir, base, deep := strings.Cut(name, "/")
		node := isotest.File(dir, []byte("x"))
		if deep {
			node = isotest.Dir(dir, isotest.File(base, []byte("x")))
		}
		img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", node)})
		want := inspect.No
		if slices.Contains(media.KubernetesFiles(), name) {
			want = inspect.Yes
		}
		if got, _ := inspect.Check(t.Context(), img, img.Size(), inspect.Request{}); got.Kubernetes != want {
			t.Errorf("an image with %s alone: Kubernetes is %v, want %v", name, got.Kubernetes, want)
		}
	}
	// And by no others.
	img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", isotest.Dir("k8s", isotest.File("kubelet", nil)), isotest.File("dockers", nil))})
	if got, _ := inspect.Check(t.Context(), img, img.Size(), inspect.Request{}); got.Kubernetes != inspect.No {
		t.Errorf("Kubernetes is %v, want no", got.Kubernetes)
	}
}

// What the first bytes of an archive tell.
func TestHead(t *testing.T) {
	tarGz := func(name string) []byte {
		return archivetest.Gzip(archivetest.Tar(archivetest.File(name, nil)))
	}
	damaged := archivetest.Archive("3.5.21", "amd64")
	for i := 12; i < len(damaged); i++ {
		damaged[i] ^= 0xff
	}
	for _, tt := range []struct {
		name          string
		data          []byte
		value         inspect.Value
		code          reason.Code
		text          string
		version, arch string
		note          string
	}{
		{name: "release", data: archivetest.Archive("3.6.0-rc.1", "amd64"), value: inspect.Included, version: "3.6.0-rc.1", arch: "amd64"},
		{name: "B15: for arm64 under the name of amd64", data: archivetest.Archive("3.5.21", "arm64"), value: inspect.Included, version: "3.5.21", arch: "arm64", note: "arm64 by its directory's name, and amd64 was asked for"},
		{name: "B56: before 3.5 for arm64", data: archivetest.Archive("3.4.37", "arm64"), value: inspect.Included, version: "3.4.37", arch: "arm64", note: "needs ETCD_UNSUPPORTED_ARCH=arm64"},
		{name: "packed with ./", data: tarGz("./etcd-v3.5.0-linux-s390x/etcd"), value: inspect.Included, version: "3.5.0", arch: "s390x"},
		{name: "long name", data: tarGz("etcd-v3.5.0-linux-amd64/" + strings.Repeat("long/", 40)), value: inspect.Included, version: "3.5.0", arch: "amd64"},
		{name: "no directory", data: tarGz("etcd"), value: inspect.Included},
		{name: "no version", data: tarGz("etcd-vfoo-linux-amd64/etcd"), value: inspect.Included},
		{name: "no architecture", data: tarGz("etcd-v3.5.0-linux-/etcd"), value: inspect.Included},
		{name: "hostile architecture", data: tarGz("etcd-v3.5.0-linux-\x1b[2Jx/etcd"), value: inspect.Included},
		{name: "hostile version", data: tarGz("etcd-v3.5.0-" + strings.Repeat("a", 60) + "-linux-amd64/etcd"), value: inspect.Included},
		{name: "gzip of something else", data: archivetest.Gzip([]byte("hello")), value: inspect.Included},
		{name: "damaged deflate", data: damaged, value: inspect.Included},
		{name: "bomb", data: archivetest.Gzip(make([]byte, 4<<20)), value: inspect.Included},
		{name: "magic alone", data: []byte("\x1f\x8b"), value: inspect.Included},
		{name: "wget -O of a failed download", data: nil, value: inspect.Broken, code: reason.ArchiveEmpty},
		{name: "B16: error page of an object store", data: []byte(`<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>`), value: inspect.Broken, code: reason.ArchiveNotGzip, text: "NoSuchKey"},
		{name: "HTML", data: []byte("<!DOCTYPE html><title>404 Not Found</title>"), value: inspect.Broken, code: reason.ArchiveNotGzip, text: `an HTML page ("404 Not Found")`},
		{name: "zeros", data: make([]byte, 10_000), value: inspect.Broken, code: reason.ArchiveNotGzip, text: "zero bytes"},
		{name: "uncompressed tar", data: archivetest.Tar(archivetest.File("etcd", nil)), value: inspect.Broken, code: reason.ArchiveNotGzip, text: "tar"},
		{name: "one byte of gzip", data: []byte("\x1f"), value: inspect.Broken, code: reason.ArchiveTruncated},
	} {
		t.Run(tt.name, func(t *testing.T) {
			img, _ := kubernetes(t, archiveNode(tt.data))
			_, got := one(t, img, img.Size(), inspect.Request{Arch: "amd64"})
			wantResult(t, got, tt.value, tt.code, tt.text)
			if got.Version != tt.version || got.Arch != tt.arch {
				t.Errorf("etcd is %q for %q, want %q for %q", got.Version, got.Arch, tt.version, tt.arch)
			}
			if notes := strings.Join(got.Notes, "\n"); !strings.Contains(notes, tt.note) {
				t.Errorf("notes are %q, want %q", notes, tt.note)
			}
			if got.Size != int64(len(tt.data)) || got.Deep {
				t.Errorf("size %d, deep %v", got.Size, got.Deep)
			}
		})
	}
}

// A file that is no etcd archive is not judged by its content.
func TestOtherFilesAreNotJudged(t *testing.T) {
	img, _ := kubernetes(t, isotest.File("SHA256SUMS", nil), isotest.File("tools.tar.gz", []byte("no gzip")))
	for _, deep := range []bool{false, true} {
		_, got := inspect.Check(t.Context(), img, img.Size(), inspect.Request{Files: []string{"etcd/SHA256SUMS", "etcd/tools.tar.gz"}, Deep: deep})
		for _, r := range got {
			if r.Value != inspect.Included || r.Deep {
				t.Errorf("%s is %s (%v), deep %v", r.File, r.Value, r.Err, r.Deep)
			}
		}
	}
}

func TestDeep(t *testing.T) {
	data := archivetest.Archive("3.5.21", "arm64")
	img, _ := kubernetes(t, archiveNode(data))
	var read, total int64
	q := inspect.Request{Deep: true, Arch: "arm64", TempDir: t.TempDir(), Progress: func(r, n int64) { read, total = r, n }}
	_, got := one(t, img, img.Size(), q)
	wantResult(t, got, inspect.Included, "", "")
	if got.Version != "3.5.21" || got.Arch != "arm64" || len(got.SHA256) != 64 || !got.Deep {
		t.Errorf("result is %+v", got)
	}
	if read != int64(len(data)) || total != read {
		t.Errorf("progress ended at %d of %d, want %d", read, total, len(data))
	}
	q.Arch = "amd64"
	_, got = one(t, img, img.Size(), q)
	wantResult(t, got, inspect.Broken, reason.ArchiveWrongArch, "arm64")

	q.TempDir = "/nonexistent"
	q.Arch = ""
	_, got = one(t, img, img.Size(), q)
	wantResult(t, got, inspect.Unknown, reason.OutputUnwritable, "cannot stage")

	for _, c := range archivetest.Cases("amd64") {
		t.Run(c.Name, func(t *testing.T) {
			img, _ := kubernetes(t, archiveNode(c.Data))
			_, got := one(t, img, img.Size(), inspect.Request{Deep: true, Arch: "amd64", TempDir: t.TempDir()})
			wantResult(t, got, inspect.Broken, c.Code, c.Text)
			if !got.Deep {
				t.Error("not deep")
			}
		})
	}
}

// A medium that fails is neither a yes nor a no, whatever it says.
func TestFailingReader(t *testing.T) {
	node := archiveNode(archivetest.Archive("3.5.21", "amd64"))
	img, dir := kubernetes(t, node)
	dirAt, _ := img.Extent(dir)
	fileAt, _ := img.Extent(node)
	own := reason.New(reason.SourceStalled, "mirror.example does not answer: %w", io.ErrUnexpectedEOF)
	gone := fmt.Errorf("open: %w", fs.ErrNotExist)
	for _, tt := range []struct {
		name string
		off  int64
		err  error
		code reason.Code
		text string
		deep bool
	}{
		{"descriptors, coded", 32 << 10, own, reason.SourceStalled, "mirror.example", false},
		{"directory, coded", dirAt, own, reason.SourceStalled, "mirror.example", false},
		{"directory, coded and gone", dirAt, reason.New(reason.SourceMissing, "%w", fs.ErrNotExist), reason.SourceMissing, "", false},
		{"content, coded", fileAt, own, reason.SourceStalled, "mirror.example", false},
		{"content, coded, deep", fileAt, own, reason.SourceStalled, "mirror.example", true},
		{"descriptors", 32 << 10, syscall.EIO, reason.ISOUnreadable, "input/output error", false},
		{"directory", dirAt, syscall.EIO, reason.ISOUnreadable, "input/output error", false},
		{"directory, gone", dirAt, gone, reason.ISOUnreadable, "not exist", false},
		{"content", fileAt, syscall.EIO, reason.ISOUnreadable, "input/output error", false},
		{"content, deep", fileAt, syscall.EIO, reason.ISOUnreadable, "input/output error", true},
		{"content ends early", fileAt, io.EOF, reason.ISODamaged, "reading ended", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := &isotest.Faulty{R: img, Off: tt.off, Len: 1, Err: tt.err}
			_, got := one(t, r, img.Size(), inspect.Request{Deep: tt.deep, TempDir: t.TempDir()})
			wantResult(t, got, inspect.Unknown, tt.code, tt.text)
			if !errors.Is(tt.err, io.EOF) && !errors.Is(got.Err, tt.err) {
				t.Errorf("%v does not carry its cause", got.Err)
			}
			if strings.Count(got.Err.Error(), tt.err.Error()) > 1 {
				t.Errorf("%v repeats its cause", got.Err)
			}
		})
	}
}

func TestContext(t *testing.T) {
	img, _ := kubernetes(t, archiveNode(archivetest.Archive("3.5.21", "amd64")))
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	late, cancel2 := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel2()
	coded, cancel3 := context.WithCancelCause(t.Context())
	cancel3(reason.New(reason.SourceChanged, "replaced"))
	for _, tt := range []struct {
		ctx  context.Context
		code reason.Code
	}{{canceled, reason.Interrupted}, {late, reason.SourceStalled}, {coded, reason.SourceChanged}} {
		info, got := oneCtx(t, tt.ctx, img, img.Size(), inspect.Request{})
		wantResult(t, got, inspect.Unknown, tt.code, "")
		if reason.Of(info.Err) != tt.code || info.Kubernetes != inspect.CouldNotTell {
			t.Errorf("image is %+v", info)
		}
	}
	// It ends in the middle of a deep check.
	ctx, cancel4 := context.WithCancel(t.Context())
	_, got := oneCtx(t, ctx, img, img.Size(), inspect.Request{Deep: true, TempDir: t.TempDir(), Progress: func(int64, int64) { cancel4() }})
	wantResult(t, got, inspect.Unknown, reason.Interrupted, "")
}

func TestNotISO(t *testing.T) {
	for _, tt := range []struct {
		name string
		data []byte
		text string
	}{
		{"empty", nil, "it has 0 bytes"},
		{"B28: error page", []byte("<html><head><title>403 Forbidden</title></head></html>"), `it is an HTML page ("403 Forbidden")`},
		{"compressed", archivetest.Gzip(make([]byte, 100_000)), "it is a gzip stream"},
		{"short", make([]byte, 20_000), "nothing but zero bytes"},
		{"long", bytes.Repeat([]byte{0xa5}, 1<<20), "unknown kind"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			info, got := one(t, bytes.NewReader(tt.data), int64(len(tt.data)), inspect.Request{})
			wantResult(t, got, inspect.Unknown, reason.NotISO, tt.text)
			if info.Err != got.Err {
				t.Errorf("the image's error is %v", info.Err)
			}
		})
	}
}

// A presence check is cheap over a network: its reads lie in few places.
func TestFewReads(t *testing.T) {
	const readAhead = 16 << 10
	var files []*isotest.Node
	for i := range 40 {
		files = append(files, isotest.File(fmt.Sprintf("image-%03d.tar", i), bytes.Repeat([]byte{1}, 100_000)))
	}
	node := archiveNode(archivetest.Archive("3.5.21", "amd64"))
	for name, children := range map[string][]*isotest.Node{"with": {node}, "without": nil} {
		etcd := isotest.Dir("etcd", children...)
		img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", isotest.Dir("docker", files...),
			etcd, isotest.Dir("k8s", isotest.File("kubeadm", []byte("x"))))})
		seen := map[int64]bool{}
		r := readerFunc(func(p []byte, off int64) (int, error) {
			for at := off / readAhead; at <= (off+int64(len(p))-1)/readAhead; at++ {
				seen[at] = true
			}
			return img.ReadAt(p, off)
		})
		inspect.Check(t.Context(), r, img.Size(), inspect.Request{})
		if len(seen) > 4 {
			t.Errorf("%s the archive: %d places of %d bytes were read, want at most 4", name, len(seen), readAhead)
		}
	}
}

type readerFunc func(p []byte, off int64) (int, error)

func (f readerFunc) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }
