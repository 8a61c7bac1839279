package poll

import (
	"fmt"
	"strings"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/stability"
)

const (
	// unreadableLooks in a row over unreadableTime make it final that a node
	// gives no usable answer: a shell may be odd while the boot goes on.
	unreadableLooks = 5
	unreadableTime  = 30 * time.Second
	// confirming is how many looks in a row must show what one look may catch in
	// the moment between two writes of the agent.
	confirming = 2
)

// A finding is what is known about a node at one moment.
type finding struct {
	state   State
	code    reason.Code // "" nothing is wrong yet
	message string
	hint    string // "" the code's
	checks  int
	final   bool
}

// A judge decides from the looks at one node what is known about it. It is
// pure: time comes with the looks.
type judge struct {
	opts Options
	run  *stability.Run

	cur   finding              // after the latest look
	last  *sshnode.Observation // that succeeded
	boot  string               // last known boot ID
	grace time.Time            // since when a login that is refused is not the boot's fault for ever

	flapping time.Time // first evidence since it last settled, zero: none
	contest  time.Time // start of the setup that runs although a failure marker is there
	contests int       // looks in a row that showed it
	relics   int       // looks in a row that showed a failed setup without its marker

	err      error     // of the latest look, nil when it succeeded
	errSince time.Time // the first of the errors in a row
	errs     int       // of them
	muted    int       // unreadable answers in a row
	mutedAt  time.Time // the first of them
}

// newJudge returns a judge that has seen nothing.
func newJudge(o Options, now time.Time) *judge {
	return &judge{
		opts: o, grace: now,
		run: stability.New(stability.Rule{Checks: o.Checks}),
		cur: finding{state: StateWaiting},
	}
}

// observed takes a look that succeeded.
func (j *judge) observed(now time.Time, o sshnode.Observation) finding {
	if j.boot != "" && o.BootID != "" && o.BootID != j.boot { // B112: a reboot begins everything anew
		j.flapping, j.contests, j.relics = time.Time{}, 0, 0
	}
	if o.BootID != "" {
		j.boot = o.BootID
	}
	j.err, j.errs, j.muted = nil, 0, 0
	j.last = &o
	j.cur = j.judge(now, o)
	return j.cur
}

// judge decides by an observation.
func (j *judge) judge(now time.Time, o sshnode.Observation) finding {
	v := j.run.Add(o.Sample)
	work := busy(o)
	if o.HasMarker {
		if !j.contested(o) {
			return markerFinding(o)
		}
		return finding{state: StateBooting, code: reason.NodeBooting, message: reason.Line(work.what + "; a failure marker is there from before: " + o.Marker)}
	}
	j.contests = 0
	if f, ok := j.relic(o, v, work); ok {
		return f
	}
	if f, ok := unloadable(o, work); ok {
		return f
	}
	if v.Outcome != stability.Flapping {
		j.flapping = time.Time{}
	}
	switch v.Outcome {
	case stability.Stable:
		why := v.Why
		if j.opts.Checks == 1 {
			why = activeOnce(o.Sample)
		}
		return finding{state: StateActive, code: reason.Ready, message: withNote(why, o), checks: v.Checks, final: true}
	case stability.Flapping:
		if j.flapping.IsZero() {
			j.flapping = now
		}
		f := problem(StateFlapping, reason.UnitFlapping, "%s", v.Why)
		f.final = !work.setup && (j.opts.FailFast || now.Sub(j.flapping) >= flapPatience)
		return f
	case stability.Down:
		f := problem(StateFailed, reason.UnitFailed, "%s", v.Why)
		if v.Last.State == stability.Inactive {
			f = problem(StateInactive, reason.UnitNotActive, "%s", v.Why)
		}
		f.final = work.over()
		if work.active() {
			return finding{state: StateBooting, code: reason.NodeBooting, message: reason.Line(work.what + "; " + f.message)}
		}
		return f
	}
	switch o.Sample.State {
	case stability.Active:
		return finding{state: StateActive, message: withNote(v.Why, o), checks: v.Checks}
	case stability.Activating, stability.Deactivating:
		return finding{state: StateActivating, message: withNote(v.Why, o)}
	case stability.Inactive:
		if work.active() {
			return finding{state: StateBooting, code: reason.NodeBooting, message: work.what}
		}
		return problem(StateInactive, reason.UnitNotActive, "%s", withNote(v.Why, o))
	}
	return problem(StateUnknown, reason.ProbeUnreadable, "systemd says the unit is %q", o.Unit["ActiveState"])
}

