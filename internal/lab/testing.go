//go:build lab && linux

package lab

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

// RequireRoot skips the test where it does not run as root. Where CI is set it fails instead: a run in which nothing was
// tested must not look like one in which all was well.
func RequireRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("needs root: namespaces and loop devices (CI is set, so this is a failure)")
	}
	t.Skip("needs root: namespaces and loop devices")
}

// UpT is Up for a test, which is skipped without root. The lab is closed at the test's end; one that does not close
// cleanly fails the test.
func UpT(t testing.TB) *Lab {
	t.Helper()
	RequireRoot(t)
	l, err := Up(t.Context(), Options{Log: func(s string) { t.Log(s) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// StartT starts a host for a test and waits until it has booted. When the test fails, the end of the host's journal goes
// to the test's log.
func StartT(t testing.TB, l *Lab, o HostOptions) *Host {
	t.Helper()
	began := time.Now()
	h, err := l.Start(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the lab's own, which stops the host
		if !t.Failed() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		journal, err := h.Journal(ctx, "")
		t.Logf("journal of %s (error: %v):\n%s", o.Name, err, strings.ReplaceAll(lastLines([]byte(journal), 40), " | ", "\n"))
	})
	if err := h.WaitReady(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("host %s booted in %.1f s", o.Name, time.Since(began).Seconds())
	return h
}
