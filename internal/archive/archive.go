// Package archive knows what a valid etcd release archive is: a gzip-compressed
// tar (RFC 1952, POSIX.1-2017 pax) that holds the program etcd for Linux and,
// mostly, etcdctl and etcdutl beside it, laid out as etcd's releases are:
//
//	etcd-v3.5.21-linux-amd64/etcd
//	etcd-v3.5.21-linux-amd64/etcdctl
//	etcd-v3.5.21-linux-amd64/etcdutl
//	etcd-v3.5.21-linux-amd64/Documentation/...
//
// [Verify] reads an archive once, from its first to its last byte, and streams
// the programs to a [Sink] on the way. Whatever the archive, it stays below
// 8 MiB of memory, never writes below a name from the archive, and runs nothing.
//
// # Which entry is etcd
//
// A program is the regular file whose base name is etcd, etcdctl or etcdutl and
// that lies at the top of the archive or in exactly one directory, whatever the
// name of that directory: what 'tar --strip-components=1' would put into the
// binaries directory, and the same files packed without a directory. A file of
// that name deeper down (Documentation/...) is not a program. Mode bits do not
// matter, since the installer sets its own.
//
// # Which fault is named
//
// A fault in the contents is reported only once the gzip checksums have shown
// that the contents are what was packed: one flipped bit in an archive can look
// like another architecture, a damaged tar or an unsafe name, and the archive
// is then corrupt and nothing else. So after the first fault in the contents
// the rest is still read, and truncation, a wrong checksum or a failing medium
// take precedence. So does a digest that differs from the wanted one: another
// file than the one asked for explains whatever else is wrong with it. Only a
// limit stops the reading at once.
//
// # What may follow
//
// Several gzip members are one stream. After the last one zeros may follow, as
// padding to a block of the medium. Anything else there is no fault of the
// release, which is intact: gzip(1) warns of it and goes on, GNU tar unpacks
// everything and then exits with status 2, and [Result] counts it.
package archive

import (
	"context"
	"io"
	"slices"
)

// Want says what the archive is compared with, and how much of it is read. The
// zero value accepts a release for any architecture.
type Want struct {
	Arch   string // GOARCH of the node; "" accepts any, but only one in an archive
	SHA256 string // hex digits of the digest of the compressed bytes; "" for none
	Limits Limits // zero fields: 1 GiB, 256 MiB, 2000, 100
}

// Limits bound what an archive may claim and contain.
type Limits struct {
	Bytes   int64 // of the tar with holes filled, and of the compressed archive, each
	Binary  int64 // bytes of one program
	Entries int   // of the tar
	Ratio   int64 // uncompressed to compressed bytes, after the first 16 MiB
}

// defaultLimits returns the limits that hold where Want names none. A release
// of etcd 3.6 is 75 MiB with three programs of 17 to 26 MiB, some 60 entries,
// and compressed to 24 MiB, a ratio of 3; debug builds are twice as large. The
// limits leave room for ten times that and more, and still fit a small node's disk.
func defaultLimits() Limits {
	return Limits{
		Bytes:   1 << 30,
		Binary:  256 << 20,
		Entries: 2_000,
		Ratio:   100, // deflate reaches 1032
	}
}

func (l Limits) withDefaults() Limits {
	d := defaultLimits()
	if l.Bytes <= 0 {
		l.Bytes = d.Bytes
	}
	if l.Binary <= 0 {
		l.Binary = d.Binary
	}
	if l.Entries <= 0 {
		l.Entries = d.Entries
	}
	if l.Ratio <= 0 {
		l.Ratio = d.Ratio
	}
	return l
}

// A Sink takes the programs of an archive while it is being verified. What it
// was given is worth nothing unless Verify returns without an error.
type Sink interface {
	// Create makes room for a program. The name is "etcd", "etcdctl" or
	// "etcdutl", each at most once, in the order of the archive. The size in
	// bytes is the tar header's claim, within Limits.Binary; exactly as many
	// bytes are written if the archive is intact.
	Create(name string, size int64) (Staged, error)
}

// Staged is one program in a Sink. It is written from start to end, then read
// at random, then closed. Verify closes every Staged it was given, also when it
// fails.
type Staged interface {
	io.Writer
	io.ReaderAt
	io.Closer
}

// Result is what is known about an archive that is valid.
type Result struct {
	Version  string   // of etcd, without the "v": "3.5.21"; "" when nothing tells
	Arch     string   // GOARCH of the programs; a description that is no GOARCH for a machine Go does not know
	SHA256   string   // hex digits of the digest of all compressed bytes
	Size     int64    // compressed bytes, up to the end of the input
	Trailing int64    // bytes after the end of the gzip stream that are not zero padding; worth a warning
	Binaries []Binary // etcd, etcdctl, etcdutl; those that are there, in this order
}

// Binary is one program of a valid archive.
type Binary struct {
	Name    string // "etcd", "etcdctl" or "etcdutl"
	Size    int64  // bytes
	Version string // as in Result
	Arch    string // GOARCH
	SHA256  string // hex digits
}

// Verify reads a release archive from r to its end, stages its programs in s,
// and reports what it holds. It returns no Result unless the archive is valid.
//
// Its errors are *reason.Error with one of the archive-* codes. A failing read
// of r is archive-unreadable and keeps the cause; an error of s is returned
// wrapped, so that its own code survives. When ctx ends, the error wraps
// ctx.Err() and has the code of ctx's cause, else interrupted for a
// cancellation and archive-unreadable for a deadline. ctx is looked at between
// reads: a read of r that hangs must be ended by r.
func Verify(ctx context.Context, r io.Reader, w Want, s Sink) (*Result, error) {
	v, err := newVerifier(ctx, r, w, s)
	if err != nil {
		return nil, err
	}
	res, err := v.run()
	if cerr := v.close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	return res, nil
}

// programs are the names that are taken from an archive, in the order of
// Result.Binaries. Only the first must be there.
func programs() []string { return []string{"etcd", "etcdctl", "etcdutl"} }

func isProgram(base string) bool { return slices.Contains(programs(), base) }
