//go:build lab && linux

package archive

import (
	"os"
	"path/filepath"
	"testing"

	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/lab"
)

// A release of real size: etcd and etcdctl as they are built from source.
func TestLabRealEtcd(t *testing.T) {
	dir, err := lab.Etcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "etcd.tar.gz")
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	if err := archivetest.WriteRelease(out, "3.4.0", "amd64", dir); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var res *Result
	peak := peakHeap(func() {
		res, err = Verify(t.Context(), in, Want{}, NewTempSink(t.TempDir()))
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v, peak %d KiB", res, peak>>10)
	if CompareVersions(res.Version, "3.5.0") < 0 {
		t.Errorf("version %q is that of the directory, not of the program", res.Version)
	}
	if peak > maxHeap {
		t.Errorf("peak heap %d KiB, want at most %d", peak>>10, maxHeap>>10)
	}
	sameBuildInfo(t, filepath.Join(dir, "etcd"))
}
