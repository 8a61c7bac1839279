package isofs_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cks-etcd/internal/isofs"

	"github.com/google/go-cmp/cmp"
)

// truthCase is an image made by another program, and what it must hold.
type truthCase struct {
	name  string
	src   func(t *testing.T, dir string) // makes the source tree
	args  []string                       // of the program; without output and source
	names isofs.Names
	// absent are paths of the source that Linux does not show.
	absent []string
	// noIsoinfo is the reason why isoinfo is wrong or of no use here.
	noIsoinfo string
	// noBsdtar is the same for bsdtar.
	noBsdtar string
	// ignore says which paths are none of the source, and which the other
	// readers may list or not.
	ignore func(name string) bool
}

// Images that genisoimage writes.
func TestTruthGenisoimage(t *testing.T) {
	truth(t, "genisoimage", []truthCase{
		{name: "as CloudStack's script", src: kubernetesSource, args: []string{"-J", "-R", "-l"}, names: isofs.RockRidge},
		{name: "plain, level 1", src: kubernetesSource, args: []string{"-iso-level", "1"}, names: isofs.Plain},
		{name: "plain, level 2", src: kubernetesSource, args: []string{"-iso-level", "2"}, names: isofs.Plain},
		{name: "plain, level 3", src: kubernetesSource, args: []string{"-iso-level", "3"}, names: isofs.Plain},
		{name: "plain, level 4", src: kubernetesSource, args: []string{"-iso-level", "4"}, names: isofs.Plain},
		{name: "plain, -l", src: kubernetesSource, args: []string{"-l"}, names: isofs.Plain},
		{name: "plain, -U", src: kubernetesSource, args: []string{"-U"}, names: isofs.Plain},
		{name: "Rock Ridge, level 1", src: oddSource, args: []string{"-R", "-iso-level", "1"}, names: isofs.RockRidge},
		{name: "Rock Ridge, level 2", src: oddSource, args: []string{"-R", "-iso-level", "2"}, names: isofs.RockRidge},
		{name: "Rock Ridge, level 3", src: oddSource, args: []string{"-R", "-iso-level", "3"}, names: isofs.RockRidge},
		{name: "Rock Ridge, level 4", src: oddSource, args: []string{"-R", "-iso-level", "4"}, names: isofs.RockRidge},
		{name: "Rock Ridge, -U", src: oddSource, args: []string{"-R", "-U"}, names: isofs.RockRidge},
		{name: "Rock Ridge, rationalised", src: oddSource, args: []string{"-r"}, names: isofs.RockRidge},
		{name: "Rock Ridge and Joliet", src: oddSource, args: []string{"-R", "-J", "-joliet-long"}, names: isofs.RockRidge},
		{name: "Joliet", src: kubernetesSource, args: []string{"-J"}, names: isofs.Joliet},
		{name: "Joliet, long names", src: kubernetesSource, args: []string{"-J", "-joliet-long"}, names: isofs.Joliet},
		{name: "XA", src: kubernetesSource, args: []string{"-R", "-XA"}, names: isofs.RockRidge,
			noIsoinfo: "isoinfo takes the XA bytes for entries", noBsdtar: "bsdtar does not skip XA bytes in the root's first record"},
		{name: "UDF bridge", src: kubernetesSource, args: []string{"-R", "-J", "-udf"}, names: isofs.RockRidge},
		{name: "UDF bridge, Joliet", src: kubernetesSource, args: []string{"-J", "-udf"}, names: isofs.Joliet},
		{name: "El Torito", src: kubernetesSource, names: isofs.RockRidge,
			args: []string{"-R", "-b", "k8s/kubeadm", "-no-emul-boot", "-boot-load-size", "4", "-c", "boot.cat"}, ignore: is("boot.cat")},
		{name: "existence bit", src: kubernetesSource, args: []string{"-R", "-hidden", "etcd-linux-amd64.tar.gz"}, names: isofs.RockRidge},
		{name: "hidden from Rock Ridge", src: kubernetesSource, args: []string{"-R", "-J", "-hide", "etcd-linux-amd64.tar.gz"}, names: isofs.RockRidge,
			absent: []string{wantedPath}},
		{name: "hidden from Joliet", src: kubernetesSource, args: []string{"-R", "-J", "-hide-joliet", "etcd-linux-amd64.tar.gz"}, names: isofs.RockRidge},
		{name: "deep", src: deepSource, args: []string{"-R"}, names: isofs.RockRidge, ignore: under("rr_moved"),
			noIsoinfo: "isoinfo lists relocated directories under rr_moved"},
		{name: "deep, rr_moved hidden", src: deepSource, args: []string{"-R", "-hide-rr-moved"}, names: isofs.RockRidge, ignore: under(".rr_moved"),
			noIsoinfo: "isoinfo lists relocated directories under .rr_moved"},
		{name: "deep, not relocated", src: deepSource, args: []string{"-R", "-D"}, names: isofs.RockRidge},
		{name: "deep, Joliet", src: deepSource, args: []string{"-J", "-D"}, names: isofs.Joliet},
	})
}