// contested reports whether a setup runs in this boot that the marker in o is
// older than. A setup removes the marker when it begins, or fails if it cannot,
// so a marker that outlives the next look is that setup's own.
func (j *judge) contested(o sshnode.Observation) bool {
	if !setupRuns(o) {
		return false
	}
	if j.contests > 0 && !o.State.Started.Equal(j.contest) {
		j.contests = 0
	}
	j.contest = o.State.Started
	j.contests++
	return j.contests < confirming
}

// relic finds a failure that only the state file tells: a home directory that
// cannot be written, or a marker that was taken away. An active unit, another
// boot or a setup that runs make it history.
func (j *judge) relic(o sshnode.Observation, v stability.Verdict, work work) (finding, bool) {
	st := o.State
	if st == nil || st.Result != marker.ResultFailed || st.BootID == "" || st.BootID != o.BootID ||
		o.Sample.State == stability.Active || v.Outcome == stability.Flapping {
		j.relics = 0
		return finding{}, false
	}
	j.relics++
	f := stateFinding(st, st.Message)
	f.final = j.relics >= confirming && !work.cloudInit
	return f, true
}

// markerFinding is the verdict of a node whose setup failed. The state file
// gives the code when it tells of the same failure.
func markerFinding(o sshnode.Observation) finding {
	f := finding{state: StateFailed, code: reason.SetupFailed, message: o.Marker}
	if st := o.State; st != nil && st.Result == marker.ResultFailed && st.Message == o.Marker {
		f = stateFinding(st, o.Marker)
	}
	f.final = true
	return f
}

// stateFinding is the failure in st.
func stateFinding(st *marker.State, message string) finding {
	f := finding{state: StateFailed, code: st.Code, message: message}
	if f.code == "" { // an agent newer than this program
		f.code = reason.SetupFailed
	}
	if message == "" {
		f.message = reason.New(f.code, "the agent's state file says so, without a message").Error()
	}
	f.hint = st.Hint
	return f
}

// unloadable judges a unit that systemd does not know or cannot use.
func unloadable(o sshnode.Observation, work work) (finding, bool) {
	switch load := o.Unit["LoadState"]; load {
	case "not-found":
		if work.over() {
			f := problem(StateNotSetUp, reason.NotSetUp, "%s, and there is no etcd unit%s", work.what, markerNote(o))
			f.final = true
			return f, true
		}
		return finding{state: StateBooting, code: reason.NodeBooting, message: work.what + ", and there is no etcd unit yet"}, true
	case "masked":
		f := problem(StateFailed, reason.UnitMasked, "systemd says LoadState=%s", load)
		f.final = true
		return f, true
	case "bad-setting", "error":
		f := problem(StateFailed, reason.UnitBadSetting, "systemd says LoadState=%s", load)
		f.final = true
		return f, true
	}
	return finding{}, false
}

// problem makes a finding whose message begins with the code's title.
func problem(s State, c reason.Code, format string, args ...any) finding {
	return finding{state: s, code: c, message: reason.New(c, format, args...).Error()}
}

// erred takes a look that failed.
func (j *judge) erred(now time.Time, err error) finding {
	if j.err == nil {
		j.errSince, j.errs = now, 0
		if j.last != nil {
			j.grace = now // it was up: it may be booting again
		}
	}
	j.err = err
	j.errs++
	f := finding{state: StateUnreachable, code: reason.Of(err), message: reason.Line(err.Error()), hint: reason.HintOf(err)}
	if f.code != reason.ProbeUnreadable {
		j.muted = 0
	}
	switch f.code {
	case reason.NodeUnreachable, reason.NodeResolve, reason.SSHHandshake:
		j.grace = now // a login is possible only after this
	case reason.SSHAuthRefused:
		f.state = StateAuthRefused
		f.final = now.Sub(j.grace) >= j.opts.grace()
	case reason.SSHHostKeyChanged:
		f.state, f.final = StateHostKeyChanged, true
	case reason.ProbeUnreadable:
		f.state = StateUnknown
		if j.muted == 0 {
			j.mutedAt = now
		}
		j.muted++
		f.final = j.muted >= unreadableLooks && now.Sub(j.mutedAt) >= unreadableTime
		j.run.Add(stability.Sample{At: now, State: stability.Unknown, Restarts: stability.RestartsUnknown, Detail: f.message})
	default: // of our own making: keys, known_hosts, configuration
		f.state, f.final = StateUnknown, true
	}
	j.cur = f
	if f.final {
		j.cur.message = j.errorSoFar(now)
	}
	return j.cur
}

