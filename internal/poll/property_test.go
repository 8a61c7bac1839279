package poll

import (
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/stability"
)

// TestRestartedIsNeverActive: whatever the times of looks and restarts, a node
// whose service is another one at every look has no active verdict, also when
// looks fail in between and half of what tells instances apart is missing.
func TestRestartedIsNeverActive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		interval := time.Duration(rapid.IntRange(1_000, 20_000).Draw(rt, "interval ms")) * time.Millisecond
		takes := time.Duration(rapid.IntRange(0, 9_000).Draw(rt, "look ms")) * time.Millisecond
		counts := rapid.Bool().Draw(rt, "NRestarts known")
		invocations := rapid.Bool().Draw(rt, "invocation known")
		pids := rapid.Bool().Draw(rt, "process known")
		checks := rapid.IntRange(2, 4).Draw(rt, "checks")
		jitter := rapid.Float64Range(0, 0.999).Draw(rt, "jitter")
		faults := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 20).Draw(rt, "faults")

		var got Verdict
		synctest.Test(t, func(t *testing.T) {
			n := int64(0)
			f := newFake("n", func(time.Duration) (sshnode.Observation, error) {
				n++
				switch faults[int(n)%len(faults)] {
				case 0:
					return sshnode.Observation{}, reason.New(reason.NodeUnreachable, "cut")
				case 1:
					return sshnode.Observation{}, reason.New(reason.ProbeUnreadable, "garbage")
				}
				o := obs(stability.Active, restarts(n))
				if !counts {
					o.Sample.Restarts = stability.RestartsUnknown
				}
				if !invocations {
					o.Sample.Invocation = ""
				}
				o.Sample.MainPID = 0
				if pids {
					o.Sample.MainPID = int(n)
				}
				return o, nil
			})
			f.takes = takes
			o := Options{Interval: interval, Checks: checks, Rand: func() float64 { return jitter }}
			o.Deadline = time.Now().Add(3 * time.Minute)
			got = Run(t.Context(), []Node{f.node()}, o, nil)[0]
		})
		if got.Code == reason.Ready {
			rt.Fatalf("active: %s", got.Message)
		}
	})
}
