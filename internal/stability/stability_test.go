package stability

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// epoch is when the first sample of a test is taken.
var epoch = time.Date(2025, 1, 2, 3, 4, 5, 0, time.UTC)

// at returns a sample taken so many seconds after epoch.
func at(sec float64, st State) Sample {
	return Sample{At: epoch.Add(time.Duration(sec * float64(time.Second))), State: st, Restarts: RestartsUnknown}
}

// active returns an active sample as current systemd gives it.
func active(sec float64, invocation string, restarts int64) Sample {
	s := at(sec, Active)
	s.Invocation, s.Restarts = invocation, restarts
	return s
}

// old returns an active sample as systemd 219 gives it.
func old(sec float64, pid int, since uint64) Sample {
	s := at(sec, Active)
	s.MainPID, s.ActiveSince = pid, since
	return s
}

// waiting returns a sample of a service that waits for its automatic restart.
func waiting(sec float64, restarts int64) Sample {
	s := at(sec, Activating)
	s.Restarts, s.Detail = restarts, "auto-restart"
	return s
}

func boot(id string, s Sample) Sample { s.BootID = id; return s }

func TestRun(t *testing.T) {
	unreachable := at(3, Unknown)
	unreachable.Detail = "connection refused"
	failed := at(1, Failed)
	failed.Detail = "exit-code, status 2"
	tests := []struct {
		name    string
		rule    Rule
		samples []Sample
		want    Outcome
		checks  int
		why     string // substring
	}{
		{"no sample", Rule{}, nil, Undecided, 0, "not looked at yet"},
		{"one check", Rule{}, []Sample{active(0, "a", 0)}, Undecided, 1, "active on 1 of 2 checks"},
		{"two checks", Rule{}, []Sample{active(0, "a", 0), active(6, "a", 0)}, Stable, 2, "active on 2 checks in a row over 6 s"},
		{"too close together", Rule{}, []Sample{active(0, "a", 0), active(5.9, "a", 0)}, Undecided, 1, ""},
		{"many looks, gap reached", Rule{}, []Sample{active(0, "a", 0), active(2, "a", 0), active(4, "a", 0), active(6, "a", 0)}, Stable, 2, ""},
		{"restarts from earlier are not ours", Rule{}, []Sample{active(0, "a", 41), active(6, "a", 41)}, Stable, 2, ""},
		{"three checks asked", Rule{Checks: 3, Gap: time.Second}, []Sample{active(0, "a", 0), active(1, "a", 0)}, Undecided, 2, ""},
		{"one check asked", Rule{Checks: 1}, []Sample{active(0, "a", 0)}, Stable, 1, ""},

		// B54: etcd with a flag removed in 3.6 runs for moments in each loop.
		{"sampled by luck in two active phases: invocation", Rule{}, []Sample{active(0, "a", 0), active(10, "b", 0)}, Undecided, 1, "restarted once in 10 s"},
		{"sampled by luck in two active phases: restart count", Rule{}, []Sample{active(0, "", 3), active(10, "", 4)}, Undecided, 1, "restarted once"},
		{"flaps every 5 s", Rule{}, []Sample{active(0, "a", 0), waiting(2, 0), active(5.5, "b", 1), waiting(8, 1), active(11, "c", 2)}, Flapping, 1, "restarted 2 times in 9 s, last seen active"},
		{"3 in 14 s", Rule{}, []Sample{waiting(0, 7), waiting(14, 10)}, Flapping, 0, "restarted 3 times in 14 s, last seen activating (auto-restart)"},
		{"never seen active", Rule{}, []Sample{waiting(0, 0), waiting(6, 1), waiting(12, 2)}, Flapping, 0, ""},
		{"one restart is forgiven", Rule{}, []Sample{active(0, "a", 0), waiting(2, 0), active(6, "b", 1), active(12, "b", 1)}, Stable, 2, ""},
		{"settles after a storm", Rule{}, []Sample{waiting(0, 0), active(6, "c", 3), active(12, "c", 3)}, Stable, 2, ""},
		{"left active in between, same count", Rule{}, []Sample{active(0, "a", 0), waiting(3, 0), active(6, "a", 0)}, Undecided, 1, ""},
		{"restart by hand leaves the count", Rule{}, []Sample{active(0, "a", 0), active(6, "b", 0), active(12, "c", 0)}, Flapping, 1, ""},

		// B112: counters that begin anew.
		{"reset-failed", Rule{}, []Sample{active(0, "a", 5), active(6, "a", 0)}, Undecided, 1, "active on 1 of 2"},
		{"reset-failed, then stable", Rule{}, []Sample{active(0, "a", 5), active(6, "a", 0), active(12, "a", 0)}, Stable, 2, ""},
		{"reboot", Rule{}, []Sample{boot("x", active(0, "a", 0)), boot("y", active(6, "b", 0))}, Undecided, 1, "active on 1 of 2"},
		{"reboot forgets restarts", Rule{}, []Sample{boot("x", waiting(0, 0)), boot("x", waiting(6, 1)), boot("y", waiting(12, 2))}, Undecided, 0, "activating"},
		{"reboot with equal values", Rule{}, []Sample{boot("x", old(0, 400, 9)), boot("y", old(6, 400, 9))}, Undecided, 1, ""},

		// systemd 219 (no InvocationID, no NRestarts) and 239 where a fleet's probe may lack them.
		{"219 stable", Rule{}, []Sample{old(0, 10, 1e6), old(6, 10, 1e6)}, Stable, 2, ""},
		{"219 flaps", Rule{}, []Sample{old(0, 10, 1e6), waiting(3, -1), old(6, 11, 7e6), old(12, 12, 14e6)}, Flapping, 1, "restarted 2 times in 9 s"},
		{"219 process id used again", Rule{}, []Sample{old(0, 10, 1e6), old(6, 10, 7e6)}, Undecided, 1, "restarted once"},
		{"main process handed over within one invocation", Rule{}, []Sample{
			{At: epoch, State: Active, Invocation: "a", MainPID: 1}, {At: epoch.Add(6 * time.Second), State: Active, Invocation: "a", MainPID: 2}}, Stable, 2, ""},
		{"nothing to compare", Rule{}, []Sample{at(0, Active), at(6, Active), at(12, Active)}, Undecided, 1, ""},
		{"nothing in common", Rule{}, []Sample{active(0, "a", -1), old(6, 10, 0), active(12, "a", -1)}, Stable, 2, ""},

		// "Could not look" is neither yes nor no.
		{"only unknown", Rule{}, []Sample{unreachable, unreachable}, Undecided, 0, "could not look 2 times: connection refused"},
		{"unknown in between", Rule{}, []Sample{active(0, "a", 0), unreachable, active(6, "a", 0)}, Stable, 2, ""},
		{"unknown hides a restart", Rule{}, []Sample{active(0, "a", 0), unreachable, active(6, "b", 0)}, Undecided, 1, ""},
		{"unknown at the end", Rule{}, []Sample{active(0, "a", 0), unreachable}, Undecided, 1, "active on 1 of 2 checks in a row; since then could not look (connection refused)"},

		{"failed", Rule{}, []Sample{active(0, "a", 0), failed}, Down, 0, "failed (exit-code, status 2)"},
		{"failed, then started", Rule{}, []Sample{failed, active(2, "a", 0), active(8, "a", 0)}, Stable, 2, ""},
		{"not started yet", Rule{}, []Sample{at(0, Inactive), at(60, Inactive)}, Undecided, 0, "inactive"},
		{"stopped", Rule{}, []Sample{active(0, "a", 0), at(1, Inactive), at(7, Inactive)}, Down, 0, "stopped after it had been active"},
		{"stopped for a moment", Rule{}, []Sample{active(0, "a", 0), at(1, Inactive), at(2, Inactive)}, Undecided, 0, ""},
		{"stops", Rule{}, []Sample{active(0, "a", 0), at(1, Deactivating)}, Undecided, 0, "deactivating"},
		{"clock went back", Rule{}, []Sample{active(100, "a", 0), active(50, "a", 0), active(56, "a", 0)}, Stable, 2, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := New(tt.rule)
			for _, s := range tt.samples {
				r.Add(s)
			}
			got := r.Verdict()
			if got.Outcome != tt.want || got.Checks != tt.checks || !strings.Contains(got.Why, tt.why) {
				t.Errorf("got %s after %d checks: %q; want %s after %d with %q", got.Outcome, got.Checks, got.Why, tt.want, tt.checks, tt.why)
			}
		})
	}
}

