package poll

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/stability"
)

// noJitter makes the times of looks exact.
func noJitter() float64 { return 0 }

// wait is Run with a timeout and exact times.
func wait(ctx context.Context, timeout time.Duration, o Options, events func(Event), fakes ...*fake) []Verdict {
	var nodes []Node
	for _, f := range fakes {
		nodes = append(nodes, f.node())
	}
	o.Rand = noJitter
	if o.Deadline.IsZero() {
		o.Deadline, o.Why = Deadline(time.Now(), time.Time{}, timeout, 0)
	}
	return Run(ctx, nodes, o, events)
}

type observeFunc = func(time.Duration) (sshnode.Observation, error)

// TestVerdicts runs every kind of node through to its verdict.
func TestVerdicts(t *testing.T) {
	const never = 10 * time.Minute // the timeout of all of them
	sec := func(n int) time.Duration { return time.Duration(n) * time.Second }
	missing := "etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO in /dev/sr0"
	active := always(obs(stability.Active))
	refused := fails(reason.NodeUnreachable, "n:22: connect: connection refused")
	for _, tt := range []struct {
		name   string
		script observeFunc
		opts   Options
		state  State
		code   reason.Code
		after  time.Duration
		says   []string // parts of the message
		checks int
	}{
		{name: "active", script: active, state: StateActive, code: reason.Ready, after: sec(6), checks: 2, says: []string{"2 checks in a row over 6 s"}},
		{name: "five checks", script: active, opts: Options{Checks: 5}, state: StateActive, code: reason.Ready, after: sec(24), checks: 5},
		{name: "a short interval does not weaken the rule", script: active, opts: Options{Interval: sec(1)}, state: StateActive, code: reason.Ready, after: sec(6), checks: 2},
		{name: "one check by wish", script: active, opts: Options{Checks: 1}, state: StateActive, code: reason.Ready, checks: 1, says: []string{"by one look"}},
		{name: "active while cloud-init runs on", script: always(obs(stability.Active, cloudInit("running"))), state: StateActive, code: reason.Ready, after: sec(6), checks: 2},
		{name: "active, marker cannot be looked at", script: always(obs(stability.Active, func(o *sshnode.Observation) { o.MarkerNote = "cannot search /home/cloud" })),
			state: StateActive, code: reason.Ready, after: sec(6), checks: 2, says: []string{"cannot search /home/cloud"}},

		{name: "marker alone", script: always(obs(stability.Inactive, failedBy("tar: not found"))), state: StateFailed, code: reason.SetupFailed, says: []string{"tar: not found"}},
		{name: "marker beside an active unit", script: always(obs(stability.Active, failedBy("x"))), state: StateFailed, code: reason.SetupFailed},
		{name: "marker and the same state", script: always(obs(stability.Inactive, failedBy(missing), agent(marker.ResultFailed, reason.ArchiveMissing, missing))),
			state: StateFailed, code: reason.ArchiveMissing, says: []string{missing}},
		{name: "marker and another state", script: always(obs(stability.Inactive, failedBy("no space"), agent(marker.ResultFailed, reason.ArchiveMissing, missing))),
			state: StateFailed, code: reason.SetupFailed, says: []string{"no space"}},
		{name: "marker and a code of a newer agent", script: always(obs(stability.Inactive, failedBy("y"), agent(marker.ResultFailed, "", "y"))),
			state: StateFailed, code: reason.SetupFailed, says: []string{"y"}},
		{name: "marker without systemd", script: always(sshnode.Observation{HasMarker: true, Marker: "no systemd"}), state: StateFailed, code: reason.SetupFailed},
		{name: "old marker, new setup that works", script: script(
			step{0, always(obs(stability.Inactive, failedBy("old"), agent(marker.ResultRunning, "", "")))},
			step{sec(3), always(obs(stability.Inactive, agent(marker.ResultRunning, "", "")))},
			step{sec(20), active}),
			state: StateActive, code: reason.Ready, after: sec(30), checks: 2},
		{name: "marker of a setup that could not write its state", script: always(obs(stability.Inactive, failedBy("new"), agent(marker.ResultRunning, "", ""))),
			state: StateFailed, code: reason.SetupFailed, after: sec(6), says: []string{"new"}},
		{name: "failed state without marker", script: always(obs(stability.Inactive, agent(marker.ResultFailed, reason.NoSpace, "not enough space: /opt/bin"))),
			state: StateFailed, code: reason.NoSpace, after: sec(6), says: []string{"/opt/bin"}},
		{name: "failed state of an earlier boot", script: script(step{0, always(obs(stability.Inactive, rebooted, agent(marker.ResultFailed, reason.NoSpace, "x")))},
			step{sec(12), always(obs(stability.Active, rebooted))}), state: StateActive, code: reason.Ready, after: sec(18), checks: 2},

		{name: "no unit", script: always(obs(stability.Inactive, load("not-found"))), state: StateNotSetUp, code: reason.NotSetUp, says: []string{"cloud-init is done"}},
		{name: "no unit, cloud-init failed (B90)", script: always(obs(stability.Inactive, load("not-found"), cloudInit("error"))), state: StateNotSetUp, code: reason.NotSetUp, says: []string{"errors"}},
		{name: "no unit yet", script: script(step{0, always(obs(stability.Inactive, load("not-found"), cloudInit("running")))}, step{sec(60), active}),
			state: StateActive, code: reason.Ready, after: sec(66), checks: 2},
		{name: "no unit, and cloud-init never ends", script: always(obs(stability.Inactive, load("not-found"), cloudInit("running"))),
			state: StateBooting, code: reason.NodeBooting, after: never, says: []string{"cloud-init is running", "timeout of 10 min"}},
		{name: "no unit, and nothing says how far cloud-init is", script: always(obs(stability.Inactive, load("not-found"), cloudInit(""))),
			state: StateBooting, code: reason.NodeBooting, after: never},
		{name: "no unit, but the agent runs", script: always(obs(stability.Inactive, load("not-found"), agent(marker.ResultRunning, "", "waiting for the Kubernetes ISO"))),
			state: StateBooting, code: reason.NodeBooting, after: never, says: []string{"step find", "waiting for the Kubernetes ISO"}},
		{name: "masked", script: always(obs(stability.Inactive, load("masked"))), state: StateFailed, code: reason.UnitMasked},
		{name: "bad setting", script: always(obs(stability.Inactive, load("bad-setting"))), state: StateFailed, code: reason.UnitBadSetting},

		{name: "failed unit", script: always(obs(stability.Failed, detail("result exit-code, status 1"))), state: StateFailed, code: reason.UnitFailed, says: []string{"result exit-code, status 1"}},
		{name: "failed unit while cloud-init runs", script: script(step{0, always(obs(stability.Failed, cloudInit("running")))}, step{sec(30), active}),
			state: StateActive, code: reason.Ready, after: sec(36), checks: 2},
		{name: "failed unit, cloud-init unknown", script: always(obs(stability.Failed, cloudInit(""))), state: StateFailed, code: reason.UnitFailed, after: never},
		{name: "stopped by hand", script: script(step{0, active}, step{sec(3), always(obs(stability.Inactive))}),
			state: StateInactive, code: reason.UnitNotActive, after: sec(12), says: []string{"stopped after it had been active"}},
		{name: "never started", script: always(obs(stability.Inactive)), state: StateInactive, code: reason.UnitNotActive, after: never, says: []string{"timeout of 10 min"}},
		{name: "never started, setup runs", script: always(obs(stability.Inactive, agent(marker.ResultRunning, "", ""))), state: StateBooting, code: reason.NodeBooting, after: never},
		{name: "always starting (B57)", script: always(obs(stability.Activating)), state: StateUndecided, code: reason.Undecided, after: never, says: []string{"s ago: activating"}},

		{name: "flapping every 5 s", script: flaps(10*time.Millisecond, 5*time.Second), state: StateFlapping, code: reason.UnitFlapping, after: sec(132), says: []string{"restarted", "times in"}},
		{name: "flapping, lives 4 s", script: flaps(4*time.Second, 5*time.Second), state: StateFlapping, code: reason.UnitFlapping, after: sec(138)},
		{name: "flapping, fail fast", script: flaps(4*time.Second, 4*time.Second), opts: Options{FailFast: true}, state: StateFlapping, code: reason.UnitFlapping, after: sec(18)},
		{name: "flapping at the deadline", script: flaps(time.Second, 5*time.Second), opts: Options{Why: "the timeout of 20 s is over", Deadline: time.Date(2000, 1, 1, 0, 0, 20, 0, time.UTC)},
			state: StateFlapping, code: reason.UnitFlapping, after: sec(20), says: []string{"timeout of 20 s"}},
		{name: "flaps until its peers come (B109)", script: script(step{0, flaps(4*time.Second, 5*time.Second)}, step{sec(90), always(obs(stability.Active, restarts(10)))}),
			state: StateActive, code: reason.Ready, after: sec(96), checks: 2},

		{name: "refused for ever", script: refused, state: StateUnreachable, code: reason.NodeUnreachable, after: never, says: []string{"connection refused", "no look succeeded for", "tries", "timeout of 10 min"}},
		{name: "arrives late", script: script(step{0, refused}, step{sec(60), active}), state: StateActive, code: reason.Ready, checks: 2, after: 71 * time.Second},
		{name: "no name", script: fails(reason.NodeResolve, "no such host"), state: StateUnreachable, code: reason.NodeResolve, after: never},
		{name: "EOF in the banner (B46)", script: script(step{0, fails(reason.SSHHandshake, "EOF")}, step{sec(5), active}), state: StateActive, code: reason.Ready, after: 13 * time.Second, checks: 2},
		{name: "cut off in the middle", script: script(step{0, active}, step{sec(1), refused}),
			state: StateUnreachable, code: reason.NodeUnreachable, after: never, says: []string{"last seen 10 min ago: active"}},
		{name: "login refused", script: fails(reason.SSHAuthRefused, "cloud@n"), state: StateAuthRefused, code: reason.SSHAuthRefused, after: 35 * time.Second, says: []string{"cloud@n"}},
		{name: "login refused, long grace", script: fails(reason.SSHAuthRefused, "cloud@n"), opts: Options{BootGrace: sec(90)}, state: StateAuthRefused, code: reason.SSHAuthRefused, after: sec(95)},
		{name: "login refused while booting (B42)", script: script(step{0, fails(reason.SSHAuthRefused, "nologin")}, step{sec(20), active}), state: StateActive, code: reason.Ready, after: sec(31), checks: 2},
		{name: "late and then refused while booting", script: script(step{0, refused}, step{sec(60), fails(reason.SSHAuthRefused, "x")}, step{sec(80), active}),
			state: StateActive, code: reason.Ready, after: sec(91), checks: 2},
		{name: "host key changed (B40)", script: fails(reason.SSHHostKeyChanged, "x"), state: StateHostKeyChanged, code: reason.SSHHostKeyChanged},
		{name: "host key unknown", script: fails(reason.SSHHostKeyUnknown, "x"), state: StateUnknown, code: reason.SSHHostKeyUnknown},
		{name: "key unusable (B48)", script: fails(reason.SSHKeyUnusable, "/k: encrypted"), state: StateUnknown, code: reason.SSHKeyUnusable, says: []string{"/k: encrypted"}},
		{name: "bad configuration", script: fails(reason.Usage, "ProxyCommand"), state: StateUnknown, code: reason.Usage},
		{name: "restricted shell", script: fails(reason.ProbeUnreadable, "it wrote \"no\""), state: StateUnknown, code: reason.ProbeUnreadable, after: sec(30), says: []string{"6 tries", "it wrote"}},
		{name: "unreadable now and then", script: script(step{0, fails(reason.ProbeUnreadable, "x")}, step{sec(20), active}), state: StateActive, code: reason.Ready, after: sec(30), checks: 2},

		{name: "reboot in the middle", script: script(step{0, active}, step{sec(3), refused}, step{sec(30), always(obs(stability.Active, rebooted, restarts(0)))}),
			state: StateActive, code: reason.Ready, after: sec(37), checks: 2},
		{name: "counter reset begins the patience anew (B112)", script: script(step{0, flaps(4*time.Second, 5*time.Second)},
			step{sec(100), func(at time.Duration) (sshnode.Observation, error) {
				return flaps(4*time.Second, 5*time.Second)(at - sec(100))
			}},
			step{sec(160), always(obs(stability.Active, restarts(8)))}), state: StateActive, code: reason.Ready, after: sec(168), checks: 2},
		{name: "flapping ends by a reboot", script: script(step{0, flaps(4*time.Second, 5*time.Second)}, step{sec(100), always(obs(stability.Active, rebooted, restarts(0)))}),
			state: StateActive, code: reason.Ready, after: sec(108), checks: 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("n", tt.script)
				start := time.Now()
				var last Event
				v := wait(t.Context(), never, tt.opts, func(e Event) { last = e }, f)[0]
				if v.State != tt.state || v.Code != tt.code || v.Checks != tt.checks {
					t.Errorf("got %s %s %d/%d, want %s %s %d: %s", v.State, v.Code, v.Checks, v.Want, tt.state, tt.code, tt.checks, v.Message)
				}
				// A wait after an error may put a look up to the back-off later.
				if got := time.Since(start); got < tt.after || got > tt.after+time.Second {
					t.Errorf("verdict after %v, want %v", got, tt.after)
				}
				for _, part := range tt.says {
					if !strings.Contains(v.Message, part) {
						t.Errorf("message %q lacks %q", v.Message, part)
					}
				}
				if v.Message == "" || v.Hint == "" || reason.Line(v.Message) != v.Message {
					t.Errorf("message %q, hint %q", v.Message, v.Hint)
				}
				if !last.Final || last.State != v.State || last.Code != v.Code || last.Message != v.Message {
					t.Errorf("the last event %+v is not the verdict", last)
				}
			})
		})
	}
}

