// Package report formats what a command found out: a table for people, and
// JSON, JSON lines and JUnit XML for programs.
//
// It only formats. Its types are its own, so that what is published does not
// change with the packages that find things out; docs/schema holds their JSON
// Schema. A report has the same shape however the command ended: every field
// is always there, null where there is nothing to say, and lists are never
// null. Text passes reason.Line on its way out, in every format.
package report

import (
	"math"
	"time"

	"cks-etcd/internal/reason"
)

// Schema is the version of the JSON forms. It is raised when a field changes
// its meaning or goes away; fields may be added without that.
const Schema = 1

// Report is the result of one run over etcd nodes.
type Report struct {
	Schema     int           `json:"schema_version"`
	Command    string        `json:"command"`          // "nodes wait"
	Result     string        `json:"result"`           // see Result
	Exit       int           `json:"exit_status"`      // of the program
	Summary    string        `json:"summary"`          // one line; see Summary
	Started    time.Time     `json:"started"`          //
	Ended      time.Time     `json:"ended"`            //
	Seconds    float64       `json:"duration_seconds"` // from Started to Ended
	Deadline   *time.Time    `json:"deadline"`         // nil: there was none
	DeadlineBy string        `json:"deadline_reason"`  // which setting gave it; empty without one
	Problem    *Problem      `json:"problem"`          // what stopped the run as a whole, nil: nothing did
	Nodes      []NodeResult  `json:"nodes"`            // in the order they were named
	Folded     []Fold        `json:"reasons"`          // equal reasons of nodes that are not active
	Health     *HealthResult `json:"health"`           // nil: not asked for
	Warnings   []string      `json:"warnings"`
}

// Problem is an outcome that concerns no single node.
type Problem struct {
	Code    reason.Code  `json:"code"`
	Class   reason.Class `json:"class"`
	Message string       `json:"message"`
	Hint    string       `json:"hint"`
}

// NodeResult is the verdict on one node.
type NodeResult struct {
	Node       string       `json:"node"`   // as it was named
	Member     string       `json:"member"` // etcd member name expected of it; empty: any
	Group      string       `json:"group"`  // group of the inventory; empty: none
	State      string       `json:"state"`  // "active", "failed", ...
	Code       reason.Code  `json:"code"`   // "ready" when all is well
	Class      reason.Class `json:"class"`
	Message    string       `json:"message"` // the reason, one line; empty when all is well
	Hint       string       `json:"hint"`    // what to do next; empty when all is well
	Checks     int          `json:"checks"`  // checks in a row that found etcd active
	Want       int          `json:"checks_wanted"`
	Since      *time.Time   `json:"since"` // when the state began; nil: not known
	Started    time.Time    `json:"started"`
	Ended      time.Time    `json:"ended"`      // of looking at this node
	Last       *Observation `json:"last"`       // the last answer of the node; nil: it never gave one
	Probes     int          `json:"probes"`     // looks at the node
	Handshakes int          `json:"handshakes"` // SSH handshakes that they took
}

// Observation is what a node said of itself.
type Observation struct {
	At          time.Time         `json:"at"`
	Hostname    string            `json:"hostname"`
	BootID      string            `json:"boot_id"`
	CloudInit   string            `json:"cloud_init"` // "done", "running", ...; empty: not known
	Marker      string            `json:"marker"`     // the failure marker's line; empty: none
	EtcdVersion string            `json:"etcd_version"`
	Unit        map[string]string `json:"unit"` // properties of the unit, as systemctl show names them
}

// Fold is one reason and the nodes that share it.
type Fold struct {
	State   string      `json:"state"`
	Code    reason.Code `json:"code"`
	Message string      `json:"message"` // where messages name their own node, "<node>" stands for it
	Hint    string      `json:"hint"`
	Set     string      `json:"node_set"` // "etcd[1-3].example"
	Nodes   []string    `json:"nodes"`
}

// HealthResult is what etcd itself said, compared over the nodes.
type HealthResult struct {
	Verdict         string         `json:"verdict"` // "healthy", "unhealthy" or "unknown"
	Code            reason.Code    `json:"code"`    // "ready" when healthy
	Message         string         `json:"message"` // empty when healthy
	Hint            string         `json:"hint"`
	ClusterID       string         `json:"cluster_id"` // hexadecimal; empty: none, or not one
	Leader          string         `json:"leader"`     // member name or ID; empty: none, or not one
	Version         string         `json:"etcd_version"`
	MembersExpected int            `json:"members_expected"`
	MembersFound    int            `json:"members_found"`
	MembersHealthy  int            `json:"members_healthy"`
	Problems        []Problem      `json:"problems"` // every finding, the worst first
	Members         []HealthMember `json:"members"`
}

// HealthMember is what one node's etcd said.
type HealthMember struct {
	Node        string      `json:"node"`
	Member      string      `json:"member"`
	MemberID    string      `json:"member_id"`
	ClusterID   string      `json:"cluster_id"`
	Version     string      `json:"etcd_version"`
	Healthy     *bool       `json:"healthy"` // nil: could not tell
	Leader      bool        `json:"leader"`
	Learner     bool        `json:"learner"`
	DBBytes     *int64      `json:"db_bytes"`
	ClockOffset *float64    `json:"clock_offset_seconds"` // of the node's clock from ours
	Alarms      []string    `json:"alarms"`
	Code        reason.Code `json:"code"`
	Message     string      `json:"message"`
}

