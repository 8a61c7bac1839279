// Package inspect asks one ISO image for files: whether a Linux node that gets
// the image will find them there.
//
// # Answers
//
// A file is included, missing, or broken; or nobody could tell. Missing is
// said only after every directory on the way was read whole and was intact, and
// broken only of bytes that were read. Damage, a failing medium and an image
// that ends early are never a no: they leave the answer unknown, with the reason.
//
// A file counts as included when it is a regular file that lies wholly inside
// the image. Of an etcd archive the first bytes are looked at as well, since a
// failed download leaves an empty file or an error page under its name. They
// also tell which etcd it is, by the name of the release's directory. Only a
// deep check knows more than that.
//
// # Names
//
// An image is asked by the names that Linux shows. With mangled names, as
// without Rock Ridge and Joliet, the archive is not where the node looks for
// it, and so it is missing.
//
// # Cost
//
// Without a deep check few places of an image are read: its descriptors, the
// directories on the way, and the first 4 KiB of an archive. The tools that
// write images put the first two side by side.
package inspect

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/reason"
)

// Rules is the version of the rules by which images are checked. An answer
// that was remembered under another version is not an answer any more.
const Rules = 1

// EtcdArchive is where create-kubernetes-binaries-iso.sh puts the etcd archive.
// It is this name on images of any architecture.
const EtcdArchive = "etcd/etcd-linux-amd64.tar.gz"

// A Value answers whether a file is on an image.
type Value string

const (
	Included Value = "included" // it is there, and lies wholly inside the image
	Missing  Value = "missing"  // it is certainly not there
	Broken   Value = "broken"   // it is there, and certainly cannot serve
	Unknown  Value = "unknown"  // could not tell
)

// Yes reports whether v is a definite yes.
func (v Value) Yes() bool { return v == Included }

// No reports whether v is a definite no.
func (v Value) No() bool { return v == Missing || v == Broken }

// A Tri is yes, no, or could not tell, which is the zero value.
type Tri int8

const (
	CouldNotTell Tri = iota
	No
	Yes
)

