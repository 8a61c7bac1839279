package health

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// maxSkew is how far the clocks of two nodes may be apart. etcd itself warns
// from 1 s on; a look over SSH can be off by another second on a busy machine.
const maxSkew = 2 * time.Second

// Expect says what the cluster should be like. The zero value expects as many
// members as there are nodes.
type Expect struct {
	Members int // 0 or less: the number of nodes
}

// A Finding is one thing that is not as it should be.
type Finding struct {
	Code    reason.Code // "" for a warning
	Node    string      // "" the cluster
	Message string      // one line, without the code's title
	Hint    string      // "" for a warning
	Warning bool        // it does not change the exit status
}

// A Result is what the answers of all nodes amount to.
type Result struct {
	Findings  []Finding // problems first, then warnings
	ClusterID string    // as etcd prints it, in hex; "" unknown or more than one
	Leader    string    // name of the leading member, else its ID; "" unknown or none
	Members   int       // in the member list; 0 unknown
	Voters    int       // of them
	Healthy   int       // nodes whose /health said true
	Versions  []string  // distinct server versions, in the order of the nodes
	Nodes     []NodeHealth
}

// Err returns the most definite problem, nil when there is none.
func (r Result) Err() error {
	var err error
	exit := reason.ExitYes
	for _, f := range r.Findings {
		if f.Warning {
			continue
		}
		e := &reason.Error{Code: f.Code, Err: fmt.Errorf("%s", f.Message), Hint: f.Hint}
		if x := reason.Lookup(f.Code).Exit; err == nil || reason.Worst(exit, x) != exit {
			err, exit = e, x
		}
	}
	return err
}

// mayPass reports whether some problem may pass by itself: an election or a
// member that is starting, which also shows as members that disagree.
func (r Result) mayPass() bool {
	for _, f := range r.Findings {
		switch f.Code {
		case reason.HealthUnhealthy, reason.HealthNoQuorum, reason.HealthSplit, reason.HealthUnreadable:
			return true
		}
	}
	return false
}

// Compare judges the answers of all nodes together. What could not be asked is
// unknown, and never a no.
func Compare(nodes []NodeHealth, want Expect) Result {
	if want.Members <= 0 {
		want.Members = len(nodes)
	}
	c := &comparison{nodes: nodes, names: make(map[uint64]string)}
	c.result.Nodes = nodes
	for _, n := range nodes {
		for _, m := range n.Members {
			if m.Name != "" {
				c.names[m.ID] = m.Name
			}
		}
	}
	c.readable()
	c.identity()
	one := c.oneCluster()
	c.leader(one)
	if one {
		c.members(want)
	}
	c.alarms()
	c.versions()
	c.clocks()
	slices.SortStableFunc(c.result.Findings, func(a, b Finding) int {
		switch {
		case a.Warning == b.Warning:
			return 0
		case a.Warning:
			return 1
		}
		return -1
	})
	return c.result
}

// A comparison is a Result that is being made.
type comparison struct {
	nodes  []NodeHealth
	names  map[uint64]string // of members
	result Result
}

// problem adds a finding. node is "" for the cluster.
func (c *comparison) problem(code reason.Code, node, format string, args ...any) {
	c.result.Findings = append(c.result.Findings, Finding{
		Code: code, Node: node, Message: reason.Line(fmt.Sprintf(format, args...)), Hint: reason.Lookup(code).Hint,
	})
}

// warn adds a warning.
func (c *comparison) warn(node, format string, args ...any) {
	c.result.Findings = append(c.result.Findings, Finding{Node: node, Message: reason.Line(fmt.Sprintf(format, args...)), Warning: true})
}

// untitled returns the message of err without the title of health-unreadable,
// which a finding has by its code.
func untitled(err error) string {
	var e *reason.Error
	if errors.As(err, &e) && e.Code == reason.HealthUnreadable && e.Err != nil {
		err = e.Err
	}
	return reason.Line(err.Error())
}

// name returns the name of a member, or its ID as etcd prints it.
func (c *comparison) name(id uint64) string {
	if n := c.names[id]; n != "" {
		return n
	}
	return hex(id)
}

// hex gives an ID as etcdctl does.
func hex(id uint64) string { return fmt.Sprintf("%x", id) }

