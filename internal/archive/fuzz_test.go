package archive_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"path"
	"strings"
	"testing"

	"cks-etcd/internal/archive"
	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/reason"
)

// FuzzVerify mutates archives at three layers, since a checksum hides each from
// the one above: the compressed bytes, the tar, and the program in it.
func FuzzVerify(f *testing.F) {
	const compressed, plain, program = 0, 1, 2
	for _, c := range archivetest.Cases("amd64") {
		if len(c.Data) <= 16<<10 {
			f.Add(byte(compressed), c.Data)
			if b, ok := gunzip(c.Data); ok && len(b) <= 64<<10 {
				f.Add(byte(plain), b)
			}
		}
	}
	f.Add(byte(compressed), archivetest.Archive("3.5.21", "amd64"))
	f.Add(byte(plain), archivetest.Tar(archivetest.Release("3.5.21", "arm64")...))
	for _, arch := range []string{"amd64", "386", "s390x", "mips"} {
		f.Add(byte(program), archivetest.ELF(archivetest.Program{Arch: arch, Version: "3.5.21"}))
	}
	f.Fuzz(func(t *testing.T, layer byte, data []byte) {
		if len(data) > 256<<10 {
			t.Skip("larger than what the layers need")
		}
		switch layer {
		case plain:
			data = archivetest.Gzip(data)
		case program:
			data = archivetest.Gzip(archivetest.Tar(archivetest.File("etcd-v3.4.0-linux-amd64/etcd", data)))
		}
		res, sink, err := verify(t, bytes.NewReader(data), archive.Want{Limits: archive.Limits{Bytes: 8 << 20}})
		if err != nil {
			if code := reason.Of(err); !strings.HasPrefix(string(code), "archive-") {
				t.Errorf("code %s: %v", code, err)
			}
			if s := err.Error(); len(s) > reason.MaxLine+100 || strings.ContainsAny(s, "\n\r\x1b") {
				t.Errorf("message %q", s)
			}
			return
		}
		if res.Size != int64(len(data)) || res.SHA256 != hexSum(data) {
			t.Errorf("size %d and digest %s, want %d and %s", res.Size, res.SHA256, len(data), hexSum(data))
		}
		want := etcdOf(t, data)
		if got := sink.files["etcd"].Bytes(); !bytes.Equal(got, want) {
			t.Errorf("staged %d bytes, the standard library finds %d", len(got), len(want))
		}
		if b := res.Binaries[0]; b.Name != "etcd" || b.Size != int64(len(want)) || b.SHA256 != hexSum(want) || res.Arch == "" {
			t.Errorf("binary %+v of %+v", b, res)
		}
	})
}

func gunzip(b []byte) ([]byte, bool) {
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, false
	}
	out, err := io.ReadAll(io.LimitReader(z, 8<<20))
	return out, err == nil
}

// etcdOf returns the program etcd of a valid archive, as compress/gzip and
// archive/tar find it.
func etcdOf(t *testing.T, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("the standard library finds no etcd: %v", err)
		}
		name := path.Clean(h.Name)
		if h.Typeflag != tar.TypeDir && path.Base(name) == "etcd" && strings.Count(name, "/") <= 1 {
			b, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			return b
		}
	}
}
