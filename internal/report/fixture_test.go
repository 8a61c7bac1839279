package report

import (
	"fmt"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func after(s float64) time.Time { return began.Add(time.Duration(s * float64(time.Second))) }

func ptr[T any](v T) *T { return &v }

func ready(name string, since float64) NodeResult {
	return NodeResult{
		Node: name, State: "active", Code: reason.Ready, Checks: 2, Want: 2, Since: ptr(after(since)),
		Started: began, Ended: after(7), Probes: 2, Handshakes: 1,
		Last: &Observation{At: after(7), Hostname: "etcd", BootID: "b1", CloudInit: "done", EtcdVersion: "3.5.21",
			Unit: map[string]string{"ActiveState": "active", "SubState": "running", "Result": "success"}},
	}
}

func failed(name, state string, code reason.Code, message string) NodeResult {
	return NodeResult{Node: name, State: state, Code: code, Message: message, Want: 2, Since: ptr(after(1)), Started: began, Ended: after(9), Probes: 1}
}

const missing = "etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO in /dev/sr0"

// hostile is text that a node may send to spoil a terminal, a table or a file.
const hostile = "\x1b]0;owned\x07\x1b[2J\x1b[31mred\r\nactive 2/2\x00\u202egnp\u009b1A\xff</failure>]]>&\"'\ufffe\U0001f600"

// foldTest stands for inventory.FoldNames: digits in the middle of equal names.
func foldTest(names []string) string {
	const mark = "\x00"
	var digits []string
	form := ""
	for _, n := range names {
		i := strings.IndexAny(n, "0123456789")
		if i < 0 {
			return strings.Join(names, ",")
		}
		j := i
		for j < len(n) && n[j] >= '0' && n[j] <= '9' {
			j++
		}
		f := n[:i] + mark + n[j:]
		if form != "" && f != form {
			return strings.Join(names, ",")
		}
		form = f
		digits = append(digits, n[i:j])
	}
	return strings.Replace(form, mark, "["+digits[0]+"-"+digits[len(digits)-1]+"]", 1)
}

// reports are runs that ended in every way.
func reports() map[string]Report {
	base := func(exit int, nodes ...NodeResult) Report {
		return Report{Command: "nodes wait", Exit: exit, Started: began, Ended: after(10), Deadline: ptr(after(600)), DeadlineBy: "--timeout 10m", Nodes: nodes}
	}
	out := map[string]Report{}
	out["issue"] = base(reason.ExitNo,
		NodeResult{Node: "203.0.113.10:50000", State: "active", Code: reason.Ready, Checks: 2, Want: 2, Since: ptr(after(-4)), Started: began, Ended: after(7)},
		NodeResult{Node: "203.0.113.10:50001", State: "active", Code: reason.Ready, Checks: 2, Want: 2, Since: ptr(after(-5)), Started: began, Ended: after(7)},
		failed("203.0.113.10:50002", "failed", reason.ArchiveMissing, missing))
	out["success"] = base(reason.ExitYes, ready("etcd1.example", -60), ready("etcd2.example", -3700), ready("etcd3.example", -90000))

	folded := base(reason.ExitNo, ready("etcd4.example", 0))
	for i := 1; i <= 3; i++ {
		folded.Nodes = append(folded.Nodes, failed(fmt.Sprintf("etcd%d.example", i), "failed", reason.ArchiveMissing, missing))
	}
	for i := 5; i <= 6; i++ {
		n := fmt.Sprintf("etcd%d.example", i)
		folded.Nodes = append(folded.Nodes, failed(n, "unreachable", reason.NodeUnreachable, "node cannot be reached: dial tcp "+n+":22: connection refused"))
	}
	folded.Warnings = []string{"etcd1.example was named twice"}
	out["folded"] = folded

	deadline := base(reason.ExitDeadline, ready("etcd1", -9), failed("etcd2", "undecided", reason.Undecided, "undecided at the deadline: activating (auto-restart)"))
	deadline.Ended = after(600)
	out["deadline"] = deadline

	interrupted := base(reason.ExitInterrupted, ready("etcd1", -9), failed("etcd2", "activating", reason.Interrupted, "interrupted: last seen activating"))
	interrupted.Problem = &Problem{Code: reason.Interrupted, Message: "interrupted"}
	out["interrupted"] = interrupted

	none := base(reason.ExitUsage)
	none.Ended = began
	none.Problem = &Problem{Code: reason.NoNodes, Message: "no nodes: the inventory's group \"a\" is empty"}
	none.Deadline = nil
	out["none"] = none

	failfast := base(reason.ExitNo, failed("etcd1", "failed", reason.UnitFailed, "etcd failed: exit status 1"), failed("etcd2", "waiting", reason.Undecided, "not looked at"))
	out["failfast"] = failfast

	split := base(reason.ExitNo, ready("etcd1", -9), ready("etcd2", -9))
	split.Health = &HealthResult{
		Verdict: "unhealthy", Code: reason.HealthSplit, Message: "etcd members do not form one cluster: etcd1 has 1a, etcd2 has 2b",
		Version: "3.5.21", MembersExpected: 2, MembersFound: 2, MembersHealthy: 1,
		Problems: []Problem{{Code: reason.HealthSplit, Message: "etcd members do not form one cluster: etcd1 has 1a, etcd2 has 2b"}, {Code: reason.HealthMemberCount, Message: "an even number of members tolerates no more failures than one less"}},
		Members: []HealthMember{
			{Node: "etcd1", Member: "m1", MemberID: "8e9e", ClusterID: "1a", Healthy: ptr(true), Leader: true, DBBytes: ptr(int64(20480)), ClockOffset: ptr(0.25), Code: reason.Ready},
			{Node: "etcd2", Code: reason.HealthUnreadable, Message: "etcd cannot be asked: connection refused"},
		},
	}
	out["health"] = split

	evil := base(reason.ExitNo, failed("etcd1"+hostile, "failed"+hostile, reason.SetupFailed, hostile+strings.Repeat("x", 5000)))
	evil.Nodes[0].Member, evil.Nodes[0].Group, evil.Nodes[0].Hint = hostile, hostile, hostile
	evil.Nodes[0].Last = &Observation{At: after(1), Hostname: hostile, BootID: hostile, CloudInit: hostile, Marker: hostile, EtcdVersion: hostile, Unit: map[string]string{"ActiveState": hostile, hostile: "x"}}
	evil.Warnings = []string{hostile}
	evil.DeadlineBy = hostile
	evil.Problem = &Problem{Code: reason.Internal, Message: hostile, Hint: hostile}
	evil.Health = &HealthResult{Verdict: hostile, Code: reason.HealthAlarm, Message: hostile, Leader: hostile, ClusterID: hostile, Version: hostile,
		Members: []HealthMember{{Node: hostile, Member: hostile, Alarms: []string{hostile}, Message: hostile, Code: reason.HealthAlarm}}}
	out["hostile"] = evil

	many := base(reason.ExitNo)
	for i := 1; i <= 500; i++ {
		n := fmt.Sprintf("etcd%d.example", i)
		if i%100 == 0 {
			many.Nodes = append(many.Nodes, failed(n, "flapping", reason.UnitFlapping, fmt.Sprintf("etcd keeps restarting: %d times in 30 s", i)))
		} else {
			many.Nodes = append(many.Nodes, ready(n, -100))
		}
	}
	out["many"] = many
	return out
}
