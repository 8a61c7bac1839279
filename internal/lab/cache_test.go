//go:build lab && linux

package lab

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

func TestCached(t *testing.T) {
	ctx := t.Context()
	t.Setenv("CKS_LAB_CACHE", t.TempDir())

	var builds atomic.Int32
	build := func(_ context.Context, tmp string) error {
		builds.Add(1)
		return os.WriteFile(tmp, []byte("whole"), 0o644)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if p, err := cached(ctx, "entry", build); err != nil || p != filepath.Join(CacheDir(), "entry") {
				t.Errorf("cached = %q, %v", p, err)
			}
		})
	}
	wg.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("8 callers at once: built %d times, want once", got)
	}

	broken := errors.New("broken")
	_, err := cached(ctx, "failing", func(_ context.Context, tmp string) error {
		if err := os.WriteFile(tmp, []byte("half"), 0o644); err != nil {
			return err
		}
		return broken
	})
	if !errors.Is(err, broken) {
		t.Errorf("cached with a failing build = %v, want its error", err)
	}
	if got := partsOf(t); len(got) > 0 {
		t.Errorf("a failed build left %v", got)
	}

	// What a killed builder leaves is neither used nor kept.
	if err := os.MkdirAll(filepath.Join(CacheDir(), "killed.part-00000001", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := cached(ctx, "killed", build); err != nil {
		t.Fatal(err)
	}
	if got := partsOf(t); len(got) > 0 {
		t.Errorf("after the next build the killed one's %v are there", got)
	}

	// One waits for the builder, but not longer than it wants to.
	lock, err := lockFile(ctx, filepath.Join(CacheDir(), "busy.lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := cached(cancelled, "busy", build); !errors.Is(err, context.Canceled) {
		t.Errorf("cached while another builds, cancelled = %v, want context.Canceled", err)
	}
}

func partsOf(t *testing.T) []string {
	t.Helper()
	parts, err := filepath.Glob(filepath.Join(CacheDir(), "*.part-*"))
	if err != nil {
		t.Fatal(err)
	}
	return parts
}

// TestBuildName: a program that another version of Go built is another one.
func TestBuildName(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte("#!/bin/sh\necho \"$FAKE_GOVERSION\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	seen := map[string]bool{}
	for _, version := range []string{"go1.26.0", "go1.26.1"} {
		t.Setenv("FAKE_GOVERSION", version)
		for _, source := range []string{"a", "b"} {
			name, err := buildName(t.Context(), "program", "", "amd64", source)
			if err != nil || !strings.HasPrefix(name, "program-amd64-") || seen[name] {
				t.Errorf("%s, source %q: %q, %v", version, source, name, err)
			}
			seen[name] = true
		}
	}
}

func TestUpstreamUnit(t *testing.T) {
	got := UpstreamUnit("b", "10.0.0.2", []Member{{"a", "10.0.0.1"}, {"b", "10.0.0.2"}})
	want := "ExecStart=/opt/bin/etcd --name b --initial-advertise-peer-urls http://10.0.0.2:2380 --listen-peer-urls http://10.0.0.2:2380 " +
		"--advertise-client-urls http://10.0.0.2:2379 --listen-client-urls http://10.0.0.2:2379,http://127.0.0.1:2379 " +
		"--initial-cluster-token etcd-cluster-1 --initial-cluster a=http://10.0.0.1:2380,b=http://10.0.0.2:2380 --initial-cluster-state new"
	joined := strings.ReplaceAll(got, " \\\n  ", " ") // systemd.syntax(7): a trailing backslash joins lines
	for _, line := range []string{want, "Type=exec", "Restart=on-failure", "RestartSec=5"} {
		if !strings.Contains(joined, "\n"+line+"\n") {
			t.Errorf("the unit has no line %q:\n%s", line, got)
		}
	}
	for _, word := range []string{"--data-dir", "WorkingDirectory", "User=", "LimitNOFILE", "StartLimit", "network-online"} {
		if strings.Contains(got, word) {
			t.Errorf("the unit has %s, upstream's has not", word)
		}
	}
}
