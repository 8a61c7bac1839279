// Package stability decides from a series of looks at a systemd unit whether
// it runs for good. It is pure: no clock, no bus, no goroutine.
//
// One look proves little. With Type=exec a unit is active as soon as execve
// succeeded, and Restart=on-failure with RestartSec=5 makes a service that dies
// at once alternate between "active" and "activating (auto-restart)" for ever.
// So a unit is Stable only after it was active on several checks in a row that
// lie further apart than its restart delay and show the same instance of the
// service: same invocation and same restart count.
package stability

import (
	"fmt"
	"time"
)

// Defaults of Rule.
const (
	// DefaultChecks is the least that can show that nothing happened in between.
	DefaultChecks = 2
	// DefaultGap exceeds the RestartSec=5 of the etcd.service that CloudStack writes.
	DefaultGap = 6 * time.Second
	// DefaultRestarts forgives the one restart that an address which comes up
	// late costs at boot.
	DefaultRestarts = 2
)

// A Rule says how much evidence a verdict needs. The zero Rule is the default.
type Rule struct {
	Checks   int           // active checks in a row for Stable; below 1: DefaultChecks
	Gap      time.Duration // least time between two checks that count; 0 or less: DefaultGap
	Restarts int64         // restarts seen for Flapping; below 1: DefaultRestarts
}

// withDefaults returns r with its zero fields filled in.
func (r Rule) withDefaults() Rule {
	if r.Checks < 1 {
		r.Checks = DefaultChecks
	}
	if r.Gap <= 0 {
		r.Gap = DefaultGap
	}
	if r.Restarts < 1 {
		r.Restarts = DefaultRestarts
	}
	return r
}

// An Outcome is what a run of samples amounts to so far.
type Outcome uint8

const (
	// Undecided: more looks are needed.
	Undecided Outcome = iota
	// Stable: active on enough checks in a row, one instance throughout.
	Stable
	// Flapping: the service was started anew at least Rule.Restarts times.
	Flapping
	// Down: the unit failed, or stopped after it had been active, and stays so.
	Down
)

// String returns the outcome as one word.
func (o Outcome) String() string {
	switch o {
	case Stable:
		return "stable"
	case Flapping:
		return "flapping"
	case Down:
		return "down"
	default:
		return "undecided"
	}
}

// A Verdict is the state of a Run after a sample. It is not final: whoever goes
// on adding samples may see a stable unit flap, or a flapping one settle.
type Verdict struct {
	Outcome  Outcome
	Checks   int       // active checks in a row that count
	Restarts int64     // restarts seen since the last baseline
	Since    time.Time // the first of Checks; zero while there is none
	Last     Sample    // the last look that succeeded, else the last one
	Why      string    // the evidence in numbers, in words for people
}

// A Run judges the samples of one unit in the order of their time. It is not
// safe for use by several goroutines.
type Run struct {
	rule Rule

	seen    bool   // any sample was added
	known   bool   // last is a look that succeeded
	last    Sample // see Verdict.Last
	missed  int    // looks that failed since last
	missing Sample // the latest of them

	cur     *instance // the instance last seen active, nil until then
	checks  int
	first   time.Time // of the checks that count
	counted time.Time // latest of them

	bootID      string
	nRestarts   int64     // last known NRestarts
	restarts    int64     // seen since the baseline
	before, hit time.Time // the look before the first of them, the look that showed the last

	wasActive bool
	idle      int       // inactive checks in a row that count
	idleAt    time.Time // latest of them
}

// New returns a Run without samples.
func New(r Rule) *Run {
	return &Run{rule: r.withDefaults(), nRestarts: RestartsUnknown}
}

// Add takes the next sample and returns the verdict.
//
// An Unknown sample neither confirms nor breaks a run of checks. A change of
// the boot ID or a restart counter that shrank (reset-failed, reboot) begins
// everything anew with this sample. An active sample that has no invocation,
// process or time of activation to compare with the run's never counts: it
// could be another instance.
func (r *Run) Add(s Sample) Verdict {
	r.seen = true
	if s.State == Unknown {
		r.missed, r.missing = r.missed+1, s
		if !r.known {
			r.last = s
		}
		return r.Verdict()
	}
	prev := r.last
	if !r.known {
		prev = s
	}
	r.last, r.known, r.missed = s, true, 0
	r.baseline(s)
	r.count(prev, s)

	switch s.State {
	case Active:
		r.wasActive, r.idle = true, 0
		r.active(s)
	case Inactive:
		r.reset()
		r.inactive(s)
	default:
		r.reset()
		r.idle = 0
	}
	return r.Verdict()
}

