package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/reason"
)

// TestAdmitWait: --wait bounds all that the command does, the opening of files
// included. What was not there in time is warned about, and never a reason to refuse.
func TestAdmitWait(t *testing.T) {
	iso := writeISO(t)
	// A FIFO that nobody writes to is as silent as a file on a mount that hangs.
	silent := func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "silent")
		if err := unix.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // lets go of who waits
			if f, err := os.OpenFile(path, os.O_RDWR, 0); err == nil {
				f.Close()
			}
		})
		return path
	}
	locked := func(t *testing.T) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "answers.db")
		if err := run(t.Context(), []string{"etcd-fleet", "iso", "check", "--answers", path, "-q", iso}, streams{strings.NewReader(""), new(bytes.Buffer), new(bytes.Buffer)}); reason.Exit(err) != reason.ExitNo {
			t.Fatal(err)
		}
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, tt := range []struct {
		name    string
		args    func(t *testing.T) []string
		exit    int
		out     string // begins with
		warning string
	}{
		{"configuration", func(t *testing.T) []string { return []string{"--config", silent(t)} }, 0, "allowed, unchecked: ", "no answer in time: reading "},
		{"CA file", func(t *testing.T) []string { return []string{"--ca", silent(t)} }, 0, "allowed, unchecked: ", "no answer in time: reading the CA and netrc files"},
		{"answers that another process has", func(t *testing.T) []string { return []string{"--answers", locked(t)} }, 1, "refused: ", "answers.db"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, warnings syncBuffer
			args := append([]string{"etcd-fleet", "admit", "--etcd-nodes", "3", "--iso", iso, "--wait", "2s", "--answers", filepath.Join(t.TempDir(), "answers.db")}, tt.args(t)...)
			ended := make(chan error, 1)
			began := time.Now()
			go func() { ended <- run(t.Context(), args, streams{strings.NewReader(""), &out, &warnings}) }()
			select {
			case err := <-ended:
				if got := reason.Exit(err); got != tt.exit {
					t.Errorf("exit status %d, want %d: %v", got, tt.exit, err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("it does not end")
			}
			if took := time.Since(began); took > 4*time.Second {
				t.Errorf("it took %v", took)
			}
			if !strings.HasPrefix(out.String(), tt.out) {
				t.Errorf("got %q, want %q", out.String(), tt.out)
			}
			if !strings.Contains(warnings.String(), "warning: ") || !strings.Contains(warnings.String(), tt.warning) {
				t.Errorf("warned of %q, want %q", warnings.String(), tt.warning)
			}
		})
	}
}

// A syncBuffer may be written to while it is read.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
