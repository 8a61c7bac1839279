package inspect_test

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// kubernetesTree is what create-kubernetes-binaries-iso.sh puts on an image,
// by path, without etcd. A content that begins with "-> " is a symbolic link.
func kubernetesTree(more ...string) map[string]string {
	m := map[string]string{
		"cni/cni-plugins-amd64.tgz":           "x",
		"cri-tools/crictl-linux-amd64.tar.gz": "x",
		"k8s/kubeadm":                         "#!/bin/sh\n",
		"k8s/kubelet":                         "#!/bin/sh\n",
		"k8s/kubectl":                         "#!/bin/sh\n",
		"kubelet.service":                     "[Service]\n",
		"10-kubeadm.conf":                     "[Service]\n",
		"network.yaml":                        "---\n",
		"dashboard.yaml":                      "---\n",
		"autoscaler.yaml":                     "---\n",
		"provider.yaml":                       "---\n",
		"manifest.yaml":                       "---\n",
		"snapshot-crds.yaml":                  "---\n",
		"docker/registry.k8s.io_kube-apiserver:v1.33.tar": "x",
		"docker/registry.k8s.io_pause:3.10.tar":           "x",
	}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// buildISO makes an image of a tree with genisoimage or xorrisofs.
func buildISO(t testing.TB, tool string, args []string, tree map[string]string) string {
	t.Helper()
	need(t, tool)
	src, out := t.TempDir(), filepath.Join(t.TempDir(), "image.iso")
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		file := filepath.Join(src, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		var err error
		if target, ok := strings.CutPrefix(tree[name], "-> "); ok {
			err = os.Symlink(target, file)
		} else {
			err = os.WriteFile(file, []byte(tree[name]), 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	run(t, tool, append(append([]string{"-quiet", "-o", out}, args...), src)...)
	return out
}

// need skips the test where a tool is missing, except in CI.
func need(t testing.TB, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	need(t, name)
	var stderr bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, &stderr)
	}
	return string(out)
}

func readISO(t testing.TB, file string) *bytes.Reader {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.NewReader(b)
}

// tarRelease packs a release with tar(1), as etcd's own script does.
func tarRelease(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	top := filepath.Join(dir, "etcd-v3.5.21-linux-amd64")
	if err := os.MkdirAll(filepath.Join(top, "Documentation"), 0o755); err != nil {
		t.Fatal(err)
	}
	program := archivetest.ELF(archivetest.Program{Version: "3.5.21", Pad: 200_000})
	for _, name := range []string{"etcd", "etcdctl", "etcdutl", "README.md", "Documentation/README.md"} {
		if err := os.WriteFile(filepath.Join(top, name), program, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run(t, "tar", "-C", dir, "-czf", filepath.Join(dir, "a.tgz"), filepath.Base(top))
	b, err := os.ReadFile(filepath.Join(dir, "a.tgz"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Images that genisoimage and xorriso write, in the layout of CloudStack's
// script, compared with isoinfo where that is right.
func TestTruth(t *testing.T) {
	const (
		gen  = "genisoimage"
		xor  = "xorrisofs"
		path = inspect.EtcdArchive
	)
	release := tarRelease(t)
	full := kubernetesTree(path, release)
	script := []string{"-J", "-R", "-l"} // create-kubernetes-binaries-iso.sh
	for _, tt := range []struct {
		name    string
		tool    string
		args    []string
		tree    map[string]string
		value   inspect.Value
		code    reason.Code
		text    string
		note    string
		other   bool // not a Kubernetes ISO
		isoinfo string
	}{
		{name: "script", tool: gen, args: script, tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "B1: script on EL", tool: xor, args: script, tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "B1: no volume id", tool: gen, args: append(script, "-V", ""), tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "script without etcd", tool: gen, args: script, tree: kubernetesTree(),
			value: inspect.Missing, code: reason.ArchiveMissing, text: path + " is not on the ISO", isoinfo: "-R"},
		{name: "script on EL without etcd", tool: xor, args: script, tree: kubernetesTree(),
			value: inspect.Missing, code: reason.ArchiveMissing, text: path + " is not on the ISO", isoinfo: "-R"},
		{name: "another archive", tool: gen, args: script, tree: kubernetesTree("etcd/etcd-linux-arm64.tar.gz", release),
			value: inspect.Missing, code: reason.ArchiveMissing, text: `etcd holds "etcd-linux-arm64.tar.gz"`, isoinfo: "-R"},
		{name: "B5: config drive", tool: gen, args: []string{"-J", "-R", "-V", "config-2"}, tree: map[string]string{"openstack/latest/user_data": "x"},
			value: inspect.Missing, code: reason.ArchiveMissing, other: true, isoinfo: "-R"},
		{name: "Rock Ridge alone", tool: gen, args: []string{"-R"}, tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "rationalised", tool: gen, args: []string{"-r", "-J"}, tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "Joliet alone", tool: gen, args: []string{"-J"}, tree: full, value: inspect.Included, note: "read through Joliet names", isoinfo: "-J"},
		{name: "Joliet alone, xorriso", tool: xor, args: []string{"-J", "--norock"}, tree: full, value: inspect.Included, note: "read through Joliet names", isoinfo: "-J"},
		{name: "Joliet alone without etcd", tool: gen, args: []string{"-J"}, tree: kubernetesTree(), value: inspect.Missing, code: reason.ArchiveMissing, note: "read through Joliet names", isoinfo: "-J"},
		// isoinfo without -R shows upper case and versions, which Linux does not.
		{name: "B76: plain", tool: gen, args: []string{"-l"}, tree: full, value: inspect.Missing, code: reason.ArchiveMissing,
			text: `etcd holds "etcd_linux_amd64.tgz"`, note: "read through plain ISO 9660 names"},
		{name: "B76: plain, level 1", tool: gen, args: []string{"-iso-level", "1"}, tree: full, value: inspect.Missing, code: reason.ArchiveMissing,
			text: `etcd holds "etcd_lin.tgz"`, note: "read through plain ISO 9660 names"},
		{name: "plain, level 4", tool: gen, args: []string{"-iso-level", "4"}, tree: full, value: inspect.Included, note: "read through plain ISO 9660 names"},
		{name: "plain, xorriso", tool: xor, args: []string{"--norock"}, tree: full, value: inspect.Missing, code: reason.ArchiveMissing, note: "read through plain ISO 9660 names"},
		{name: "directory", tool: gen, args: script, tree: kubernetesTree(path+"/etcd", "x"), value: inspect.Missing, code: reason.ArchiveMissing, text: "is a directory"},
		{name: "symbolic link", tool: gen, args: script, tree: kubernetesTree(path, "-> ../k8s/kubeadm"),
			value: inspect.Unknown, code: reason.ISOUnreadable, text: `a symbolic link to "../k8s/kubeadm"`},
		{name: "symbolic link, xorriso", tool: xor, args: script, tree: kubernetesTree(path, "-> ../k8s/kubeadm"),
			value: inspect.Unknown, code: reason.ISOUnreadable, text: `a symbolic link to "../k8s/kubeadm"`},
		{name: "symbolic link on the way", tool: gen, args: script, tree: kubernetesTree("etcd", "-> etcd-v3", "etcd-v3/etcd-linux-amd64.tar.gz", release),
			value: inspect.Unknown, code: reason.ISOUnreadable, text: path + `: etcd is a symbolic link to "etcd-v3"`},
		{name: "etcd is a file", tool: gen, args: script, tree: kubernetesTree("etcd", "x"), value: inspect.Missing, code: reason.ArchiveMissing, isoinfo: "-R"},
		{name: "empty", tool: gen, args: script, tree: kubernetesTree(path, ""), value: inspect.Broken, code: reason.ArchiveEmpty, isoinfo: "-R"},
		{name: "empty, xorriso", tool: xor, args: script, tree: kubernetesTree(path, ""), value: inspect.Broken, code: reason.ArchiveEmpty, isoinfo: "-R"},
		{name: "HTML", tool: gen, args: script, tree: kubernetesTree(path, "<!DOCTYPE html><title>Not Found</title>"),
			value: inspect.Broken, code: reason.ArchiveNotGzip, text: "Not Found", isoinfo: "-R"},
		{name: "hidden", tool: gen, args: append(script, "-hide", "etcd-linux-amd64.tar.gz"), tree: full, value: inspect.Missing, code: reason.ArchiveMissing, isoinfo: "-R"},
		{name: "hidden from Joliet", tool: gen, args: append(script, "-hide-joliet", "etcd-linux-amd64.tar.gz"), tree: full, value: inspect.Included, isoinfo: "-R"},
		{name: "trimmed by hand", tool: gen, args: script, tree: map[string]string{path: release}, value: inspect.Included, other: true, isoinfo: "-R"},
		{name: "UDF bridge", tool: gen, args: append(script, "-udf"), tree: full, value: inspect.Included, isoinfo: "-R"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			iso := buildISO(t, tt.tool, tt.args, tt.tree)
			r := readISO(t, iso)
			info, got := one(t, r, r.Size(), inspect.Request{})
			wantResult(t, got, tt.value, tt.code, tt.text)
			if info.Err != nil {
				t.Fatal(info.Err)
			}
			// The stand-ins of the tree keep the names that tell it, even mangled.
			if want := map[bool]inspect.Tri{false: inspect.Yes, true: inspect.No}[tt.other]; info.Kubernetes != want {
				t.Errorf("Kubernetes is %v, want %v", info.Kubernetes, want)
			}
			if tt.value.Yes() && (got.Version != "3.5.21" || got.Arch != "amd64" || got.Size != int64(len(release))) {
				t.Errorf("result is %+v", got)
			}
			if tt.note != "" && !slices.Contains(got.Notes, tt.note) {
				t.Errorf("notes are %q, want %q", got.Notes, tt.note)
			}
			if tt.isoinfo != "" {
				list := strings.Split(run(t, "isoinfo", tt.isoinfo, "-f", "-i", iso), "\n")
				listed := slices.Contains(list, "/"+path)
				if there := got.Value == inspect.Included || got.Value == inspect.Broken; there != listed {
					t.Errorf("value is %s, isoinfo lists it: %v", got.Value, listed)
				}
			}
		})
	}
}

// An image that ends early never lacks a file: the directory that does not
// name it must be there whole.
func TestTruncated(t *testing.T) {
	noise := make([]byte, 200_000)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	release := append(archivetest.Archive("3.5.21", "amd64"), noise...)
	for _, tool := range []string{"genisoimage", "xorrisofs"} {
		t.Run(tool, func(t *testing.T) {
			script := []string{"-J", "-R", "-l"}
			with := readISO(t, buildISO(t, tool, script, kubernetesTree(inspect.EtcdArchive, string(release))))
			without := readISO(t, buildISO(t, tool, script, kubernetesTree("docker/large.tar", string(noise))))
			step := int64(1024)
			if testing.Short() {
				step *= 5
			}
			counts := map[inspect.Value]int{}
			for size := int64(0); size < with.Size(); size += step {
				_, got := one(t, with, size, inspect.Request{})
				counts[got.Value]++
				switch {
				case got.Value.No():
					t.Fatalf("%d bytes of %d: %s: %v", size, with.Size(), got.Value, got.Err)
				case got.Value.Yes():
					if n := strings.Join(got.Notes, "\n"); !strings.Contains(n, "truncated") {
						t.Errorf("%d bytes of %d: notes are %q", size, with.Size(), n)
					}
				case reason.Of(got.Err) == reason.NotISO && size < 40<<10, reason.Of(got.Err) == reason.ISOTruncated:
				default:
					t.Errorf("%d bytes of %d: %v", size, with.Size(), got.Err)
				}
			}
			if counts[inspect.Included] == 0 || counts[inspect.Unknown] == 0 {
				t.Errorf("counts are %v", counts)
			}
			missing := int64(-1)
			for size := int64(0); size < without.Size(); size += step {
				_, got := one(t, without, size, inspect.Request{})
				switch {
				case got.Value == inspect.Missing && missing < 0:
					missing = size
				case got.Value == inspect.Missing:
				case got.Value != inspect.Unknown, missing >= 0:
					t.Errorf("%d bytes of %d: %s: %v", size, without.Size(), got.Value, got.Err)
				}
			}
			if missing < 0 || missing > without.Size()-int64(len(noise)) {
				t.Errorf("missing from %d bytes of %d on", missing, without.Size())
			}
			t.Logf("with the archive: %v; without: missing from %d bytes of %d on", counts, missing, without.Size())
		})
	}
}

// The words of the reason, with the numbers of a real image.
func TestTruncatedWords(t *testing.T) {
	img, _ := kubernetes(t, archiveNode(archivetest.Archive("3.5.21", "amd64")))
	const sectors = 812_000_000 / 2048
	claim := binary.LittleEndian.AppendUint32(nil, sectors)
	const volumeSpaceSize = 16<<11 + 80 // ECMA-119 8.4.8
	img.WriteAt(claim, volumeSpaceSize)
	node := archiveNode(nil)
	node.At = 400_000_000 / 2048
	node.Data = archivetest.Archive("3.5.21", "amd64")
	far, _ := kubernetes(t, node)
	far.WriteAt(claim, volumeSpaceSize)
	_, got := one(t, far, 340_000_000, inspect.Request{})
	wantResult(t, got, inspect.Unknown, reason.ISOTruncated, "")
	if want := "truncated: the descriptor says 812 MB, the file has 340 MB"; got.Err.Error() != want {
		t.Errorf("error is %q, want %q", got.Err, want)
	}
	_, got = one(t, img, img.Size(), inspect.Request{})
	wantResult(t, got, inspect.Included, "", "")
	if n := strings.Join(got.Notes, "\n"); !strings.Contains(n, "truncated behind this file: the descriptor says 812 MB") {
		t.Errorf("notes are %q", n)
	}
}
