// Package poll looks at many nodes side by side until each has a verdict: etcd
// active, a reason why not, or undecided when the deadline passes.
//
// What a look means is decided by a judge, which is pure; when to look is
// decided by a watch, one goroutine a node. Run owns both and is the only one
// that reports.
package poll

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/stability"
)

// Defaults of Options.
const (
	// DefaultInterval exceeds the RestartSec=5 of the etcd.service that CloudStack
	// writes, so that no crash fits between two checks unseen.
	DefaultInterval = 6 * time.Second
	// DefaultDials bounds the sockets and key exchanges that are open at once; a
	// key exchange costs about a millisecond of CPU time on either side.
	DefaultDials = 64
)

const (
	// leastGrace is how long a refused login may be the fault of a node that
	// boots: sshd answers before cloud-init has written the keys, and pam_nologin
	// refuses everybody until the boot is over (B42).
	leastGrace = 30 * time.Second
	// flapPatience is how long a service that keeps restarting may take to settle.
	// A member flaps until its address is up or its peers can be reached, which
	// other nodes that boot at the same time need about a minute for.
	flapPatience = 2 * time.Minute
	// firstBackoff and lastBackoff bound the wait after a failed connection.
	firstBackoff = time.Second
	lastBackoff  = 10 * time.Second
	// jitter is the part of the interval by which it is lengthened at random, and
	// backoffJitter that by which a wait is shortened: a thousand nodes that were
	// first looked at in one moment drift apart.
	jitter        = 0.1
	backoffJitter = 0.25
	// pastLook is how long the one look takes at most that is made when the
	// deadline is already past.
	pastLook = 5 * time.Second
	// abandonAfter is how long a look may go on after its context ended, and once
	// more after its node was closed. Twice this is well below the second by which
	// a deadline may be missed.
	abandonAfter = 300 * time.Millisecond
)

// A Prober looks at one node. *sshnode.Node is one.
type Prober interface {
	// Probe takes one look. It connects when needed, and returns soon after ctx ended.
	Probe(ctx context.Context) (sshnode.Observation, error)
	// Connected reports whether the next Probe has a connection already.
	Connected() bool
	// LoggedIn reports whether a login ever succeeded.
	LoggedIn() bool
	// AllowHostKeyChange says whether the host key may still change.
	AllowHostKeyChange(bool)
	// Close ends the connection, and with it a Probe that is under way.
	Close() error
}

var _ Prober = (*sshnode.Node)(nil)

// A Node is one node to look at.
type Node struct {
	Name   string // as in events and verdicts
	Member string // name of its etcd member, for the verdict; "" not given
	Prober Prober
}

// Options of Run. The zero value looks until every node has a verdict.
type Options struct {
	Checks   int           // active checks in a row for active; below 1: 2
	Interval time.Duration // wait between two looks at a node; 0 or less: DefaultInterval. Checks that count are 6 s apart also when it is shorter
	// BootGrace is how long a host key may change before the first login, and a
	// login may be refused. For logins it is 30 s at least.
	BootGrace time.Duration
	Deadline  time.Time // when what is undecided stays so; zero: never. When it is past, one short look is taken
	Why       string    // what the deadline is, for messages: "the timeout of 10m0s"; "" nothing more to say
	Dials     int       // connections that are being made at once; below 1: DefaultDials
	FailFast  bool      // the first node that has a verdict other than active ends the looks at all others
	Once      bool      // one look at each node, and a verdict by that
	// Rand returns random numbers in [0, 1), and is called by several goroutines.
	// Nil: math/rand/v2.
	Rand func() float64
}

// withDefaults returns o with its zero fields filled in.
func (o Options) withDefaults() Options {
	if o.Once {
		o.Checks = 1
	}
	if o.Checks < 1 {
		o.Checks = stability.DefaultChecks
	}
	if o.Interval <= 0 {
		o.Interval = DefaultInterval
	}
	if o.Dials < 1 {
		o.Dials = DefaultDials
	}
	if o.Rand == nil {
		o.Rand = rand.Float64
	}
	return o
}

// grace is how long a refused login may be the fault of a boot.
func (o Options) grace() time.Duration { return max(o.BootGrace, leastGrace) }

