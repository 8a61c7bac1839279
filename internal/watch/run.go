package watch

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// A running is what is in use between two reloads. It does not change; only
// the pointer to it does.
type running struct {
	Config
	guard guard
	*backend

	life   context.Context // of the rounds of this backend
	end    context.CancelFunc
	before *atomic.Pointer[[]scan.ISO] // what the backend before this one knew; of nil once it has done a round
}

// list returns what is known of all ISOs: until the first round of a new
// backend has ended, that is what the one before it knew.
func (r *running) list() []scan.ISO {
	if before := r.before.Load(); before != nil {
		return *before
	}
	return r.ISOs()
}

// A daemon is one call of Run.
type daemon struct {
	options Options
	log     *slog.Logger
	notify  notifier
	metrics *metrics
	http    *http.Server

	current atomic.Pointer[running]
	tls     atomic.Pointer[tls.Config] // of current, for the listeners
	rounds  rounds
	pulse   pulse
	answers answersCheck

	listeners map[string]*listener // by Address.String; the main loop's own
	failed    chan error           // a listener that ended by itself
	kick      chan struct{}        // begin a round now
	hint      chan struct{}        // begin a round soon
	ended     chan struct{}        // a round has ended
	stopping  atomic.Bool
	work      sync.WaitGroup // of all goroutines that end with the daemon
	refused   string         // why the last reload was not taken over, "" if it was
}

// Run reads the configuration, and scans and serves until ctx ends. It returns
// nil after such an end, and an error if it could not begin or a listener
// failed: of code reason.Usage for the configuration and the files it names,
// reason.ListenFailed for an address, and those of package answers.
//
// With each signal on o.Hangup the configuration is read again. One that cannot
// be used is logged, and the old one stays. Certificates, the token, the CA and
// netrc files are read again as well.
func Run(ctx context.Context, o Options) error {
	o.Log = discard(o.Log)
	o.calls = fscall.New(o.Log)
	if o.open == nil {
		o.open = openBackend
	}
	d := &daemon{
		options:   o,
		log:       o.Log,
		notify:    notifier{o.Log},
		listeners: make(map[string]*listener),
		failed:    make(chan error, 1),
		kick:      make(chan struct{}, 1),
		hint:      make(chan struct{}, 1),
		ended:     make(chan struct{}, 1),
	}
	d.metrics = newMetrics(d, o.Version)
	d.http = newServer(d).http()
	life, end := context.WithCancel(ctx)
	defer end()
	requests, endRequests := context.WithCancel(context.WithoutCancel(ctx))
	defer endRequests()
	d.http.BaseContext = func(net.Listener) context.Context { return requests }

	err := d.use(life)
	if err == nil {
		d.work.Go(func() { d.scanLoop(life) })
		d.notify.ready()
		d.showStatus()
		err = d.loop(life)
	}
	d.stop(end, endRequests)
	return err
}

// Check reads the configuration of o and the files it names, as Run does, and
// reports what is wrong with them, with the code reason.Usage. It listens on
// nothing, reads no ISO, and leaves the answers alone.
func Check(o Options) error {
	o.Log = discard(o.Log)
	c, err := ReadConfig(o.ConfigPath)
	if err != nil {
		return err
	}
	if _, err := readGuard(c); err != nil {
		return err
	}
	opener, err := openSource(c, o)
	if err != nil {
		return err
	}
	opener.Close()
	return nil
}

