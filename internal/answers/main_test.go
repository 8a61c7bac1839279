package answers

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// childEnv makes the test binary another process that uses a file of answers:
// its value is what the process does, a space, and the path.
const childEnv = "ANSWERS_TEST_CHILD"

func TestMain(m *testing.M) {
	if job, path, ok := strings.Cut(os.Getenv(childEnv), " "); ok {
		if err := child(job, path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	status := m.Run()
	if plainDir != "" {
		os.RemoveAll(plainDir)
	}
	os.Exit(status)
}

var (
	plainOnce sync.Once
	plainDir  string // with the test binary without the race detector
	plainErr  error
)

// withoutRaces runs the calling test in a binary without the race detector, if
// this one has it, and reports whether it did. It is for tests that have no
// goroutines to look at, and that the detector makes ten times slower.
func withoutRaces(t *testing.T) bool {
	t.Helper()
	if !raceDetector || testing.Short() {
		return false
	}
	plainOnce.Do(func() {
		if plainDir, plainErr = os.MkdirTemp("", "answers"); plainErr != nil {
			return
		}
		out, err := exec.Command("go", "test", "-c", "-tags", "lab", "-o", filepath.Join(plainDir, "answers.test"), ".").CombinedOutput()
		if err != nil {
			plainErr = fmt.Errorf("%w: %s", err, out)
		}
	})
	if plainErr != nil {
		t.Fatal(plainErr)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(plainDir, "answers.test"), "-test.v", "-test.run", "^"+t.Name()+"$")
	out, err := cmd.CombinedOutput()
	t.Logf("without the race detector:\n%s", out)
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("%v", err)
	}
	return true
}

// began is when the answers of the tests were found.
var began = time.Date(2026, 7, 1, 12, 0, 0, 123456789, time.UTC)

func key(n int) string { return fmt.Sprintf("file:fd00:%d:836763648:1751371200.123456789", n) }

// included returns a whole answer, the same one for the same n.
func included(n int) Answer {
	return Answer{
		Key: key(n), File: inspect.EtcdArchive, Rules: inspect.Rules,
		Value: inspect.Included, Code: reason.Included, Message: fmt.Sprintf("etcd 3.5.%d for amd64", n),
		Size: 836763648, Version: fmt.Sprintf("3.5.%d", n), Arch: "amd64",
		Names: "Rock Ridge", VolumeID: "CDROM", Digest: strings.Repeat("5e", 32), Kubernetes: true,
		Notes: []string{"read through Rock Ridge names"}, At: began,
		From: fmt.Sprintf("/mnt/secondary/template/tmpl/2/%d/%d-2-7c82.iso", n, n),
		Name: fmt.Sprintf("%d-2-7c82", n), Account: "2", Template: fmt.Sprint(n), Zone: "zone-1",
	}
}

func missing(n int) Answer {
	a := included(n)
	a.Value, a.Code, a.Message, a.Version, a.Arch, a.Notes = inspect.Missing, reason.ArchiveMissing, "not on the ISO", "", "", nil
	return a
}

func failed(n int) Failure {
	return Failure{
		Key: key(n), File: inspect.EtcdArchive, Rules: inspect.Rules,
		Code: reason.SourceStalled, Message: "no answer for 30 s", At: began, Next: began.Add(5 * time.Minute),
		From: fmt.Sprintf("/mnt/secondary/template/tmpl/2/%d/%d-2-7c82.iso", n, n), Name: fmt.Sprintf("%d-2-7c82", n), Template: fmt.Sprint(n), Zone: "zone-1",
	}
}

func newPath(t testing.TB) string { return filepath.Join(t.TempDir(), "etcd-fleet", "answers.db") }

func open(t testing.TB, path string, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), path, o)
	if err != nil {
		t.Fatalf("Open: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func put(t testing.TB, s *Store, answers ...Answer) {
	t.Helper()
	if err := s.Put(t.Context(), answers...); err != nil {
		t.Fatalf("Put: %v", err)
	}
}

func wantCode(t testing.TB, err error, want reason.Code) {
	t.Helper()
	if got := reason.Of(err); got != want {
		t.Fatalf("got code %s (%v), want %s", got, err, want)
	}
}

// logged returns a logger and what it was told.
func logged() (*slog.Logger, *bytes.Buffer) {
	var b bytes.Buffer
	return slog.New(slog.NewTextHandler(&b, nil)), &b
}