// permanent reports whether err stays true however long the look may take.
func permanent(err error) bool {
	switch reason.Of(err) {
	case reason.SSHAuthRefused, reason.SSHHostKeyChanged, reason.SSHHostKeyUnknown, reason.SSHKeyUnusable, reason.Usage:
		return true
	}
	return false
}

// once is the verdict by one look.
func (j *judge) once(now time.Time) finding {
	f := j.cur
	f.final = true
	if j.err != nil {
		f.message = j.errorSoFar(now)
		return f
	}
	if f.state == StateActivating {
		return j.activatingOnce()
	}
	return f
}

// activeOnce says what one look at an active unit shows: not that it stays so.
func activeOnce(s stability.Sample) string {
	why := "seen active by one look"
	if s.Restarts > 0 {
		why += fmt.Sprintf(", restarted automatically %d times since it was last started by hand", s.Restarts)
	}
	return why
}

// activatingOnce judges by one look a unit that is on its way.
func (j *judge) activatingOnce() finding {
	s := j.last.Sample
	if s.Restarts >= stability.DefaultRestarts && strings.HasPrefix(j.last.Unit["SubState"], "auto-restart") {
		f := problem(StateFlapping, reason.UnitFlapping, "it waits for its next automatic restart, after %d since it was last started by hand: %s", s.Restarts, seen(s))
		f.final = true
		return f
	}
	f := finding{state: StateActivating, code: reason.Undecided, message: reason.Line("one look cannot tell: " + j.cur.message), final: true}
	f.hint = "look again, or use 'etcd-fleet nodes wait'"
	return f
}

// late is the verdict at the deadline. why says which it was, and running for
// how long the last look had been waiting for an answer.
func (j *judge) late(now time.Time, why string, running time.Duration) finding {
	f := j.cur
	f.final = true
	if why == "" {
		why = "the deadline passed"
	}
	if running >= time.Second {
		why += fmt.Sprintf(", no answer to the last look in %s", span(running))
	}
	switch {
	case j.err == nil && j.last == nil:
		f.state, f.code = StateUndecided, reason.Undecided
		f.message = reason.New(f.code, "%s; the node was not looked at%s", why, waiting(running)).Error()
	case j.err != nil:
		f.message = reason.Line(j.errorSoFar(now) + "; " + why)
	case f.code == "":
		f.state, f.code = StateUndecided, reason.Undecided
		f.message = reason.New(f.code, "%s; last seen %s ago: %s", why, span(now.Sub(j.last.At)), j.cur.message).Error()
	case f.code == reason.NodeBooting:
		f.message = reason.New(f.code, "%s; %s", j.cur.message, why).Error()
	default:
		f.message = reason.Line(j.cur.message + "; " + why)
	}
	return f
}

// waiting says why a node was not looked at.
func waiting(running time.Duration) string {
	if running > 0 {
		return " to the end"
	}
	return ": other connections were being made"
}

// stopped is the verdict when the looks were ended from outside.
func (j *judge) stopped(now time.Time, c reason.Code, why string) finding {
	known := "the node was not looked at to the end"
	switch {
	case j.err != nil:
		known = j.errorSoFar(now)
	case j.last != nil:
		known = fmt.Sprintf("last seen %s ago: %s", span(now.Sub(j.last.At)), j.cur.message)
	}
	if why != "" {
		// The code's title speaks of a deadline, which is not what happened.
		return finding{
			state: StateUndecided, code: c, message: reason.Line(why + "; " + known), checks: j.cur.checks, final: true,
			hint: "leave out --fail-fast to learn about this node, too",
		}
	}
	return finding{state: StateUndecided, code: c, message: reason.New(c, "%s", known).Error(), checks: j.cur.checks, final: true}
}

// errorSoFar words the error that goes on, and what was seen before it.
func (j *judge) errorSoFar(now time.Time) string {
	m := j.err.Error()
	if j.errs > 1 {
		m += fmt.Sprintf("; no look succeeded for %s (%d tries)", span(now.Sub(j.errSince)), j.errs)
	}
	if j.last != nil {
		m += fmt.Sprintf("; last seen %s ago: %s", span(now.Sub(j.last.At)), seen(j.last.Sample))
	}
	return reason.Line(m)
}

// seen names the state in s with its detail.
func seen(s stability.Sample) string {
	if s.Detail == "" {
		return s.State.String()
	}
	return fmt.Sprintf("%s (%s)", s.State, s.Detail)
}
