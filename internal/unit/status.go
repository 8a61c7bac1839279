package unit

import (
	"encoding/hex"
	"fmt"
	"math"
	"path"
	"strings"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

// Status is what systemd's properties say about a unit at one moment. Each field
// carries the name of its property in org.freedesktop.systemd1.Unit or
// org.freedesktop.systemd1.Service. A property that was not given leaves the
// zero value, except where the field says otherwise.
type Status struct {
	Name      string // as asked for
	LoadState string // "loaded", "not-found", "masked", "bad-setting", "error"
	LoadError string // message of LoadError; "" when the unit was loaded

	ActiveState   string // "active", "reloading", "inactive", "failed", "activating", "deactivating"
	SubState      string // "running", "auto-restart", "exited", ...
	Result        string // "success", "exit-code", "signal", "timeout", "start-limit-hit", ...
	UnitFileState string // "enabled", "disabled", "static", "masked", ...
	FragmentPath  string // the unit file
	InvocationID  string // 32 hexadecimal digits; "" before systemd 232 and before the first start
	ActiveEnter   uint64 // ActiveEnterTimestampMonotonic, microseconds; 0 when never active

	Type             string        // "exec", "notify", ...
	MainPID          int           // 0 while no process runs
	NRestarts        int64         // automatic restarts; stability.RestartsUnknown before systemd 235
	ExecMainCode     int           // how the main process ended: CLD_EXITED 1, CLD_KILLED 2, CLD_DUMPED 3; 0 while it runs
	ExecMainStatus   int           // exit status, or the signal's number
	RestartDelay     time.Duration // RestartUSec
	ExecStart        []string      // argv of the first ExecStart, as written: $VARIABLES are not expanded
	WorkingDirectory string
	User             string
	Environment      []string // NAME=value
	ControlGroup     string   // path below the cgroup root; "" while no process runs
	NeedDaemonReload bool     // the unit file changed since it was loaded

	job          job // of the unit, pending
	conditionMet tri // ConditionResult
}

// A job is the unit's property Job (uo).
type job struct {
	known bool
	id    uint32 // 0: none is pending
}

// A tri is a truth value that may be unknown.
type tri uint8

const (
	unknown tri = iota
	yes
	no
)

// properties are a unit's properties as D-Bus delivers them. They are read
// defensively: whatever is absent or of another type reads as ok == false.
type properties map[string]any

func (p properties) str(name string) string {
	s, _ := p[name].(string)
	return s
}

func (p properties) num(name string) (int64, bool) {
	switch v := p[name].(type) {
	case int32:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int64:
		return v, true
	case uint64:
		if v <= math.MaxInt64 {
			return int64(v), true
		}
	}
	return 0, false
}

func (p properties) truth(name string) tri {
	switch v, ok := p[name].(bool); {
	case !ok:
		return unknown
	case v:
		return yes
	default:
		return no
	}
}

// field returns element i of a D-Bus structure.
func field[T any](v any, i int) (T, bool) {
	var zero T
	s, ok := v.([]any)
	if !ok || i >= len(s) {
		return zero, false
	}
	t, ok := s[i].(T)
	return t, ok
}

// execStart returns argv of the first command of property ExecStart, an array of
// structures (sasbttttuii): path, argv, and eight values about its last run.
func (p properties) execStart() []string {
	var first any
	switch v := p["ExecStart"].(type) {
	case [][]any:
		if len(v) > 0 {
			first = v[0]
		}
	case []any:
		if len(v) > 0 {
			first = v[0]
		}
	}
	argv, _ := field[[]string](first, 1)
	return argv
}

// decode builds the Status of the unit called name from its properties.
func decode(name string, p properties) Status {
	s := Status{
		Name:             name,
		LoadState:        p.str("LoadState"),
		ActiveState:      p.str("ActiveState"),
		SubState:         p.str("SubState"),
		Result:           p.str("Result"),
		UnitFileState:    p.str("UnitFileState"),
		FragmentPath:     p.str("FragmentPath"),
		Type:             p.str("Type"),
		WorkingDirectory: p.str("WorkingDirectory"),
		User:             p.str("User"),
		ControlGroup:     p.str("ControlGroup"),
		ExecStart:        p.execStart(),
		NRestarts:        stability.RestartsUnknown,
		NeedDaemonReload: p.truth("NeedDaemonReload") == yes,
		conditionMet:     p.truth("ConditionResult"),
	}
	s.LoadError, _ = field[string](p["LoadError"], 1)
	s.Environment, _ = p["Environment"].([]string)
	if id, ok := p["InvocationID"].([]byte); ok && len(id) == 16 {
		s.InvocationID = hex.EncodeToString(id)
	}
	if n, ok := p.num("NRestarts"); ok && n >= 0 {
		s.NRestarts = n
	}
	if n, ok := p.num("MainPID"); ok && n >= 0 {
		s.MainPID = int(n)
	}
	if n, ok := p.num("ExecMainCode"); ok {
		s.ExecMainCode = int(n)
	}
	if n, ok := p.num("ExecMainStatus"); ok {
		s.ExecMainStatus = int(n)
	}
	if n, ok := p.num("ActiveEnterTimestampMonotonic"); ok && n >= 0 {
		s.ActiveEnter = uint64(n)
	}
	if n, ok := p.num("RestartUSec"); ok && n >= 0 && n <= math.MaxInt64/int64(time.Microsecond) {
		s.RestartDelay = time.Duration(n) * time.Microsecond
	}
	if id, ok := field[uint32](p["Job"], 0); ok {
		s.job = job{known: true, id: id}
	}
	return s
}

// state is the state that stability judges.
func (s Status) state() stability.State { return stability.StateOf(s.ActiveState, s.SubState) }

// Sample returns what s says to a stability.Run. The time is that of the look,
// bootID the machine's boot or "".
func (s Status) Sample(at time.Time, bootID string) stability.Sample {
	return stability.Sample{
		At:          at,
		State:       s.state(),
		Invocation:  s.InvocationID,
		Restarts:    s.NRestarts,
		MainPID:     s.MainPID,
		ActiveSince: s.ActiveEnter,
		BootID:      bootID,
		Detail:      s.detail(),
	}
}

// detail words all that people want to know beyond ActiveState.
func (s Status) detail() string {
	var parts []string
	if s.LoadState != "" && s.LoadState != "loaded" {
		parts = append(parts, s.LoadState)
	}
	if s.SubState != "" && s.SubState != s.ActiveState && s.SubState != "dead" {
		parts = append(parts, s.SubState)
	}
	if s.state() == stability.Active {
		return strings.Join(parts, ", ")
	}
	if s.Result != "" && s.Result != "success" {
		parts = append(parts, "result "+s.Result)
	}
	if e := s.ended(); e != "" {
		parts = append(parts, e)
	}
	return strings.Join(parts, ", ")
}

// String returns the state in a few words: "activating (auto-restart, result
// exit-code, status 203/EXEC)".
func (s Status) String() string {
	st := s.ActiveState
	if st == "" {
		st = "unknown"
	}
	if d := s.detail(); d != "" {
		st += " (" + d + ")"
	}
	return reason.Line(st)
}

// ended words how the main process ended, "" while it runs or when it ended well.
func (s Status) ended() string {
	switch s.ExecMainCode {
	case cldExited:
		if s.ExecMainStatus == 0 {
			return ""
		}
		w := "status " + exitStatus(s.ExecMainStatus)
		if s.ExecMainStatus == exitExec && len(s.ExecStart) > 0 {
			w += fmt.Sprintf(": cannot execute %s", s.ExecStart[0])
		}
		return w
	case cldKilled:
		return "killed by " + signalName(s.ExecMainStatus)
	case cldDumped:
		return "killed by " + signalName(s.ExecMainStatus) + " with a core dump"
	default:
		return ""
	}
}

// Check says whether the unit can be started at all: nil when it can, or when
// this cannot be told, else an error with code unit-missing, unit-masked or
// unit-bad-setting.
func (s Status) Check() error {
	switch s.LoadState {
	case "not-found":
		return reason.New(reason.UnitMissing, "%s: no unit file of this name", s.Name)
	case "masked":
		return reason.New(reason.UnitMasked, "%s%s", s.Name, s.file())
	case "bad-setting", "error":
		why := s.LoadError
		if why == "" {
			why = "systemd gives no cause"
		}
		return reason.New(reason.UnitBadSetting, "%s%s: %s: %s", s.Name, s.file(), s.LoadState, why)
	}
	if s.UnitFileState == "masked" || s.UnitFileState == "masked-runtime" {
		return reason.New(reason.UnitMasked, "%s%s", s.Name, s.file())
	}
	return nil
}

// file returns " (path of the unit file)", or nothing where it is not known.
func (s Status) file() string {
	if s.FragmentPath == "" {
		return ""
	}
	return " (" + path.Clean(s.FragmentPath) + ")"
}