// readable reports what could not be asked, and who is not healthy.
func (c *comparison) readable() {
	for _, n := range c.nodes {
		if n.Err != nil {
			c.result.Findings = append(c.result.Findings, Finding{
				Code: reason.HealthUnreadable, Node: n.Name, Message: untitled(n.Err), Hint: reason.HintOf(n.Err),
			})
			continue
		}
		for _, note := range n.Notes {
			c.problem(reason.HealthUnreadable, n.Name, "%s", note)
		}
		switch {
		case n.Healthy == nil:
		case *n.Healthy:
			c.result.Healthy++
		case n.explained():
		case n.HealthWhy != "":
			c.problem(reason.HealthUnhealthy, n.Name, "%s: etcd says %s", n.Name, n.HealthWhy)
		default:
			c.problem(reason.HealthUnhealthy, n.Name, "%s: etcd says that it is not healthy", n.Name)
		}
	}
}

// explained reports whether another finding says why n is not healthy: an
// alarm, or that it knows no leader.
func (n NodeHealth) explained() bool {
	return strings.HasPrefix(n.HealthWhy, "ALARM") && len(n.Alarms) > 0 ||
		n.HealthWhy == "RAFT NO LEADER" && n.Status != nil && n.Status.Leader == 0
}

// identity checks that every node answers as the member it should be, and that
// no two are the same one: two port forwardings can lead to one node.
func (c *comparison) identity() {
	type id struct{ cluster, member uint64 }
	first := make(map[id]string)
	for _, n := range c.nodes {
		if n.Status == nil {
			continue
		}
		k := id{n.Status.ClusterID, n.Status.MemberID}
		if other, twice := first[k]; twice {
			c.problem(reason.HealthMemberCount, n.Name, "%s and %s are the same member %s", other, n.Name, c.name(k.member))
			continue
		}
		first[k] = n.Name
		if name := c.names[k.member]; n.Member != "" && name != "" && name != n.Member {
			c.problem(reason.HealthMemberCount, n.Name, "%s is member %s, not %s", n.Name, name, n.Member)
		}
	}
}

// groups sorts the nodes that say key into one group per value, in order of
// appearance.
func (c *comparison) groups(key func(NodeHealth) (string, bool)) (order []string, nodes map[string][]string) {
	nodes = make(map[string][]string)
	for _, n := range c.nodes {
		k, ok := key(n)
		if !ok {
			continue
		}
		if nodes[k] == nil {
			order = append(order, k)
		}
		nodes[k] = append(nodes[k], n.Name)
	}
	return order, nodes
}

// list words groups: "a (etcd1, etcd2), b (etcd3)".
func list(order []string, nodes map[string][]string) string {
	var parts []string
	for _, k := range order {
		parts = append(parts, fmt.Sprintf("%s (%s)", k, strings.Join(nodes[k], ", ")))
	}
	return strings.Join(parts, ", ")
}

// oneCluster checks that all have one cluster ID.
func (c *comparison) oneCluster() bool {
	order, nodes := c.groups(func(n NodeHealth) (string, bool) {
		if n.Status == nil {
			return "", false
		}
		return hex(n.Status.ClusterID), true
	})
	switch len(order) {
	case 0:
		return false
	case 1:
		c.result.ClusterID = order[0]
		return true
	}
	c.problem(reason.HealthSplit, "", "the nodes belong to %d clusters: %s", len(order), list(order, nodes))
	return false
}

// leader checks that all who answer follow one leader. Whether there is a
// quorum follows from that: without one, nobody knows a leader for longer than
// an election timeout.
func (c *comparison) leader(one bool) {
	var without []string
	order, nodes := c.groups(func(n NodeHealth) (string, bool) {
		if n.Status == nil {
			return "", false
		}
		if n.Status.Leader == 0 {
			without = append(without, n.Name)
			return "", false
		}
		return c.name(n.Status.Leader), true
	})
	switch {
	case len(order) == 0 && len(without) > 0:
		c.problem(reason.HealthNoQuorum, "", "no leader is known to %s", strings.Join(without, ", "))
		return
	case len(order) > 1 && one:
		c.problem(reason.HealthSplit, "", "the nodes follow %d leaders: %s", len(order), list(order, nodes))
	case len(order) == 1 && one:
		c.result.Leader = order[0]
	}
	for _, n := range without {
		c.problem(reason.HealthUnhealthy, n, "%s knows no leader; others follow %s", n, list(order, nodes))
	}
}