func TestVerdictKeepsLastKnown(t *testing.T) {
	r := New(Rule{})
	r.Add(active(1, "a", 0))
	got := r.Add(at(9, Unknown))
	if got.Last.State != Active || !got.Since.Equal(epoch.Add(time.Second)) {
		t.Errorf("got last %s since %s, want the active sample and its time", got.Last.State, got.Since)
	}
}

func TestAStableUnitThatFlapsLater(t *testing.T) {
	r := New(Rule{})
	r.Add(active(0, "a", 0))
	if v := r.Add(active(6, "a", 0)); v.Outcome != Stable {
		t.Fatalf("got %s, want stable", v.Outcome)
	}
	if v := r.Add(waiting(7, 0)); v.Outcome != Undecided {
		t.Errorf("after it left active: got %s, want undecided", v.Outcome)
	}
	if v := r.Add(active(20, "d", 3)); v.Outcome != Flapping || v.Restarts != 3 {
		t.Errorf("after three restarts: got %s with %d, want flapping with 3", v.Outcome, v.Restarts)
	}
}

// The trap of etcd.service with a life of 4 s and a restart delay of 4 s:
// sampled every 8 s it is always seen active.
func TestEqualLifeAndDelay(t *testing.T) {
	r := New(Rule{})
	for i := range 3 {
		v := r.Add(active(float64(8*i), fmt.Sprint("run", i), int64(i)))
		if v.Outcome == Stable {
			t.Fatalf("sample %d: stable although every sample is another run", i)
		}
	}
	if v := r.Verdict(); v.Outcome != Flapping {
		t.Errorf("got %s, want flapping", v.Outcome)
	}
}
