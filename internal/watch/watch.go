// Package watch is the daemon's face: it reads the configuration of
// etcd-fleet watch, has the stores looked at in rounds, and serves health,
// metrics, the list of ISOs and decisions about cluster requests over HTTP.
//
// What an ISO holds is decided by package inspect, when to look by package
// scan, and what becomes of a request by package admit. This package decides
// who may ask, how long anything may take, and what systemd is told.
//
//	Run
//	├─ main loop      signals, reload, watchdog; the only one that changes what is in use
//	├─ scan loop      one round after the other; beats so that the main loop knows it lives
//	├─ HTTP server    one goroutine for each listener
//	└─ hinter         inotify: may shorten the wait for the next round, never more
package watch

import (
	"context"
	"log/slog"
	"net"
	"os"
	"time"

	"cks-etcd/internal/fscall"
)

// Options says what [Run] works with.
type Options struct {
	ConfigPath string           // of the configuration, in YAML
	Log        *slog.Logger     // nil: nowhere
	Hangup     <-chan os.Signal // each one received makes Run read the configuration again; may be nil
	Version    string           // of the program, for the metrics and as User-Agent
	Rebuild    bool             // set damaged answers aside and begin anew

	calls *fscall.Calls // those of the daemon, whichever backend makes them

	// What tests put in place of the real thing, or want to know.
	open      func(ctx context.Context, c Config, o Options) (*backend, error) // nil: openBackend
	listening func(net.Addr)                                                   // is told every address listened on; may be nil
}

const (
	// stopTime bounds the end of the daemon: requests being answered may take
	// this long, and so may the round. A read that hangs in the kernel is left
	// to systemd, which waits for TimeoutStopSec.
	stopTime = 10 * time.Second
	// beatEvery is the time between two signs of life of a scan loop that
	// waits. It is well below any sensible WatchdogSec.
	beatEvery = 5 * time.Second
	// beatSlack is added to what one look may take before the scan loop counts
	// as stuck: answers are written with fsync, and disks can be slow.
	beatSlack = time.Minute
)
