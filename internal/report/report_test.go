package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/term"

	"github.com/google/go-cmp/cmp"
)

// A CI server's view of a JUnit file, read with other types than it is written.
type junitFile struct {
	XMLName  xml.Name `xml:"testsuites"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Errors   int      `xml:"errors,attr"`
	Suites   []struct {
		Name      string `xml:"name,attr"`
		Tests     int    `xml:"tests,attr"`
		Failures  int    `xml:"failures,attr"`
		Errors    int    `xml:"errors,attr"`
		Skipped   int    `xml:"skipped,attr"`
		Time      string `xml:"time,attr"`
		Timestamp string `xml:"timestamp,attr"`
		Cases     []struct {
			Name      string `xml:"name,attr"`
			Classname string `xml:"classname,attr"`
			Time      string `xml:"time,attr"`
			Failure   []struct {
				Message string `xml:"message,attr"`
				Type    string `xml:"type,attr"`
				Body    string `xml:",chardata"`
			} `xml:"failure"`
			Error []struct {
				Message string `xml:"message,attr"`
				Type    string `xml:"type,attr"`
			} `xml:"error"`
			Skipped []struct{} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

func TestJUnit(t *testing.T) {
	type counts struct{ Tests, Failures, Errors, Skipped int }
	want := map[string]counts{
		"issue":       {3, 1, 0, 0},
		"success":     {3, 0, 0, 0},
		"folded":      {6, 3, 2, 0},
		"deadline":    {2, 0, 1, 0},
		"interrupted": {3, 0, 2, 0}, // the node and the run
		"none":        {1, 0, 1, 0}, // never green
		"failfast":    {2, 1, 0, 1},
		"health":      {3, 1, 0, 0},
		"hostile":     {3, 2, 1, 0},
		"many":        {500, 5, 0, 0},
	}
	for name, r := range reports() {
		t.Run(name, func(t *testing.T) {
			var b bytes.Buffer
			if err := WriteJUnit(&b, Complete(r, foldTest)); err != nil {
				t.Fatal(err)
			}
			var f junitFile
			if err := xml.Unmarshal(b.Bytes(), &f); err != nil {
				t.Fatal(err)
			}
			if len(f.Suites) != 1 {
				t.Fatalf("%d suites, want 1", len(f.Suites))
			}
			s := f.Suites[0]
			var seen counts
			for _, c := range s.Cases {
				seen.Tests++
				seen.Failures += len(c.Failure)
				seen.Errors += len(c.Error)
				seen.Skipped += len(c.Skipped)
				if c.Name == "" || c.Classname != "etcd-fleet.nodes.wait" {
					t.Errorf("case %q of class %q", c.Name, c.Classname)
				}
				if _, err := strconv.ParseFloat(c.Time, 64); err != nil {
					t.Errorf("time: %v", err)
				}
				for _, p := range c.Failure {
					if p.Message == "" || p.Type == "" || strings.Contains(p.Message, "\n") {
						t.Errorf("%s: failure %+v", c.Name, p)
					}
				}
			}
			if diff := cmp.Diff(want[name], seen); diff != "" {
				t.Errorf("elements (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(seen, counts{s.Tests, s.Failures, s.Errors, s.Skipped}); diff != "" {
				t.Errorf("attributes differ from the elements:\n%s", diff)
			}
			if f.Tests != s.Tests || f.Failures != s.Failures || f.Errors != s.Errors {
				t.Errorf("counts of testsuites %d %d %d differ from the suite's", f.Tests, f.Failures, f.Errors)
			}
			if got, want := s.Timestamp, "2026-03-01T12:00:00"; got != want {
				t.Errorf("timestamp %q, want %q", got, want)
			}
		})
	}
}

// A node that nobody looked at is an error unless another one failed for sure.
func TestJUnitWaitingNodeIsNotGreen(t *testing.T) {
	r := Report{Command: "nodes wait", Exit: reason.ExitDeadline, Nodes: []NodeResult{failed("a", "waiting", reason.Undecided, "")}}
	var b bytes.Buffer
	if err := WriteJUnit(&b, Complete(r, nil)); err != nil {
		t.Fatal(err)
	}
	var f junitFile
	if err := xml.Unmarshal(b.Bytes(), &f); err != nil {
		t.Fatal(err)
	}
	if f.Errors != 1 {
		t.Errorf("%d errors, want 1", f.Errors)
	}
}

func TestSummary(t *testing.T) {
	for name, want := range map[string]string{
		"issue":       "1 of 3 etcd nodes failed (10 s)",
		"success":     "3 of 3 etcd nodes active (10 s)",
		"folded":      "3 of 6 etcd nodes failed, 2 unreachable (10 s)",
		"deadline":    "1 of 2 etcd nodes undecided (10 min)",
		"interrupted": "interrupted: 1 of 2 etcd nodes activating (10 s)",
		"none":        `no nodes: the inventory's group "a" is empty (0 s)`,
		"health":      "2 of 2 etcd nodes active, but etcd members do not form one cluster: etcd1 has 1a, etcd2 has 2b (10 s)",
		"many":        "5 of 500 etcd nodes flapping (10 s)",
	} {
		if got := Complete(reports()[name], foldTest).Summary; got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
}