// TestOnce takes one look and says no more than one look shows.
func TestOnce(t *testing.T) {
	for _, tt := range []struct {
		name   string
		script observeFunc
		state  State
		code   reason.Code
		says   string
	}{
		{"active", always(obs(stability.Active)), StateActive, reason.Ready, "by one look"},
		{"active with a past", always(obs(stability.Active, restarts(57))), StateActive, reason.Ready, "57 times"},
		{"inactive", always(obs(stability.Inactive)), StateInactive, reason.UnitNotActive, "inactive"},
		{"failed", always(obs(stability.Failed)), StateFailed, reason.UnitFailed, "failed"},
		{"starting", always(obs(stability.Activating)), StateActivating, reason.Undecided, "one look cannot tell"},
		{"restarted for the 57th time", always(obs(stability.Activating, restarts(57))), StateFlapping, reason.UnitFlapping, "57"},
		{"booting", always(obs(stability.Inactive, cloudInit("running"))), StateBooting, reason.NodeBooting, "cloud-init is running"},
		{"unreachable", fails(reason.NodeUnreachable, "refused"), StateUnreachable, reason.NodeUnreachable, "refused"},
		{"login refused", fails(reason.SSHAuthRefused, "x"), StateAuthRefused, reason.SSHAuthRefused, "x"},
		{"garbage", fails(reason.ProbeUnreadable, "x"), StateUnknown, reason.ProbeUnreadable, "x"},
		{"marker", always(obs(stability.Active, failedBy("x"))), StateFailed, reason.SetupFailed, "x"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake("n", tt.script)
				start := time.Now()
				v := wait(t.Context(), time.Minute, Options{Once: true}, nil, f)[0]
				if v.State != tt.state || v.Code != tt.code || !strings.Contains(v.Message, tt.says) {
					t.Errorf("got %s %s %q, want %s %s %q", v.State, v.Code, v.Message, tt.state, tt.code, tt.says)
				}
				if f.looks != 1 || v.Looks != 1 || v.Want != 1 || time.Since(start) != 0 {
					t.Errorf("%d looks (said %d) of %d in %v, want 1 at once", f.looks, v.Looks, v.Want, time.Since(start))
				}
			})
		})
	}
}

