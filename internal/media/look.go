package media

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"syscall"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/reason"
)

// A kind is what a look found in one place.
type kind uint8

const (
	unseen     kind = iota // not looked at yet
	noDevice               // a node with nothing behind it
	empty                  // a drive without a medium
	noISO                  // readable, and no ISO 9660
	seed                   // a config drive or cloud-init seed, without the archive
	other                  // another ISO, without the archive
	missing                // a Kubernetes ISO, certainly without the archive
	holds                  // the archive is there
	damaged                // an ISO that contradicts itself or ends early: could not tell
	unreadable             // could not be opened or read: could not tell
)

// unsure reports whether the archive may be there all the same.
func (k kind) unsure() bool { return k == unseen || k == damaged || k == unreadable }

// iso reports whether an ISO was there.
func (k kind) iso() bool { return k >= seed && k <= damaged }

// An observation is the result of one look.
type observation struct {
	kind   kind
	text   string // what was seen, in a few words
	opened bool   // the device could be opened
	id     identity
	volume string // volume id
	names  string
}

// KubernetesFiles returns the files that tell a Kubernetes ISO, the work of
// create-kubernetes-binaries-iso.sh. One is enough: images are trimmed and
// extended by hand.
func KubernetesFiles() []string { return []string{"k8s/kubeadm", "docker"} }

// look opens one place and looks for the archive in it.
func look(open func() (volume, error), archive string) observation {
	v, err := open()
	if err != nil {
		return failed(err)
	}
	defer v.Close()
	o := observe(v, archive)
	o.opened, o.id, o.volume, o.names = true, v.id(), v.volumeID(), v.names()
	return o
}

func failed(err error) observation {
	var oe *openError
	o := observation{opened: !errors.As(err, &oe)}
	var errno syscall.Errno
	switch {
	case errors.Is(err, errNoMedium):
		o.kind, o.text = empty, "empty"
	case errors.Is(err, errNoDevice):
		o.kind, o.text = noDevice, "without a device"
	case !o.opened:
		o.kind, o.text = unreadable, "cannot be opened: "+cause(oe.error)
	case errors.Is(err, isofs.ErrNotISO):
		o.kind, o.text = noISO, "no ISO 9660"
	case errors.As(err, &errno):
		o.kind, o.text = unreadable, "unreadable: "+err.Error()
	default:
		o.kind, o.text = damaged, "damaged ISO: "+err.Error()
	}
	o.text = reason.Line(o.text)
	return o
}

// cause is err without the path, which the line begins with already.
func cause(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// observe tells what v is by what it holds. The archive is asked for first, so
// that no name of an image ever rules it out.
func observe(v volume, archive string) observation {
	i, err := v.stat(archive)
	if err == nil && i.Mode().IsRegular() {
		return observation{kind: holds, text: describe("ISO", v) + " with " + archive}
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(err)
	}
	without := " without the archive"
	if err == nil {
		without = fmt.Sprintf(" where %s is %s", archive, modeName(i.Mode()))
	}
	var doubt error
	has := func(name string) bool {
		_, err := v.stat(name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			doubt = err
		}
		return err == nil
	}
	for _, name := range KubernetesFiles() {
		if has(name) {
			return observation{kind: missing, text: reason.Line(describe("Kubernetes ISO", v) + without + beside(v, archive))}
		}
	}
	id := strings.ToLower(v.volumeID())
	o := observation{kind: other}
	switch {
	case id == "config-2", has("openstack"):
		o.kind, o.text = seed, describe("config drive", v)
	case id == "cidata", has("user-data") && has("meta-data"):
		o.kind, o.text = seed, describe("cloud-init seed", v)
	case doubt != nil:
		// It certainly lacks the archive; what it is instead stays open.
		o.text = describe("damaged ISO", v) + without
	default:
		o.text = describe("other ISO", v) + without
	}
	o.text = reason.Line(o.text)
	return o
}

func describe(what string, v volume) string {
	if id := v.volumeID(); id != "" {
		return fmt.Sprintf("%s %q", what, id)
	}
	return what
}

// beside names what lies where the archive should be: an archive for another
// architecture, or one under its release's own name.
func beside(v volume, archive string) string {
	const few = 3
	list := v.list(path.Dir(archive), few)
	if len(list) == 0 || path.Dir(archive) == "." {
		return ""
	}
	for i := range list {
		list[i] = fmt.Sprintf("%q", list[i])
	}
	return fmt.Sprintf(" (%s holds %s)", path.Dir(archive), strings.Join(list, ", "))
}