func (t Tri) String() string {
	switch t {
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return "unknown"
}

// A Request is what to ask an image. The zero value asks for the etcd archive.
type Request struct {
	// Files are paths on the image, separated by slashes. A leading "/" or "./"
	// is ignored. None: EtcdArchive.
	Files []string
	// Deep reads each etcd archive from its first to its last byte, as package
	// archive does. An etcd archive is a file whose name begins with "etcd" and
	// ends in ".tar.gz" or ".tgz".
	Deep bool
	// Arch is the GOARCH that the programs of an archive must have; "" accepts
	// any. A check that is not deep only notes a difference.
	Arch string
	// TempDir is where Deep unpacks, into files without a name that take some
	// 75 MiB; "" is the system's directory.
	TempDir string
	// Progress is told how many bytes of an archive Deep has read; may be nil.
	Progress func(read, total int64)
}

// An Image is what is known of an image as a whole.
type Image struct {
	// Err is nil, or the *reason.Error why the image could not be opened.
	Err error
	// Names are the names its files were found by: "Rock Ridge", "Joliet" or
	// "plain ISO 9660".
	Names    string
	VolumeID string
	Digest   string // hex SHA-256 of the volume descriptors
	Claims   int64  // bytes that the volume descriptor claims
	// Kubernetes tells by its content whether this is a Kubernetes binaries ISO.
	Kubernetes Tri
}

// A Result is the answer about one file.
type Result struct {
	File  string // as asked for, without a leading "/" or "./"
	Value Value
	Err   error // a *reason.Error; nil when included
	Size  int64 // of the file in bytes; 0 when it was not found

	// Version and Arch are those of etcd: "3.5.21" and a GOARCH, "" when not
	// known. Without Deep they are what the archive's directory is called.
	Version, Arch string
	SHA256        string // hex digest of the archive; with Deep only
	Deep          bool   // the whole archive was asked for and judged
	Notes         []string
}

func (r *Result) note(format string, args ...any) {
	r.Notes = append(r.Notes, reason.Line(fmt.Sprintf(format, args...)))
}

// Check asks the image in r, which has size bytes, for the files of q. There
// is one result for each of them, in their order. Reads of r may hang for as
// long as r lets them; ctx is looked at between them. An error of r that is a
// *reason.Error is the result's own.
func Check(ctx context.Context, r io.ReaderAt, size int64, q Request) (Image, []Result) {
	files := q.Files
	if len(files) == 0 {
		files = []string{EtcdArchive}
	}
	c := &checker{ctx: ctx, req: q, raw: &tracer{ctx: ctx, r: r}, size: size}
	image := c.open()
	results := make([]Result, len(files))
	for i, name := range files {
		results[i] = c.ask(name, image.Err)
	}
	if image.Err == nil {
		image.Kubernetes = c.kubernetes()
	}
	return image, results
}

// A checker is one run of Check.
type checker struct {
	ctx    context.Context
	req    Request
	raw    *tracer
	size   int64
	img    *isofs.Image // nil when it could not be opened
	claims int64        // bytes that the volume descriptor claims; 0: not known
}

func (c *checker) open() Image {
	img, err := isofs.Open(c.raw, c.size)
	if err != nil {
		c.claims = c.claimed()
		return Image{Err: c.unopened(err), Claims: c.claims}
	}
	c.img, c.claims = img, img.Size()
	digest := img.Digest()
	return Image{
		Names:    img.Names().String(),
		VolumeID: img.VolumeID(),
		Digest:   hex.EncodeToString(digest[:]),
		Claims:   c.claims,
	}
}

// cleanName returns name without what is tolerated around it.
func cleanName(name string) string {
	return path.Clean(strings.TrimLeft(name, "/"))
}

// ask answers for one file; unopened is why the image is not open.
func (c *checker) ask(name string, unopened error) Result {
	res := Result{File: cleanName(name), Value: Unknown}
	if unopened != nil {
		res.Err = unopened
		return res
	}
	f, err := c.img.Lookup(res.File)
	switch {
	case name == "", errors.Is(err, fs.ErrInvalid):
		res.Err = reason.New(reason.Usage, "%q is no path on an ISO", name)
	case errors.Is(err, fs.ErrNotExist):
		if err := c.doubt(res.File); err != nil {
			res.Err = c.unsure(err)
			break
		}
		res.Value, res.Err = Missing, c.missing(res.File, "")
	case err != nil:
		res.Err = c.notFound(res.File, err)
	case f.Mode().IsRegular():
		c.examine(&res, f)
	case f.Mode().Type() == fs.ModeSymlink:
		res.Err = linked(res.File, res.File, f.Link())
	case f.IsDir():
		if err := c.doubtDir(res.File); err != nil {
			res.Err = c.unsure(err)
			break
		}
		res.Value, res.Err = Missing, c.missing(res.File, "a directory")
	default:
		// Nobody makes an image with a device there; one bit of a mode does.
		res.Err = reason.New(reason.ISODamaged, "%s is recorded as a special file (%v)", res.File, f.Mode())
	}
	if names := c.img.Names(); names != isofs.RockRidge {
		res.note("read through %s names", names)
	}
	return res
}

// examine answers for a regular file.
func (c *checker) examine(res *Result, f *isofs.File) {
	res.Size = f.Size()
	if err := f.CheckExtents(); err != nil {
		res.Err = c.unsure(err)
		return
	}
	res.Value = Included
	if isEtcdArchive(res.File) {
		if c.req.Deep {
			c.verify(res, f)
		} else {
			c.peek(res, f)
		}
		c.noteArch(res)
	}
	if res.Value.Yes() && c.truncated() {
		res.note("the image is truncated behind this file: %s", c.shortfall())
	}
}

// isEtcdArchive reports whether the file of that name should be an archive of
// an etcd release.
func isEtcdArchive(name string) bool {
	base := strings.ToLower(path.Base(name))
	return strings.HasPrefix(base, "etcd") && (strings.HasSuffix(base, ".tar.gz") || strings.HasSuffix(base, ".tgz"))
}

// kubernetesFiles tell a Kubernetes ISO, the work of
// create-kubernetes-binaries-iso.sh, as in package media: one is enough, as
// images are trimmed and extended by hand. The one in the root is first, since
// the root has been read already.
func kubernetesFiles() []string { return []string{"docker", "k8s/kubeadm"} }

func (c *checker) kubernetes() Tri {
	answer := No
	for _, name := range kubernetesFiles() {
		_, err := c.img.Lookup(name)
		switch {
		case err == nil:
			return Yes
		case !errors.Is(err, fs.ErrNotExist):
			answer = CouldNotTell
		}
	}
	return answer
}
