//go:build lab && linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/lab"
)

const (
	largeISO = 700 << 20 // of a Kubernetes ISO with its container images
	manyName = 100_000   // files in one directory
)

// makeContests makes the images in dir, and says who is asked what about them.
func makeContests(ctx context.Context, o options, dir string) ([]contest, error) {
	archive := filepath.Join(dir, "etcd.tar.gz")
	if err := lab.EtcdArchive(ctx, archive, lab.ArchiveOptions{}); err != nil {
		return nil, err
	}
	large := filepath.Join(dir, "large.iso")
	if err := makeLarge(ctx, dir, large, archive); err != nil {
		return nil, err
	}
	many, wanted, err := makeMany(ctx, dir)
	if err != nil {
		return nil, err
	}
	if err := makeSmall(ctx, dir, o.isos); err != nil {
		return nil, err
	}

	check := func(args ...string) []string {
		return append([]string{o.fleet, "iso", "check", "--no-remember", "-q", "-o", "jsonl"}, args...)
	}
	const included = `"value":"included"`
	path := inspect.EtcdArchive
	loop := func(tool string) []string {
		return []string{"sh", "-ec", `for iso in small/*.iso; do ` + tool + `; done`}
	}
	return []contest{
		{"one lookup in a 700 MiB ISO", []contender{
			{"etcd-fleet iso check", check(large), included},
			{"isoinfo -R -f", []string{"isoinfo", "-R", "-f", "-i", large}, path},
			{"xorriso -find", []string{"xorriso", "-report_about", "WARNING", "-indev", large, "-find", "/" + path}, path},
			{"bsdtar -tf", []string{"bsdtar", "-tf", large, path}, path},
			{"7z l", []string{"7z", "l", large, path}, path},
		}},
		{"one lookup in a directory of 100,000 files", []contender{
			{"etcd-fleet iso check", check("--file", wanted, many), included},
			{"isoinfo -R -f", []string{"isoinfo", "-R", "-f", "-i", many}, wanted},
			{"xorriso -find", []string{"xorriso", "-report_about", "WARNING", "-indev", many, "-find", "/" + wanted}, wanted},
			{"bsdtar -tf", []string{"bsdtar", "-tf", many, wanted}, wanted},
			{"7z l", []string{"7z", "l", many, wanted}, wanted},
		}},
		{fmt.Sprintf("%d small ISOs", o.isos), []contender{
			{"etcd-fleet iso check", check("small"), included},
			{"isoinfo -R -f", loop(`isoinfo -R -f -i "$iso" | grep -qx "/` + path + `"`), ""},
			{"xorriso -find", loop(`xorriso -report_about WARNING -indev "$iso" -find "/` + path + `" >/dev/null`), ""},
			{"bsdtar -tf", loop(`bsdtar -tf "$iso" ` + path + ` >/dev/null`), ""},
			{"7z l", loop(`7z l "$iso" ` + path + ` >/dev/null`), ""},
		}},
		{"the whole archive (--deep)", []contender{
			{"etcd-fleet iso check --deep", check("--deep", large), included},
			{"tar -tzf", []string{"tar", "-tzf", archive}, "/etcd"},
			{"igzip -t", []string{"igzip", "-t", archive}, ""},
			{"gzip -t", []string{"gzip", "-t", archive}, ""},
		}},
	}, nil
}

// makeLarge makes a Kubernetes ISO of about largeISO bytes.
func makeLarge(ctx context.Context, dir, iso, archive string) error {
	images := filepath.Join(dir, "images.tar")
	if err := os.WriteFile(images, nil, 0o644); err != nil {
		return err
	}
	defer os.Remove(images)
	if err := os.Truncate(images, largeISO-30<<20); err != nil {
		return err
	}
	return lab.KubernetesISO(ctx, iso, lab.KubernetesOptions{Etcd: archive, Extra: map[string]lab.Source{
		"docker/images.tar": {Path: images},
	}})
}

// makeMany makes an ISO with one directory of manyName files, and names one in
// its middle.
func makeMany(ctx context.Context, dir string) (iso, wanted string, err error) {
	tree := filepath.Join(dir, "tree")
	defer os.RemoveAll(tree)
	if err := os.MkdirAll(filepath.Join(tree, "many"), 0o755); err != nil {
		return "", "", err
	}
	for i := range manyName {
		f, err := os.Create(filepath.Join(tree, fmt.Sprintf("many/file-%06d.txt", i)))
		if err != nil {
			return "", "", err
		}
		f.Close()
	}
	iso = filepath.Join(dir, "many.iso")
	files := map[string]lab.Source{"many": {Path: filepath.Join(tree, "many")}}
	return iso, fmt.Sprintf("many/file-%06d.txt", manyName/2), lab.BuildISO(ctx, iso, lab.ISOOptions{Files: files})
}

// makeSmall makes n ISOs in dir/small, each a file of its own.
func makeSmall(ctx context.Context, dir string, n int) error {
	small := filepath.Join(dir, "small")
	if err := os.Mkdir(small, 0o755); err != nil {
		return err
	}
	archive := filepath.Join(dir, "small.tar.gz")
	if err := os.WriteFile(archive, []byte("\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03 a beginning of gzip"), 0o644); err != nil {
		return err
	}
	first := filepath.Join(dir, "first.iso")
	if err := lab.KubernetesISO(ctx, first, lab.KubernetesOptions{Etcd: archive}); err != nil {
		return err
	}
	for i := range n {
		if err := copyFile(filepath.Join(small, fmt.Sprintf("setup-%05d.iso", i)), first); err != nil {
			return err
		}
	}
	return nil
}

func copyFile(to, from string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	w, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(w, r); err != nil {
		w.Close()
		return err
	}
	return w.Close()
}
