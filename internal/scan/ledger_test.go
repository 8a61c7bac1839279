package scan

import (
	"bytes"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// Records that are refused keep none of the others from being written, are not
// tried again, and no failure counts twice.
func TestLedgerDropsWhatIsRefused(t *testing.T) {
	kept, err := answers.Open(t.Context(), filepath.Join(t.TempDir(), "answers.db"), answers.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	var log bytes.Buffer
	l := newLedger(kept, slog.New(slog.NewTextHandler(&log, nil)))
	want := make(map[string]int) // what is kept, with the counts of failures
	for _, key := range strings.Fields("a b c d e f g") {
		l.add(answers.Answer{Key: key, File: inspect.EtcdArchive, Value: inspect.Missing, Code: reason.ArchiveMissing})
		l.fail(answers.Failure{Key: "at:/" + key, File: inspect.EtcdArchive, Code: reason.ISOUnreadable})
		want[key], want["at:/"+key] = 0, 1
	}
	l.add(answers.Answer{Key: "no value", File: inspect.EtcdArchive, Value: "perhaps", Code: reason.ArchiveMissing})
	l.fail(answers.Failure{Key: "no code", File: inspect.EtcdArchive, Code: "on-strike"})

	for range 2 {
		if err := l.flush(t.Context()); err != nil {
			t.Errorf("flush: %v", err)
		}
	}
	if s := log.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "no value") || !strings.Contains(s, "no code") {
		t.Errorf("the log does not name each of the two that were refused once:\n%s", s)
	}
	as, fs, err := kept.All(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]int)
	for _, a := range as {
		got[a.Key] = 0
	}
	for _, f := range fs {
		got[f.Key] = f.Count
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("kept (-want +got):\n%s", diff)
	}
	if len(l.answers)+len(l.failures) != 0 {
		t.Errorf("still to be written: %v, %v", slices.Collect(maps.Keys(l.answers)), l.failures)
	}
}