// Images that xorriso writes.
func TestTruthXorriso(t *testing.T) {
	mbr := filepath.Join(t.TempDir(), "mbr")
	write(t, mbr, make([]byte, 432))
	truth(t, "xorrisofs", []truthCase{
		{name: "as CloudStack's script on EL", src: kubernetesSource, args: []string{"-J", "-R", "-l"}, names: isofs.RockRidge},
		{name: "Rock Ridge by default", src: oddSource, args: []string{"-iso-level", "3"}, names: isofs.RockRidge},
		{name: "Joliet", src: kubernetesSource, args: []string{"-J", "--norock"}, names: isofs.Joliet},
		{name: "plain, level 1", src: kubernetesSource, args: []string{"--norock", "-iso-level", "1"}, names: isofs.Plain},
		{name: "plain, level 2", src: kubernetesSource, args: []string{"--norock", "-iso-level", "2"}, names: isofs.Plain},
		{name: "plain, untranslated", src: kubernetesSource, args: []string{"--norock", "-U"}, names: isofs.Plain},
		{name: "level 4", src: kubernetesSource, args: []string{"-R", "-iso-level", "4"}, names: isofs.RockRidge},
		{name: "deep", src: deepSource, args: []string{"-R", "-D"}, names: isofs.RockRidge},
		{name: "deep, relocated", src: deepSource, args: []string{"-R", "-rr_reloc_dir", "/rr_moved"}, names: isofs.RockRidge, ignore: under("rr_moved"),
			noIsoinfo: "isoinfo lists relocated directories under rr_moved", noBsdtar: "bsdtar takes relocated directories only in the order of genisoimage"},
		{name: "hybrid MBR", src: kubernetesSource, names: isofs.RockRidge, ignore: is("boot.cat"),
			args: []string{"-R", "--embedded-boot", mbr, "-b", "k8s/kubeadm", "-no-emul-boot", "-boot-load-size", "4", "-c", "boot.cat",
				"-partition_offset", "16", "-append_partition", "2", "0xef", mbr}},
		{name: "hybrid GPT", src: kubernetesSource, names: isofs.RockRidge,
			args: []string{"-R", "-append_partition", "2", "0xef", mbr, "-appended_part_as_gpt"}},
	})
}

// truth makes each image and compares it with its source and other readers.
func truth(t *testing.T, program string, cases []truthCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			src, iso := t.TempDir(), filepath.Join(t.TempDir(), "truth.iso")
			tc.src(t, src)
			tool(t, program, append(append([]string{"-quiet", "-o", iso}, tc.args...), src)...)
			img := openImage(t, iso)
			if got := img.Names(); got != tc.names {
				t.Fatalf("Names() = %v, want %v", got, tc.names)
			}
			names := tree9660(t, img)
			compareSource(t, img, names, src, tc)
			if tc.noIsoinfo == "" {
				compareList(t, "isoinfo", isoinfo(t, iso, tc.names), names, tc.ignore)
			}
			if tc.noBsdtar == "" {
				compareList(t, "bsdtar", bsdtar(t, iso, tc.names), names, tc.ignore)
			}
		})
	}
}

