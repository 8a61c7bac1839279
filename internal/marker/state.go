package marker

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"time"

	"cks-etcd/internal/reason"
)

// SchemaVersion is the version of the state file that this package writes and
// reads. Fields may be added under the same version, and a reader ignores those
// it does not know; the version changes when a field changes its meaning.
const SchemaVersion = 1

// Limits of a State's lists. They are far beyond what a setup produces, and keep
// a table or a report that is made of a hostile file short.
const (
	maxBinaries = 16
	maxSteps    = 64
	maxSeen     = 64
)

// Result says how far a setup has come.
type Result string

const (
	// ResultRunning: a setup is under way, or was killed. It is under way if its
	// boot is the present one and its process is alive.
	ResultRunning Result = "running"
	ResultReady   Result = "ready"  // etcd was seen active twice in a row
	ResultFailed  Result = "failed" // Code, Message and Hint say why
)

// StepOK is the Result of a Step that succeeded. A step that failed has its
// reason code there.
const StepOK = "ok"

// State is the content of the state file, a JSON object. Every string is one
// printable line as reason.Line makes it.
type State struct {
	SchemaVersion int    `json:"schema_version"`
	Result        Result `json:"result"` // "running", "ready" or "failed"

	// Code is "ready", the code of the failure, or empty: while the setup runs, and
	// when a newer agent wrote a code that this reader does not know.
	Code reason.Code `json:"code"`
	// Class is that of Code. For a code that is not known it is the one in the
	// file, or "unknown"; it is empty while the setup runs.
	Class   reason.Class `json:"class"`
	Message string       `json:"message"` // failed: the marker's line; running: what is being done
	Hint    string       `json:"hint"`    // failed: what to do next
	Step    string       `json:"step"`    // name of the step under way, or that failed; empty when ready

	Started time.Time `json:"started,omitzero"` // RFC 3339, UTC, milliseconds
	Ended   time.Time `json:"ended,omitzero"`   // absent while the setup runs

	BootID       string `json:"boot_id"`       // /proc/sys/kernel/random/boot_id
	PID          int    `json:"pid"`           // of the agent; 0: not known
	AgentVersion string `json:"agent_version"` // of etcd-nodeagent
	Unit         string `json:"unit"`          // systemd unit, for example "etcd.service"

	Archive  *Archive `json:"archive"`  // null until an archive was verified
	Binaries []Binary `json:"binaries"` // that were verified, in the archive's order
	Steps    []Step   `json:"steps"`    // that have ended, in their order
	Seen     []string `json:"seen"`     // one line a device: what was last seen on it
}

// Archive is the etcd archive that was verified.
type Archive struct {
	Where       string `json:"where"`        // device or mount point: "/dev/sr0"
	Path        string `json:"path"`         // on the ISO
	VolumeID    string `json:"volume_id"`    // of the ISO
	Names       string `json:"names"`        // name tree it was found through: "Rock Ridge"
	SHA256      string `json:"sha256"`       // of the compressed archive, lower-case hex; empty: not known
	EtcdVersion string `json:"etcd_version"` // "3.5.21"
	Arch        string `json:"arch"`         // as GOARCH: "amd64"
}

// Binary is one file of the archive that was placed.
type Binary struct {
	Name   string `json:"name"`   // "etcd", "etcdctl" or "etcdutl"
	SHA256 string `json:"sha256"` // of the file, lower-case hex; empty: not known
}

// Step is one step of the setup that has ended.
type Step struct {
	Name    string  `json:"name"`    // "find", "verify", "install", ...
	Seconds float64 `json:"seconds"` // it took
	Result  string  `json:"result"`  // StepOK or the reason code of its failure
}

// ParseState parses the content of a state file that may have been written by
// anybody. An error means that it is not a state of this schema version: that
// nothing is known, not that the setup failed. What is returned is consistent
// (a ready state has the code "ready", a failed one has not) and safe to print.
func ParseState(b []byte) (State, error) {
	if len(b) > maxState {
		return State{}, fmt.Errorf("cannot read the state: larger than %d bytes", maxState)
	}
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("cannot read the state: %s", reason.Line(err.Error()))
	}
	if s.SchemaVersion != SchemaVersion {
		return State{}, fmt.Errorf("cannot read the state: schema version %d, want %d", s.SchemaVersion, SchemaVersion)
	}
	s, err := clean(s)
	if err != nil {
		return State{}, fmt.Errorf("cannot read the state: %w", err)
	}
	return s, nil
}

