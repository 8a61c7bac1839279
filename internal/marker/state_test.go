package marker

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
)

var sum = strings.Repeat("0123456789abcdef", 4)

// failed is a state with every field set, in the form that State documents.
func failed() State {
	started := time.Date(2026, 3, 1, 12, 0, 0, 5e6, time.UTC)
	return State{
		SchemaVersion: SchemaVersion,
		Result:        ResultFailed,
		Code:          reason.UnitFlapping,
		Class:         reason.Permanent,
		Message:       "etcd keeps restarting: etcd.service: <&> \"quoted\"",
		Hint:          "see 'journalctl -u' of the unit",
		Step:          "watch",
		Started:       started,
		Ended:         started.Add(90 * time.Second),
		BootID:        "4e3b3a47-1c4e-4b57-9d0e-0d3cf8a1f001",
		PID:           812,
		AgentVersion:  "1.0.0",
		Unit:          "etcd.service",
		Archive:       &Archive{Where: "/dev/sr0", Path: "etcd/etcd-linux-amd64.tar.gz", VolumeID: "CDROM", Names: "Rock Ridge", SHA256: sum, EtcdVersion: "3.5.21", Arch: "amd64"},
		Binaries:      []Binary{{"etcd", sum}, {"etcdctl", sum}},
		Steps:         []Step{{"find", 1.25, StepOK}, {"watch", 60, "unit-flapping"}},
		Seen:          []string{"/dev/sr0: Kubernetes ISO with etcd"},
	}
}

