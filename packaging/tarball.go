package main

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goreleaser/nfpm/v2/files"
)

// tarball writes PROGRAM_VERSION_linux_ARCH.tar.gz: the files of the rpm below one
// directory, so that "cp -r etc usr /" installs them, and LICENSE at its top.
func (b *builder) tarball(p program, arch string) error {
	config, err := b.config(p, arch)
	if err != nil {
		return err
	}
	name := fmt.Sprintf("%s_%s_linux_%s", p.name, b.rel.version, arch)
	f, err := os.Create(filepath.Join(b.out, name+".tar.gz"))
	if err != nil {
		return err
	}
	defer f.Close()
	gz, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}
	tw := tar.NewWriter(gz)

	members := []*files.Content{{Source: filepath.Join(b.root, "LICENSE"), Destination: "/LICENSE", FileInfo: &files.ContentFileInfo{Mode: 0o644}}}
	for _, c := range config.Contents {
		if c.Packager != "deb" && c.Type != files.TypeDir {
			members = append(members, c)
		}
	}
	slices.SortFunc(members, func(x, y *files.Content) int { return strings.Compare(x.Destination, y.Destination) })
	dirs := map[string]bool{}
	for _, c := range members {
		inside := path.Join(name, c.Destination)
		if err := b.addDirs(tw, dirs, path.Dir(inside)); err != nil {
			return err
		}
		content, err := os.ReadFile(c.Source)
		if err != nil {
			return err
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: inside, Mode: int64(c.FileInfo.Mode), Size: int64(len(content)), ModTime: b.rel.time, Format: tar.FormatUSTAR}
		if err := tw.WriteHeader(&h); err != nil {
			return err
		}
		if _, err := tw.Write(content); err != nil {
			return err
		}
	}
	if err := tw.Close(); err != nil {
		return err
	}
	if err := gz.Close(); err != nil {
		return err
	}
	return f.Close()
}

// addDirs adds dir and its parents, each once.
func (b *builder) addDirs(tw *tar.Writer, have map[string]bool, dir string) error {
	if dir == "." || have[dir] {
		return nil
	}
	have[dir] = true
	if err := b.addDirs(tw, have, path.Dir(dir)); err != nil {
		return err
	}
	return tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: b.rel.time, Format: tar.FormatUSTAR})
}
