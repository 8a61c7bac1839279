package media

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cks-etcd/internal/isofs/isotest"
)

// etcdArchive stands in for the archive: this package never looks into it. It
// is incompressible and longer than one chunk.
var etcdArchive = func() []byte {
	b := make([]byte, 3*chunk+1234)
	rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}()

// images are the media of the tests, built once for each test by genisoimage as
// create-kubernetes-binaries-iso.sh calls it.
type images struct {
	full, full2, without, arm, dir, link, config, seed, other, plain string
}

func buildImages(t *testing.T) images {
	t.Helper()
	dir := t.TempDir()
	kube := map[string]string{"k8s/kubeadm": "x", "docker/pause:3.9.tar": "x", "network.yaml": "x"}
	with := func(m map[string]string, more ...string) map[string]string {
		c := make(map[string]string)
		for k, v := range m {
			c[k] = v
		}
		for i := 0; i < len(more); i += 2 {
			c[more[i]] = more[i+1]
		}
		return c
	}
	sums := "0123  etcd-linux-amd64.tar.gz\n"
	im := images{
		full: buildISO(t, dir+"/full.iso", "CDROM", with(kube, DefaultArchive, string(etcdArchive),
			"etcd/SHA256SUMS", sums, "etcd/large", string(bytes.Repeat([]byte{'x'}, maxSidecar+1)))),
		full2:   buildISO(t, dir+"/full2.iso", "ISOIMAGE", with(kube, DefaultArchive, "another")),
		without: buildISO(t, dir+"/without.iso", "CDROM", kube),
		arm:     buildISO(t, dir+"/arm.iso", "CDROM", with(kube, "etcd/etcd-linux-arm64.tar.gz", "x")),
		dir:     buildISO(t, dir+"/dir.iso", "CDROM", with(kube, DefaultArchive+"/x", "x")),
		link:    buildISO(t, dir+"/link.iso", "CDROM", with(kube, DefaultArchive, "-> ../k8s/kubeadm")),
		config:  buildISO(t, dir+"/config.iso", "config-2", map[string]string{"openstack/latest/user_data": "x"}),
		seed:    buildISO(t, dir+"/seed.iso", "NOLABEL", map[string]string{"user-data": "x", "meta-data": "x"}),
		other:   buildISO(t, dir+"/other.iso", "TOOLS", map[string]string{"setup.exe": "x"}),
		plain:   dir + "/plain",
	}
	if err := os.WriteFile(im.plain, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return im
}

func buildISO(t *testing.T, out, label string, files map[string]string) string {
	t.Helper()
	need(t, "genisoimage")
	src := t.TempDir()
	writeTree(t, src, files)
	cmd := exec.Command("genisoimage", "-quiet", "-o", out, "-J", "-R", "-l", "-V", label, src)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, b)
	}
	return out
}

// writeTree writes files below dir. A content that begins with "-> " makes a
// symlink.
func writeTree(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, content := range files {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if target, ok := strings.CutPrefix(content, "-> "); ok {
			if err := os.Symlink(target, name); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// need skips the test where the tool is missing, except in CI.
func need(t *testing.T, tool string) {
	t.Helper()
	if _, err := exec.LookPath(tool); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

// truncated returns a copy of image that ends after part of its length.
func truncated(t *testing.T, image string, part float64) string {
	t.Helper()
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "truncated.iso")
	if err := os.WriteFile(name, b[:int(float64(len(b))*part)&^511], 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// sessions returns an image of two sessions, the first with the files of one
// and the second with those of both, and the sector where the second begins.
func sessions(t *testing.T, one, two map[string]string) (image string, start int64) {
	t.Helper()
	start = 1600
	dir, src := t.TempDir(), t.TempDir()
	image, next := buildISO(t, dir+"/one.iso", "CDROM", one), dir+"/two"
	writeTree(t, src, two)
	cmd := exec.Command("genisoimage", "-quiet", "-o", next, "-J", "-R", "-l", "-V", "CDROM", "-C", fmt.Sprintf("0,%d", start), "-M", image, src)
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, b)
	}
	b, err := os.ReadFile(next)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(image, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, start*isotest.SectorSize); err != nil {
		t.Fatal(err)
	}
	return image, start
}

// crowded returns an image without the archive, in whose directory etcd/ 64 MiB
// of records name other files: as many as isofs reads.
func crowded(t *testing.T) string {
	t.Helper()
	const size = 64 << 20
	var files []*isotest.Node
	for i := range 200 { // several sectors
		files = append(files, isotest.File(fmt.Sprintf("f%03d", i), nil))
	}
	etcd := isotest.Dir("etcd", files...)
	claim := func(r *isotest.Record) { r.Size = size }
	etcd.Edit, etcd.Dot = claim, claim
	// etcd is last in the image, and its second sector is repeated behind it.
	img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", isotest.Dir("docker"), etcd)})
	at, _ := img.Extent(etcd)
	sector := make([]byte, isotest.SectorSize)
	if _, err := img.ReadAt(sector, at+isotest.SectorSize); err != nil {
		t.Fatal(err)
	}
	b := append(img.Bytes()[:at+isotest.SectorSize], bytes.Repeat(sector, size/isotest.SectorSize-1)...)
	name := t.TempDir() + "/crowded.iso"
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}
