package unit

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// program writes a shell script that stands for journalctl.
func program(t *testing.T, script string) string {
	name := filepath.Join(t.TempDir(), "journalctl")
	if err := os.WriteFile(name, []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestJournal(t *testing.T) {
	tests := []struct {
		name, script string
		since        time.Time
		want         []string
	}{
		{"arguments", `for a; do echo "$a"; done`, time.Time{}, []string{"--boot", "--no-pager", "--quiet", "--output=cat", "--lines=50", "--unit=-x.service"}},
		{"since", `shift 5; for a; do echo "$a"; done`, time.Unix(1700000000, 999), []string{"--unit=-x.service", "--since=@1700000000"}},
		{"nothing since", `case "$*" in *--since*) ;; *) echo all;; esac`, time.Unix(1700000000, 0), []string{"all"}},
		{"empty", `:`, time.Time{}, nil},
		{"last lines", `i=0; while [ $i -lt 80 ]; do i=$((i+1)); echo $i; done`, time.Time{}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := journal(t.Context(), program(t, tt.script), "-x.service", tt.since, 50)
			if err != nil {
				t.Fatal(err)
			}
			if tt.name == "last lines" {
				if len(got) != 50 || got[49] != "80" {
					t.Errorf("got %d lines to %q", len(got), got[len(got)-1])
				}
			} else if !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func TestJournalFails(t *testing.T) {
	_, err := journal(t.Context(), program(t, `echo "No journal files were found." >&2; exit 1`), "x.service", time.Time{}, 10)
	if err == nil || !strings.Contains(err.Error(), "No journal files were found.") {
		t.Errorf("got %v", err)
	}
	if _, err := journal(t.Context(), filepath.Join(t.TempDir(), "nosuch"), "x.service", time.Time{}, 10); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := journal(ctx, program(t, `exec sleep 30`), "x.service", time.Time{}, 10); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// A journal of any size costs a bounded amount of memory, and its end is kept.
func TestJournalBounded(t *testing.T) {
	got, err := journal(t.Context(), program(t, `head -c 9000000 /dev/zero | tr '\0' x; echo; echo end`), "x.service", time.Time{}, 10)
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"end"}; !slices.Equal(got, want) {
		t.Errorf("got %d lines, want %q", len(got), want)
	}
	tl := tail{max: 10}
	for _, s := range []string{"abc", "defghij", "kl", "", "0123456789abc"} {
		if n, err := tl.Write([]byte(s)); n != len(s) || err != nil {
			t.Errorf("wrote %d, %v", n, err)
		}
		if len(tl.buf) > 10 {
			t.Errorf("keeps %d bytes", len(tl.buf))
		}
	}
	if got := tl.String(); got != "3456789abc" || !tl.cut {
		t.Errorf("got %q", got)
	}
}
