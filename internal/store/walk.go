package store

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"cks-etcd/internal/reason"
)

// maxDepth is how deep directories are followed: far deeper than anybody's, and
// an end for a file system that shows itself inside of itself.
const maxDepth = 64

// A walker walks one store. Directories are named by their path below the root.
type walker struct {
	ctx  context.Context
	disk *disk
	log  *slog.Logger
	each func(Copy) error
	root string // as given
	// bases are the names by which the root may be known in the layout: its
	// absolute path, and where that leads.
	bases  []string
	first  *reason.Error // of the directories that could not be read
	failed int           // their number
}

func newWalker(ctx context.Context, l looks, root string, o Options) (*walker, error) {
	w := &walker{ctx: ctx, disk: newDisk(l, o), log: o.Log, root: filepath.Clean(root)}
	if w.log == nil {
		w.log = slog.New(slog.DiscardHandler)
	}
	// The current directory may be on what hangs.
	abs, err := look(ctx, w.disk, root, func() (string, error) { return filepath.Abs(root) })
	if err != nil {
		return nil, outcome(err)
	}
	resolved, err := w.disk.resolve(ctx, abs)
	if err != nil {
		return nil, outcome(err)
	}
	w.bases = []string{abs, resolved}
	return w, nil
}

func (w *walker) path(dir string) string { return filepath.Join(w.root, dir) }

// place returns where dir is in the layout, and the path that tells it.
func (w *walker) place(dir string) (place, string) {
	for _, base := range w.bases {
		path := filepath.Join(base, dir)
		if p := placeOf(path); p != elsewhere {
			return p, path
		}
	}
	return elsewhere, filepath.Join(w.bases[0], dir)
}

// directory walks dir. The error ends the walk.
func (w *walker) directory(dir string, depth int) error {
	entries, err := w.disk.list(w.ctx, w.path(dir))
	if err != nil {
		return w.unreadable(dir, err)
	}
	at, _ := w.place(dir)
	if at == templateDir || slices.ContainsFunc(entries, ofTemplate) {
		if c, ok := w.template(dir, entries); ok {
			if err := w.report(c); err != nil {
				return err
			}
		}
	} else if err := w.files(dir, entries); err != nil {
		return err
	}
	if at == templateDir {
		return nil // CloudStack has no directories in there
	}
	export := has(entries, "template")
	for _, e := range entries {
		switch name := e.Name(); {
		case !e.IsDir(), passed(name), export && otherStorage(name):
		case depth == maxDepth:
			w.note(reason.New(reason.SourceUnsupported, "%s is deeper than is looked at", w.path(filepath.Join(dir, name))))
		default:
			if err := w.directory(filepath.Join(dir, name), depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// ofTemplate reports whether a file is one that only template directories have.
func ofTemplate(e fs.DirEntry) bool { return e.Name() == propertiesFile || isDownload(e.Name()) }

func has(entries []fs.DirEntry, name string) bool {
	return slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return e.Name() == name })
}

// files reports the ISOs in a directory that is no template's.
func (w *walker) files(dir string, entries []fs.DirEntry) error {
	for _, e := range entries {
		if !isISO(e.Name()) {
			continue
		}
		c := Copy{Path: w.path(filepath.Join(dir, e.Name())), Name: e.Name(), Size: -1}
		if e.Type()&fs.ModeSymlink != 0 {
			// Somebody's "latest.iso". What it leads to is looked at once.
			i, err := w.disk.stat(w.ctx, c.Path)
			switch {
			case err != nil:
				c.Err = outcome(err)
			case !i.Mode().IsRegular():
				continue
			}
		} else if !e.Type().IsRegular() {
			continue
		}
		if err := w.report(c); err != nil {
			return err
		}
	}
	return nil
}

// report gives a copy to the caller.
func (w *walker) report(c Copy) error {
	if w.ctx.Err() != nil {
		return ended(w.ctx) // whatever was found was not looked at to its end
	}
	return w.each(c)
}

// unreadable goes on after a directory that could not be read. The error ends
// the walk.
func (w *walker) unreadable(dir string, err error) error {
	e := outcome(err)
	switch at, path := w.place(dir); {
	case dir == ".", w.ctx.Err() != nil, w.disk.lost >= maxLost:
		return e
	case e.Code == reason.SourceMissing:
		w.log.Debug("a directory went away", "dir", w.path(dir))
		return nil
	case at == templateDir:
		c := w.templateCopy(dir, path)
		c.Err = e
		return w.report(c)
	}
	w.note(e)
	return nil
}

// note keeps an error that does not end the walk.
func (w *walker) note(e *reason.Error) {
	w.log.Warn("a directory cannot be read", "err", e)
	if w.failed++; w.first == nil {
		w.first = e
	}
}

// unread returns what was noted, nil when everything was read.
func (w *walker) unread() error {
	switch w.failed {
	case 0:
		return nil
	case 1:
		return w.first
	}
	return reason.New(w.first.Code, "%w, and %d more directories could not be read", w.first.Err, w.failed-1)
}

// find reports the copies of one template.
func (w *walker) find(id string) error {
	switch at, path := w.place("."); {
	case at == templateDir:
		if filepath.Base(path) != id {
			return nil
		}
		return w.one(".")
	case at == accountDir:
		return w.one(id)
	case at == tmplDir:
		return w.accounts(".", id)
	}
	for _, dir := range []string{"template/tmpl", "tmpl"} {
		i, err := w.disk.lstat(w.ctx, w.path(dir))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return outcome(err)
		case i.IsDir():
			return w.accounts(dir, id)
		}
	}
	// A directory of accounts, or an account's, mounted under another name.
	if err := w.one(id); err != nil {
		return err
	}
	return w.accounts(".", id)
}

// accounts reports the copies in the accounts' directories below dir.
func (w *walker) accounts(dir, id string) error {
	entries, err := w.disk.list(w.ctx, w.path(dir))
	if err != nil {
		return outcome(err)
	}
	for _, e := range entries {
		if e.IsDir() && isID(e.Name()) {
			if err := w.one(filepath.Join(dir, e.Name(), id)); err != nil {
				return err
			}
		}
	}
	return nil
}

// one reports the copy in a template's directory, if there is one.
func (w *walker) one(dir string) error {
	i, err := w.disk.lstat(w.ctx, w.path(dir))
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && !i.IsDir():
		return nil
	case err != nil && (w.ctx.Err() != nil || w.disk.lost >= maxLost):
		return outcome(err)
	case err != nil:
		w.note(outcome(err)) // whether there is one, nobody knows
		return nil
	}
	entries, err := w.disk.list(w.ctx, w.path(dir))
	if err != nil {
		return w.unreadable(dir, err)
	}
	if c, ok := w.template(dir, entries); ok {
		return w.report(c)
	}
	return nil
}
