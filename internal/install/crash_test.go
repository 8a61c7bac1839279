//go:build linux

package install

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	crashRuns    = 100
	crashShort   = 20        // with -short
	crashSize    = 512 << 10 // of etcd: writing and syncing take a while, as in life
	crashStarted = "started"
)

// installForever installs one generation after the other until it is killed.
func installForever(dir string) error {
	next := uint64(0)
	if b, err := os.ReadFile(filepath.Join(dir, "etcd")); err == nil {
		if next, err = generation(b); err != nil {
			return err
		}
	}
	fmt.Println(crashStarted)
	for {
		next++
		if err := installOnce(dir, next); err != nil {
			return err
		}
	}
}

func installOnce(dir string, n uint64) error {
	s, err := Begin(dir)
	if err != nil {
		return err
	}
	defer s.Discard()
	for name, size := range map[string]int{"etcd": crashSize, "etcdctl": crashSize / 4} {
		if err := put(s, name, program(name, n, size)); err != nil {
			return err
		}
	}
	out, err := s.Run(context.Background(), "etcd", "--version")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("etcd %d\n", n); out != want {
		return fmt.Errorf("got %q, want %q", out, want)
	}
	if _, err := s.Commit(context.Background()); err != nil {
		return err
	}
	return s.Discard()
}

// TestKilled kills an installing process at random instants. Each time etcd is
// whole, what came with it is not older than etcd itself, and the next run
// cleans up and succeeds.
func TestKilled(t *testing.T) {
	runs := crashRuns
	if testing.Short() {
		runs = crashShort
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// A kill falls into any part of the first passes of a process. The fastest
	// pass measures them: a slow one would move the kills into later passes.
	window, last := time.Hour, uint64(0)
	for range 3 {
		last++
		began := time.Now()
		if err := installOnce(dir, last); err != nil {
			t.Fatal(err)
		}
		window = min(window, 4*time.Since(began))
	}
	var interrupted, advanced, between int
	for range runs {
		killOnce(t, self, dir, window)

		etcd := placed(t, dir, "etcd")
		etcdctl := placed(t, dir, "etcdctl")
		if etcd < last {
			t.Fatalf("got etcd of generation %d after %d", etcd, last)
		}
		if etcdctl != etcd && etcdctl != etcd+1 {
			t.Fatalf("got etcd of generation %d with an etcdctl of %d", etcd, etcdctl)
		}
		if etcd > last {
			advanced++
		}
		if etcdctl != etcd {
			between++
		}
		if len(stages(t, dir)) > 0 {
			interrupted++
		}

		last = etcdctl + 1
		if err := installOnce(dir, last); err != nil {
			t.Fatalf("rerun: %v", err)
		}
		if got := placed(t, dir, "etcd"); got != last {
			t.Fatalf("rerun: got etcd of generation %d, want %d", got, last)
		}
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) != 2 {
			t.Fatalf("rerun: got %v, want etcd and etcdctl alone", entries)
		}
	}
	t.Logf("%d runs: %d left a stage, %d had placed something before, %d died between the two renames", runs, interrupted, advanced, between)
	// A kill that never hits an installation in progress proves nothing.
	if interrupted < runs/4 {
		t.Errorf("got %d of %d kills within an installation, want more", interrupted, runs)
	}
}

// killOnce starts a process that installs, and kills it within window.
func killOnce(t *testing.T, self, dir string, window time.Duration) {
	t.Helper()
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), crashDirEnv+"="+dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil || line != crashStarted+"\n" {
		cmd.Process.Kill()
		cmd.Wait()
		t.Fatalf("the process did not begin: %q, %v, %s", line, err, errs.String())
	}
	time.Sleep(rand.N(window)) // the random instant
	cmd.Process.Kill()
	if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("got %v, want that it was killed; %s", err, errs.String())
	}
}

// placed returns the generation of the binary name, which must be whole.
func placed(t *testing.T, dir, name string) uint64 {
	t.Helper()
	path := filepath.Join(dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode() != 0o755 {
		t.Fatalf("%s: got mode %v, want 0755", name, info.Mode())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n, err := generation(b)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}