// TestEvents holds what a change is: one line for each, never a repeat (B50).
func TestEvents(t *testing.T) {
	collect := func(t *testing.T, f *fake, o Options) (lines []string) {
		t.Helper()
		wait(t.Context(), 5*time.Minute, o, func(e Event) {
			lines = append(lines, fmt.Sprintf("%s %s %d/%d %v", e.State, e.Code, e.Checks, e.Want, e.Final))
		}, f)
		return lines
	}
	for _, tt := range []struct {
		name   string
		script observeFunc
		want   []string
	}{
		{"active", always(obs(stability.Active)), []string{"connecting  0/2 false", "active  1/2 false", "active ready 2/2 true"}},
		{"refused for ever", fails(reason.NodeUnreachable, "read tcp 192.0.2.1:40000: refused"),
			[]string{"connecting  0/2 false", "unreachable node-unreachable 0/2 false", "unreachable node-unreachable 0/2 true"}},
		{"refused by two words", func() observeFunc {
			n := 0
			return func(time.Duration) (sshnode.Observation, error) {
				n++
				return sshnode.Observation{}, reason.New(reason.NodeUnreachable, "%s after %d ms", []string{"reset", "refused"}[n%2], n)
			}
		}(), []string{"connecting  0/2 false", "unreachable node-unreachable 0/2 false", "unreachable node-unreachable 0/2 false", "unreachable node-unreachable 0/2 true"}},
		{"flapping", flaps(10*time.Millisecond, 5*time.Second),
			[]string{"connecting  0/2 false", "active  1/2 false", "activating  0/2 false", "flapping unit-flapping 0/2 false", "flapping unit-flapping 0/2 true"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := collect(t, newFake("n", tt.script), Options{})
				if strings.Join(got, "\n") != strings.Join(tt.want, "\n") {
					t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tt.want, "\n"))
				}
			})
		})
	}
}

