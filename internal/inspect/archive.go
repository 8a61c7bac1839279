package inspect

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"strings"

	"cks-etcd/internal/archive"
	"cks-etcd/internal/isofs"
	"cks-etcd/internal/reason"
)

const (
	// headSize is how much of an archive is looked at when a check is not deep:
	// the first tar header of a release is within its first few hundred bytes.
	headSize = 4 << 10

	// headLimit is how much of that is unpacked: a tar header with a long name
	// before it. 4 KiB of deflate can become 4 MiB.
	headLimit = 64 << 10
)

// peek looks at the first bytes of an archive: whether it is gzip at all, and
// what its first entry is called.
func (c *checker) peek(res *Result, f *isofs.File) {
	head := make([]byte, min(f.Size(), headSize))
	if _, err := f.Reader().ReadAt(head, 0); err != nil && err != io.EOF {
		res.Value, res.Err = Unknown, c.unsure(err)
		return
	}
	if fault := notGzip(head); fault != nil {
		res.Value, res.Err = Broken, fault
		return
	}
	res.Version, res.Arch, _ = release(firstEntry(head))
}

// notGzip is the outcome for a file that begins with head and is no gzip
// stream; nil when it is one. Package archive says what it is instead, such as
// an error page, and reads no further than that.
func notGzip(head []byte) *reason.Error {
	if bytes.HasPrefix(head, []byte("\x1f\x8b")) { // RFC 1952, section 2.3.1
		return nil
	}
	_, err := archive.Verify(context.Background(), bytes.NewReader(head), archive.Want{}, nil)
	fault, _ := errors.AsType[*reason.Error](err)
	return fault
}

// firstEntry returns the name of the first entry of the archive that begins
// with head, "" when it cannot be read.
func firstEntry(head []byte) string {
	z, err := gzip.NewReader(bytes.NewReader(head))
	if err != nil {
		return ""
	}
	h, err := tar.NewReader(io.LimitReader(z, headLimit)).Next()
	if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
		return ""
	}
	return h.Name
}

// release returns what the name of a release's directory says, as in
// "etcd-v3.5.21-linux-amd64/README.md".
func release(entry string) (version, arch string, ok bool) {
	dir, _, _ := strings.Cut(strings.TrimPrefix(entry, "./"), "/")
	rest, ok := strings.CutPrefix(dir, "etcd-v")
	i := strings.LastIndex(rest, "-linux-")
	if !ok || i < 0 {
		return "", "", false
	}
	version, arch = rest[:i], rest[i+len("-linux-"):]
	if archive.CompareVersions(version, "") <= 0 || len(version) > maxVersion || !isArch(arch) {
		return "", "", false
	}
	return version, arch, true
}

// maxVersion is the longest version that is taken for one: "3.6.0-alpha.0" has
// 13 bytes.
const maxVersion = 40

// isArch reports whether s can be a GOARCH: the longest is "mips64p32le".
func isArch(s string) bool {
	return 0 < len(s) && len(s) <= 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789") == ""
}

// verify reads the whole archive.
func (c *checker) verify(res *Result, f *isofs.File) {
	sink := archive.NewTempSink(c.req.TempDir)
	defer sink.Close()
	r := &progress{r: f.Reader(), total: f.Size(), tell: c.req.Progress}
	got, err := archive.Verify(c.ctx, r, archive.Want{Arch: c.req.Arch}, sink)
	switch {
	case err == nil:
		res.Deep = true
		res.Version, res.Arch, res.SHA256 = got.Version, got.Arch, got.SHA256
		if got.Trailing > 0 {
			res.note("%d bytes follow the archive; tar warns of them", got.Trailing)
		}
	case r.err != nil:
		// The medium failed, and the archive is neither good nor bad.
		res.Value, res.Err = Unknown, c.unsure(r.err)
	case c.ctx.Err() != nil:
		res.Value, res.Err = Unknown, reason.Ended(c.ctx, "reading the ISO")
	case reason.Exit(err) == reason.ExitNo:
		res.Deep, res.Value, res.Err = true, Broken, err
	default:
		fault, ok := errors.AsType[*reason.Error](err)
		if !ok { // of the sink
			fault = reason.New(reason.OutputUnwritable, "%w", err).
				WithHint("name a directory for temporary files that has room for the programs, some 75 MiB")
		}
		res.Value, res.Err = Unknown, fault
	}
}

// A progress reader tells how far it has come, and keeps the error it ended with.
type progress struct {
	r           io.Reader
	read, total int64
	tell        func(read, total int64)
	err         error
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.read += int64(n)
	if err != nil && err != io.EOF {
		p.err = err
	}
	if p.tell != nil && n > 0 {
		p.tell(p.read, p.total)
	}
	return n, err
}

// noteArch notes what somebody should know who runs this etcd.
func (c *checker) noteArch(res *Result) {
	if res.Arch == "" || !res.Value.Yes() {
		return
	}
	if want := c.req.Arch; want != "" && res.Arch != want {
		res.note("etcd is for %s by its directory's name, and %s was asked for", res.Arch, want)
	}
	// etcd starts on arm64 without being told to since 3.5.
	if res.Arch == "arm64" && res.Version != "" && archive.CompareVersions(res.Version, "3.5.0-alpha.0") < 0 {
		res.note("etcd %s for arm64 needs ETCD_UNSUPPORTED_ARCH=arm64 in its environment", res.Version)
	}
}
