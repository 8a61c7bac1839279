package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// maintainer signs packages and their changelogs.
const maintainer = "cks-etcd maintainers <maintainers@cks-etcd.invalid>"

// changelog stages what both formats want to know of this version, and the
// project's own changelog, which says what changed.
func (b *builder) changelog(p program) error {
	var out bytes.Buffer
	fmt.Fprintf(&out, "- semver: %s-%s\n", b.rel.version, packageRelease)
	fmt.Fprintf(&out, "  date: %s\n", b.rel.time.Format(time.RFC3339))
	fmt.Fprintf(&out, "  packager: %q\n", maintainer)
	fmt.Fprintf(&out, "  deb: {urgency: medium, distributions: [unstable]}\n")
	fmt.Fprintf(&out, "  changes:\n  - note: Version %s; the project's changelog says what is new.\n", b.rel.version)
	if err := writeStaged(b.staged(p.name+".changelog.yaml"), out.Bytes()); err != nil {
		return err
	}
	text, err := os.ReadFile(filepath.Join(b.root, "docs", "changelog.md"))
	if err != nil {
		return err
	}
	if text, err = gzipped(text); err != nil {
		return err
	}
	return writeStaged(b.staged("changelog.gz"), text)
}

// gzipped compresses as "gzip -9n" does: without name and time.
func gzipped(content []byte) ([]byte, error) {
	var out bytes.Buffer
	w, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