// encode returns the content of a state file for s, at most maxState bytes: when
// it is longer, what was seen is cut first, then the steps.
func encode(s State) ([]byte, error) {
	s.SchemaVersion = SchemaVersion
	s, err := clean(s)
	if err != nil {
		return nil, err
	}
	if s.Result == ResultFailed && s.Hint == "" && s.Code != "" {
		s.Hint = reason.Lookup(s.Code).Hint
	}
	for {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(s); err != nil {
			return nil, err
		}
		switch {
		case b.Len() <= maxState:
			return b.Bytes(), nil
		case len(s.Seen) > 0:
			s.Seen = s.Seen[:len(s.Seen)/2]
		case len(s.Steps) > 0:
			s.Steps = s.Steps[:len(s.Steps)/2]
		default:
			return nil, fmt.Errorf("%d bytes, more than %d", b.Len(), maxState)
		}
	}
}

// clean returns s with every field in the form that State documents. It shares
// no memory with s. An error means that no such form exists.
func clean(s State) (State, error) {
	if err := s.cleanOutcome(); err != nil {
		return State{}, err
	}
	s.Message = reason.Line(s.Message)
	s.Hint = reason.Line(s.Hint)
	s.Step = reason.Line(s.Step)
	s.Started = instant(s.Started)
	s.Ended = instant(s.Ended)
	s.BootID = reason.Line(s.BootID)
	s.PID = max(s.PID, 0)
	s.AgentVersion = reason.Line(s.AgentVersion)
	s.Unit = reason.Line(s.Unit)
	if s.Archive != nil {
		s.Archive = &Archive{
			Where:       reason.Line(s.Archive.Where),
			Path:        reason.Line(s.Archive.Path),
			VolumeID:    reason.Line(s.Archive.VolumeID),
			Names:       reason.Line(s.Archive.Names),
			SHA256:      digest(s.Archive.SHA256),
			EtcdVersion: reason.Line(s.Archive.EtcdVersion),
			Arch:        reason.Line(s.Archive.Arch),
		}
	}
	s.Binaries = each(s.Binaries, maxBinaries, func(b Binary) Binary {
		return Binary{Name: reason.Line(b.Name), SHA256: digest(b.SHA256)}
	})
	s.Steps = each(s.Steps, maxSteps, func(st Step) Step {
		return Step{Name: reason.Line(st.Name), Seconds: seconds(st.Seconds), Result: reason.Line(st.Result)}
	})
	s.Seen = each(s.Seen, maxSeen, reason.Line)
	return s, nil
}

// cleanOutcome makes Result, Code and Class agree. The class of a known code
// is ours to say, not the file's.
func (s *State) cleanOutcome() error {
	if !reason.Known(s.Code) {
		s.Code = ""
	}
	switch s.Result {
	case ResultRunning:
		s.Code, s.Class = "", ""
	case ResultReady:
		if s.Code != "" && s.Code != reason.Ready {
			return fmt.Errorf("result %q with code %q", s.Result, s.Code)
		}
		s.Code, s.Class = reason.Ready, reason.OK
	case ResultFailed:
		if s.Code != "" {
			s.Class = reason.Lookup(s.Code).Class
			if s.Class == reason.OK {
				return fmt.Errorf("result %q with code %q", s.Result, s.Code)
			}
		} else if s.Class != reason.Permanent && s.Class != reason.Transient {
			s.Class = reason.Unknown
		}
	default:
		return fmt.Errorf("result %q is not one of running, ready, failed", reason.Line(string(s.Result)))
	}
	return nil
}

// instant brings t to the precision and zone of the file. A time that RFC 3339
// cannot express is not known.
func instant(t time.Time) time.Time {
	t = t.UTC().Truncate(time.Millisecond)
	if y := t.Year(); y < 0 || y > 9999 {
		return time.Time{}
	}
	return t
}

// seconds returns x, or 0 when it is not a duration that a setup can take. JSON
// has no NaN, and no table has room for 1e300.
func seconds(x float64) float64 {
	const year = 365 * 24 * 3600
	if x >= 0 && x <= year {
		return x
	}
	return 0
}

// digest returns s if it is a SHA-256 in lower-case hex, or "".
func digest(s string) string {
	if b, err := hex.DecodeString(s); err != nil || len(b) != 32 || hex.EncodeToString(b) != s {
		return ""
	}
	return s
}

// each returns the first limit elements of list, each made clean by f; never
// nil, so that JSON has [] and not null.
func each[T any](list []T, limit int, f func(T) T) []T {
	out := make([]T, min(len(list), limit))
	for i := range out {
		out[i] = f(list[i])
	}
	return out
}
