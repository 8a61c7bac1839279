package stability

import (
	"fmt"
	"sort"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// A service is a simulated unit: phases of systemd's life of it, in order.
type service struct{ phases []phase }

type phase struct {
	from     time.Duration
	state    State
	instance int   // serial number of the run, or of the last one
	restarts int64 // NRestarts
	boot     int
}

// drawService simulates a service that lives and waits for random times, which
// now and then reboots, is reset by hand, or settles.
func drawService(t *rapid.T) service {
	var sv service
	var now time.Duration
	p := phase{}
	for range rapid.IntRange(1, 12).Draw(t, "runs") {
		p.instance++
		p.from, p.state = now, Active
		sv.phases = append(sv.phases, p)
		now += time.Duration(rapid.IntRange(1, 15_000).Draw(t, "life ms")) * time.Millisecond
		p.from, p.state = now, Activating
		sv.phases = append(sv.phases, p)
		now += time.Duration(rapid.IntRange(1, 6_000).Draw(t, "delay ms")) * time.Millisecond
		switch rapid.IntRange(0, 9).Draw(t, "then") {
		case 0: // a reboot
			p.boot, p.restarts = p.boot+1, 0
		case 1: // stopped, reset and started by hand
			p.restarts = 0
		case 2: // restarted by hand
		default:
			p.restarts++
		}
	}
	p.instance++
	p.from, p.state = now, rapid.SampledFrom([]State{Active, Failed, Inactive}).Draw(t, "end")
	sv.phases = append(sv.phases, p)
	return sv
}

func (sv service) at(d time.Duration) phase {
	i := sort.Search(len(sv.phases), func(i int) bool { return sv.phases[i].from > d })
	return sv.phases[max(i-1, 0)]
}

// A systemd says which properties a sample can carry.
type systemd struct{ invocation, restarts, pid, since, boot bool }

func (k systemd) sample(p phase, d time.Duration) Sample {
	s := Sample{At: epoch.Add(d), State: p.state, Restarts: RestartsUnknown}
	if k.boot {
		s.BootID = fmt.Sprint("boot", p.boot)
	}
	if k.restarts {
		s.Restarts = p.restarts
	}
	if p.state == Active {
		if k.invocation {
			s.Invocation = fmt.Sprint("inv", p.instance)
		}
		if k.pid {
			s.MainPID = 100 + p.instance
		}
		if k.since {
			s.ActiveSince = uint64(1000 * p.instance)
		}
	}
	return s
}

func drawSystemd(t *rapid.T) systemd {
	b := rapid.Bool()
	return systemd{b.Draw(t, "InvocationID"), b.Draw(t, "NRestarts"), b.Draw(t, "MainPID"), b.Draw(t, "ActiveEnter"), b.Draw(t, "boot")}
}

// Whatever the service does, whenever it is looked at and whatever a look
// misses: Stable means one instance at every check that counted, each a gap
// after the one before.
func TestNeverStableAcrossInstances(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		sv := drawService(t)
		rule := Rule{Checks: rapid.IntRange(2, 4).Draw(t, "checks")}
		varying := rapid.Bool().Draw(t, "properties come and go")
		k := drawSystemd(t)
		r := New(rule)
		var now time.Duration
		for range rapid.IntRange(1, 40).Draw(t, "looks") {
			now += time.Duration(rapid.IntRange(1, 12_000).Draw(t, "pause ms")) * time.Millisecond
			p := sv.at(now)
			if varying {
				k = drawSystemd(t)
			}
			s := k.sample(p, now)
			if rapid.IntRange(0, 5).Draw(t, "lost") == 0 {
				s = Sample{At: s.At, State: Unknown, Restarts: RestartsUnknown}
			}
			v := r.Add(s)
			if v.Outcome != Stable {
				continue
			}
			first, last := sv.at(v.Since.Sub(epoch)), sv.at(v.Last.At.Sub(epoch))
			if first.instance != last.instance || first.state != Active || last.state != Active {
				t.Fatalf("stable from run %d (%s) to run %d (%s): %s", first.instance, first.state, last.instance, last.state, v.Why)
			}
			if span := v.Last.At.Sub(v.Since); span < time.Duration(rule.Checks-1)*DefaultGap {
				t.Fatalf("stable after %s only", span)
			}
		}
	})
}

// A service that never lives longer than the gap is never called stable, and
// with the restart counter it is called flapping after three loops at most.
func TestFlappingIsFound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		life := time.Duration(rapid.IntRange(1, 5_900).Draw(t, "life ms")) * time.Millisecond
		delay := time.Duration(rapid.IntRange(1, 5_900).Draw(t, "delay ms")) * time.Millisecond
		pause := time.Duration(rapid.IntRange(100, 10_000).Draw(t, "pause ms")) * time.Millisecond
		var sv service
		for i := range 400 {
			from := time.Duration(i) * (life + delay)
			sv.phases = append(sv.phases, phase{from, Active, i, int64(i), 0}, phase{from + life, Activating, i, int64(i), 0})
		}
		k := systemd{invocation: rapid.Bool().Draw(t, "InvocationID"), restarts: true, pid: true}
		r := New(Rule{})
		for now := time.Duration(0); ; now += pause {
			v := r.Add(k.sample(sv.at(now), now))
			if v.Outcome == Stable {
				t.Fatalf("stable: %s", v.Why)
			}
			if v.Outcome == Flapping {
				return
			}
			if now > 3*(life+delay)+2*pause {
				t.Fatalf("not flapping after %s: %s", now, v.Why)
			}
		}
	})
}

// A service that runs is called stable as soon as the rule allows, whatever
// was lost in between.
func TestARunningServiceIsStable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		k := drawSystemd(t)
		if !k.invocation && !k.pid && !k.since {
			k.since = true
		}
		r := New(Rule{})
		p := phase{state: Active, instance: 1, restarts: rapid.Int64Range(0, 9).Draw(t, "NRestarts")}
		r.Add(k.sample(p, 0))
		for i := range rapid.IntRange(0, 5).Draw(t, "lost") {
			r.Add(Sample{At: epoch.Add(time.Duration(i) * time.Second), Restarts: RestartsUnknown})
		}
		if v := r.Add(k.sample(p, DefaultGap)); v.Outcome != Stable {
			t.Fatalf("got %s: %s", v.Outcome, v.Why)
		}
	})
}