func TestFolds(t *testing.T) {
	r := Complete(reports()["folded"], foldTest)
	want := []string{
		"etcd[1-3].example: " + missing,
		"etcd[5-6].example: node cannot be reached: dial tcp <node>:22: connection refused",
	}
	if diff := cmp.Diff(want, Reasons(r)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Many names without a common form do not flood the terminal, and stay whole
// for programs.
func TestManyNames(t *testing.T) {
	r := Report{Command: "nodes wait", Exit: reason.ExitNo, Started: began, Ended: after(10)}
	for i := range 400 {
		r.Nodes = append(r.Nodes, failed(strings.Repeat(string(rune('a'+i%26)), 3+i/26)+".example", "failed", reason.ArchiveMissing, missing))
	}
	r = Complete(r, nil)
	for _, l := range Table(r, 100, nil) {
		if w := term.Width(l.String()); w > maxWhole+len(missing)+20 {
			t.Errorf("a line of %d columns", w)
		}
	}
	if got := Table(r, 0, nil)[1].String(); !strings.HasPrefix(got, "aaa.example,bbb.exa…") || !strings.Contains(got, " (400 nodes)  failed  9s    -       etcd archive missing") {
		t.Errorf("row %q", got)
	}
	if len(r.Folded) != 1 || len(r.Folded[0].Nodes) != 400 || strings.Count(r.Folded[0].Set, ",") != 399 {
		t.Errorf("the set is not whole")
	}
}

func TestWithoutName(t *testing.T) {
	for _, tt := range []struct{ message, name, want string }{
		{"dial tcp 192.0.2.1:22: refused", "192.0.2.1:22", "dial tcp <node>: refused"},
		{"dial tcp 192.0.2.1:22: refused", "192.0.2.1", "dial tcp <node>:22: refused"},
		{"dial tcp 192.0.2.11:22: refused", "192.0.2.1", "dial tcp 192.0.2.11:22: refused"},
		{"etcd archive missing", "etcd", "etcd archive missing"},
		{"on etcd1 and etcd1-old and etcd1", "etcd1", "on <node> and etcd1-old and <node>"},
		{"lookup [2001:db8::1]:22", "[2001:db8::1]:22", "lookup <node>"},
		{"", "", ""},
	} {
		if got := withoutName(tt.message, tt.name); got != tt.want {
			t.Errorf("withoutName(%q, %q) = %q, want %q", tt.message, tt.name, got, tt.want)
		}
	}
}

func TestTook(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 400 * time.Millisecond: "0 s", 10 * time.Second: "10 s", 125 * time.Second: "2 min 5 s",
		10 * time.Minute: "10 min", 62 * time.Minute: "1 h 2 min", 2 * time.Hour: "2 h",
	} {
		if got := Took(d); got != want {
			t.Errorf("Took(%s) = %q, want %q", d, got, want)
		}
	}
}

// Programs see one shape on every way to end: the same keys, no null lists.
func TestSameShape(t *testing.T) {
	keys := func(r Report) []string {
		b, err := json.Marshal(Complete(r, foldTest))
		if err != nil {
			t.Fatal(err)
		}
		var m map[string]json.RawMessage
		if err := json.Unmarshal(b, &m); err != nil {
			t.Fatal(err)
		}
		for _, k := range []string{"nodes", "reasons", "warnings"} {
			if string(m[k]) == "null" {
				t.Errorf("%s is null", k)
			}
		}
		return slices.Sorted(maps.Keys(m))
	}
	want := keys(reports()["success"])
	if len(want) < 10 {
		t.Fatalf("only the keys %q", want)
	}
	for name, r := range reports() {
		if diff := cmp.Diff(want, keys(r)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(want, keys(Report{})); diff != "" {
		t.Errorf("empty report:\n%s", diff)
	}
}

type failing struct{ n int }

func (f *failing) Write(p []byte) (int, error) {
	f.n++
	return 0, errors.New("no space")
}

func TestJSONLStopsAtAnError(t *testing.T) {
	f := &failing{}
	j := NewJSONL(f)
	if err := j.Event(Event{}); err == nil {
		t.Error("no error")
	}
	if err := j.Result(Report{}); err == nil || f.n != 1 {
		t.Errorf("error %v after %d writes, want one write", err, f.n)
	}
}

func TestRow(t *testing.T) {
	for _, tt := range []struct {
		e      Event
		checks string
		tone   term.Tone
	}{
		{Event{State: "active", Checks: 1, Want: 2}, "1/2", term.Busy},
		{Event{State: "active", Checks: 2, Want: 2}, "2/2", term.Good},
		{Event{State: "active", Checks: 2, Want: 2, Code: reason.Ready}, "2/2", term.Good},
		{Event{State: "failed", Want: 2, Code: reason.UnitFailed}, "-", term.Bad},
		{Event{State: "unreachable", Want: 2}, "-", term.Warn},
		{Event{State: "something else"}, "-", term.Plain},
	} {
		r := Row(tt.e)
		if r.Checks != tt.checks || r.Tone != tt.tone {
			t.Errorf("%+v: checks %q tone %d, want %q and %d", tt.e, r.Checks, r.Tone, tt.checks, tt.tone)
		}
	}
}
