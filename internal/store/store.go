// Package store finds ISO images below a directory, and knows how CloudStack
// lays out its secondary storage:
//
//	<export>/template/tmpl/<account>/<template>/template.properties
//	<export>/template/tmpl/<account>/<template>/<unique name>.iso
//
// # Complete or not
//
// A download lands in the template's own directory, under the name
// dnld<number>tmp_, and template.properties is written after it. An ISO is
// complete when that file names it (iso.filename), gives its length (iso.size),
// and the length is right. Until then nothing can be said about what the ISO
// holds: such a copy has an error, which is neither a yes nor a no.
//
// Templates of other kinds, which are not ISOs, are passed over. So are
// directories of a file server's snapshots, which show everything again.
//
// # Manners
//
// Nothing is written, no symbolic link to a directory is followed, and no call
// waits for a file server longer than it was told to. A directory costs one
// listing, a template also its properties and one stat of its ISO.
package store

import (
	"context"
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
)

// A Copy is one ISO image in a store, or a template directory that should hold
// one.
type Copy struct {
	Path     string // the ISO file; "" when none can be named, and Err says why
	Dir      string // its template directory; "" for an ISO outside of one
	Account  string // id of the account, from the directory's name; "" outside
	Template string // id of the template, from the directory's name; "" outside
	// Name is the unique name in template.properties, else the base name of the
	// file or of the directory.
	Name       string
	Size       int64             // iso.size of template.properties, in bytes; -1 unknown
	Properties map[string]string // of template.properties; nil without
	// Err is a *reason.Error that says why nothing can be told about the ISO:
	// it is not complete (iso-incomplete), or its directory cannot be read
	// (source-*). nil: it is complete as far as the store tells.
	Err error
}

// Options of Walk and Template. The zero value is ready for use.
type Options struct {
	Timeout time.Duration // the longest time one look at a file or directory may take; 0: 30 s
	// Calls makes the looks, and knows those that have not come back. A process has
	// one. nil: one of the walk's own.
	Calls *fscall.Calls
	Log   *slog.Logger // may be nil
}

// Walk calls each for every ISO below root, in the order of their paths. root
// may be an export of secondary storage, its template or template/tmpl
// directory, that of an account or of one template, or any directory that holds
// files called *.iso. An error of each ends the walk and is returned as it is.
//
// A directory that cannot be read does not end the walk: a template's becomes a
// Copy with an error, and any other one is what Walk returns in the end, as a
// *reason.Error; what was found is then not all there is. The walk ends early,
// with such an error, when root cannot be read, when several directories do not
// answer in time, and when ctx ends.
func Walk(ctx context.Context, root string, o Options, each func(Copy) error) error {
	return walk(ctx, system{}, root, o, each)
}

func walk(ctx context.Context, l looks, root string, o Options, each func(Copy) error) error {
	w, err := newWalker(ctx, l, root, o)
	if err != nil {
		return err
	}
	w.each = each
	if err := w.directory(".", 0); err != nil {
		return err
	}
	return w.unread()
}

// Template returns the copies of the template with that id, which is the name
// of its directory, for all accounts. Only template/tmpl/*/<id> below root is
// looked at; root may also be what Walk takes of secondary storage. No copies
// and no error mean that it certainly is not there.
func Template(ctx context.Context, root, id string, o Options) ([]Copy, error) {
	return template(ctx, system{}, root, id, o)
}

func template(ctx context.Context, l looks, root, id string, o Options) ([]Copy, error) {
	if !isID(id) {
		return nil, reason.New(reason.Usage, "%q is no template id: that is a number, the name of its directory", id)
	}
	w, err := newWalker(ctx, l, root, o)
	if err != nil {
		return nil, err
	}
	var list []Copy
	w.each = func(c Copy) error {
		list = append(list, c)
		return nil
	}
	if err := w.find(id); err != nil {
		return list, err
	}
	return list, w.unread()
}

// A place is where a directory is in the layout of secondary storage.
type place uint8

const (
	elsewhere   place = iota
	tmplDir           // template/tmpl
	accountDir        // template/tmpl/<account>
	templateDir       // template/tmpl/<account>/<template>
)

// placeOf tells it by the names of the path alone.
func placeOf(path string) place {
	base, above := filepath.Base(path), filepath.Dir(path)
	switch {
	case base == "tmpl" && filepath.Base(above) == "template":
		return tmplDir
	case !isID(base) || path == above:
		return elsewhere
	}
	switch placeOf(above) {
	case tmplDir:
		return accountDir
	case accountDir:
		return templateDir
	}
	return elsewhere
}

// isID reports whether a name can be the id of an account or template, which
// are database keys.
func isID(name string) bool {
	return 0 < len(name) && len(name) <= 19 && strings.Trim(name, "0123456789") == ""
}

// passed reports whether a directory is passed over: a file server's snapshots
// show everything again, and lost+found belongs to fsck.
func passed(name string) bool {
	switch name {
	case ".snapshot", ".snapshots", "~snapshot", ".zfs", "lost+found":
		return true
	}
	return false
}

// otherStorage reports whether a directory beside "template" is one that
// CloudStack keeps other things in.
func otherStorage(name string) bool {
	return name == "snapshots" || name == "volumes" || name == "systemvm"
}

// isISO reports whether a file is called like an ISO.
func isISO(name string) bool { return strings.EqualFold(filepath.Ext(name), ".iso") }

// isDownload reports whether a file is a download in progress, or what is left
// of one.
func isDownload(name string) bool {
	return strings.HasPrefix(name, "dnld") && strings.HasSuffix(name, "tmp_")
}

// kindOf words what a file is.
func kindOf(m fs.FileMode) string {
	switch {
	case m.IsDir():
		return "a directory"
	case m&fs.ModeSymlink != 0:
		return "a symbolic link, which is not followed"
	}
	return "a special file"
}