// TestDeadlineHolds lets nodes hang in every way there is.
func TestDeadlineHolds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		obedient := newFake("obedient", nil)
		obedient.takes = time.Hour
		deaf := newFake("deaf", nil)
		deaf.takes, deaf.deaf = time.Hour, time.Minute
		stuck := newFake("stuck", nil)
		stuck.takes, stuck.deaf, stuck.stuck = time.Hour, 90*time.Second, true
		start := time.Now()
		vs := wait(t.Context(), 20*time.Second, Options{}, nil, obedient, deaf, stuck)
		if late := time.Since(start) - 20*time.Second; late < 0 || late > time.Second {
			t.Errorf("the deadline was missed by %v", late)
		}
		for _, v := range vs {
			if reason.Lookup(v.Code).Exit == reason.ExitYes || reason.Lookup(v.Code).Exit == reason.ExitNo || !strings.Contains(v.Message, "timeout of 20 s") {
				t.Errorf("%s: got %s %s %q", v.Node, v.State, v.Code, v.Message)
			}
			if v.Node != "obedient" && !strings.Contains(v.Message, "no answer to the last look in 2") {
				t.Errorf("%s: message %q does not say that it hangs", v.Node, v.Message)
			}
		}
		if vs[0].Code != reason.NodeUnreachable {
			t.Errorf("got %s for a node that never answered, want %s", vs[0].Code, reason.NodeUnreachable)
		}
		time.Sleep(2 * time.Minute) // of the bubble's time: the one left behind ends
		if obedient.wasClosed() || !deaf.wasClosed() || !stuck.wasClosed() {
			t.Errorf("closed: %v %v %v, want only those that did not listen", obedient.wasClosed(), deaf.wasClosed(), stuck.wasClosed())
		}
	})
}

