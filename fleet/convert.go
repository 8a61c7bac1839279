package main

import (
	"time"

	"cks-etcd/internal/inventory"
	"cks-etcd/internal/poll"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/sshnode"
)

// eventOf gives a change of a node its published form.
func eventOf(e poll.Event) report.Event {
	return report.Event{
		At: e.At, Node: e.Node, State: string(e.State), Checks: e.Checks, Want: e.Want,
		Since: pointer(e.Since), Code: e.Code, Message: e.Message,
	}
}

// resultOf gives a verdict its published form.
func resultOf(v poll.Verdict, h inventory.Host, cost sshnode.Stats) report.NodeResult {
	r := report.NodeResult{
		Node: v.Node, Member: v.Member, Group: h.Group, State: string(v.State), Code: v.Code,
		Checks: v.Checks, Want: v.Want, Since: pointer(v.Since), Started: v.Started, Ended: v.Ended,
		Probes: v.Looks, Handshakes: int(cost.Handshakes),
	}
	if v.Code != reason.Ready {
		r.Message, r.Hint = v.Message, v.Hint
	}
	if o := v.Last; o != nil {
		r.Last = &report.Observation{
			At: o.At, Hostname: o.Hostname, BootID: o.BootID, CloudInit: o.CloudInit, Marker: o.Marker, Unit: o.Unit,
		}
		if o.State != nil && o.State.Archive != nil {
			r.Last.EtcdVersion = o.State.Archive.EtcdVersion
		}
	}
	return r
}

// pointer returns nil for the zero time.
func pointer(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}
