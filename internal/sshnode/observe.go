package sshnode

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

// An Observation is what one look at a node showed. All text in it is
// printable and bounded.
type Observation struct {
	At     time.Time // when the answer was there, by our clock
	BootID string    // of /proc/sys/kernel/random/boot_id; "" unknown

	Marker    string // the failure marker's line
	HasMarker bool   // there is a failure marker
	// MarkerNote says why it is not known whether there is a failure marker;
	// "" when it is known.
	MarkerNote string

	State     *marker.State // the agent's state file; nil: none, or unreadable
	StateNote string        // why it could not be read; "" when there is none, or it was read

	// Unit has the properties of the unit as systemctl show prints them, known
	// names only. It is nil when systemd could not be asked, which Probe reports
	// as an error unless there is a marker.
	Unit      map[string]string
	CloudInit string // "done", "running", "error", "disabled" (or not installed), "not run"; "" unknown
	Sample    stability.Sample
	Hostname  string
	Clock     time.Time // the node's clock at the probe; zero: unknown
}

// UnitLoaded reports whether systemd knows the unit: false for LoadState
// "not-found", and where systemd could not be asked.
func (o Observation) UnitLoaded() bool {
	return o.Unit != nil && o.Unit["LoadState"] != "not-found"
}

// Forms of what a node says about itself.
var (
	uuid       = regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	invocation = regexp.MustCompile(`^[0-9a-f]{32}$`)
	clockTime  = regexp.MustCompile(`^([0-9]{1,11})\.?([0-9]{9})?`)
)

// observe turns a command's output into an Observation. Its error says why
// that cannot be done.
func observe(at time.Time, out output) (Observation, error) {
	o := Observation{At: at}
	a, err := parse(out.stdout)
	if errors.Is(err, errNoFrame) {
		return o, unframed(out)
	}
	if err != nil {
		return o, err
	}
	if v := a.values["boot"]; uuid.MatchString(v) {
		o.BootID = v
	}
	o.Hostname = reason.Line(a.values["host"])
	o.Clock = parseClock(a.values["clock"])
	o.observeMarker(a)
	o.observeState(a)
	o.CloudInit = cloudInit(a)
	o.Sample = stability.Sample{At: at, Restarts: stability.RestartsUnknown, BootID: o.BootID}

	unit, err := parseUnit(a.sections["unit"])
	switch {
	case err == nil:
		o.Unit = unit
		fill(&o.Sample, unit)
	case o.HasMarker:
		o.Sample.Detail = reason.Line(err.Error())
	case o.MarkerNote != "":
		return o, fmt.Errorf("%w; failure marker: %s", err, o.MarkerNote)
	default:
		return o, err
	}
	return o, nil
}

// unframed says what a node answered instead of running the probe.
func unframed(out output) error {
	said := ""
	for _, b := range [][]byte{out.stderr, out.stdout} { // shells complain on stderr
		if s := firstLine(b); s != "" && said == "" {
			said = fmt.Sprintf(": it wrote %q", s)
		}
	}
	switch {
	case out.signal != "":
		return fmt.Errorf("the probe was ended by signal %s%s", out.signal, said)
	case out.status < 0:
		return fmt.Errorf("the probe ended without answer and exit status%s", said)
	case said == "":
		return fmt.Errorf("the login shell did not run the probe (exit status %d, no output)", out.status)
	}
	return fmt.Errorf("the login shell did not run the probe (exit status %d)%s", out.status, said)
}

// observeMarker reads the section of the failure marker.
func (o *Observation) observeMarker(a answer) {
	s, ok := a.sections["marker"]
	switch {
	case !ok:
		o.MarkerNote = "the probe did not look"
	case s.status == fileThere:
		o.HasMarker = true
		o.Marker = marker.ParseLine(s.body)
		if o.Marker == "" {
			o.Marker = "the failure marker is empty"
		}
	case s.status == fileAbsent:
	case s.status == fileOdd || s.status == fileUnsearched:
		o.MarkerNote = s.cause()
	default:
		// It is there, and that alone says that the setup failed.
		o.HasMarker = true
		o.Marker = reason.Line("the failure marker cannot be read: " + s.cause())
	}
}

// observeState reads the section of the agent's state file.
func (o *Observation) observeState(a answer) {
	s, ok := a.sections["state"]
	switch {
	case !ok:
		o.StateNote = "the probe did not look"
	case s.status == fileAbsent:
	case s.status != fileThere:
		o.StateNote = s.cause()
	case len(s.body) > maxStateFile:
		o.StateNote = fmt.Sprintf("larger than %d bytes", maxStateFile)
	default:
		st, err := marker.ParseState(s.body)
		if err != nil {
			o.StateNote = reason.Line(err.Error())
			return
		}
		o.State = &st
	}
}