// TestHangAfterGood: what was seen outlasts a last look that was cut off.
func TestHangAfterGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake("n", always(obs(stability.Activating, detail("auto-restart"))))
		f.takes = 4 * time.Second // looks at 0 and 10 s; that at 20 s is cut off
		v := wait(t.Context(), 22*time.Second, Options{}, nil, f)[0]
		if v.Code != reason.Undecided || !strings.Contains(v.Message, "last seen 8 s ago: activating (auto-restart)") || !strings.Contains(v.Message, "no answer to the last look in 2 s") {
			t.Errorf("got %s %q", v.Code, v.Message)
		}
	})
}

// TestPastDeadline takes one look and says that the deadline was past.
func TestPastDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := newFake("hang", nil)
		hang.takes = time.Hour
		good, bad := newFake("good", always(obs(stability.Active))), newFake("bad", always(obs(stability.Inactive, failedBy("no archive"))))
		now := time.Now()
		o := Options{}
		o.Deadline, o.Why = Deadline(now, now.Add(-2*time.Hour), 10*time.Minute, time.Hour)
		vs := wait(t.Context(), 0, o, nil, good, bad, hang)
		if took := time.Since(now); took > 6*time.Second {
			t.Errorf("took %v", took)
		}
		if v := vs[0]; v.Code != reason.Undecided || !strings.Contains(v.Message, "over 1 h before this wait began") || !strings.Contains(v.Message, "1 of 2 checks") {
			t.Errorf("good: %s %q", v.Code, v.Message)
		}
		if v := vs[1]; v.Code != reason.SetupFailed {
			t.Errorf("bad: %s %q", v.Code, v.Message)
		}
		if v := vs[2]; v.Code != reason.NodeUnreachable || !strings.Contains(v.Message, "before this wait began") {
			t.Errorf("hang: %s %q", v.Code, v.Message)
		}
	})
}