// compareSource holds the image against the tree it was made from.
func compareSource(t *testing.T, img *isofs.Image, names []string, src string, tc truthCase) {
	t.Helper()
	if tc.names != isofs.RockRidge {
		compareContents(t, img, names, src)
		return
	}
	var want []string
	err := filepath.WalkDir(src, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(src, file)
		if err != nil || name == "." || slices.Contains(tc.absent, name) {
			return err
		}
		want = append(want, name)
		compareFile(t, img, name, file)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	compareList(t, "source", want, names, tc.ignore)
	for _, name := range tc.absent {
		if _, err := img.Lookup(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("Lookup(%q) = %v, want fs.ErrNotExist", name, err)
		}
	}
}

func compareFile(t *testing.T, img *isofs.Image, name, file string) {
	t.Helper()
	want, err := os.Lstat(file)
	if err != nil {
		t.Fatal(err)
	}
	got, err := img.Lookup(name)
	if err != nil {
		t.Errorf("Lookup(%q): %v", name, err)
		return
	}
	if got.Mode().Type() != want.Mode().Type() {
		t.Errorf("%q is a %v, want a %v", name, got.Mode(), want.Mode())
	}
	switch {
	case want.Mode().IsRegular():
		wantData, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if got.Size() != want.Size() {
			t.Errorf("%q: Size() = %d, want %d", name, got.Size(), want.Size())
		}
		if !got.ModTime().Equal(want.ModTime().Truncate(1e9)) {
			t.Errorf("%q: ModTime() = %v, want %v", name, got.ModTime(), want.ModTime())
		}
		if err := got.CheckExtents(); err != nil {
			t.Errorf("%q: CheckExtents() = %v", name, err)
		}
		gotData, err := io.ReadAll(got.Reader())
		if err != nil || !bytes.Equal(gotData, wantData) {
			t.Errorf("%q: %d bytes, %v, want the source's %d", name, len(gotData), err, len(wantData))
		}
	case want.Mode().Type() == fs.ModeSymlink:
		target, err := os.Readlink(file)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := fs.ReadLink(img, name); err != nil || got != target {
			t.Errorf("ReadLink(%q) = %q, %v, want %q", name, got, err, target)
		}
	}
}

// compareContents is for images that change names: every file of a source
// here begins with its own path, so the files are the same when the contents
// are.
func compareContents(t *testing.T, img *isofs.Image, names []string, src string) {
	t.Helper()
	var got, want []string
	for _, name := range names {
		f, err := img.Lookup(name)
		if err != nil {
			t.Errorf("Lookup(%q): %v", name, err)
			continue
		}
		if f.Mode().IsRegular() {
			b, err := io.ReadAll(f.Reader())
			if err != nil {
				t.Errorf("read %q: %v", name, err)
			}
			got = append(got, summary(b))
		}
	}
	err := filepath.WalkDir(src, func(file string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(file)
		want = append(want, summary(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(got)
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("contents (-source +image):\n%s", diff)
	}
}

// summary stands for the content of a file: its first line, length and sum.
func summary(b []byte) string {
	line, _, _ := bytes.Cut(b, []byte("\n"))
	return fmt.Sprintf("%.80s %d %08x", line, len(b), crc32.ChecksumIEEE(b))
}

// compareList compares the paths that another reader lists with those of the
// image, but the ones to ignore.
func compareList(t *testing.T, who string, want, got []string, ignore func(string) bool) {
	t.Helper()
	if ignore != nil {
		want = slices.DeleteFunc(want, ignore)
		got = slices.DeleteFunc(slices.Clone(got), ignore)
	}
	slices.Sort(want)
	if slices.Equal(want, got) {
		return // cmp is slow on 100,000 names
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("paths (-%s +image):\n%s", who, diff)
	}
}

// tree9660 lists all paths of an image but the root.
func tree9660(t *testing.T, img *isofs.Image) []string {
	t.Helper()
	var names []string
	err := fs.WalkDir(img, ".", func(name string, _ fs.DirEntry, err error) error {
		if name != "." {
			names = append(names, name)
		}
		return err
	})
	if err != nil {
		t.Errorf("WalkDir: %v", err)
	}
	slices.Sort(names)
	return names
}

// isoinfo lists an image through isoinfo, as Linux would name the files.
func isoinfo(t *testing.T, iso string, names isofs.Names) []string {
	t.Helper()
	args := map[isofs.Names][]string{isofs.RockRidge: {"-R"}, isofs.Joliet: {"-J"}, isofs.Plain: nil}[names]
	out := tool(t, "isoinfo", append(args, "-f", "-i", iso)...)
	var list []string
	for line := range strings.Lines(out) {
		name := strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "/")
		if names == isofs.Plain {
			name = linuxNames(name)
		}
		list = append(list, name)
	}
	return list
}

// bsdtar lists an image through libarchive, as Linux would name the files.
func bsdtar(t *testing.T, iso string, names isofs.Names) []string {
	t.Helper()
	var list []string
	for line := range strings.Lines(tool(t, "bsdtar", "-tf", iso)) {
		name := strings.TrimSuffix(strings.TrimSuffix(line, "\n"), "/")
		if name == "." {
			continue
		}
		// It puts the root's own NM, where a writer gives one, before every name.
		name = strings.TrimPrefix(name, "./")
		if names == isofs.Plain {
			name = linuxNames(name)
		}
		list = append(list, unescape(name))
	}
	return list
}

// unescape undoes what bsdtar does to bytes that are not printable.
func unescape(s string) string {
	return strings.NewReplacer(`\\`, `\`, `\t`, "\t").Replace(s)
}

// linuxNames maps plain identifiers as fs/isofs/dir.c of Linux does.
func linuxNames(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		p = strings.ToLower(p)
		if q, ok := strings.CutSuffix(p, ".;1"); ok {
			p = q
		} else {
			p = strings.TrimSuffix(p, ";1")
		}
		parts[i] = strings.ReplaceAll(p, ";", ".")
	}
	return strings.Join(parts, "/")
}

func is(path string) func(string) bool { return func(name string) bool { return name == path } }

// under says that a path is a directory or below it: Linux shows the place of
// relocated directories as an empty one.
func under(dir string) func(string) bool {
	return func(name string) bool { return name == dir || strings.HasPrefix(name, dir+"/") }
}

// kubernetesSource is laid out as CloudStack's create-kubernetes-binaries-iso.sh
// does. No two names are the same in the eight characters of level 1.
func kubernetesSource(t *testing.T, dir string) {
	for _, name := range []string{
		"cni/cni-plugins-amd64.tgz", "cri-tools/crictl-linux-amd64.tar.gz", "k8s/kubeadm", "k8s/kubelet", "k8s/kubectl",
		"kubelet.service", "10-kubeadm.conf", "network.yaml", "dashboard.yaml", "autoscaler.yaml", "provider.yaml",
		"manifest.yaml", "snapshot-crds.yaml", "docker/registry.k8s.io_kube-apiserver:v1.33.1.tar", "docker/pause:3.10.tar", wantedPath,
	} {
		write(t, filepath.Join(dir, name), fmt.Appendf(nil, "%s\n%s", name, strings.Repeat("x", 3000)))
	}
}

// oddSource has names and files that are rare and allowed.
func oddSource(t *testing.T, dir string) {
	kubernetesSource(t, dir)
	for _, name := range []string{
		"README", "readme", "Readme", ".hidden", ".config/.x", "a.b.c.d", "no-extension", "ends.", "with space", " leading", "semi;1", "semi;2",
		"#hash~", "plus+equals=", "quote\"'`", "back\\slash", "ünïcödé/日本語.txt", "emoji-🚀", "-dash", "*?[x]", "percent%20", "tab\there",
		strings.Repeat("n", 64), strings.Repeat("l", 128), strings.Repeat("m", 200) + ".tar.gz",
		strings.Repeat("d", 100) + "/" + strings.Repeat("e", 100) + "/" + strings.Repeat("f", 100),
	} {
		write(t, filepath.Join(dir, name), []byte(name))
	}
	write(t, filepath.Join(dir, "sizes/empty"), nil)
	for _, size := range []int{1, 2047, 2048, 2049, 4096} {
		write(t, filepath.Join(dir, fmt.Sprintf("sizes/%d", size)), bytes.Repeat([]byte{byte(size)}, size))
	}
	if err := os.Mkdir(filepath.Join(dir, "empty-dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // a directory of several sectors
		name := fmt.Sprintf("many/a rather long name number %03d.tar.gz", i)
		write(t, filepath.Join(dir, name), []byte(name))
	}
	for name, target := range map[string]string{
		"link-file": "README", "link-dir": "k8s", "link-up": "../../x", "link-abs": "/etc/passwd", "link-dangling": "./not/there",
		"link-long": strings.Repeat("component/", 30) + "end", "link-root": "/", "link-long-part": strings.Repeat("p", 240) + "/q",
	} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

// deepSource needs relocation: ISO 9660 allows eight levels.
func deepSource(t *testing.T, dir string) {
	kubernetesSource(t, dir)
	deep := ""
	for i := range 20 {
		deep = filepath.Join(deep, fmt.Sprintf("level-%02d", i+1))
		name := filepath.Join(deep, fmt.Sprintf("file-%02d", i+1))
		write(t, filepath.Join(dir, name), []byte(name))
	}
}

func write(t *testing.T, file string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

func openImage(t *testing.T, file string) *isofs.Image {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	img, err := isofs.Open(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// needTool skips the test where a program is not installed, but not in CI.
func needTool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// tool runs a program that the test needs and returns what it prints.
func tool(t *testing.T, name string, args ...string) string {
	t.Helper()
	needTool(t, name)
	var stderr strings.Builder
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, stderr.String())
	}
	return string(out)
}
