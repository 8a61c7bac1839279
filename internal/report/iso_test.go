package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/term"
)

// isoFixture is a run over three images, one of each answer.
func isoFixture() ISOReport {
	at := time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)
	size, yes, archive := int64(734003200), true, int64(21000000)
	iso := func(name string, f FileResult) ISOResult {
		f.File = "etcd/etcd-linux-amd64.tar.gz"
		return ISOResult{ISO: name, Kubernetes: &yes, Size: &size, VolumeID: "CDROM", Names: "Rock Ridge", Key: "file:1",
			Started: at, Ended: at.Add(time.Second), Files: []FileResult{f}}
	}
	return ISOReport{
		Command: "iso check", Exit: reason.ExitNo, Started: at, Ended: at.Add(2 * time.Second),
		ISOs: []ISOResult{
			iso("setup-v1.33.1-x86_64.iso", FileResult{Value: ValueIncluded, Code: reason.Included, Size: &archive, Version: "3.5.21", Arch: "amd64", Checked: &at}),
			iso("/mnt/secondary/template/tmpl/1/203/203-1-7c82.iso", FileResult{Value: ValueMissing, Code: reason.ArchiveMissing,
				Message: "etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO\x1b[31m"}),
			iso("https://mirror.example/cks/setup-v1.32.4.iso", FileResult{Value: ValueUnknown, Code: reason.ISOTruncated,
				Message: "truncated: the descriptor says 812 MB, the file has 340 MB"}),
		},
	}
}

func TestISOTable(t *testing.T) {
	r := CompleteISO(isoFixture())
	var b bytes.Buffer
	if err := term.WriteLines(&b, ISOTable(r, 0), false); err != nil {
		t.Fatal(err)
	}
	got := b.String()
	for _, want := range []string{
		"ISO   ", "included  3.5.21   amd64", "missing                   etcd archive missing: ", "unknown ", "truncated: the descriptor says 812 MB",
		"hint (etcd archive missing): rebuild the ISO", "hint (truncated): ", "3 ISOs: 1 missing, 1 unknown, 1 included (2 s)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the table has no %q:\n%s", want, got)
		}
	}
	for _, absent := range []string{"FILE", "ZONE", "CHECKED", "\x1b"} {
		if strings.Contains(got, absent) {
			t.Errorf("the table has %q:\n%s", absent, got)
		}
	}
	for _, l := range ISOTable(r, 80)[:4] {
		if w := term.Width(l.String()); w > 80 {
			t.Errorf("a row of %d columns at 80: %s", w, l)
		}
	}
}

func TestISOSummary(t *testing.T) {
	two := isoFixture()
	two.ISOs = two.ISOs[:1]
	two.ISOs[0].Files = append(two.ISOs[0].Files, FileResult{File: "k8s/kubeadm", Value: ValueIncluded, Code: reason.Included})
	stopped := isoFixture()
	stopped.Exit, stopped.Waiting = reason.ExitInterrupted, 4
	for _, c := range []struct {
		r    ISOReport
		want string
	}{
		{two, "2 files: 2 included (2 s)"},
		{stopped, "interrupted: 3 ISOs: 1 missing, 1 unknown, 1 included, 4 not looked at (2 s)"},
		{ISOReport{Problem: &Problem{Code: reason.NoISOs}}, "no ISOs (0 s)"},
		{ISOReport{Command: "iso list"}, "no ISOs"},
	} {
		if got := CompleteISO(c.r).Summary; got != c.want {
			t.Errorf("summary = %q, want %q", got, c.want)
		}
	}
}

// TestISOSchema: what is written is what docs/schema promises, and the other
// way round.
func TestISOSchema(t *testing.T) {
	root := readSchemaFile(t, "../../docs/schema/isos.schema.json")
	reports := map[string]ISOReport{
		"answers": isoFixture(),
		"empty":   {Command: "iso check", Exit: reason.ExitUsage, Problem: &Problem{Code: reason.NoISOs, Message: "no ISO in /mnt"}},
	}
	for name, r := range reports {
		for _, def := range []string{"report", "result_line"} {
			var b bytes.Buffer
			err := WriteISOJSON(&b, CompleteISO(r))
			if def == "result_line" {
				b.Reset()
				err = NewJSONL(&b).ISOReport(CompleteISO(r))
			}
			if err != nil {
				t.Fatal(err)
			}
			var v any
			if err := json.Unmarshal(b.Bytes(), &v); err != nil {
				t.Fatal(err)
			}
			for _, bad := range root.check(schema{"$ref": "#/$defs/" + def}, v, name) {
				t.Error(bad)
			}
		}
	}
	var b bytes.Buffer
	if err := NewJSONL(&b).ISO(isoFixture().ISOs[0]); err != nil {
		t.Fatal(err)
	}
	var v any
	if err := json.Unmarshal(b.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	for _, bad := range root.check(schema{"$ref": "#/$defs/iso_line"}, v, "line") {
		t.Error(bad)
	}
}

func TestISOJUnit(t *testing.T) {
	var b bytes.Buffer
	if err := WriteISOJUnit(&b, CompleteISO(isoFixture())); err != nil {
		t.Fatal(err)
	}
	var got xmlSuites
	if err := xml.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Tests != 3 || got.Failures != 1 || got.Errors != 1 {
		t.Errorf("tests %d, failures %d, errors %d; want 3, 1, 1", got.Tests, got.Failures, got.Errors)
	}
	b.Reset()
	if err := WriteISOJUnit(&b, CompleteISO(ISOReport{Command: "iso check"})); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(b.String(), `errors="1"`) {
		t.Errorf("a run that looked at nothing is green:\n%s", b.String())
	}
}