// TestFailFast ends the others at the first failure.
func TestFailFast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		bad := newFake("bad", script(step{0, always(obs(stability.Activating))}, step{10 * time.Second, always(obs(stability.Active, failedBy("no archive")))}))
		bad.takes = time.Second // looks end at 1, 8 and 15 s
		vs := wait(t.Context(), time.Hour, Options{FailFast: true}, nil,
			newFake("quick", always(obs(stability.Active))), bad,
			newFake("slow", always(obs(stability.Activating))))
		if vs[0].Code != reason.Ready || vs[1].Code != reason.SetupFailed {
			t.Errorf("got %s and %s", vs[0].Code, vs[1].Code)
		}
		if v := vs[2]; v.State != StateUndecided || v.Code != reason.Undecided || !strings.Contains(v.Message, "stopped because bad failed; last seen 3 s ago: activating") {
			t.Errorf("got %s %s %q", v.State, v.Code, v.Message)
		}
		if took := time.Since(start); took != 15*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestInterrupted gives every node what is known so far.
func TestInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(8*time.Second, cancel)
		hang := newFake("hang", nil)
		hang.takes = time.Hour
		start := time.Now()
		vs := wait(ctx, time.Hour, Options{}, nil,
			newFake("good", always(obs(stability.Active))),
			newFake("starting", always(obs(stability.Activating, detail("auto-restart")))),
			newFake("gone", fails(reason.NodeUnreachable, "refused")), hang)
		if took := time.Since(start); took > 9*time.Second {
			t.Errorf("took %v", took)
		}
		for i, want := range []struct {
			code reason.Code
			says string
		}{
			{reason.Ready, "active"}, {reason.Interrupted, "last seen 2 s ago: activating (auto-restart)"},
			{reason.Interrupted, "refused"}, {reason.Interrupted, "not looked at"},
		} {
			if v := vs[i]; v.Code != want.code || !strings.Contains(v.Message, want.says) {
				t.Errorf("%s: got %s %q, want %s %q", v.Node, v.Code, v.Message, want.code, want.says)
			}
		}
	})
}

// TestDials: a node that is connected does not wait for the dials of others.
func TestDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fakes := []*fake{newFake("good", always(obs(stability.Active)))}
		for i := range 3 {
			f := newFake(fmt.Sprint("black hole ", i), fails(reason.NodeUnreachable, "timeout"))
			f.takes = 10 * time.Second
			fakes = append(fakes, f)
		}
		var activeAt time.Duration
		start := time.Now()
		vs := wait(t.Context(), time.Minute, Options{Dials: 1}, func(e Event) {
			if e.Node == "good" && e.Final {
				activeAt = e.At.Sub(e.Since)
			}
		}, fakes...)
		if vs[0].Code != reason.Ready || activeAt != 6*time.Second {
			t.Errorf("good: %s, %v after it was first seen active, want 6s", vs[0].Code, activeAt)
		}
		dials := 0
		for _, f := range fakes[1:] {
			dials += f.looks
		}
		if dials > 7 {
			t.Errorf("%d dials of 10 s each in %v, one at a time", dials, time.Since(start))
		}
	})
}

// TestHostKeyGrace: a host key may change only within the grace, and only
// before the first login (B41).
func TestHostKeyGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			grace time.Duration
			want  string
		}{
			{0, "[false false false false]"},
			{time.Second, "[true false false false]"},
			{time.Minute, "[true true true false]"},
		} {
			f := newFake("n", script(step{0, fails(reason.NodeUnreachable, "x")}, step{2 * time.Second, always(obs(stability.Active))}))
			wait(t.Context(), time.Minute, Options{BootGrace: tt.grace}, nil, f)
			if got := fmt.Sprint(f.mayChange); got != tt.want {
				t.Errorf("grace %v: got %s, want %s", tt.grace, got, tt.want)
			}
		}
	})
}

