// Package archivetest makes etcd release archives for tests: valid ones of a
// few kilobytes, ones of real programs, and one damaged in every way that
// package archive has a code for.
package archivetest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// Version is the version of etcd in the archives of Cases.
const Version = "3.5.21"

// Entry is one entry of a tar. The zero header fields are filled in: size from
// the body, type from the name, mode 0755, a fixed time.
type Entry struct {
	tar.Header
	Body []byte
}

// File returns an entry for a regular file, or for a directory when the name
// ends in a slash.
func File(name string, body []byte) Entry {
	return Entry{Header: tar.Header{Name: name}, Body: body}
}

// Dir returns the name of a release's directory, with a slash at its end.
func Dir(version, arch string) string { return fmt.Sprintf("etcd-v%s-linux-%s/", version, arch) }

// Release returns the entries of a release with three small programs.
func Release(version, arch string) []Entry {
	dir := Dir(version, arch)
	prog := ELF(Program{Arch: arch, Version: version})
	return []Entry{
		File(dir, nil),
		File(dir+"README.md", []byte("# etcd\n")),
		File(dir+"etcdutl", prog),
		File(dir+"etcdctl", prog),
		File(dir+"etcd", prog),
		File(dir+"Documentation/", nil),
		File(dir+"Documentation/README.md", []byte("# Documentation\n")),
	}
}

// Archive returns a valid release archive of a few kilobytes.
func Archive(version, arch string) []byte { return Gzip(Tar(Release(version, arch)...)) }

// Tar returns a tar of the entries, with its end marker. It panics on an entry
// that tar cannot express.
func Tar(entries ...Entry) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, e := range entries {
		if err := writeEntry(w, e.Header, bytes.NewReader(e.Body), int64(len(e.Body))); err != nil {
			panic("archivetest: " + err.Error())
		}
	}
	if err := w.Close(); err != nil {
		panic("archivetest: " + err.Error())
	}
	return b.Bytes()
}

// Gzip returns b as one gzip member.
func Gzip(b []byte) []byte {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestSpeed)
	if err != nil {
		panic("archivetest: " + err.Error())
	}
	w.Write(b) // a bytes.Buffer takes everything
	w.Close()
	return out.Bytes()
}

// WriteRelease writes to w a release archive with the programs in a directory
// on disk: etcd, and etcdctl and etcdutl where they are there.
func WriteRelease(w io.Writer, version, arch, programDir string) error {
	zw, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(zw)
	for _, name := range []string{"etcd", "etcdctl", "etcdutl"} {
		if err := addFile(tw, Dir(version, arch)+name, filepath.Join(programDir, name)); err != nil {
			if name != "etcd" && os.IsNotExist(err) {
				continue
			}
			return fmt.Errorf("cannot pack %s: %w", name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	return zw.Close()
}

func addFile(w *tar.Writer, name, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return writeEntry(w, tar.Header{Name: name}, f, fi.Size())
}

func writeEntry(w *tar.Writer, h tar.Header, body io.Reader, size int64) error {
	if h.Typeflag == 0 {
		h.Typeflag = tar.TypeReg
		if h.Name != "" && h.Name[len(h.Name)-1] == '/' {
			h.Typeflag = tar.TypeDir
		}
	}
	if h.Mode == 0 {
		h.Mode = 0o755
	}
	if h.ModTime.IsZero() && h.Typeflag != tar.TypeXGlobalHeader {
		h.ModTime = time.Date(2025, 3, 27, 0, 0, 0, 0, time.UTC)
	}
	if h.Typeflag == tar.TypeReg {
		h.Size = size
	}
	if err := w.WriteHeader(&h); err != nil {
		return err
	}
	_, err := io.Copy(w, body)
	return err
}
