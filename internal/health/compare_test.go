package health

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/reason"
)

// cluster makes n members that are well, called m1, m2, ... on nodes etcd1, etcd2, ...
func cluster(n int) []NodeHealth {
	var members []Member
	for i := range n {
		members = append(members, Member{ID: uint64(i + 1), Name: fmt.Sprint("m", i+1), PeerURLs: []string{fmt.Sprintf("http://10.0.0.%d:2380", i+1)}})
	}
	var out []NodeHealth
	for i := range n {
		well := true
		out = append(out, NodeHealth{
			Name: fmt.Sprint("etcd", i+1), Healthy: &well, Version: &Version{Server: "3.6.5", Cluster: "3.6.0"},
			Status:  &Status{ClusterID: 0xabc, MemberID: uint64(i + 1), Leader: 1, RaftTerm: 2},
			Members: append([]Member(nil), members...), Alarms: []Alarm{}, OffsetKnown: true,
		})
	}
	return out
}

func TestCompare(t *testing.T) {
	sick := false
	gone := func(n *NodeHealth) {
		*n = NodeHealth{Name: n.Name, Err: reason.New(reason.HealthUnreadable, "127.0.0.1:2379 of %s: connection refused", n.Name)}
	}
	for _, tt := range []struct {
		name   string
		nodes  int
		change func(n []NodeHealth)
		want   Expect
		says   []string // code and message of each finding, "warning" for the code of one
		exit   int
	}{
		{name: "well", nodes: 3},
		{name: "one member", nodes: 1},
		{name: "nothing asked", nodes: 0},
		{name: "even", nodes: 4, says: []string{"warning 4 voting members bear the loss of 1, no more than 3 would"}},
		{name: "one unreachable", nodes: 3, change: func(n []NodeHealth) { gone(&n[2]) }, exit: reason.ExitUnknown, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd3: connection refused",
			"warning 2 of 3 voting members are known to be well, as many as the quorum needs"}},
		{name: "all unreachable", nodes: 3, change: func(n []NodeHealth) { gone(&n[0]); gone(&n[1]); gone(&n[2]) }, exit: reason.ExitUnknown, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd1: connection refused",
			"health-unreadable 127.0.0.1:2379 of etcd2: connection refused",
			"health-unreadable 127.0.0.1:2379 of etcd3: connection refused"}},
		{name: "no leader", nodes: 3, change: func(n []NodeHealth) {
			for i := range n {
				n[i].Status.Leader, n[i].Healthy, n[i].HealthWhy = 0, &sick, "RAFT NO LEADER"
			}
		}, exit: reason.ExitNo, says: []string{
			"health-no-quorum no leader is known to etcd1, etcd2, etcd3"}},
		{name: "unhealthy for another reason", nodes: 3, change: func(n []NodeHealth) { n[1].Healthy, n[1].HealthWhy = &sick, "QGET FAILED" }, exit: reason.ExitNo, says: []string{
			"health-unhealthy etcd2: etcd says QGET FAILED", "warning 2 of 3 voting members are known to be well, as many as the quorum needs"}},
		{name: "unhealthy by an alarm", nodes: 1, change: func(n []NodeHealth) {
			n[0].Healthy, n[0].HealthWhy, n[0].Alarms = &sick, "ALARM NOSPACE", []Alarm{{1, "NOSPACE"}}
		}, exit: reason.ExitNo, says: []string{
			"health-alarm NOSPACE on member m1: its database has reached --quota-backend-bytes, and writes are refused"}},
		{name: "one without leader", nodes: 3, change: func(n []NodeHealth) { n[1].Status.Leader = 0 }, exit: reason.ExitNo, says: []string{
			"health-unhealthy etcd2 knows no leader; others follow m1 (etcd1, etcd3)",
			"warning 2 of 3 voting members are known to be well, as many as the quorum needs"}},
		{name: "two leaders", nodes: 3, change: func(n []NodeHealth) { n[1].Status.Leader = 2 }, exit: reason.ExitNo, says: []string{
			"health-split the nodes follow 2 leaders: m1 (etcd1, etcd3), m2 (etcd2)"}},
		{name: "two clusters", nodes: 3, change: func(n []NodeHealth) { n[1].Status.ClusterID = 0xdef }, exit: reason.ExitNo, says: []string{
			"health-split the nodes belong to 2 clusters: abc (etcd1, etcd3), def (etcd2)"}},
		{name: "different member lists", nodes: 3, change: func(n []NodeHealth) { n[2].Members = n[2].Members[:2] }, exit: reason.ExitNo, says: []string{
			"health-split the nodes know different members: 1 2 3 (etcd1, etcd2), 1 2 (etcd3)"}},
		{name: "one member too many", nodes: 3, want: Expect{Members: 2}, exit: reason.ExitNo, says: []string{"health-member-count 3 members (m1, m2, m3), expected 2"}},
		{name: "five of seven asked", nodes: 7, want: Expect{Members: 7}, change: func(n []NodeHealth) { gone(&n[0]) }, exit: reason.ExitUnknown, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd1: connection refused"}},
		{name: "not started", nodes: 3, change: func(n []NodeHealth) {
			for i := range n {
				n[i].Members[2].Name = ""
			}
			gone(&n[2])
		}, exit: reason.ExitNo, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd3: connection refused", "health-unhealthy member 3 (http://10.0.0.3:2380) has not been started",
			"warning 2 of 3 voting members are known to be well, as many as the quorum needs"}},
		{name: "two forwardings to one node", nodes: 3, change: func(n []NodeHealth) { n[1].Status.MemberID = 1 }, exit: reason.ExitNo, says: []string{
			"health-member-count etcd1 and etcd2 are the same member m1"}},
		{name: "names as expected", nodes: 3, change: func(n []NodeHealth) { n[0].Member, n[1].Member = "m1", "m2" }},
		{name: "swapped names", nodes: 3, change: func(n []NodeHealth) { n[0].Member, n[1].Member = "m2", "m1" }, exit: reason.ExitNo, says: []string{
			"health-member-count etcd1 is member m1, not m2", "health-member-count etcd2 is member m2, not m1"}},
		{name: "name that is not there", nodes: 3, change: func(n []NodeHealth) { gone(&n[0]); n[0].Member = "mx" }, exit: reason.ExitNo, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd1: connection refused", "health-member-count no member is called mx, which etcd1 should be; there are m1, m2, m3",
			"warning 2 of 3 voting members are known to be well, as many as the quorum needs"}},
		{name: "learner", nodes: 3, change: func(n []NodeHealth) {
			for i := range n {
				n[i].Members[2].IsLearner = true
			}
			n[2].Status.IsLearner = true
		}, says: []string{"warning m3: learners do not vote", "warning 2 voting members bear the loss of 0, no more than 1 would"}},
		{name: "alarms", nodes: 3, change: func(n []NodeHealth) {
			n[0].Alarms = []Alarm{{2, "NOSPACE"}, {3, "CORRUPT"}}
			n[1].Alarms = []Alarm{{2, "NOSPACE"}, {1, "3"}}
		}, exit: reason.ExitNo, says: []string{
			"health-alarm NOSPACE on member m2: its database has reached --quota-backend-bytes, and writes are refused",
			"health-alarm CORRUPT on member m3: its data differs from that of the others", "health-alarm 3 on member m1"}},
		{name: "patch versions", nodes: 3, change: func(n []NodeHealth) { n[1].Version.Server = "3.6.1" }},
		{name: "minor versions", nodes: 3, change: func(n []NodeHealth) { n[1].Version.Server = "3.5.21" }, says: []string{"warning different versions of etcd: 3.6.5 (etcd1, etcd3), 3.5.21 (etcd2)"}},
		{name: "clocks", nodes: 3, change: func(n []NodeHealth) { n[1].Offset, n[2].Offset = -time.Second, 90*time.Second }, says: []string{"warning the clock of etcd3 is 1m31s ahead of that of etcd2"}},
		{name: "clocks near", nodes: 3, change: func(n []NodeHealth) { n[1].Offset = 2 * time.Second }},
		{name: "a part that is not known", nodes: 3, change: func(n []NodeHealth) {
			n[1].Members, n[1].Notes = nil, []string{"cannot read the member list of etcd on etcd2: x"}
		}, exit: reason.ExitUnknown, says: []string{"health-unreadable cannot read the member list of etcd on etcd2: x"}},
		{name: "a no beats an unknown", nodes: 3, change: func(n []NodeHealth) { gone(&n[0]); n[1].Status.ClusterID = 1 }, exit: reason.ExitNo, says: []string{
			"health-unreadable 127.0.0.1:2379 of etcd1: connection refused", "health-split the nodes belong to 2 clusters: 1 (etcd2), abc (etcd3)"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			nodes := cluster(tt.nodes)
			if tt.change != nil {
				tt.change(nodes)
			}
			r := Compare(nodes, tt.want)
			var got []string
			for _, f := range r.Findings {
				code := string(f.Code)
				if f.Warning {
					code = "warning"
				}
				got = append(got, code+" "+f.Message)
			}
			if diff := cmp.Diff(tt.says, got); diff != "" {
				t.Errorf("findings (-want +got):\n%s", diff)
			}
			if got := reason.Exit(r.Err()); got != tt.exit {
				t.Errorf("exit status %d by %v, want %d", got, r.Err(), tt.exit)
			}
			if err := r.Err(); err != nil && strings.Count(err.Error(), reason.Lookup(reason.Of(err)).Title) != 1 {
				t.Errorf("title is not there once: %v", err)
			}
		})
	}
}
