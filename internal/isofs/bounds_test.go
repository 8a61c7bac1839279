package isofs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/isofs/isotest"
)

// What one lookup may cost, descriptors included: a presence check over the
// network must not move an image.
const (
	maxLookupReads = 6
	maxLookupBytes = 16 << 10
)

// TestLookupCost counts what is read from Kubernetes ISOs of different sizes.
func TestLookupCost(t *testing.T) {
	for _, tc := range []struct {
		args  []string
		image int // bytes of a container image on it
	}{
		{[]string{"-J", "-R", "-l"}, 1 << 10}, // as CloudStack's script makes it
		{[]string{"-J", "-R", "-l"}, 64 << 20},
		{[]string{"-R"}, 1 << 20},
		{[]string{"-R", "-XA", "-iso-level", "4"}, 1 << 20},
		{[]string{"-J", "-input-charset", "utf-8"}, 1 << 20},
	} {
		t.Run(fmt.Sprintf("%v with %d bytes", tc.args, tc.image), func(t *testing.T) {
			src := t.TempDir()
			kubernetesTree(t, src, tc.image)
			r, size := boundsISO(t, src, tc.args...)
			for name, want := range map[string]bool{
				"etcd/etcd-linux-amd64.tar.gz": true,
				"etcd/etcd-linux-arm64.tar.gz": false,
				"none/etcd-linux-amd64.tar.gz": false,
			} {
				count := &isotest.Counter{R: r}
				img, err := isofs.Open(count, size)
				if err != nil {
					t.Fatal(err)
				}
				f, err := img.Lookup(name)
				if found := err == nil; found != want || (!want && !errors.Is(err, fs.ErrNotExist)) {
					t.Fatalf("Lookup(%q) = %v, %v, want found = %v", name, f, err, want)
				}
				if f != nil {
					if err := f.CheckExtents(); err != nil {
						t.Error(err)
					}
				}
				if reads, bytes := count.Count(); reads > maxLookupReads || bytes > maxLookupBytes {
					t.Errorf("Lookup(%q) took %d bytes in %d reads, want at most %d in %d",
						name, bytes, reads, maxLookupBytes, maxLookupReads)
				}
			}
		})
	}
}

// TestLookupCostOfLargeDirectory: no more than the directory itself is read,
// and no more memory is used than for a small one.
func TestLookupCostOfLargeDirectory(t *testing.T) {
	const files = 100_000
	src := t.TempDir()
	dir := filepath.Join(src, "d")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range files {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("file-%06d", i)))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	r, size := boundsISO(t, src, "-R", "-l")
	count := &isotest.Counter{R: r}
	img, err := isofs.Open(count, size)
	if err != nil {
		t.Fatal(err)
	}
	info, err := img.Stat("d")
	if err != nil {
		t.Fatal(err)
	}
	_, before := count.Count()
	for _, name := range []string{"d/file-000000", "d/file-099999", "d/missing"} {
		var m0, m1 runtime.MemStats
		runtime.ReadMemStats(&m0)
		_, err := img.Lookup(name)
		runtime.ReadMemStats(&m1)
		if missing := errors.Is(err, fs.ErrNotExist); missing != (name == "d/missing") || (err != nil && !missing) {
			t.Errorf("Lookup(%q) = %v", name, err)
		}
		const maxAlloc = 256 << 10
		if n := m1.TotalAlloc - m0.TotalAlloc; n > maxAlloc {
			t.Errorf("Lookup(%q) allocated %d bytes, want at most %d", name, n, maxAlloc)
		}
		_, after := count.Count()
		if got := after - before; got > info.Size() {
			t.Errorf("Lookup(%q) read %d bytes, the directory has %d", name, got, info.Size())
		}
		before = after
	}
	list, err := img.ReadDir("d")
	if err != nil || len(list) != files {
		t.Errorf("ReadDir = %d entries, %v, want %d", len(list), err, files)
	}
}

