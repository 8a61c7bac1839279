//go:build lab

package scan

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/unixfs"
)

// peak starts anew the kernel's note of the most memory this process has had, and
// returns a function that reads it, in bytes (proc_pid_clear_refs(5), VmHWM in
// proc_pid_status(5)).
func peak(t *testing.T) func() int64 {
	t.Helper()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil {
		t.Fatal(err)
	}
	return func() int64 {
		b, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(b)) {
			if v, ok := strings.CutPrefix(line, "VmHWM:"); ok {
				kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(v), " kB"), 10, 64)
				if err != nil {
					t.Fatal(err)
				}
				return kb << 10
			}
		}
		t.Fatal("no VmHWM")
		return 0
	}
}

// maxPeak is what ten thousand ISOs may take of memory: what is known of each for
// as long as the daemon runs, and twice that while a round replaces it.
const maxPeak = 200 << 20

// inMemory returns a directory in a file system without a disk, so that what is
// measured is not how fast the disk makes files. Without such a file system, or
// without room in it, it is any directory.
func inMemory(t *testing.T) string {
	t.Helper()
	const enough = 2 << 30
	info, err := unixfs.Statfs("/dev/shm")
	if err != nil || info.Bavail*uint64(info.Bsize) < enough {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp("/dev/shm", "etcd-fleet-scan-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestLabTenThousand is a secondary storage with ten thousand ISOs: the first
// round reads each once, the second and a new process none. It prints what that
// costs.
func TestLabTenThousand(t *testing.T) {
	const many = 10_000
	kinds := []string{withEtcd, noEtcd, noEtcd, ordinary}
	values := map[string]inspect.Value{withEtcd: inspect.Included, noEtcd: inspect.Missing, ordinary: inspect.Missing}
	pictures, want := make([][]byte, len(kinds)), make(map[inspect.Value]int)
	for n, kind := range kinds {
		pictures[n] = imageOf(t, kind)
		want[values[kind]] += many / len(kinds)
	}
	root, db := inMemory(t), filepath.Join(t.TempDir(), "answers.db")
	start := time.Now()
	for n := range many {
		register(t, root, fmt.Sprint(200+n), pictures[n%len(kinds)])
	}
	t.Logf("%d ISOs of %d KiB (sparse), made in %v", many, len(pictures[0])>>10, time.Since(start).Round(time.Millisecond))

	c := zoned(root + "=east")
	s, images, kept := onDisk(t, c, db)
	top := peak(t)
	r := s.Round(t.Context())
	if r.Err != nil || r.Visits[0].Err != nil || r.Looks != many || r.ISOs != many || r.Failed != 0 {
		t.Fatalf("first round: %+v", r)
	}
	for v, n := range want {
		if r.Found[v] != n {
			t.Errorf("found %v, want %v", r.Found, want)
		}
	}
	listed := many * 3 / 4
	if got := len(s.ISOs()); got != listed {
		t.Errorf("%d ISOs are listed, want the %d of Kubernetes", got, listed)
	}
	if n := kept.puts.Load(); n > many/100 {
		t.Errorf("%d transactions for %d answers", n, many)
	}
	limit := int64(maxPeak)
	if raceDetector {
		limit *= 4 // it has shadow memory of its own
	}
	if int64(top()) > limit {
		t.Errorf("peak memory %d MiB, want %d at most", top()>>20, limit>>20)
	}
	t.Logf("first round:  %v (listed after %v), %d opened, %d reads, %.1f MiB read, %d transactions, peak memory %d MiB",
		r.Took.Round(time.Millisecond), r.Visits[0].Took.Round(time.Millisecond), images.opens.Load(), r.Requests,
		float64(r.Bytes)/(1<<20), kept.puts.Load(), top()>>20)

	opens, bytes := images.opens.Load(), images.bytes
	top = peak(t)
	second := s.Round(t.Context())
	if second.Err != nil || second.Known != many || second.Looks != 0 {
		t.Errorf("second round: %+v", second)
	}
	if images.opens.Load() != opens || images.bytes != bytes {
		t.Errorf("the second round opened %d ISOs", images.opens.Load()-opens)
	}
	t.Logf("second round: %v, %d opened, peak memory %d MiB", second.Took.Round(time.Millisecond), images.opens.Load()-opens, top()>>20)

	again, others, _ := onDisk(t, c, db)
	third := again.Round(t.Context())
	if third.Err != nil || third.Known != many || others.opens.Load() != 0 {
		t.Errorf("a new process: %+v, %d opened", third, others.opens.Load())
	}
	info, err := os.Stat(db)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("new process:  %v, %d opened; the file of answers has %.1f MiB", third.Took.Round(time.Millisecond), others.opens.Load(), float64(info.Size())/(1<<20))

	begin := time.Now()
	if a, ok, err := again.Known(t.Context(), "5203", "east"); err != nil || !ok || a.Template != "5203" {
		t.Errorf("Known: %+v, %v, %v", a, ok, err)
	}
	t.Logf("one question: %v", time.Since(begin).Round(10*time.Microsecond))
}
