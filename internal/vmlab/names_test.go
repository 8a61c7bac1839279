//go:build lab && vm && linux

package vmlab

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/vmlab/wire"
)

// treeImage is an image whose names a Linux kernel is to judge.
type treeImage struct{ name, path string }

// inVM is where the image is in the VM.
func (i treeImage) inVM() string { return "/var/lib/lab/" + i.name + ".iso" }

// oddNames are files of which some do not fit into each set of names.
var oddNames = []string{
	"etcd/etcd-linux-amd64.tar.gz", "k8s/kubeadm", "docker/registry.k8s.io_pause:3.10.tar", "docker/registry.k8s.io_kube-apiserver:v1.33.tar",
	"UPPER.TXT", "Mixed.Case.Name.yaml", "lower", ".hidden", "trailing.", "two;semicolons;1", "with space.txt", "no-extension-but-rather-long-name",
	"ünïcødé.txt", "日本語.txt", "emoji-😀.txt", "comma,and'quote\".txt", "plus+minus=.txt", "back\\slash", "a.b.c.d.e", "tilde~1.txt",
	"very-long-" + strings.Repeat("name-", 20) + "that-ends.tar.gz",
	"longest-" + strings.Repeat("x", 240),
	"deep/1/2/3/4/5/6/7/8/9/leaf.txt",
}

// makeTrees makes images of one source tree, each with other names.
func makeTrees(t *testing.T, dir string) []treeImage {
	t.Helper()
	src := filepath.Join(dir, "tree")
	names := slices.Clone(oddNames)
	for i := range 90 { // a directory of several sectors, with names that fall together when they are cut
		names = append(names, fmt.Sprintf("many/collision-number-%03d.tar.gz", i))
	}
	for _, name := range names {
		p := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("content of "+name+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(src, "empty-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "empty"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for link, target := range map[string]string{"link": "k8s/kubeadm", "k8s/absolute": "/etc/passwd", "up": "../../" + strings.Repeat("long-component/", 20) + "end"} {
		if err := os.Symlink(target, filepath.Join(src, link)); err != nil {
			t.Fatal(err)
		}
	}
	var images []treeImage
	for _, i := range []struct {
		name, tool string
		args       []string
	}{
		{"cloudstack", "genisoimage", []string{"-J", "-R", "-l"}},
		{"rockridge", "genisoimage", []string{"-R"}},
		{"rockridge-level4", "genisoimage", []string{"-R", "-iso-level", "4"}},
		{"rockridge-joliet-long", "genisoimage", []string{"-r", "-J", "-joliet-long", "-hide-rr-moved"}},
		{"joliet", "genisoimage", []string{"-J", "-D"}},
		{"joliet-long", "genisoimage", []string{"-J", "-joliet-long", "-D"}},
		{"plain", "genisoimage", []string{"-D"}},
		{"plain-l", "genisoimage", []string{"-l", "-D"}},
		{"plain-level3", "genisoimage", []string{"-iso-level", "3", "-D"}},
		{"plain-level4", "genisoimage", []string{"-iso-level", "4", "-D"}},
		{"plain-untranslated", "genisoimage", []string{"-U", "-D"}},
		{"udf-bridge", "genisoimage", []string{"-R", "-J", "-udf"}},
		{"el-cloudstack", "xorrisofs", []string{"-J", "-R", "-l"}},
		{"el-joliet", "xorrisofs", []string{"--norock", "-J"}},
		{"el-plain", "xorrisofs", []string{"--norock", "-iso-level", "1"}},
	} {
		image := treeImage{i.name, filepath.Join(dir, "tree-"+i.name+".iso")}
		args := append([]string{"-quiet", "-o", image.path}, i.args...)
		if slices.Contains(args, "-J") {
			args = append(args, "-input-charset", "utf-8")
		}
		if out, err := exec.CommandContext(t.Context(), i.tool, append(args, src)...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v: %s", i.tool, i.args, err, out)
		}
		images = append(images, image)
	}
	return images
}

// names mounts the images in the VM and compares what its kernel shows with what package isofs reads: the names, and what
// the files under them are and hold.
func (v *vmTest) names(t *testing.T) {
	v.must(t, "mkdir", "-p", "/mnt/tree")
	for _, image := range v.trees {
		t.Run(image.name, func(t *testing.T) { v.compare(t, image.path, "loop,ro", image.inVM()) })
	}
	t.Run("in the drive", func(t *testing.T) { v.compare(t, v.isos["with"], "ro", isoNode) })
}

func (v *vmTest) compare(t *testing.T, path, options, device string) {
	began := time.Now()
	v.must(t, "mount", "-t", "iso9660", "-o", options, device, "/mnt/tree")
	files, err := v.vm.List(t.Context(), "/mnt/tree")
	v.must(t, "umount", "/mnt/tree")
	if err != nil {
		t.Fatalf("the kernel cannot read it: %v", err)
	}
	names, ours := readImage(t, path)
	var linux []string
	for _, f := range files {
		linux = append(linux, line(f))
	}
	slices.Sort(linux)
	slices.Sort(ours)
	t.Logf("%d files through %v, %.1f s", len(linux), names, time.Since(began).Seconds())
	if len(linux) < 10 {
		t.Errorf("the kernel shows no more than %q", linux)
	}
	if diff := cmp.Diff(linux, ours); diff != "" {
		t.Errorf("-linux +isofs:\n%s", diff)
	}
}

// line tells all of a file in one line.
func line(f wire.File) string {
	return fmt.Sprintf("%q %s %04o %d %.12s %q", f.Path, f.Type, f.Mode, f.Size, f.Sum, f.Link)
}

// readImage reads an image with package isofs, in the form of [VM.List].
func readImage(t *testing.T, path string) (isofs.Names, []string) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	fi, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	img, err := isofs.Open(file, fi.Size())
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	err = fs.WalkDir(img, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == "." {
			return err
		}
		f, err := img.Lookup(p)
		if err != nil {
			return err
		}
		w := wire.File{Path: p, Type: "other", Mode: uint32(f.Mode().Perm())}
		switch {
		case f.IsDir():
			w.Type = "dir"
		case f.Mode().IsRegular():
			h := sha256.New()
			w.Type = "file"
			w.Size, err = io.Copy(h, f.Reader())
			w.Sum = hex.EncodeToString(h.Sum(nil))
		case f.Mode()&fs.ModeSymlink != 0:
			w.Type, w.Link = "link", f.Link()
		}
		lines = append(lines, line(w))
		return err
	})
	if err != nil {
		t.Errorf("isofs: %v", err)
	}
	return img.Names(), lines
}