// TestListingInParts: naming a few files of the largest directory reads no more
// of it than they need, and keeps none of it.
func TestListingInParts(t *testing.T) {
	const files = 20_000
	var nodes []*isotest.Node
	for i := range files {
		nodes = append(nodes, isotest.File(fmt.Sprintf("file-%06d", files-i), nil))
	}
	b := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", isotest.Dir("d", nodes...))})
	count := &isotest.Counter{R: b}
	img, err := isofs.Open(count, b.Size())
	if err != nil {
		t.Fatal(err)
	}
	f, err := img.Open("d")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	dir := f.(fs.ReadDirFile)
	var m0, m1 runtime.MemStats
	_, before := count.Count()
	runtime.ReadMemStats(&m0)
	list, err := dir.ReadDir(3)
	runtime.ReadMemStats(&m1)
	_, after := count.Count()
	if err != nil || len(list) != 3 || list[0].Name() != "file-020000" {
		t.Fatalf("ReadDir(3) = %v, %v", list, err)
	}
	const chunk = 64 << 10 // of one read
	if got := after - before; got > chunk {
		t.Errorf("ReadDir(3) read %d bytes, want at most %d", got, chunk)
	}
	if got := m1.TotalAlloc - m0.TotalAlloc; got > 256<<10 {
		t.Errorf("ReadDir(3) allocated %d bytes", got)
	}
	n := len(list)
	for err == nil {
		list, err = dir.ReadDir(1000)
		n += len(list)
	}
	if n != files || err != io.EOF {
		t.Errorf("%d entries, then %v, want %d", n, err, files)
	}
	if list, err := dir.ReadDir(-1); len(list) != 0 || err != nil {
		t.Errorf("ReadDir(-1) at the end = %v, %v", list, err)
	}
}

// TestTruncatedEverywhere cuts an ordinary image at every sector: the answer is never
// that the file is missing, and the last of the answers is "found".
func TestTruncatedEverywhere(t *testing.T) {
	for _, args := range [][]string{{"-J", "-R", "-l"}, {"-J", "-input-charset", "utf-8"}, {"-R", "-U"}} {
		t.Run(fmt.Sprint(args), func(t *testing.T) {
			src := t.TempDir()
			kubernetesTree(t, src, 40_000)
			r, size := boundsISO(t, src, args...)
			for _, known := range []bool{true, false} {
				whole := false
				for cut := int64(0); cut <= size; cut += isotest.SectorSize {
					part := io.NewSectionReader(r, 0, cut)
					claim := cut
					if !known {
						claim = -1
					}
					whole = readWhole(t, part, claim, cut)
				}
				if !whole {
					t.Errorf("size known = %v: the uncut image does not yield the file", known)
				}
			}
		})
	}
}

// readWhole reports whether the archive can be read from an image cut at cut.
func readWhole(t *testing.T, r io.ReaderAt, size, cut int64) bool {
	t.Helper()
	f, err := func() (*isofs.File, error) {
		img, err := isofs.Open(r, size)
		if err != nil {
			return nil, err
		}
		return img.Lookup("etcd/etcd-linux-amd64.tar.gz")
	}()
	if err == nil {
		check := f.CheckExtents()
		_, err = io.Copy(io.Discard, f.Reader())
		if (check == nil) != (err == nil) {
			t.Errorf("cut at %d: CheckExtents = %v, but reading gives %v", cut, check, err)
		}
	}
	if err == nil {
		return true
	}
	var damage *isofs.Error
	switch {
	case errors.Is(err, fs.ErrNotExist):
		t.Errorf("cut at %d: %v", cut, err)
	case errors.As(err, &damage):
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("cut at %d: %v, which does not wrap io.ErrUnexpectedEOF", cut, err)
		}
	case !errors.Is(err, isofs.ErrNotISO) || cut > 16*isotest.SectorSize:
		t.Errorf("cut at %d: %v", cut, err)
	}
	return false
}

// kubernetesTree lays a Kubernetes ISO out as CloudStack's script does.
func kubernetesTree(t *testing.T, dir string, image int) {
	t.Helper()
	for _, name := range []string{
		"cni/cni-plugins-amd64.tgz", "cri-tools/crictl-linux-amd64.tar.gz", "k8s/kubeadm", "k8s/kubelet", "k8s/kubectl",
		"kubelet.service", "10-kubeadm.conf", "network.yaml", "dashboard.yaml", "autoscaler.yaml", "provider.yaml",
		"manifest.yaml", "snapshot-crds.yaml", "etcd/etcd-linux-amd64.tar.gz",
	} {
		boundsWrite(t, filepath.Join(dir, name), 5000)
	}
	boundsWrite(t, filepath.Join(dir, "docker", "registry.k8s.io_kube-apiserver:v1.33.1.tar"), image)
}

func boundsWrite(t *testing.T, name string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	copy(data, name)
	if err := os.WriteFile(name, data, 0o644); err != nil {
		t.Fatal(err)
	}
}

// boundsISO makes an image of dir with genisoimage.
func boundsISO(t *testing.T, dir string, args ...string) (io.ReaderAt, int64) {
	t.Helper()
	tool, err := exec.LookPath("genisoimage")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	iso := filepath.Join(t.TempDir(), "test.iso")
	cmd := exec.CommandContext(t.Context(), tool, append(append([]string{"-quiet", "-o", iso}, args...), dir)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("genisoimage: %v\n%s", err, out)
	}
	f, err := os.Open(iso)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	return f, info.Size()
}
