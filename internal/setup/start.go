package setup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"time"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
	"cks-etcd/internal/unit"
)

const (
	// lookEvery is how often the unit's state is read after its start. A look is
	// a few D-Bus calls; what counts as a check is further apart, see watch.
	lookEvery = time.Second

	// gapMargin is added to the unit's restart delay, so that two checks never
	// fall into the lives before and after one restart unseen.
	gapMargin = time.Second

	// diagnosisTimeout bounds the reading of the journal: the reason must not be
	// late because journald is.
	diagnosisTimeout = 10 * time.Second
)

// start enables and starts the unit, and returns once it was seen active twice.
// changed lists the binaries that were replaced.
func (r *run) start(ctx context.Context, changed []string) error {
	ctx, cancel := context.WithTimeout(ctx, r.StartTimeout)
	defer cancel()

	var bus Bus
	var status unit.Status
	defer func() {
		if bus != nil {
			bus.Close()
		}
	}()
	err := r.step("preflight", "checking the unit and what etcd needs", func() (string, error) {
		var err error
		if bus, err = r.env.Connect(ctx); err != nil {
			return "", err
		}
		if err = bus.Reload(ctx); err != nil {
			return "", err
		}
		if status, err = bus.Status(ctx, r.Unit); err != nil {
			return "", err
		}
		if err = status.Check(); err != nil {
			return "", err
		}
		warnings, err := r.env.Preflight(ctx, status)
		for _, w := range warnings {
			r.log.Warn("preflight", "detail", w)
		}
		return status.FragmentPath, err
	})
	if err != nil {
		return err
	}

	err = r.step("start", "enabling and starting "+r.Unit, func() (string, error) {
		if err := bus.Enable(ctx, r.Unit); err != nil {
			return "", err
		}
		start, detail := bus.Start, ""
		if r.outdated(status, changed) {
			start, detail = bus.Restart, "restarted, since its binaries changed"
		}
		err := start(ctx, r.Unit)
		if s, serr := bus.Status(ctx, r.Unit); reason.Of(err) == reason.UnitStartFailed && serr == nil && s.ActiveState == "activating" {
			// Whether a unit that ends before its job does fails the job is a matter
			// of milliseconds. systemd starts it again; watch decides.
			return "the first start failed, systemd tries again: " + s.String(), nil
		}
		return detail, r.explain(err)
	})
	if err != nil {
		return err
	}
	return r.step("watch", "waiting until "+r.Unit+" stays active", func() (string, error) {
		return r.watch(ctx, bus, status)
	})
}

// outdated reports whether the unit runs something else than the binaries in
// place: they have just changed, or an earlier setup that was broken off has
// changed them. A unit that is activating may wait for its peers with the old
// etcd.
func (r *run) outdated(status unit.Status, changed []string) bool {
	if len(changed) > 0 {
		return status.ActiveState == "active" || status.MainPID != 0
	}
	// proc_pid_exe(5): a program whose file was replaced has this suffix.
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", status.MainPID))
	return err == nil && path.Base(exe) == "etcd (deleted)"
}

// watch reads the unit's state until it was active on two checks in a row
// within the same life of the service, or is clearly not.
func (r *run) watch(ctx context.Context, bus Bus, status unit.Status) (string, error) {
	// Of a delay that the time does not allow for, the comparison of invocations
	// must be proof enough.
	gap := max(stability.DefaultGap, min(status.RestartDelay+gapMargin, r.StartTimeout/2))
	seen := stability.New(stability.Rule{Gap: gap})
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var lookErr error
	for {
		s, err := bus.Status(ctx, r.Unit)
		var v stability.Verdict
		if err != nil {
			if ctx.Err() == nil { // else it is the look that came too late
				lookErr = err
			}
			v = seen.Add(stability.Sample{At: time.Now(), State: stability.Unknown, Restarts: -1, Detail: reason.Line(err.Error())})
		} else {
			lookErr = nil
			v = seen.Add(s.Sample(time.Now(), r.env.BootID))
		}
		switch v.Outcome {
		case stability.Stable:
			return v.Why, nil
		case stability.Flapping:
			return "", r.explain(reason.New(reason.UnitFlapping, "%s: %s", r.Unit, v.Why))
		case stability.Down:
			return "", r.explain(reason.New(reason.UnitFailed, "%s: %s", r.Unit, v.Why))
		}
		select {
		case <-tick.C:
			continue
		case <-ctx.Done():
		}
		if errors.Is(ctx.Err(), context.Canceled) { // the time was not up
			return "", reason.New(reason.Interrupted, "%w", context.Cause(ctx))
		}
		if lookErr != nil && reason.Of(lookErr) == reason.BusUnreachable {
			return "", lookErr
		}
		return "", r.explain(reason.New(reason.UnitStartTimeout, "%s was not active on two checks in a row within %v; %s", r.Unit, r.StartTimeout, v.Why))
	}
}

// explain adds to an error about the unit what etcd said of it in the journal
// since this setup began: the faults of earlier starts may be mended by now.
// A fault that is known by its words takes the error's place.
func (r *run) explain(err error) error {
	var e *reason.Error
	switch reason.Of(err) {
	case reason.UnitStartFailed, reason.UnitStartTimeout, reason.UnitFailed, reason.UnitFlapping:
		errors.As(err, &e)
	default:
		return err
	}
	// The step's own deadline may be over; the reason still needs its last line.
	ctx, cancel := context.WithTimeout(context.Background(), diagnosisTimeout)
	defer cancel()
	lines, jerr := r.env.Journal(ctx, r.Unit, r.began, unit.JournalLines)
	if jerr != nil {
		r.log.Warn("cannot read the journal", "unit", r.Unit, "err", jerr)
	}
	if code, said, ok := unit.Classify(lines); ok {
		return reason.New(code, "%s (%w)", said, e.Err)
	}
	if said := unit.LastError(lines); said != "" {
		return &reason.Error{Code: e.Code, Hint: e.Hint, Err: fmt.Errorf("%w; etcd said: %s", e.Err, said)}
	}
	return err
}
