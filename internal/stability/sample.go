package stability

import "time"

// A State is what one look at a unit showed.
type State uint8

const (
	// Unknown: the look itself failed, so it says nothing about the unit.
	Unknown State = iota
	// Inactive: the unit is loaded and does not run.
	Inactive
	// Activating: the unit is starting, or waits for its next automatic
	// restart (systemd's sub state "auto-restart").
	Activating
	// Active: the unit runs. For Type=exec and Type=simple that means no more
	// than that the process was started.
	Active
	// Deactivating: the unit is stopping.
	Deactivating
	// Failed: the unit ended with a failure and nothing will start it again.
	Failed
)

// String returns systemd's word for s.
func (s State) String() string {
	switch s {
	case Inactive:
		return "inactive"
	case Activating:
		return "activating"
	case Active:
		return "active"
	case Deactivating:
		return "deactivating"
	case Failed:
		return "failed"
	default:
		return "unknown"
	}
}

// StateOf maps a unit's ActiveState and SubState, as D-Bus and systemctl show
// give them, to the states that are judged. Anything else is Unknown.
func StateOf(activeState, subState string) State {
	// systemd 254 passes through these on the way to its automatic restart.
	switch subState {
	case "dead-before-auto-restart", "failed-before-auto-restart", "auto-restart", "auto-restart-queued":
		return Activating
	}
	switch activeState {
	case "active", "reloading", "refreshing":
		return Active
	case "activating":
		return Activating
	case "deactivating":
		return Deactivating
	case "failed":
		return Failed
	case "inactive":
		return Inactive
	default:
		return Unknown
	}
}

// RestartsUnknown is the value of Sample.Restarts where NRestarts is not
// available (systemd before 235).
const RestartsUnknown int64 = -1

// A Sample is one look at a unit. All but At and State is optional; what is
// missing weakens the evidence, it never counts as a change.
type Sample struct {
	At    time.Time
	State State
	// Invocation is the unit's InvocationID, "" where unknown (systemd before 232).
	Invocation string
	// Restarts is the service's NRestarts, or RestartsUnknown.
	Restarts int64
	// MainPID is 0 where unknown and while no process runs.
	MainPID int
	// ActiveSince is ActiveEnterTimestampMonotonic in microseconds, 0 where unknown.
	ActiveSince uint64
	// BootID is the content of /proc/sys/kernel/random/boot_id, "" where unknown.
	BootID string
	// Detail is for people: "auto-restart, exit-code, status 203/EXEC", or why
	// the look failed. It takes no part in the decision.
	Detail string
}

// An instance is what tells one run of a service from the next: all that was
// learnt about it from the samples that belong to it.
type instance struct {
	invocation  string
	mainPID     int
	activeSince uint64
}

// A match is the answer to whether a sample shows an instance.
type match uint8

const (
	cannotTell match = iota // no value is known on both sides
	same
	other
)

// compare says whether the active sample s shows instance i. The invocation
// decides where both sides know it: systemd makes a new one for every start,
// while a service may change its main process within one. Older systemd leaves
// process and time of activation, of which every known pair must be equal.
func (i instance) compare(s Sample) match {
	if i.invocation != "" && s.Invocation != "" {
		if i.invocation == s.Invocation {
			return same
		}
		return other
	}
	m := cannotTell
	if i.mainPID > 0 && s.MainPID > 0 {
		if i.mainPID != s.MainPID {
			return other
		}
		m = same
	}
	if i.activeSince != 0 && s.ActiveSince != 0 {
		if i.activeSince != s.ActiveSince {
			return other
		}
		m = same
	}
	return m
}

// learn adds what s knows and i does not yet.
func (i *instance) learn(s Sample) {
	if i.invocation == "" {
		i.invocation = s.Invocation
	}
	if i.mainPID <= 0 {
		i.mainPID = s.MainPID
	}
	if i.activeSince == 0 {
		i.activeSince = s.ActiveSince
	}
}
