package watch

import (
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	sd "github.com/coreos/go-systemd/v22/daemon"

	"cks-etcd/internal/reason"
)

// A notifier tells systemd how the daemon is (sd_notify(3)). Without systemd it
// does nothing.
type notifier struct{ log *slog.Logger }

func (n notifier) send(state string) {
	if _, err := sd.SdNotify(false, state); err != nil {
		n.log.Debug("cannot notify systemd", "err", err)
	}
}

func (n notifier) status(format string, args ...any) {
	n.send("STATUS=" + reason.Line(fmt.Sprintf(format, args...)))
}

func (n notifier) ready()    { n.send(sd.SdNotifyReady) }
func (n notifier) stopping() { n.send(sd.SdNotifyStopping + "\nSTATUS=stopping") }
func (n notifier) alive()    { n.send(sd.SdNotifyWatchdog) }

// reloading says that the configuration is being read. The time belongs to it
// so that systemd can tell this reload from an earlier one.
func (n notifier) reloading() {
	n.send(sd.SdNotifyReloading + "\n" + sd.SdNotifyMonotonicUsec())
}

// watchdogEvery returns how often systemd wants to hear from the daemon: twice
// within the time after which it kills it, as sd_watchdog_enabled(3) advises. 0: never.
func (n notifier) watchdogEvery() time.Duration {
	t, err := sd.SdWatchdogEnabled(false)
	if err != nil {
		n.log.Warn("cannot use the watchdog's settings", "err", err)
		return 0
	}
	return t / 2
}

// A pulse is the sign of life of the scan loop.
type pulse struct{ at atomic.Pointer[time.Time] }

// beat says that the loop has got on.
func (p *pulse) beat() {
	now := time.Now()
	p.at.Store(&now)
}

// age returns how long ago the last beat was. It is by the monotonic clock, so
// that setting the time of day is no reason to be killed.
func (p *pulse) age() time.Duration {
	at := p.at.Load()
	if at == nil {
		return 0
	}
	return time.Since(*at)
}

// bound is how long the scan loop may stay without a beat: it beats with every
// ISO it looked at and every directory it read, and each of those has its own
// deadline.
func (c Config) bound() time.Duration {
	return max(c.LookTimeout, c.ReadTimeout) + beatSlack
}