// TestThousand runs a thousand nodes, one in ten of them faulty.
func TestThousand(t *testing.T) {
	faults := []struct {
		script observeFunc
		code   reason.Code
	}{
		{always(obs(stability.Inactive, failedBy("x"))), reason.SetupFailed},
		{always(obs(stability.Failed)), reason.UnitFailed},
		{flaps(4*time.Second, 4*time.Second), reason.UnitFlapping},
		{fails(reason.NodeUnreachable, "x"), reason.NodeUnreachable},
		{fails(reason.SSHAuthRefused, "x"), reason.SSHAuthRefused},
		{fails(reason.SSHHostKeyChanged, "x"), reason.SSHHostKeyChanged},
		{fails(reason.ProbeUnreadable, "x"), reason.ProbeUnreadable},
		{always(obs(stability.Inactive, load("not-found"))), reason.NotSetUp},
		{always(obs(stability.Inactive, load("masked"))), reason.UnitMasked},
		{always(obs(stability.Activating)), reason.Undecided},
	}
	before := runtime.NumGoroutine()
	synctest.Test(t, func(t *testing.T) {
		var fakes []*fake
		var want []reason.Code
		for i := range 1000 {
			f := newFake(fmt.Sprint("n", i), always(obs(stability.Active)))
			f.takes = 50 * time.Millisecond
			code := reason.Ready
			if i%10 == 0 {
				f.script, code = faults[i/10%10].script, faults[i/10%10].code
			}
			fakes, want = append(fakes, f), append(want, code)
		}
		events := 0
		start := time.Now()
		var ready time.Duration
		vs := wait(t.Context(), 5*time.Minute, Options{}, func(e Event) {
			events++
			if e.Code == reason.Ready && e.Final {
				ready = e.At.Sub(start)
			}
		}, fakes...)
		for i, v := range vs {
			if v.Node != fakes[i].name || v.Code != want[i] {
				t.Errorf("%d: got %s %s, want %s %s: %s", i, v.Node, v.Code, fakes[i].name, want[i], v.Message)
			}
		}
		if want := 6*time.Second + 1000/64*100*time.Millisecond; ready > want {
			t.Errorf("the last active verdict after %v, want less than %v", ready, want)
		}
		if events > 5*1000 {
			t.Errorf("%d events for 1000 nodes", events)
		}
	})
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines before, %d after", before, after)
	}
}

func TestDeadline(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tt := range []struct {
		name             string
		ago              time.Duration // since the cluster's start; negative: not given
		timeout, cluster time.Duration
		want             time.Duration // from now; 0: none
		why              string
	}{
		{"timeout alone", -1, 10 * time.Minute, time.Hour, 10 * time.Minute, "the timeout of 10 min is over"},
		{"timeout first", 10 * time.Minute, 10 * time.Minute, time.Hour, 10 * time.Minute, "the timeout of 10 min is over"},
		{"cluster first", 55 * time.Minute, 10 * time.Minute, time.Hour, 5 * time.Minute, "the cluster's start timeout of 1 h is over"},
		{"timeout longer than the cluster's", 0, 2 * time.Hour, time.Hour, time.Hour, "the cluster's start timeout of 1 h is over"},
		{"both at once", 50 * time.Minute, 10 * time.Minute, time.Hour, 10 * time.Minute, "the timeout of 10 min is over"},
		{"past", 61 * time.Minute, 10 * time.Minute, time.Hour, -time.Minute, "the cluster's start timeout of 1 h was over 1 min before this wait began"},
		{"past without timeout", 90 * time.Minute, 0, time.Hour, -30 * time.Minute, "the cluster's start timeout of 1 h was over 30 min before this wait began"},
		{"started in the future", -30 * time.Minute, 10 * time.Minute, 5 * time.Minute, 10 * time.Minute, "the timeout of 10 min is over"},
		{"no cluster timeout", time.Hour, time.Minute, 0, time.Minute, "the timeout of 1 min is over"},
		{"neither", -1, 0, 0, 0, ""},
	} {
		var started time.Time
		if tt.ago != -1 {
			started = now.Add(-tt.ago)
		}
		got, why := Deadline(now, started, tt.timeout, tt.cluster)
		var want time.Time
		if tt.want != 0 {
			want = now.Add(tt.want)
		}
		if !got.Equal(want) || why != tt.why {
			t.Errorf("%s: got %v %q, want %v %q", tt.name, got, why, want, tt.why)
		}
	}
}
