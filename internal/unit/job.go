package unit

import (
	"context"
	"errors"
	"fmt"
	"time"

	sd "github.com/coreos/go-systemd/v22/dbus"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/stability"
)

const (
	// pollInterval is how often a waiting Start reads the unit's state besides
	// listening for the signal, which gets lost when D-Bus or systemd restarts.
	pollInterval = time.Second
	// pollTimeout bounds one such look, lest a systemd that is silent for a moment
	// keeps the result from being heard.
	pollTimeout = 5 * time.Second
	// lostPolls is how many polls in a row may fail before a wait gives up:
	// a restart of D-Bus takes less.
	lostPolls = 15
	// afterTimeout bounds the last look at a unit after the caller's time is up.
	afterTimeout = 2 * time.Second
)

// Reload makes systemd read its unit files again, as "systemctl daemon-reload".
func (b *Bus) Reload(ctx context.Context) error {
	err := b.call(ctx, func(ctx context.Context, c conn) error { return c.ReloadContext(ctx) })
	if err != nil {
		return cannotTell(ctx, "cannot reload systemd", err)
	}
	return nil
}

// Status reads the unit's properties. A unit without a file is not an error here:
// see Status.Check. The error says that systemd could not be asked, with code
// bus-unreachable, not-permitted or interrupted, and nothing about the unit.
func (b *Bus) Status(ctx context.Context, unit string) (Status, error) {
	var p map[string]any
	err := b.call(ctx, func(ctx context.Context, c conn) (err error) {
		p, err = c.GetAllPropertiesContext(ctx, unit)
		return err
	})
	if err != nil {
		return Status{Name: unit, NRestarts: stability.RestartsUnknown}, cannotTell(ctx, fmt.Sprintf("cannot read the state of %s", unit), err)
	}
	return decode(unit, p), nil
}

// Enable makes the unit start at boot, persistently and without replacing links
// of other units, as "systemctl enable". It is a success when the unit is enabled
// already, and when it has no [Install] section: Status.UnitFileState is "static"
// then. Codes: unit-missing, unit-masked, unit-bad-setting, unit-enable-failed,
// or those of Status.
func (b *Bus) Enable(ctx context.Context, unit string) error {
	st, err := b.Status(ctx, unit)
	if err != nil {
		return err
	}
	if err := st.Check(); err != nil {
		return err
	}
	var changes []sd.EnableUnitFileChange
	err = b.call(ctx, func(ctx context.Context, c conn) (err error) {
		_, changes, err = c.EnableUnitFilesContext(ctx, []string{unit}, false, false)
		return err
	})
	if err != nil {
		return refused(ctx, reason.UnitEnableFailed, "enable", unit, err)
	}
	if len(changes) == 0 {
		return nil
	}
	return b.Reload(ctx) // the new links count only once they are read
}

// refused gives an error that systemd answered a request about unit with its
// code: that of the D-Bus error's name, else code.
func refused(ctx context.Context, code reason.Code, verb, unit string, err error) error {
	name := errorName(err)
	switch name {
	case "", "org.freedesktop.DBus.Error.AccessDenied", "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired":
		return cannotTell(ctx, fmt.Sprintf("cannot %s %s", verb, unit), err)
	case "org.freedesktop.systemd1.NoSuchUnit", "org.freedesktop.DBus.Error.FileNotFound":
		code = reason.UnitMissing
	case "org.freedesktop.systemd1.UnitMasked":
		code = reason.UnitMasked
	case "org.freedesktop.systemd1.BadUnitSetting", "org.freedesktop.systemd1.LoadFailed":
		code = reason.UnitBadSetting
	}
	return reason.New(code, "%s: %w", unit, err)
}

// Start starts the unit and waits until systemd calls it started. A unit that is
// active already is left alone. For Type=exec, started means no more than that
// the program was executed: see package stability.
//
// Codes: those of Status and Check; unit-start-failed when the job ended with a
// result other than done, the unit's own result in the message;
// unit-start-timeout when ctx's deadline passed, with the last state seen, while
// systemd goes on trying; interrupted when ctx was cancelled.
func (b *Bus) Start(ctx context.Context, unit string) error {
	return b.run(ctx, unit, "start", func(ctx context.Context, c conn, ch chan<- string) error {
		_, err := c.StartUnitContext(ctx, unit, "replace", ch)
		return err
	})
}

// Restart is Start for a unit that shall run anew if it runs already, as after
// its program was replaced.
func (b *Bus) Restart(ctx context.Context, unit string) error {
	return b.run(ctx, unit, "restart", func(ctx context.Context, c conn, ch chan<- string) error {
		_, err := c.RestartUnitContext(ctx, unit, "replace", ch)
		return err
	})
}

