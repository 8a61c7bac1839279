//go:build lab && linux

package lab

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
)

// EtcdPath is where CloudStack's script puts the etcd archive on an ISO: always this name, whatever the architecture.
const EtcdPath = "etcd/etcd-linux-amd64.tar.gz"

// Source is the content of a file on an image: that of a file at Path, or Data.
type Source struct {
	Path string
	Data []byte
}

// Text is a Source of a few words.
func Text(s string) Source { return Source{Data: []byte(s)} }

// ISOOptions of BuildISO.
type ISOOptions struct {
	Files map[string]Source // by path on the image; a path that ends in "/" is an empty directory
	Label string            // volume id; "": the tool's default, as CloudStack's script leaves it
	Args  []string          // genisoimage's; nil: -J -R -l, as CloudStack's script
}

// BuildISO makes an ISO 9660 image with genisoimage.
func BuildISO(ctx context.Context, out string, o ISOOptions) error {
	tree, err := os.MkdirTemp("", "lab-iso-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tree)
	for name, src := range o.Files {
		if err := src.stage(tree, name); err != nil {
			return fmt.Errorf("cannot put %s on an ISO: %w", name, err)
		}
	}
	args := o.Args
	if args == nil {
		args = []string{"-J", "-R", "-l"}
	}
	args = append([]string{"-quiet", "-f", "-o", out}, args...) // -f: the tree is of symbolic links, the image of files
	if o.Label != "" {
		args = append(args, "-V", o.Label)
	}
	var log limitedBuffer
	if err := run(exec.CommandContext(ctx, "genisoimage", append(args, tree)...), &log); err != nil {
		return fmt.Errorf("cannot make the ISO %s: %w: %s", out, err, lastLines(log.b, 3))
	}
	return nil
}

func (s Source) stage(tree, name string) error {
	if !filepath.IsLocal(name) {
		return errors.New("its path leads out of the image")
	}
	p := filepath.Join(tree, name)
	if strings.HasSuffix(name, "/") {
		return os.MkdirAll(p, 0o755)
	}
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		return err
	}
	if s.Path == "" {
		return os.WriteFile(p, s.Data, 0o644)
	}
	abs, err := filepath.Abs(s.Path)
	if err != nil {
		return err
	}
	if _, err := os.Stat(abs); err != nil {
		return err
	}
	return os.Symlink(abs, p)
}

// KubernetesOptions of KubernetesISO.
type KubernetesOptions struct {
	Etcd  string            // the etcd archive's path on this machine; "": the ISO has none
	Label string            // as ISOOptions
	Extra map[string]Source // more files, or others in place of the usual ones
	Args  []string          // as ISOOptions
}

// KubernetesISO makes a Kubernetes binaries ISO as CloudStack's create-kubernetes-binaries-iso.sh lays it out. Only etcd
// is real; the rest are small stand-ins under the right names.
func KubernetesISO(ctx context.Context, out string, o KubernetesOptions) error {
	files := map[string]Source{
		"cni/cni-plugins-amd64.tgz":           Text("stand-in\n"),
		"cri-tools/crictl-linux-amd64.tar.gz": Text("stand-in\n"),
		"k8s/kubeadm":                         Text("#!/bin/sh\n"),
		"k8s/kubelet":                         Text("#!/bin/sh\n"),
		"k8s/kubectl":                         Text("#!/bin/sh\n"),
		"kubelet.service":                     Text("[Service]\nExecStart=/usr/bin/kubelet\n"),
		"10-kubeadm.conf":                     Text("[Service]\n"),
		"network.yaml":                        Text("---\n"),
		"dashboard.yaml":                      Text("---\n"),
		"autoscaler.yaml":                     Text("---\n"),
		"provider.yaml":                       Text("---\n"),
		"manifest.yaml":                       Text("---\n"),
		"snapshot-crds.yaml":                  Text("---\n"),
		"docker/registry.k8s.io_kube-apiserver:v1.33.tar": Text("stand-in\n"),
		"docker/registry.k8s.io_pause:3.10.tar":           Text("stand-in\n"),
	}
	if o.Etcd != "" {
		files[EtcdPath] = Source{Path: o.Etcd}
	}
	for name, src := range o.Extra {
		files[name] = src
	}
	return BuildISO(ctx, out, ISOOptions{Files: files, Label: o.Label, Args: o.Args})
}

