package watch

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/scan"
)

func TestDebounce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		events, kick := make(chan struct{}, 1), make(chan struct{}, 1)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); debounce(ctx, events, kick) }()
		kicked := func() bool {
			synctest.Wait()
			select {
			case <-kick:
				return true
			default:
				return false
			}
		}
		poke(events)
		time.Sleep(quiet - time.Millisecond)
		if kicked() {
			t.Error("a hint came before it was quiet")
		}
		time.Sleep(2 * time.Millisecond)
		if !kicked() {
			t.Error("no hint when it was quiet")
		}
		time.Sleep(time.Hour)
		if kicked() {
			t.Error("a hint came without an event")
		}
		// Something that goes on and on is passed on after a while.
		began := time.Now()
		for !kicked() {
			if time.Since(began) > time.Minute {
				t.Fatal("no hint while it goes on")
			}
			poke(events)
			time.Sleep(time.Second)
		}
		if got := time.Since(began); got < patience || got > patience+2*time.Second {
			t.Errorf("a hint came after %s, want %s", got, patience)
		}
		cancel()
		<-done
	})
}

func mkdir(t *testing.T, elems ...string) string {
	t.Helper()
	dir := filepath.Join(elems...)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestTopDirs(t *testing.T) {
	root := t.TempDir()
	mkdir(t, root, "template/tmpl/1/203")
	mkdir(t, root, "template/tmpl/2")
	mkdir(t, root, "snapshots/1")
	tmpl := filepath.Join(root, "template/tmpl")
	accounts := []string{filepath.Join(tmpl, "1"), filepath.Join(tmpl, "2")}
	for dir, want := range map[string][]string{
		root:                            append([]string{root, tmpl}, accounts...),
		filepath.Join(root, "template"): append([]string{filepath.Join(root, "template"), tmpl}, accounts...),
		tmpl:                            append([]string{tmpl}, accounts...),
		filepath.Join(root, "none"):     {filepath.Join(root, "none")},
		filepath.Join(tmpl, "1"):        {filepath.Join(tmpl, "1"), filepath.Join(tmpl, "1/203")},
	} {
		if diff := cmp.Diff(want, topDirs(dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", dir, diff)
		}
	}
}

// TestHintStore is with the kernel's inotify.
func TestHintStore(t *testing.T) {
	root := t.TempDir()
	account := mkdir(t, root, "template/tmpl/1")
	events := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	ready := make(chan struct{}, 10)
	go func() { done <- hintStore(ctx, root, events, slog.New(readyHandler{slog.DiscardHandler, ready})) }()
	<-ready
	happened := func(what string) {
		t.Helper()
		select {
		case <-events:
		case <-time.After(deadline):
			t.Fatalf("no event: %s", what)
		}
	}
	template := mkdir(t, account, "203")
	happened("a template came")
	// The watch on the new directory is there some time after the event.
	part := filepath.Join(template, "dnld1tmp_")
	for i := 0; ; i++ {
		if err := os.WriteFile(part, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(part, filepath.Join(template, "a.iso")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-events:
		case <-time.After(50 * time.Millisecond):
			if i == 200 {
				t.Fatal("no event: a download ended")
			}
			continue
		}
		break
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// readyHandler tells of records.
type readyHandler struct {
	slog.Handler
	ready chan struct{}
}

func (readyHandler) Enabled(context.Context, slog.Level) bool { return true }

func (h readyHandler) Handle(context.Context, slog.Record) error {
	h.ready <- struct{}{}
	return nil
}

// TestHintsEndAnyway: stores that cannot be watched are no error, and waiting for
// the end does not take long.
func TestHintsEndAnyway(t *testing.T) {
	stores := []scan.Store{{Path: filepath.Join(t.TempDir(), "none")}, {Path: t.TempDir()}}
	wait := hints(t.Context(), stores, make(chan struct{}, 1), slog.New(slog.DiscardHandler))
	began := time.Now()
	wait()
	if took := time.Since(began); took > hintTime+5*time.Second {
		t.Errorf("waiting took %s", took)
	}
}