// run queues a job that shall end with the unit active, and waits for it.
func (b *Bus) run(ctx context.Context, unit, verb string, queue func(context.Context, conn, chan<- string) error) error {
	st, err := b.Status(ctx, unit)
	if err != nil {
		return err
	}
	if err := st.Check(); err != nil {
		return err
	}
	if verb == "start" && st.state() == stability.Active && st.job.id == 0 {
		return nil
	}
	w := waiter{bus: b, unit: unit, verb: verb, last: st}
	err = b.call(ctx, func(ctx context.Context, c conn) error {
		// A place for the result: the library sends while it holds a lock that
		// every later call needs, whether or not anybody still listens. And a new
		// channel each time: a job of a lost connection must not be heard.
		w.result = make(chan string, 1)
		return queue(ctx, c, w.result)
	})
	switch {
	case err != nil && ctx.Err() != nil:
		return w.expired(ctx)
	case err != nil:
		return refused(ctx, reason.UnitStartFailed, verb, unit, err)
	}
	return w.wait(ctx)
}

// A waiter waits for the end of one job.
type waiter struct {
	bus    *Bus
	unit   string
	verb   string
	result chan string

	last    Status // the latest state seen
	lastErr error  // of the polls since
	missed  int    // polls that failed in a row
	over    int    // polls in a row that show the job gone
}

func (w *waiter) wait(ctx context.Context) error {
	tick := time.NewTicker(w.bus.poll)
	defer tick.Stop()
	for {
		select {
		case res := <-w.result:
			w.look(ctx)
			return w.ended(res)
		case <-ctx.Done():
			return w.expired(ctx)
		case <-tick.C:
			if done, err := w.polled(ctx); done {
				return err
			}
		}
	}
}

// look reads the unit's state into last. When that fails, last stays.
func (w *waiter) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, pollTimeout)
	defer cancel()
	st, err := w.bus.Status(ctx, w.unit)
	if w.lastErr = err; err != nil {
		w.missed++
		return
	}
	w.missed, w.last = 0, st
}

// polled looks at the unit, and ends the wait when the job is over although no
// signal came. One more poll is granted to a signal that is on its way.
func (w *waiter) polled(ctx context.Context) (done bool, err error) {
	w.look(ctx)
	if w.lastErr != nil {
		if w.missed >= lostPolls && ctx.Err() == nil {
			return true, w.lastErr
		}
		return false, nil
	}
	st := w.last.state()
	settled := st == stability.Active || st == stability.Failed
	if w.last.job.id != 0 || !w.last.job.known && !settled {
		w.over = 0
		return false, nil
	}
	if w.over++; w.over < 2 || st == stability.Deactivating || st == stability.Unknown {
		return false, nil
	}
	if st == stability.Active {
		return true, nil
	}
	return true, reason.New(reason.UnitStartFailed, "%s: the %s job is gone and the unit is %s", w.unit, w.verb, w.last)
}

// ended judges the job's result: only "done" is success.
func (w *waiter) ended(result string) error {
	var why string
	switch result {
	case "done":
		// systemd calls a start done, too, that a condition of the unit prevented.
		if w.lastErr == nil && w.last.state() == stability.Inactive && w.last.conditionMet == no {
			return reason.New(reason.UnitStartFailed, "%s: a condition of the unit (Condition...=) was not met", w.unit)
		}
		return nil
	case "failed":
		why = "the " + w.verb + " job failed"
	case "timeout":
		why = "the " + w.verb + " job ran into its own timeout"
	case "canceled":
		why = "the " + w.verb + " job was canceled by another request"
	case "dependency":
		why = "a unit that it needs failed to start"
	case "skipped":
		why = "systemd skipped the " + w.verb + " job"
	case "assert":
		why = "an assertion of the unit (Assert...=) was not met"
	default:
		why = fmt.Sprintf("the %s job ended as %q", w.verb, result)
	}
	if w.lastErr != nil {
		return reason.New(reason.UnitStartFailed, "%s: %s; its state cannot be read: %w", w.unit, why, w.lastErr)
	}
	return reason.New(reason.UnitStartFailed, "%s: %s: %s", w.unit, why, w.last)
}

// expired words the end of ctx, with the state of now if it can still be had.
func (w *waiter) expired(ctx context.Context) error {
	cause := ctx.Err()
	if errors.Is(cause, context.Canceled) {
		return reason.New(reason.Interrupted, "waiting for %s to %s: %w", w.unit, w.verb, cause)
	}
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), afterTimeout)
	defer cancel()
	w.look(late)
	if w.lastErr != nil {
		return reason.New(reason.UnitStartTimeout, "%s: last seen %s, now its state cannot be read (%v): %w", w.unit, w.last, w.lastErr, cause)
	}
	return reason.New(reason.UnitStartTimeout, "%s: last seen %s: %w", w.unit, w.last, cause)
}