// ArchiveOptions of EtcdArchive. The zero value is an archive as etcd releases it.
type ArchiveOptions struct {
	Version  string            // "": that of the real etcd
	Arch     string            // GOARCH of the binaries and in the directory's name; "": this machine's
	Binaries map[string]string // name -> file on this machine; nil: the real etcd and etcdctl
	Without  []string          // names of binaries that are left out: "etcd"
}

// EtcdArchive writes an etcd release archive to out: etcd-vX.Y.Z-linux-ARCH/ with the binaries, a README and
// Documentation/. The one of the real binaries is kept in the cache; out is then a link to it, and not to be written to.
func EtcdArchive(ctx context.Context, out string, o ArchiveOptions) error {
	if o.Arch == "" {
		o.Arch = runtime.GOARCH
	}
	if o.Binaries != nil {
		if o.Version == "" {
			return errors.New("cannot make an etcd archive: binaries without a version")
		}
		return writeArchive(ctx, out, o)
	}
	dir, err := EtcdFor(ctx, o.Arch)
	if err != nil {
		return err
	}
	o.Binaries = map[string]string{"etcd": filepath.Join(dir, "etcd"), "etcdctl": filepath.Join(dir, "etcdctl")}
	if o.Version == "" {
		if o.Version, err = EtcdVersion(o.Binaries["etcd"]); err != nil {
			return err
		}
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %q", filepath.Base(dir), o))
	name := "archive-" + o.Version + "-" + o.Arch + "-" + hex.EncodeToString(sum[:6]) + ".tar.gz"
	path, err := cached(ctx, name, func(ctx context.Context, tmp string) error { return writeArchive(ctx, tmp, o) })
	if err != nil {
		return err
	}
	if err := os.Remove(out); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return os.Symlink(path, out)
}

func writeArchive(ctx context.Context, out string, o ArchiveOptions) (err error) {
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = fmt.Errorf("cannot write the etcd archive %s: %w", out, err)
		}
	}()
	z, err := gzip.NewWriterLevel(f, gzip.BestSpeed)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	top := fmt.Sprintf("etcd-v%s-linux-%s/", strings.TrimPrefix(o.Version, "v"), o.Arch)
	when := time.Unix(1700000000, 0) // always the same: the same input, the same archive
	add := func(h tar.Header, r io.Reader) error {
		h.Name, h.ModTime, h.Format = top+h.Name, when, tar.FormatGNU
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err := io.Copy(w, r)
		return errors.Join(err, context.Cause(ctx))
	}
	empty := strings.NewReader("")
	readme := "# etcd\n"
	errs := []error{
		add(tar.Header{Typeflag: tar.TypeDir, Mode: 0o755}, empty),
		add(tar.Header{Typeflag: tar.TypeDir, Name: "Documentation/", Mode: 0o755}, empty),
		add(tar.Header{Name: "Documentation/README.md", Mode: 0o644, Size: int64(len(readme))}, strings.NewReader(readme)),
		add(tar.Header{Name: "README.md", Mode: 0o644, Size: int64(len(readme))}, strings.NewReader(readme)),
	}
	for _, name := range []string{"etcd", "etcdctl", "etcdutl"} {
		path, ok := o.Binaries[name]
		for _, w := range o.Without {
			ok = ok && w != name
		}
		if ok {
			errs = append(errs, addFile(add, name, path))
		}
	}
	return errors.Join(append(errs, w.Close(), z.Close())...)
}

func addFile(add func(tar.Header, io.Reader) error, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	return add(tar.Header{Name: name, Mode: 0o755, Size: fi.Size()}, f)
}
