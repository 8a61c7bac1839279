//go:build lab && linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"cks-etcd/internal/archive"
	"cks-etcd/internal/isofs"
	"cks-etcd/internal/lab"
)

// images are the ISOs of the demo: one with etcd, one as it is built without the optional etcd version.
type images struct{ with, without string }

// makeImages builds the ISOs in dir and reads them back with the product's own packages.
func makeImages(ctx context.Context, p *printer, dir string) (images, error) {
	im := images{with: filepath.Join(dir, "with-etcd.iso"), without: filepath.Join(dir, "without-etcd.iso")}
	p.step("etcd from source, packed as etcd releases it (built once, 2 minutes, then cached)")
	tarball := filepath.Join(dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(ctx, tarball, lab.ArchiveOptions{}); err != nil {
		return im, err
	}
	p.step("two Kubernetes ISOs, laid out as CloudStack's script does it: one with etcd, one without")
	if err := lab.KubernetesISO(ctx, im.with, lab.KubernetesOptions{Etcd: tarball}); err != nil {
		return im, err
	}
	if err := lab.KubernetesISO(ctx, im.without, lab.KubernetesOptions{}); err != nil {
		return im, err
	}
	if err := readWith(ctx, p, im.with); err != nil {
		return im, fmt.Errorf("%s: %w", im.with, err)
	}
	return im, readWithout(p, im.without)
}

// readWith reads the archive on an ISO to its end, as the node agent does.
func readWith(ctx context.Context, p *printer, path string) error {
	f, image, err := openISO(path)
	if err != nil {
		return err
	}
	defer f.Close()
	file, err := image.Lookup(lab.EtcdPath)
	if err != nil {
		return err
	}
	sink := archive.NewTempSink("")
	defer sink.Close()
	r, err := archive.Verify(ctx, file.Reader(), archive.Want{}, sink)
	if err != nil {
		return err
	}
	p.say("with:    volume %q, %v names; %s is a whole archive of etcd %s for %s", image.VolumeID(), image.Names(), lab.EtcdPath, r.Version, r.Arch)
	return nil
}

func readWithout(p *printer, path string) error {
	f, image, err := openISO(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := image.Lookup(lab.EtcdPath); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s: looking for etcd = %v, want that it does not exist", path, err)
	}
	p.say("without: volume %q, %v names; no %s", image.VolumeID(), image.Names(), lab.EtcdPath)
	return nil
}

func openISO(path string) (*os.File, *isofs.Image, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	image, err := isofs.Open(f, fi.Size())
	if err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	return f, image, nil
}