// members checks the member list of the one cluster.
func (c *comparison) members(want Expect) {
	order, nodes := c.groups(func(n NodeHealth) (string, bool) {
		if n.Members == nil {
			return "", false
		}
		ids := make([]string, 0, len(n.Members))
		for _, m := range n.Members {
			ids = append(ids, hex(m.ID))
		}
		slices.Sort(ids)
		return strings.Join(ids, " "), true
	})
	if len(order) == 0 {
		return
	}
	if len(order) > 1 {
		c.problem(reason.HealthSplit, "", "the nodes know different members: %s", list(order, nodes))
		return
	}
	members := c.memberList()
	var learners, found []string
	for _, m := range members {
		switch {
		case m.Name == "":
			c.problem(reason.HealthUnhealthy, "", "member %s (%s) has not been started", hex(m.ID), strings.Join(m.PeerURLs, ", "))
		default:
			found = append(found, m.Name)
		}
		if m.IsLearner {
			learners = append(learners, c.name(m.ID))
		}
	}
	c.result.Members, c.result.Voters = len(members), len(members)-len(learners)
	if len(members) != want.Members {
		c.problem(reason.HealthMemberCount, "", "%d members (%s), expected %d", len(members), strings.Join(c.allNames(members), ", "), want.Members)
	}
	for _, n := range c.nodes {
		if n.Member != "" && !slices.Contains(found, n.Member) {
			c.problem(reason.HealthMemberCount, n.Name, "no member is called %s, which %s should be; there are %s", n.Member, n.Name, strings.Join(found, ", "))
		}
	}
	if len(learners) > 0 {
		c.warn("", "%s: learners do not vote", strings.Join(learners, ", "))
	}
	if v := c.result.Voters; v > 0 && v%2 == 0 {
		c.warn("", "%d voting members bear the loss of %d, no more than %d would", v, (v-1)/2, v-1)
	}
	c.quorum()
}

// memberList returns the member list of a node that has one, with the names
// that any node knows.
func (c *comparison) memberList() []Member {
	for _, n := range c.nodes {
		if n.Members == nil {
			continue
		}
		out := slices.Clone(n.Members)
		for i := range out {
			out[i].Name = c.names[out[i].ID]
		}
		return out
	}
	return nil
}

func (c *comparison) allNames(members []Member) []string {
	var out []string
	for _, m := range members {
		out = append(out, c.name(m.ID))
	}
	return out
}

// quorum warns when a quorum hangs on every member that is well. That there is
// none shows in the leader.
func (c *comparison) quorum() {
	need := c.result.Voters/2 + 1
	well := 0
	for _, n := range c.nodes {
		if n.Status != nil && !n.Status.IsLearner && n.Status.Leader != 0 && n.Healthy != nil && *n.Healthy {
			well++
		}
	}
	if well == need && well < c.result.Voters {
		c.warn("", "%d of %d voting members are known to be well, as many as the quorum needs", well, c.result.Voters)
	}
}

// alarms reports every alarm once.
func (c *comparison) alarms() {
	seen := make(map[Alarm]bool)
	for _, n := range c.nodes {
		for _, a := range n.Alarms {
			if seen[a] {
				continue
			}
			seen[a] = true
			switch a.Type {
			case "NOSPACE":
				c.problem(reason.HealthAlarm, "", "NOSPACE on member %s: its database has reached --quota-backend-bytes, and writes are refused", c.name(a.MemberID))
			case "CORRUPT":
				c.problem(reason.HealthAlarm, "", "CORRUPT on member %s: its data differs from that of the others", c.name(a.MemberID))
			default:
				c.problem(reason.HealthAlarm, "", "%s on member %s", a.Type, c.name(a.MemberID))
			}
		}
	}
}

// versions warns of servers that are not of one minor version.
func (c *comparison) versions() {
	order, nodes := c.groups(func(n NodeHealth) (string, bool) {
		if n.Version == nil {
			return "", false
		}
		return n.Version.Server, true
	})
	minors := make(map[string]bool)
	for _, v := range order {
		parts := strings.SplitN(v, ".", 3)
		minors[parts[0]+"."+parts[1]] = true
	}
	if len(minors) > 1 {
		c.warn("", "different versions of etcd: %s", list(order, nodes))
	}
	c.result.Versions = order
}

// clocks warns of nodes whose clocks are too far apart.
func (c *comparison) clocks() {
	var lo, hi *NodeHealth
	for i := range c.nodes {
		n := &c.nodes[i]
		if !n.OffsetKnown {
			continue
		}
		if lo == nil || n.Offset < lo.Offset {
			lo = n
		}
		if hi == nil || n.Offset > hi.Offset {
			hi = n
		}
	}
	if lo == nil || hi.Offset-lo.Offset <= maxSkew {
		return
	}
	c.warn("", "the clock of %s is %s ahead of that of %s", hi.Name, (hi.Offset - lo.Offset).Round(100*time.Millisecond), lo.Name)
}