// cause words why a section's command failed.
func (s section) cause() string {
	if l := firstLine(s.body); l != "" {
		return l
	}
	return fmt.Sprintf("exit status %d", s.status)
}

// parseUnit reads what systemctl show wrote.
func parseUnit(s section) (map[string]string, error) {
	switch {
	case s.status == 124 && len(bytes.TrimSpace(s.body)) == 0: // timeout(1)
		return nil, errors.New("systemd does not answer systemctl")
	case s.status == 127:
		return nil, fmt.Errorf("there is no systemctl: %s", s.cause())
	case s.status != 0:
		return nil, fmt.Errorf("systemctl failed (exit status %d): %s", s.status, s.cause())
	}
	unit := make(map[string]string)
	for raw := range bytes.Lines(s.body) {
		key, value, ok := strings.Cut(strings.TrimSuffix(string(raw), "\n"), "=")
		if !ok || !slices.Contains(unitProperties(), key) {
			if l := firstLine(raw); l != "" && !ok {
				return nil, fmt.Errorf("systemctl wrote %q", l)
			}
			continue
		}
		if _, twice := unit[key]; twice {
			return nil, fmt.Errorf("systemctl wrote %s twice", key)
		}
		unit[key] = reason.Line(value)
	}
	if unit["ActiveState"] == "" {
		return nil, errors.New("systemctl did not say the unit's ActiveState")
	}
	return unit, nil
}

// fill sets what the unit's properties say in s.
func fill(s *stability.Sample, unit map[string]string) {
	s.State = stability.StateOf(unit["ActiveState"], unit["SubState"])
	if v := unit["InvocationID"]; invocation.MatchString(v) {
		s.Invocation = v
	}
	if n, err := strconv.ParseInt(unit["NRestarts"], 10, 64); err == nil && n >= 0 {
		s.Restarts = n
	}
	if n, err := strconv.ParseUint(unit["MainPID"], 10, 31); err == nil {
		s.MainPID = int(n)
	}
	if n, err := strconv.ParseUint(unit["ActiveEnterTimestampMonotonic"], 10, 64); err == nil {
		s.ActiveSince = n
	}
	s.Detail = detail(s.State, unit)
}

// detail words what people want to know beyond the state.
func detail(state stability.State, unit map[string]string) string {
	var parts []string
	if v := unit["LoadState"]; v != "" && v != "loaded" {
		parts = append(parts, v)
	}
	if v := unit["SubState"]; v != "" && v != unit["ActiveState"] && v != "dead" {
		parts = append(parts, v)
	}
	if state != stability.Active {
		if v := unit["Result"]; v != "" && v != "success" {
			parts = append(parts, "result "+v)
		}
		if v := unit["ExecMainStatus"]; v != "" && v != "0" {
			switch unit["ExecMainCode"] { // CLD_EXITED, CLD_KILLED, CLD_DUMPED of waitid(2)
			case "1":
				if v == "203" {
					v += "/EXEC" // systemd.exec(5): the program could not be executed
				}
				parts = append(parts, "status "+v)
			case "2", "3":
				parts = append(parts, "killed by signal "+v)
			}
		}
	}
	return reason.Line(strings.Join(parts, ", "))
}

// cloudInit says how far cloud-init is, by its status files as "cloud-init
// status" reads them: status.json names the stage that runs, and result.json
// is written at the end.
func cloudInit(a answer) string {
	switch a.values["cloud-init"] {
	case "disabled", "absent":
		return "disabled"
	}
	status, ok := a.sections["ci-status"]
	switch {
	case !ok:
		return ""
	case status.status == fileAbsent:
		return "not run"
	case status.status != fileThere:
		return ""
	}
	var st struct {
		V1 struct {
			Stage *string `json:"stage"`
		} `json:"v1"`
	}
	if err := json.Unmarshal(status.body, &st); err != nil {
		return ""
	}
	result, ok := a.sections["ci-result"]
	switch {
	case st.V1.Stage != nil || ok && result.status == fileAbsent:
		return "running"
	case !ok || result.status != fileThere:
		return ""
	}
	var res struct {
		V1 struct {
			Errors []json.RawMessage `json:"errors"`
		} `json:"v1"`
	}
	if err := json.Unmarshal(result.body, &res); err != nil {
		return ""
	}
	if len(res.V1.Errors) > 0 {
		return "error"
	}
	return "done"
}

// parseClock reads "seconds.nanoseconds"; date(1) of busybox leaves out the
// nanoseconds.
func parseClock(s string) time.Time {
	m := clockTime.FindStringSubmatch(s)
	if m == nil {
		return time.Time{}
	}
	sec, _ := strconv.ParseInt(m[1], 10, 64) // bounded by the pattern
	ns, _ := strconv.ParseInt(m[2], 10, 64)
	return time.Unix(sec, ns).UTC()
}
