package store

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"cks-etcd/internal/reason"
)

// propertiesFile describes a template (TemplateLocation in CloudStack).
const propertiesFile = "template.properties"

// maxName is the longest unique name that is taken for one, in bytes: it is kept
// in a VARCHAR(255) (vm_template in CloudStack's schema), four bytes a character.
const maxName = 4 * 255

// otherFormats are the properties of which one is "true" for a template that is
// no ISO: the image formats of CloudStack (Storage.ImageFormat).
func otherFormats() []string {
	return []string{"qcow2", "vhd", "vhdx", "ova", "vmdk", "raw", "tar", "vdi", "dir", "baremetal", "pxeimage", "docker"}
}

// templateCopy returns a copy of which no more is known than its directory.
func (w *walker) templateCopy(dir, path string) Copy {
	c := Copy{Dir: w.path(dir), Name: filepath.Base(path), Size: -1}
	if account := filepath.Base(filepath.Dir(path)); isID(c.Name) && isID(account) {
		c.Account, c.Template = account, c.Name
	}
	return c
}

// template returns the ISO of a template directory, complete or not; false when
// it is a template of another kind.
func (w *walker) template(dir string, entries []fs.DirEntry) (Copy, bool) {
	_, path := w.place(dir)
	c := w.templateCopy(dir, path)
	var isos []string
	download := ""
	for _, e := range entries {
		switch name := e.Name(); {
		case isDownload(name):
			download = name
		case isISO(name) && !e.IsDir():
			isos = append(isos, name)
		}
	}
	if len(isos) == 1 {
		c.Path = filepath.Join(c.Dir, isos[0])
		c.Name = isos[0]
	}
	incomplete := func(format string, args ...any) (Copy, bool) {
		e := reason.New(reason.ISOIncomplete, "%s: "+format, append([]any{c.Dir}, args...)...)
		if download != "" {
			e = reason.New(reason.ISOIncomplete, "%s: it is being downloaded, or its download broke off (%s)", c.Dir, download)
		}
		c.Err = e
		return c, true
	}
	switch {
	case !has(entries, propertiesFile) && len(entries) == 0:
		return incomplete("the directory is empty: the download has not begun, or failed")
	case !has(entries, propertiesFile):
		return incomplete("there is no %s: the download has not ended, or failed", propertiesFile)
	}

	b, err := w.disk.read(w.ctx, filepath.Join(c.Dir, propertiesFile), maxProperties+1)
	switch {
	case errors.Is(err, errNotRegular), errors.Is(err, fs.ErrNotExist):
		return incomplete("%w", err)
	case err != nil:
		c.Err = outcome(err)
		return c, true
	}
	props, err := ParseProperties(bytes.NewReader(b))
	if err != nil {
		return incomplete("%s: %w", propertiesFile, err)
	}
	c.Properties = props
	if name := props["uniquename"]; name != "" && len(name) <= maxName {
		c.Name = name
	}
	name, named := props["iso.filename"]
	switch {
	case props["iso"] != "true" && !named && len(isos) == 0 && slices.ContainsFunc(otherFormats(), func(f string) bool { return props[f] == "true" }):
		w.log.Debug("a template is no ISO", "dir", c.Dir)
		return Copy{}, false
	case !named || name == "":
		return incomplete("%s names no ISO (iso.filename): the download has not ended, or failed", propertiesFile)
	case name != filepath.Base(name) || name == "." || name == ".." || strings.ContainsRune(name, 0):
		c.Path = ""
		return incomplete("%s names %q, which is not in the directory", propertiesFile, name)
	}
	if size, err := strconv.ParseInt(props["iso.size"], 10, 64); err == nil && size >= 0 {
		c.Size = size
	}
	c.Path = ""
	if !has(entries, name) {
		return incomplete("%s names %q, which is not there", propertiesFile, name)
	}
	c.Path = filepath.Join(c.Dir, name)
	i, err := w.disk.lstat(w.ctx, c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return incomplete("%q went away", name)
	case err != nil:
		c.Err = outcome(err)
		return c, true
	case !i.Mode().IsRegular():
		c.Path = ""
		return incomplete("%q is %s", name, kindOf(i.Mode()))
	case slices.ContainsFunc(isos, func(other string) bool { return other != name }):
		return incomplete("there are %d ISOs, of which %s names %q", len(isos), propertiesFile, name)
	case c.Size < 0:
		return incomplete("%s does not say how many bytes the ISO has (iso.size)", propertiesFile)
	case c.Size != i.Size():
		return incomplete("%q has %d bytes, not the %d of %s", name, i.Size(), c.Size, propertiesFile)
	}
	return c, true
}