// Event is one change of one node while a command runs.
type Event struct {
	At      time.Time   `json:"time"`
	Elapsed float64     `json:"elapsed_seconds"` // since the command began
	Node    string      `json:"node"`
	State   string      `json:"state"`
	Checks  int         `json:"checks"`
	Want    int         `json:"checks_wanted"`
	Since   *time.Time  `json:"since"`
	Code    reason.Code `json:"code"`
	Message string      `json:"message"`
}

// Values of Report.Result, one for each exit status.
const (
	ResultYes         = "yes"
	ResultNo          = "no"
	ResultUsage       = "usage"
	ResultDeadline    = "deadline"
	ResultUnknown     = "unknown"
	ResultInterrupted = "interrupted"
	ResultInternal    = "internal"
)

// ResultOf names an exit status.
func ResultOf(exit int) string {
	switch exit {
	case reason.ExitYes:
		return ResultYes
	case reason.ExitNo:
		return ResultNo
	case reason.ExitUsage:
		return ResultUsage
	case reason.ExitDeadline:
		return ResultDeadline
	case reason.ExitUnknown:
		return ResultUnknown
	case reason.ExitInterrupted:
		return ResultInterrupted
	}
	return ResultInternal
}

// ok reports whether the node is as it should be.
func (n *NodeResult) ok() bool { return n.Code == reason.Ready }

// Complete returns a copy of r that is ready to be written: text is clean,
// lists are not nil, times are in UTC, and what follows from other fields
// (Schema, Result, Summary, Seconds, Folded, classes, and hints that are empty)
// is filled in. fold names a set of nodes, as inventory.FoldNames does.
func Complete(r Report, fold func(names []string) string) Report {
	r.Schema = Schema
	r.Result = ResultOf(r.Exit)
	line(&r.Command)
	line(&r.DeadlineBy)
	r.Started, r.Ended, r.Deadline = r.Started.UTC(), r.Ended.UTC(), utc(r.Deadline)
	r.Seconds = seconds(r.Ended.Sub(r.Started))
	if r.Problem != nil {
		p := r.Problem.complete()
		r.Problem = &p
	}
	r.Warnings = lines(r.Warnings)
	r.Nodes = each(r.Nodes, NodeResult.complete)
	if r.Health != nil {
		h := r.Health.complete()
		r.Health = &h
	}
	r.Folded = Folds(r.Nodes, fold)
	r.Summary = Summary(r)
	return r
}

func (p Problem) complete() Problem {
	p.Class = reason.Lookup(p.Code).Class
	if p.Hint == "" {
		p.Hint = reason.Lookup(p.Code).Hint
	}
	line(&p.Message)
	line(&p.Hint)
	return p
}

func (n NodeResult) complete() NodeResult {
	line(&n.Node)
	line(&n.Member)
	line(&n.Group)
	line(&n.State)
	line(&n.Message)
	info := reason.Lookup(n.Code)
	n.Class = info.Class
	if n.Hint == "" && !n.ok() {
		n.Hint = info.Hint
	}
	line(&n.Hint)
	n.Since, n.Started, n.Ended = utc(n.Since), n.Started.UTC(), n.Ended.UTC()
	if n.Last != nil {
		o := *n.Last
		line(&o.Hostname)
		line(&o.BootID)
		line(&o.CloudInit)
		line(&o.Marker)
		line(&o.EtcdVersion)
		o.At = o.At.UTC()
		unit := make(map[string]string, len(o.Unit))
		for k, v := range o.Unit {
			unit[reason.Line(k)] = reason.Line(v)
		}
		o.Unit = unit
		n.Last = &o
	}
	return n
}

func (h HealthResult) complete() HealthResult {
	line(&h.Verdict)
	line(&h.Message)
	line(&h.ClusterID)
	line(&h.Leader)
	line(&h.Version)
	if h.Hint == "" && h.Code != reason.Ready {
		h.Hint = reason.Lookup(h.Code).Hint
	}
	line(&h.Hint)
	h.Problems = each(h.Problems, Problem.complete)
	h.Members = each(h.Members, HealthMember.complete)
	return h
}

func (m HealthMember) complete() HealthMember {
	line(&m.Node)
	line(&m.Member)
	line(&m.MemberID)
	line(&m.ClusterID)
	line(&m.Version)
	line(&m.Message)
	if o := m.ClockOffset; o != nil && (math.IsNaN(*o) || math.IsInf(*o, 0)) {
		m.ClockOffset = nil // JSON has no such number
	}
	m.Alarms = lines(m.Alarms)
	return m
}

func (e Event) complete() Event {
	line(&e.Node)
	line(&e.State)
	line(&e.Message)
	e.At, e.Since = e.At.UTC(), utc(e.Since)
	return e
}

func line(s *string) { *s = reason.Line(*s) }

func lines(in []string) []string { return each(in, reason.Line) }

// each returns a list that is never nil, of f of every element.
func each[T any](in []T, f func(T) T) []T {
	out := make([]T, 0, len(in))
	for _, v := range in {
		out = append(out, f(v))
	}
	return out
}

func utc(t *time.Time) *time.Time {
	if t == nil || t.IsZero() {
		return nil
	}
	u := t.UTC()
	return &u
}

// seconds are d to the millisecond, and never negative.
func seconds(d time.Duration) float64 { return max(d, 0).Round(time.Millisecond).Seconds() }
