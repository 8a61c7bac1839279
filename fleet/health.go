package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/health"
	"cks-etcd/internal/inventory"
	"cks-etcd/internal/poll"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/sshnode"
)

// healthSettle is how long etcd may take to become healthy after it was seen
// active on every node: systemd calls a member active before it has a leader.
const healthSettle = 30 * time.Second

const (
	// healthOver is how far past the deadline etcd may be asked: nodes that were
	// undecided at the deadline leave no time before it.
	healthOver = 500 * time.Millisecond
	// healthPast is how long etcd may take when the deadline was past before the
	// first look.
	healthPast = 5 * time.Second
)

// healthOptions are the flags about asking etcd itself.
type healthOptions struct {
	on            bool
	port          int
	members       int
	ca, cert, key string
}

func healthFlags(o *healthOptions) []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "health", Usage: "ask etcd itself, too: health, leader, members, alarms", Destination: &o.on},
		&cli.IntFlag{Name: "health-port", Usage: "`PORT` etcd's client port on the node's 127.0.0.1", Value: 2379, DefaultText: "2379", Destination: &o.port},
		&cli.IntFlag{Name: "health-members", Usage: "`N` members that the cluster must have", DefaultText: "the number of hosts", Destination: &o.members},
		&cli.StringFlag{Name: "health-ca", Usage: "`FILE` CA of etcd's certificate; with it TLS is used", Destination: &o.ca, DefaultText: "none"},
		&cli.StringFlag{Name: "health-cert", Usage: "`FILE` client certificate", Destination: &o.cert, DefaultText: "none"},
		&cli.StringFlag{Name: "health-key", Usage: "`FILE` key of the client certificate", Destination: &o.key, DefaultText: "none"},
	}
}

// A healthAsker asks etcd on the nodes. Nil: it was not wanted.
type healthAsker struct {
	o    healthOptions
	tls  *health.TLS
	once bool // do not wait for etcd to become healthy
}

func (o healthOptions) asker() (*healthAsker, error) {
	tls := o.ca != "" || o.cert != "" || o.key != ""
	switch {
	case !o.on && tls:
		return nil, reason.New(reason.Usage, "--health-ca, --health-cert and --health-key need --health")
	case !o.on:
		return nil, nil
	case o.members < 0:
		return nil, reason.New(reason.Usage, "--health-members %d is below 0", o.members)
	case o.port < 1 || o.port > 65535:
		return nil, reason.New(reason.Usage, "--health-port %d is not a port", o.port)
	}
	a := &healthAsker{o: o}
	if tls {
		var err error
		if a.tls, err = health.LoadTLS(o.ca, o.cert, o.key); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// ask asks etcd on every active node, through the connections that the looks
// left open, until all is well or until healthSettle or the deadline is over.
// A node that is not active has its reason already, and no etcd to ask. began
// is when the first look was taken.
func (a *healthAsker) ask(ctx context.Context, began, deadline time.Time, hosts []inventory.Host, ssh []*sshnode.Node, verdicts []poll.Verdict) (*report.HealthResult, []string) {
	members := a.o.members
	if members <= 0 {
		members = len(hosts)
	}
	var targets []health.Target
	for i, v := range verdicts {
		if v.Code != reason.Ready {
			continue
		}
		t := health.Target{
			Name: v.Node, Member: v.Member, Addr: fmt.Sprintf("127.0.0.1:%d", a.o.port), Host: hosts[i].Addr, Dial: ssh[i].Forward,
		}
		if v.Last != nil {
			t.Clock, t.At = v.Last.Clock, v.Last.At
		}
		targets = append(targets, t)
	}
	if len(targets) == 0 {
		return &report.HealthResult{
			Verdict: "unknown", Code: reason.HealthUnreadable, Message: "etcd was not asked: it is active on no node", MembersExpected: members,
		}, nil
	}
	settle := healthSettle
	if a.once {
		settle = 0
	}
	if !deadline.IsZero() {
		settle = max(0, min(settle, time.Until(deadline)))
		end := deadline.Add(healthOver)
		if !deadline.After(began) {
			end = time.Now().Add(healthPast)
		}
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end)
		defer cancel()
	}
	r := health.Check(ctx, targets, health.Options{TLS: a.tls, Settle: settle}, health.Expect{Members: members})
	return healthOf(r, members)
}

// healthOf gives what etcd said its published form. Findings that are not
// problems are warnings.
func healthOf(r health.Result, members int) (out *report.HealthResult, warnings []string) {
	err := r.Err()
	out = &report.HealthResult{
		Verdict: "healthy", Code: reason.Of(err), ClusterID: r.ClusterID, Leader: r.Leader,
		Version: strings.Join(r.Versions, ", "), MembersExpected: members, MembersFound: r.Members, MembersHealthy: r.Healthy,
	}
	switch {
	case err == nil:
	case reason.Lookup(out.Code).Class == reason.Unknown:
		out.Verdict, out.Message, out.Hint = "unknown", err.Error(), reason.HintOf(err)
	default:
		out.Verdict, out.Message, out.Hint = "unhealthy", err.Error(), reason.HintOf(err)
	}
	for _, f := range r.Findings {
		message := f.Message
		if f.Node != "" && !strings.Contains(message, f.Node) {
			message = f.Node + ": " + message
		}
		if f.Warning {
			warnings = append(warnings, message)
			continue
		}
		out.Problems = append(out.Problems, report.Problem{Code: f.Code, Message: message, Hint: f.Hint})
	}
	for _, n := range r.Nodes {
		out.Members = append(out.Members, memberOf(n))
	}
	return out, warnings
}

// memberOf gives what one etcd said its published form.
func memberOf(n health.NodeHealth) report.HealthMember {
	m := report.HealthMember{Node: n.Name, Member: n.Member, Healthy: n.Healthy, Code: reason.Of(n.Err)}
	if n.Err != nil {
		m.Message = n.Err.Error()
	}
	if n.Version != nil {
		m.Version = n.Version.Server
	}
	if s := n.Status; s != nil {
		m.MemberID, m.ClusterID = fmt.Sprintf("%x", s.MemberID), fmt.Sprintf("%x", s.ClusterID)
		m.Leader, m.Learner = s.Leader == s.MemberID && s.Leader != 0, s.IsLearner
		size := int64(s.DBSize)
		m.DBBytes = &size
		for _, member := range n.Members {
			if member.ID == s.MemberID {
				m.Member = member.Name
			}
		}
		for _, a := range n.Alarms {
			if a.MemberID == s.MemberID {
				m.Alarms = append(m.Alarms, a.Type)
			}
		}
	}
	if n.OffsetKnown {
		offset := n.Offset.Seconds()
		m.ClockOffset = &offset
	}
	return m
}