func TestStateRoundTrip(t *testing.T) {
	running := State{SchemaVersion: SchemaVersion, Result: ResultRunning, Step: "find", Binaries: []Binary{}, Steps: []Step{}, Seen: []string{}}
	ready := failed()
	ready.Result, ready.Code, ready.Class, ready.Message, ready.Hint, ready.Step = ResultReady, reason.Ready, reason.OK, "", "", ""
	for _, want := range []State{failed(), running, ready} {
		t.Run(string(want.Result), func(t *testing.T) {
			b, err := encode(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := ParseState(b)
			if err != nil {
				t.Fatalf("%v\n%s", err, b)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestStateShape: the names are a contract, and the object has the same shape
// whatever is in it.
func TestStateShape(t *testing.T) {
	const want = `{
  "schema_version": 1,
  "result": "running",
  "code": "",
  "class": "",
  "message": "",
  "hint": "",
  "step": "",
  "boot_id": "",
  "pid": 0,
  "agent_version": "",
  "unit": "",
  "archive": null,
  "binaries": [],
  "steps": [],
  "seen": []
}
`
	got, err := encode(State{Result: ResultRunning})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	full, err := encode(failed())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`"started": "2026-03-01T12:00:00.005Z"`, `"ended": "2026-03-01T12:01:30.005Z"`, `<&> \"quoted\"`, `"volume_id": "CDROM"`,
		`"sha256": "` + sum, `"etcd_version": "3.5.21"`, `"names": "Rock Ridge"`, `"seconds": 1.25`, `"code": "unit-flapping"`, `"class": "permanent"`,
	} {
		if !strings.Contains(string(full), part) {
			t.Errorf("got no %s in:\n%s", part, full)
		}
	}
}

func TestEncodeCleans(t *testing.T) {
	s := State{
		SchemaVersion: 99,
		Result:        ResultFailed,
		Code:          reason.NoSpace,
		Class:         reason.Transient, // the code knows better
		Message:       "two\nlines \x1b[1m",
		Started:       time.Date(2026, 3, 1, 13, 0, 0, 999, time.FixedZone("", 3600)),
		Ended:         time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC),
		PID:           -1,
		Archive:       &Archive{SHA256: strings.ToUpper(sum)},
		Binaries:      []Binary{{"etcd", "short"}},
		Steps:         []Step{{"a", math.NaN(), "ok"}, {"b", math.Inf(1), "ok"}, {"c", -1, "ok"}},
	}
	b, err := encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	want := State{
		SchemaVersion: SchemaVersion,
		Result:        ResultFailed,
		Code:          reason.NoSpace,
		Class:         reason.Permanent,
		Message:       "two lines ?[1m",
		Hint:          reason.Lookup(reason.NoSpace).Hint,
		Started:       time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Archive:       &Archive{},
		Binaries:      []Binary{{Name: "etcd"}},
		Steps:         []Step{{"a", 0, "ok"}, {"b", 0, "ok"}, {"c", 0, "ok"}},
		Seen:          []string{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if s.Archive.SHA256 == "" || s.Binaries[0].SHA256 != "short" {
		t.Error("the caller's state was changed")
	}
}

func TestEncodeFitsTheLimit(t *testing.T) {
	s := failed()
	s.Seen = nil
	long := strings.Repeat(`"\`, reason.MaxLine) // doubles in JSON
	for range 1000 {
		s.Seen = append(s.Seen, long)
		s.Steps = append(s.Steps, Step{long, 1, long})
		s.Binaries = append(s.Binaries, Binary{Name: long})
	}
	s.Message, s.Hint, s.Unit = long, long, long
	b, err := encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseState(b)
	if err != nil {
		t.Fatal(err)
	}
	if got.Code != s.Code || len(got.Binaries) != maxBinaries {
		t.Errorf("got code %q and %d binaries, want them kept", got.Code, len(got.Binaries))
	}
}

func TestParseStateOutcome(t *testing.T) {
	type outcome struct {
		Result Result
		Code   reason.Code
		Class  reason.Class
	}
	tests := []struct {
		in   string
		want outcome // zero: an error
	}{
		{`"result":"ready"`, outcome{ResultReady, reason.Ready, reason.OK}},
		{`"result":"ready","code":"ready","class":"permanent"`, outcome{ResultReady, reason.Ready, reason.OK}},
		{`"result":"ready","code":"no-space"`, outcome{}},
		{`"result":"failed","code":"ready"`, outcome{}},
		{`"result":"failed","code":"no-space","class":"ok"`, outcome{ResultFailed, reason.NoSpace, reason.Permanent}},
		{`"result":"failed","code":"iso-unreadable"`, outcome{ResultFailed, reason.ISOUnreadable, reason.Unknown}},
		{`"result":"failed","code":"of-a-newer-agent","class":"transient"`, outcome{ResultFailed, "", reason.Transient}},
		{`"result":"failed","code":"of-a-newer-agent","class":"ok"`, outcome{ResultFailed, "", reason.Unknown}},
		{`"result":"failed"`, outcome{ResultFailed, "", reason.Unknown}},
		{`"result":"running","code":"no-space","class":"permanent"`, outcome{ResultRunning, "", ""}},
		{`"result":"done"`, outcome{}},
		{`"result":""`, outcome{}},
		{`"result":7`, outcome{}},
	}
	for _, tt := range tests {
		t.Run(tt.in, func(t *testing.T) {
			s, err := ParseState([]byte(`{"schema_version":1,` + tt.in + `,"field_of_the_future":{"a":[1]}}`))
			if (err != nil) != (tt.want == outcome{}) {
				t.Fatalf("got error %v, want %+v", err, tt.want)
			}
			if got := (outcome{s.Result, s.Code, s.Class}); got != tt.want {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestParseStateRefuses(t *testing.T) {
	good, err := encode(failed())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct{ name, in, want string }{
		{"empty", "", "end of JSON"},
		{"null", "null", "schema version 0"},
		{"list", "[]", "cannot unmarshal"},
		{"no version", `{"result":"ready"}`, "schema version 0"},
		{"newer version", `{"schema_version":2,"result":"ready"}`, "schema version 2, want 1"},
		{"version of another type", `{"schema_version":"1"}`, "cannot unmarshal"},
		{"version overflows", `{"schema_version":1e999}`, "cannot unmarshal"},
		{"bad time", `{"schema_version":1,"result":"ready","started":"yesterday"}`, "yesterday"},
		{"cut", string(good[:len(good)/2]), "end of JSON"},
		{"two objects", string(good) + string(good), "after top-level value"},
		{"too large", string(good) + strings.Repeat(" ", maxState), "larger than"},
		{"deep", strings.Repeat("[", maxState), "depth"},
		{"control characters in the error", "{\"\x1b[2J\":", "invalid character"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := ParseState([]byte(tt.in))
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("got %v, want %q in it", err, tt.want)
			}
			printable(t, "error", err.Error())
		})
	}
}

func FuzzParseState(f *testing.F) {
	good, err := encode(failed())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	for _, s := range []string{
		``, `null`, `{}`, `{"schema_version":1,"result":"ready"}`, `{"schema_version":1,"result":"running","seen":["\u001b[2J\u2028\ud800",null]}`,
		`{"schema_version":1,"result":"failed","code":"x","class":"y","steps":[{"seconds":1e308},{"seconds":-0}],"archive":{"sha256":"00"}}`,
		`{"schema_version":1,"RESULT":"ready","result":"failed","steps":null,"binaries":[{}],"pid":-9223372036854775808}`,
		`{"schema_version":1,"result":"ready","started":"0000-01-01T00:00:00+23:59","ended":"9999-12-31T23:59:59.9999-23:59"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseState(b)
		if err != nil {
			if s.Result != "" {
				t.Errorf("got result %q with an error", s.Result)
			}
			return
		}
		checkState(t, s)
		// What was read can be written, and says the same then.
		b, err = encode(s)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		again, err := ParseState(b)
		if err != nil {
			t.Fatalf("ParseState of what encode wrote: %v\n%s", err, b)
		}
		got := []any{again.Result, again.Code, again.Class, again.PID, again.Started, again.Ended, again.Archive != nil}
		want := []any{s.Result, s.Code, s.Class, s.PID, s.Started, s.Ended, s.Archive != nil}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// checkState fails unless every string in s is printable and s is consistent.
func checkState(t *testing.T, s State) {
	t.Helper()
	if s.Code != "" && !reason.Known(s.Code) {
		t.Errorf("got code %q, want a known one or none", s.Code)
	}
	if (s.Result == ResultReady) != (s.Code == reason.Ready) || (s.Result == ResultReady) != (s.Class == reason.OK) {
		t.Errorf("got result %q with code %q and class %q", s.Result, s.Code, s.Class)
	}
	if len(s.Seen) > maxSeen || len(s.Steps) > maxSteps || len(s.Binaries) > maxBinaries || s.PID < 0 {
		t.Errorf("got %d seen, %d steps, %d binaries, pid %d", len(s.Seen), len(s.Steps), len(s.Binaries), s.PID)
	}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	checkStrings(t, "state", tree)
}

// checkStrings walks all of a state, so that no field added later is forgotten.
func checkStrings(t *testing.T, at string, v any) {
	t.Helper()
	switch v := v.(type) {
	case string:
		printable(t, at, v)
	case []any:
		for i, e := range v {
			checkStrings(t, fmt.Sprintf("%s[%d]", at, i), e)
		}
	case map[string]any:
		for k, e := range v {
			checkStrings(t, at+"."+k, e)
		}
	}
}
