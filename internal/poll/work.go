package poll

import (
	"fmt"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
)

// A work is what is under way on a node that may still change the answer.
type work struct {
	setup     bool   // the agent's setup runs
	cloudInit bool   // cloud-init runs, or has yet to
	known     bool   // it is known how far cloud-init is
	what      string // in words
}

// active reports whether something is under way for certain.
func (w work) active() bool { return w.setup || w.cloudInit }

// over reports whether nothing is under way for certain. Where cloud-init's
// progress is unknown, neither is true.
func (w work) over() bool { return !w.setup && !w.cloudInit && w.known }

// busy says what is under way on the node.
func busy(o sshnode.Observation) work {
	w := work{setup: setupRuns(o), known: true}
	switch o.CloudInit {
	case "done":
		w.what = "cloud-init is done"
	case "error":
		w.what = "cloud-init ended with errors"
	case "disabled":
		w.what = "cloud-init is not installed or disabled"
	case "running":
		w.cloudInit, w.what = true, "cloud-init is running"
	case "not run":
		w.cloudInit, w.what = true, "cloud-init has not run yet"
	default:
		w.known, w.what = false, "it is not known how far cloud-init is"
	}
	if w.setup {
		w.what = running(o)
	}
	return w
}

// setupRuns reports whether a setup of the agent runs, as far as its state
// file tells: one that was killed looks the same until the next boot.
func setupRuns(o sshnode.Observation) bool {
	return o.State != nil && o.State.Result == marker.ResultRunning && o.State.BootID != "" && o.State.BootID == o.BootID
}

// running words what a setup is doing.
func running(o sshnode.Observation) string {
	m := "setup is running"
	if o.State.Step != "" {
		m += fmt.Sprintf(" (step %s)", o.State.Step)
	}
	// Both times are the node's own, so its clock may be wrong.
	if !o.Clock.IsZero() && !o.State.Started.IsZero() && o.Clock.After(o.State.Started) {
		if d := o.Clock.Sub(o.State.Started); d >= time.Second {
			m += " for " + span(d)
		}
	}
	if o.State.Message != "" {
		m += ": " + o.State.Message
	}
	return reason.Line(m)
}

// withNote adds to why what else the look showed that bears on it.
func withNote(why string, o sshnode.Observation) string {
	return reason.Line(why + markerNote(o))
}

// markerNote says that it is not known whether there is a failure marker.
func markerNote(o sshnode.Observation) string {
	if o.MarkerNote == "" {
		return ""
	}
	return "; it is not known whether there is a failure marker: " + o.MarkerNote
}
