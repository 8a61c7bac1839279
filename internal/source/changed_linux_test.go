package source

import (
	"os"
	"path/filepath"
	"testing"
)

// TestChangedInPlace: other content of the same size with the old modification
// time, as dd and touch leave it, is another image.
func TestChangedInPlace(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a.iso")
	if err := os.WriteFile(name, make([]byte, 4096), 0o644); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	o, err := New(Options{Netrc: "none"})
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	key := func() string {
		t.Helper()
		id, err := o.Identify(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		return id.Key()
	}
	before := key()
	if again := key(); again != before {
		t.Errorf("the same file is %s and %s", before, again)
	}
	// The kernel's clock for time stamps is coarse: write until it has moved on.
	for range 1000 {
		f, err := os.OpenFile(name, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("other"), 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Chtimes(name, info.ModTime(), info.ModTime()); err != nil {
			t.Fatal(err)
		}
		if key() != before {
			return
		}
	}
	t.Errorf("changed in place, it still is %s", before)
}