// loop is the main loop: it alone changes what is in use.
func (d *daemon) loop(ctx context.Context) error {
	var watchdog <-chan time.Time
	if every := d.notify.watchdogEvery(); every > 0 {
		t := time.NewTicker(every)
		defer t.Stop()
		watchdog = t.C
	}
	stopHints := d.startHints(ctx)
	defer func() { stopHints() }()
	stuck := false
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-d.failed:
			return err
		case <-d.options.Hangup:
			stores := d.current.Load().Stores
			d.reload(ctx)
			if !reflect.DeepEqual(stores, d.current.Load().Stores) {
				stopHints()
				stopHints = d.startHints(ctx)
			}
		case <-d.ended:
			d.showStatus()
		case <-watchdog:
			// A loop that is stuck must not be covered up by one that is not.
			age, bound := d.pulse.age(), d.current.Load().bound()
			if age <= bound {
				d.notify.alive()
			} else if !stuck {
				d.log.Error("the scan loop is stuck; systemd is no longer told that the daemon is alive", "for", age.Round(time.Second), "bound", bound)
			}
			stuck = age > bound
		}
	}
}

func (d *daemon) startHints(ctx context.Context) (stop func()) {
	return hints(ctx, d.current.Load().Stores, d.hint, d.log)
}

// reload reads the configuration again.
func (d *daemon) reload(ctx context.Context) {
	d.notify.reloading()
	err := d.use(ctx)
	d.metrics.reload(err)
	d.refused = ""
	if err != nil {
		d.refused = err.Error()
		d.log.Error("the configuration was not taken over; the old one stays in use", "code", reason.Of(err), "error", err)
	} else {
		d.log.Info("the configuration was read again", "path", d.options.ConfigPath)
		poke(d.kick)
	}
	d.notify.ready()
	d.showStatus()
}

// use reads the configuration and takes it into use: all of it or nothing.
func (d *daemon) use(ctx context.Context) error {
	old := d.current.Load()
	c, err := ReadConfig(d.options.ConfigPath)
	if err != nil {
		return err
	}
	next := &running{Config: c}
	if next.guard, err = readGuard(c); err != nil {
		return err
	}
	opened, err := d.open(ctx, c.Listen)
	if err != nil {
		return err
	}
	if old != nil && !needsBackend(old.Config, c) {
		next.backend, next.life, next.end, next.before = old.backend, old.life, old.end, old.before
	} else {
		if next.backend, err = d.options.open(ctx, c, d.options); err != nil {
			for _, l := range opened {
				l.Close()
			}
			return err
		}
		next.life, next.end = context.WithCancel(ctx)
		next.before = new(atomic.Pointer[[]scan.ISO])
		next.Observe(d.pulse.beat, d.metrics.roundLook)
	}
	next.Reload(c.Scan())
	replaced := old != nil && old.backend != next.backend
	if replaced {
		isos := old.list()
		next.before.Store(&isos)
	}
	d.tls.Store(next.guard.tls)
	d.current.Store(next)
	if replaced {
		d.retire(ctx, old)
	}
	d.listen(opened, c.Listen)
	return nil
}

// needsBackend reports whether c needs another backend. The files for reading
// URLs may have changed without the configuration.
func needsBackend(old, c Config) bool {
	return old.Answers != c.Answers || old.ReadTimeout != c.ReadTimeout || !reflect.DeepEqual(old.HTTP, c.HTTP) || len(c.URLs) > 0
}

// retire ends the rounds of what is no longer in use, and closes it when the
// last request that began with it has its answer.
func (d *daemon) retire(ctx context.Context, old *running) {
	old.end()
	d.work.Go(func() {
		select {
		case <-time.After(writeTime):
		case <-ctx.Done():
		}
		old.close()
	})
}

// open opens the addresses that are not open yet.
func (d *daemon) open(ctx context.Context, addrs []Address) ([]*listener, error) {
	var opened []*listener
	for _, a := range addrs {
		if d.listeners[a.String()] != nil {
			continue
		}
		l, err := listen(ctx, a, &d.tls)
		if err != nil {
			for _, l := range opened {
				l.Close()
			}
			return nil, d.inTheWay(a, addrs, err)
		}
		opened = append(opened, l)
	}
	return opened, nil
}