// A State is what a node is like, in a word.
type State string

// States of a node.
const (
	StateWaiting    State = "waiting"    // not looked at yet; has no event
	StateConnecting State = "connecting" // the first look is under way
	StateBooting    State = "booting"    // cloud-init or a setup is under way
	StateInactive   State = "inactive"   // the unit is there and does not run
	StateActivating State = "activating" // the unit is starting, stopping, or waits for its restart
	StateActive     State = "active"     // the unit runs; as a verdict: it does for good
	StateFlapping   State = "flapping"   // the unit restarts again and again
	StateFailed     State = "failed"     // the setup or the unit failed
	StateNotSetUp   State = "not-set-up" // there is no unit, and nothing that will make one

	StateUnreachable    State = "unreachable"
	StateAuthRefused    State = "auth-refused"
	StateHostKeyChanged State = "host-key-changed"
	StateUnknown        State = "unknown" // another reason why nothing is known

	StateUndecided State = "undecided" // a verdict only: the looks ended before it was clear
)

// An Event is a change of what is known about a node: of its state, its code,
// its checks, or the kind of its message. Messages that differ in numbers alone
// are of one kind. Within one state no kind is told twice.
type Event struct {
	At      time.Time
	Node    string
	Index   int // of the node in Run's argument
	State   State
	Since   time.Time   // when it came to State
	Code    reason.Code // what the verdict would be if it stayed like this; "" nothing is wrong yet
	Checks  int         // active checks in a row
	Want    int         // that are needed
	Message string      // one line; "" while connecting
	Final   bool        // it is the verdict's
}

// A Verdict is what the looks at a node came to.
type Verdict struct {
	Node    string
	Member  string // as given in Node
	State   State
	Code    reason.Code // Ready for active
	Class   reason.Class
	Message string    // one line that names the cause
	Hint    string    // what to do next
	Checks  int       // active checks in a row
	Want    int       // that were needed
	Since   time.Time // when it came to State
	Started time.Time // of the looks at all nodes
	Ended   time.Time // when the verdict was found
	Looks   int       // that were taken, failed ones included
	// Last is the last look that succeeded, nil when none did.
	Last *sshnode.Observation
}

// Causes of the end of a watch, other than the caller's.
var errDeadline = errors.New("the deadline passed")

// A stopError is the cause of the end of all other watches under FailFast.
type stopError struct{ node string }

func (e *stopError) Error() string { return "stopped because " + e.node + " failed" }

// An update is what a watch has to say.
type update struct {
	index   int
	event   Event
	verdict *Verdict // it is over
}

// Run looks at all nodes side by side and returns a verdict for each, in their
// order. It calls events, which may be nil and must not block, from its own
// goroutine only. When ctx is cancelled, every node that has no verdict gets
// the code interrupted.
//
// When Run returns, the goroutines it started have ended. One exception keeps
// the deadline: a Probe that neither its context nor Close ends is left behind.
// Such a node was closed; others are left open, to be asked more.
func Run(ctx context.Context, nodes []Node, o Options, events func(Event)) []Verdict {
	o = o.withDefaults()
	started := time.Now()
	past := !o.Deadline.IsZero() && !o.Deadline.After(started)
	if past {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, started.Add(pastLook), errDeadline)
		defer cancel()
	} else if !o.Deadline.IsZero() {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadlineCause(ctx, o.Deadline, errDeadline)
		defer cancel()
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	updates := make(chan update)
	dials := make(chan struct{}, o.Dials)
	var watches sync.WaitGroup
	for i, n := range nodes {
		w := &watch{
			index: i, node: n, opts: o, past: past, started: started,
			dials: dials, updates: updates,
			judge: newJudge(o, started),
		}
		watches.Go(func() { w.run(ctx) })
	}
	verdicts := make([]Verdict, len(nodes))
	for left := len(nodes); left > 0; {
		u := <-updates
		if u.verdict != nil {
			verdicts[u.index] = *u.verdict
			left--
			if o.FailFast && u.verdict.Code != reason.Ready && ctx.Err() == nil {
				stop(&stopError{u.verdict.Node})
			}
		}
		if events != nil && u.event.State != "" {
			events(u.event)
		}
	}
	watches.Wait()
	return verdicts
}
