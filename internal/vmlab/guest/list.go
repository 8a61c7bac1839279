//go:build vm && linux

package main

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"cks-etcd/internal/vmlab/wire"
)

// list walks a directory and reads all its files.
func list(root string) ([]wire.File, error) {
	var files []wire.File
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil || p == root {
			return err
		}
		fi, err := e.Info()
		if err != nil {
			return err
		}
		f := wire.File{Type: "other", Mode: uint32(fi.Mode().Perm())}
		if f.Path, err = filepath.Rel(root, p); err != nil {
			return err
		}
		switch {
		case fi.IsDir():
			f.Type = "dir"
		case fi.Mode().IsRegular():
			f.Type, f.Size = "file", fi.Size()
			f.Sum, err = sum(p)
		case fi.Mode()&fs.ModeSymlink != 0:
			f.Type = "link"
			f.Link, err = os.Readlink(p)
		}
		files = append(files, f)
		return err
	})
	return files, err
}

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	_, err = io.Copy(h, f)
	return hex.EncodeToString(h.Sum(nil)), err
}