// inTheWay says so where it is this daemon itself that keeps a from being listened
// on, with a listener that addrs would have closed. The old one is not closed first:
// if anything then kept the new one from being opened, there would be none.
func (d *daemon) inTheWay(a Address, addrs []Address, err error) error {
	if !errors.Is(err, unix.EADDRINUSE) {
		return err
	}
	for _, l := range d.listeners {
		if l.addr.overlaps(a) && !slices.Contains(addrs, l.addr) {
			return reason.New(reason.ListenFailed, "%s: it overlaps %s, on which the daemon listens until it is restarted", a, l.addr).
				WithHint("restart the daemon: a reload cannot change from one to the other")
		}
	}
	return err
}

// listen serves what was opened, and closes the listeners that are no longer wanted.
func (d *daemon) listen(opened []*listener, wanted []Address) {
	keep := make(map[string]bool)
	for _, a := range wanted {
		keep[a.String()] = true
	}
	for name, l := range d.listeners {
		if !keep[name] {
			d.log.Info("no longer listening", "address", name)
			l.Close()
			delete(d.listeners, name)
		}
	}
	for _, l := range opened {
		d.listeners[l.addr.String()] = l
		d.log.Info("listening", "address", l.addr.String(), "tls", l.addr.Network == "tcp" && d.tls.Load() != nil)
		if d.options.listening != nil {
			d.options.listening(l.Addr())
		}
		d.work.Go(func() {
			err := d.http.Serve(l)
			if l.isClosed() || errors.Is(err, http.ErrServerClosed) {
				return
			}
			select {
			case d.failed <- reason.New(reason.ListenFailed, "%s: %w", l.addr, err):
			default: // another one failed before
			}
		})
	}
}

// scanLoop does one round after the other.
func (d *daemon) scanLoop(ctx context.Context) {
	for ctx.Err() == nil {
		now := d.current.Load()
		d.pulse.beat()
		began := time.Now()
		r := now.Round(now.life)
		if now.life.Err() != nil {
			continue // the daemon stops, or there is another backend: half a round says nothing
		}
		now.before.Store(nil)
		sum := summaryOf(r)
		d.rounds.add(sum)
		d.metrics.round(r, len(sum.Errors) == 0)
		poke(d.ended)
		d.pause(ctx, began)
	}
}

// pause waits for the next round: it begins an interval after the last one did,
// at once when that is over or a new configuration came, and soon when
// something happened in a store.
func (d *daemon) pause(ctx context.Context, began time.Time) {
	ended := time.Now()
	hinted := false
	for {
		d.pulse.beat()
		next := began.Add(d.current.Load().Interval)
		if soon := ended.Add(minInterval); hinted && soon.Before(next) {
			next = soon
		}
		if soonest := ended.Add(minPause); next.Before(soonest) {
			next = soonest
		}
		left := time.Until(next)
		if left <= 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-d.kick:
			return
		case <-d.hint:
			hinted = true
		case <-time.After(min(left, beatEvery)):
		}
	}
}

// minPause is the shortest time between two rounds that nobody asked for.
const minPause = time.Second

// poke sends on c, unless something is there already.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// stop ends everything within stopTime or little more. Requests that wait for a
// look are let through, unchecked, after half of it.
func (d *daemon) stop(end, endRequests context.CancelFunc) {
	d.stopping.Store(true)
	d.notify.stopping()
	d.log.Debug("stopping")
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	end()
	for _, l := range d.listeners {
		l.Close()
	}
	defer time.AfterFunc(stopTime/2, endRequests).Stop()
	if err := d.http.Shutdown(ctx); err != nil {
		d.http.Close()
	}
	done := make(chan struct{})
	go func() { // outlives Run only with a call that hangs in the kernel
		defer close(done)
		d.work.Wait()
		if now := d.current.Load(); now != nil {
			now.close()
		}
	}()
	select {
	case <-done:
	case <-time.After(stopTime):
		d.log.Warn("a round did not end in time; it is left behind")
	}
}