// baseline forgets everything when s cannot be compared with what came before.
func (r *Run) baseline(s Sample) {
	rebooted := r.bootID != "" && s.BootID != "" && r.bootID != s.BootID
	shrunk := r.nRestarts >= 0 && s.Restarts >= 0 && s.Restarts < r.nRestarts
	if rebooted || shrunk {
		r.reset()
		r.cur, r.restarts, r.nRestarts = nil, 0, RestartsUnknown
		r.wasActive, r.idle = false, 0
	}
	if s.BootID != "" {
		r.bootID = s.BootID
	}
}

// count books the restarts between prev and s: by the restart counter where it
// moved, else one when an active sample shows another instance. NRestarts counts
// automatic restarts only, so the second matters on new systemd too.
func (r *Run) count(prev, s Sample) {
	var by int64
	if s.Restarts >= 0 {
		if r.nRestarts >= 0 {
			by = s.Restarts - r.nRestarts
		}
		r.nRestarts = s.Restarts
	}
	if by == 0 && s.State == Active && r.cur != nil && r.cur.compare(s) == other {
		by = 1
	}
	if by == 0 {
		return
	}
	if r.restarts == 0 {
		r.before = prev.At
	}
	r.restarts += by
	r.hit = s.At
	r.cur = nil
	r.reset()
}

// active counts s as a check when it may.
func (r *Run) active(s Sample) {
	switch {
	case r.cur == nil:
		r.cur = &instance{}
	case r.checks > 0 && r.cur.compare(s) == cannotTell:
		return
	}
	if r.checks == 0 || s.At.Before(r.counted) { // a clock that went back proves no gap
		r.checks, r.first, r.counted = 1, s.At, s.At
		*r.cur = instance{} // nothing yet says that older values belong to this run
	} else if s.At.Sub(r.counted) >= r.rule.Gap {
		r.checks++
		r.counted = s.At
	}
	r.cur.learn(s)
	if r.checks >= r.rule.Checks {
		r.restarts = 0 // it settled: what comes later is another story
	}
}

// inactive counts looks at a unit that stopped by itself. Before it was ever
// active, inactive only means "not started yet".
func (r *Run) inactive(s Sample) {
	if r.wasActive && (r.idle == 0 || s.At.Sub(r.idleAt) >= r.rule.Gap) {
		r.idle++
		r.idleAt = s.At
	}
}

// reset ends the current run of active checks.
func (r *Run) reset() {
	r.checks, r.first, r.counted = 0, time.Time{}, time.Time{}
}

// Verdict returns the verdict after the samples so far.
func (r *Run) Verdict() Verdict {
	v := Verdict{Checks: r.checks, Restarts: r.restarts, Since: r.first, Last: r.last}
	switch {
	case r.known && r.last.State == Failed, r.idle >= r.rule.Checks:
		v.Outcome = Down
	case r.checks >= r.rule.Checks:
		v.Outcome = Stable
	case r.restarts >= r.rule.Restarts:
		v.Outcome = Flapping
	}
	v.Why = r.why(v.Outcome)
	return v
}

// why words the evidence for o.
func (r *Run) why(o Outcome) string {
	switch {
	case !r.seen:
		return "not looked at yet"
	case !r.known:
		return "could not look" + times(r.missed) + detail(r.missing, ": %s")
	}
	w := ""
	switch {
	case o == Flapping:
		w = r.restarted() + ", last seen " + r.state()
	case o == Stable:
		w = fmt.Sprintf("active on %d checks in a row over %s, no restart between them", r.checks, seconds(r.counted.Sub(r.first)))
	case o == Down && r.last.State == Inactive:
		w = "stopped after it had been active: " + r.state()
	case r.last.State == Active:
		w = fmt.Sprintf("%s on %d of %d checks in a row", r.state(), r.checks, r.rule.Checks)
	default:
		w = r.state()
	}
	if o != Flapping && r.restarts > 0 {
		w += ", " + r.restarted()
	}
	if r.missed > 0 {
		w += "; since then could not look" + times(r.missed) + detail(r.missing, " (%s)")
	}
	return w
}

// state names the last known state with its detail.
func (r *Run) state() string { return r.last.State.String() + detail(r.last, " (%s)") }

// restarted words the restarts seen: "restarted 3 times in 14 s".
func (r *Run) restarted() string {
	n := "once"
	if r.restarts > 1 {
		n = fmt.Sprintf("%d times", r.restarts)
	}
	return fmt.Sprintf("restarted %s in %s", n, seconds(r.hit.Sub(r.before)))
}

func times(n int) string {
	if n < 2 {
		return ""
	}
	return fmt.Sprintf(" %d times", n)
}

func detail(s Sample, format string) string {
	if s.Detail == "" {
		return ""
	}
	return fmt.Sprintf(format, s.Detail)
}

// seconds gives d as people say it: whole seconds, tenths below ten seconds.
func seconds(d time.Duration) string {
	if d = max(d, 0); d < 10*time.Second && d%time.Second != 0 {
		return fmt.Sprintf("%.1f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f s", d.Seconds())
}
