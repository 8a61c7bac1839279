// Package health asks etcd itself what systemd cannot know: whether the members
// form one cluster, have one leader, a quorum, and no alarm.
//
// Asking and judging are apart. Ask talks to one etcd over a connection that
// the caller makes, usually a channel through SSH to the node's loopback
// address. Compare is pure and judges what all of them answered. Check does
// both, and again while a young cluster still elects its leader.
package health

import (
	"context"
	"net"
	"sync"
	"time"

	"cks-etcd/internal/reason"
)

// DefaultAddr is where the etcd.service that CloudStack writes answers clients
// on its own machine.
const DefaultAddr = "127.0.0.1:2379"

const (
	// askTimeout bounds all requests to one etcd. Without a quorum /health fails
	// after etcd's own request timeout, 5 s plus two election timeouts, by default
	// 7 s, and the other requests need time too.
	askTimeout = 15 * time.Second
	// parallel bounds the nodes that are asked at once.
	parallel = 64
	// again is the wait until a cluster that is not well is asked again: twice
	// etcd's default election timeout.
	again = 2 * time.Second
)

// A DialFunc opens a connection to addr, "host:port", as seen from the node.
type DialFunc func(ctx context.Context, addr string) (net.Conn, error)

// A Target is one etcd to ask.
type Target struct {
	Name   string // the node's, for messages
	Member string // name that its etcd member must have; "" any
	Addr   string // of etcd as seen from the node; "": DefaultAddr
	Host   string // address or name of the node itself; its certificate may carry it instead of the loopback address
	Dial   DialFunc

	// Clock is the node's clock at the moment At of ours; zero: unknown.
	Clock, At time.Time
}

// A Version is what /version says.
type Version struct {
	Server  string // "3.6.5"
	Cluster string // "3.6.0", or "not_decided"
}

// A Status is what etcdserverpb.StatusResponse says about one member.
type Status struct {
	ClusterID uint64
	MemberID  uint64 // of the member that answered
	Leader    uint64 // member ID; 0: it knows no leader
	RaftTerm  uint64
	RaftIndex uint64
	IsLearner bool
	DBSize    uint64   // bytes
	Errors    []string // printable lines
}

// A Member is one entry of etcdserverpb.MemberListResponse.
type Member struct {
	ID         uint64
	Name       string // "" until it was started for the first time
	PeerURLs   []string
	ClientURLs []string
	IsLearner  bool
}

// An Alarm is one entry of etcdserverpb.AlarmResponse.
type Alarm struct {
	MemberID uint64
	Type     string // "NOSPACE", "CORRUPT", or one that a newer etcd has
}

// A NodeHealth is what one etcd answered. Each part that could not be had is
// nil, and its error says why.
type NodeHealth struct {
	Name   string // as in Target
	Member string // as in Target

	// Err says that etcd could not be asked at all. Its code is
	// health-unreadable, or that of the connection.
	Err error

	Healthy   *bool  // /health; nil: not known
	HealthWhy string // the reason that /health gives
	Version   *Version
	Status    *Status
	Members   []Member // nil: not known
	Alarms    []Alarm  // nil: not known
	Notes     []string // parts that could not be had, one line each

	Offset      time.Duration // the node's clock minus ours
	OffsetKnown bool
}

// Options of Ask and Check. The zero value asks without TLS.
type Options struct {
	TLS     *TLS          // nil: plain HTTP
	Timeout time.Duration // for all requests to one etcd; 0 or less: 15 s
	// Settle is how long Check may ask again while the answer is not well but may
	// become so by itself; 0: it asks once.
	Settle time.Duration
}

// AskAll asks all targets side by side and returns the answers in their order.
func AskAll(ctx context.Context, targets []Target, o Options) []NodeHealth {
	out := make([]NodeHealth, len(targets))
	slots := make(chan struct{}, parallel)
	var asks sync.WaitGroup
	for i, t := range targets {
		asks.Go(func() {
			select {
			case slots <- struct{}{}:
				defer func() { <-slots }()
				out[i] = Ask(ctx, t, o)
			case <-ctx.Done():
				out[i] = NodeHealth{Name: t.Name, Member: t.Member, Err: reason.New(reason.HealthUnreadable, "%s was not asked: %w", t.Name, context.Cause(ctx))}
			}
		})
	}
	asks.Wait()
	return out
}

// Check asks all targets and compares their answers. While the result has a
// problem that may pass by itself, it asks again every 2 s until o.Settle is
// over or ctx ends, since members are active in systemd's eyes before they have
// elected a leader (B59).
func Check(ctx context.Context, targets []Target, o Options, want Expect) Result {
	until := time.Now().Add(o.Settle)
	r := Compare(AskAll(ctx, targets, o), want)
	for r.mayPass() && time.Until(until) >= again {
		t := time.NewTimer(again)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return r
		}
		next := Compare(AskAll(ctx, targets, o), want)
		if ctx.Err() != nil { // its answers were cut short
			return r
		}
		r = next
	}
	return r
}
