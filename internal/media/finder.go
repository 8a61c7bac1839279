package media

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"cks-etcd/internal/reason"
)

// A Finder looks for media that hold the archive. Find is called by one
// goroutine at a time; the other methods may be called at any time.
type Finder struct {
	opt  Options
	sys  system
	wake chan struct{} // a look has ended

	mu           sync.Mutex
	began        time.Time // of the first Find
	slots        map[string]*slot
	carrier      bool      // a drive or an ISO was seen at any time
	missingSince time.Time // a Kubernetes ISO without the archive is there
	trouble      string    // why devices or mounts cannot be listed
	blind        bool      // devices cannot
	broken       any       // what a look panicked with; Find panics with it
}

// A slot is one place where an ISO may be: a block device or a mount. It
// outlives the device, which may come back.
type slot struct {
	where  string
	drive  bool
	device bool // a block device, not a mount
	open   func() (volume, error)
	gate   *gate

	// lenient marks the mount of a device that could be opened but not made
	// sense of. The kernel passes over damage there: what it shows can be used,
	// what it does not show may exist.
	lenient bool

	present bool // listed now
	fresh   bool // looked at since the running Find began
	seen    observation
	before  string // the last medium that was seen before what is seen now
	logged  string
}

func newFinder(o Options, sys system) *Finder {
	return &Finder{opt: o.withDefaults(), sys: sys, wake: make(chan struct{}, 1), slots: make(map[string]*slot)}
}

// Find blocks until media that hold the archive are there, and returns all of
// them, ordered by Where. It fails
//   - with archive-missing at once when a Kubernetes ISO is there that certainly lacks
//     the archive; a device that cannot be read may still hold the right one, and delays
//     this for a short, fixed time;
//   - when the deadline of ctx passes, with iso-damaged, iso-unreadable,
//     iso-not-found, or iso-no-drive when nothing was ever there that could carry
//     an ISO. The message says what was last seen on every device;
//   - with ctx's error and cause when ctx is cancelled.
//
// A look that is running outlives Find and lets go of its device when it ends; one
// that hangs in the kernel is known to the next call.
func (f *Finder) Find(ctx context.Context) ([]*Medium, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the source of the hints
	hints := f.listen(ctx)

	f.begin()
	var last time.Time // start of the last round
	next := time.NewTimer(0)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, f.ended(ctx)
		case <-f.wake:
		case <-next.C:
			f.round()
			last = time.Now()
			next.Reset(f.opt.Rescan)
		case _, ok := <-hints:
			if ok {
				next.Reset(time.Until(last.Add(minGap)))
			} else {
				hints = nil
				if ctx.Err() == nil {
					f.opt.Log.Warn("no more kernel events; looking at every device at intervals", "interval", f.opt.Rescan)
				}
			}
			continue
		}
		media, err := f.verdict()
		f.logChanges()
		if err != nil || len(media) > 0 {
			return media, err
		}
	}
}

func (f *Finder) listen(ctx context.Context) <-chan struct{} {
	if f.opt.Uevents == nil {
		return nil
	}
	hints, err := f.opt.Uevents(ctx)
	if err != nil {
		f.opt.Log.Warn("no kernel events; looking at every device at intervals", "interval", f.opt.Rescan, "cause", err)
		return nil
	}
	return hints
}

// begin makes everything seen by an earlier Find history.
func (f *Finder) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.began.IsZero() {
		f.began = time.Now()
	}
	f.missingSince = time.Time{}
	for _, s := range f.slots {
		s.fresh = false
	}
}

// round lists what is there and starts a look at all of it that is not being
// looked at already.
func (f *Finder) round() {
	devices, derr := f.sys.devices()
	mounts, merr := f.sys.mounts()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.trouble, f.blind = "", derr != nil
	if err := errors.Join(derr, merr); err != nil {
		f.trouble = reason.Line(err.Error())
	}
	listed := make(map[string]bool)
	for _, d := range devices {
		key := deviceKey(d.num)
		listed[key] = true
		s := f.slot(key)
		s.where, s.drive, s.device = d.path, d.drive, true
		s.open = func() (volume, error) { return openImage(f.sys, d) }
		f.carrier = f.carrier || d.drive
		f.start(s)
	}
	for _, m := range mounts {
		f.carrier = true
		dev := f.slots[deviceKey(m.num)]
		if dev != nil && listed[deviceKey(m.num)] && !f.mute(dev) {
			continue
		}
		key := "mount " + m.num.String() + " " + m.point
		listed[key] = true
		s := f.slot(key)
		s.where = m.point
		s.open = func() (volume, error) { return openMounted(f.sys, m, f.opt.Archive) }
		s.lenient = dev != nil && dev.seen.opened
		f.start(s)
	}
	for key, s := range f.slots {
		s.present = listed[key] || s.present && (s.device && derr != nil || !s.device && merr != nil)
		if !s.present {
			s.remember()
			s.fresh = false
		}
	}
}

func deviceKey(n devnum) string { return "device " + n.String() }

// mute reports whether dev gives no answer itself, so that its mount is asked.
func (f *Finder) mute(dev *slot) bool {
	if age, busy := dev.gate.busy(); busy && age >= f.opt.ReadTimeout {
		return true
	}
	return dev.fresh && (dev.seen.kind.unsure() || dev.seen.kind == noDevice)
}

func (f *Finder) slot(key string) *slot {
	s := f.slots[key]
	if s == nil {
		s = &slot{gate: newGate()}
		f.slots[key] = s
	}
	return s
}

// start looks at s in a goroutine of its own, unless the last look, or a read
// of the archive, is still running.
func (f *Finder) start(s *slot) {
	if !s.gate.enter() {
		return
	}
	open, lenient := s.open, s.lenient
	go func() {
		var o observation
		broken := panicOf(func() { o = look(open, f.opt.Archive) })
		if lenient && o.kind == missing {
			o.kind = other
		}
		f.mu.Lock()
		if broken != nil {
			f.broken = broken
		} else {
			s.update(o)
			f.carrier = f.carrier || o.kind.iso()
		}
		f.mu.Unlock()
		s.gate.leave()
		select {
		case f.wake <- struct{}{}:
		default:
		}
	}()
}

func (s *slot) update(o observation) {
	if o.kind != s.seen.kind || o.id != s.seen.id {
		s.remember()
	}
	s.seen, s.fresh = o, true
}

// remember keeps what was seen of a medium that is about to be forgotten.
func (s *slot) remember() {
	if s.seen.kind >= seed {
		s.before = s.seen.text
	}
}

// verdict returns the media that hold the archive, or the error that is the
// answer already, or neither when the wait goes on.
func (f *Finder) verdict() ([]*Medium, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.broken != nil {
		panic(f.broken)
	}
	var (
		media    []*Medium
		lacking  []string
		unsure   bool // some device may hold the archive all the same
		settling bool // some look may end any moment
	)
	for _, s := range f.sorted() {
		if !s.present {
			continue
		}
		age, busy := s.gate.busy()
		if !s.fresh || busy && age >= f.opt.ReadTimeout {
			unsure = true
			settling = settling || busy && age < settleTime
			continue
		}
		switch {
		case s.seen.kind == holds:
			media = append(media, f.medium(s))
		case s.seen.kind == missing:
			lacking = append(lacking, s.where)
		case s.seen.kind.unsure():
			unsure = true
		}
	}
	if len(lacking) == 0 {
		f.missingSince = time.Time{}
	} else if f.missingSince.IsZero() {
		f.missingSince = time.Now()
	}
	switch {
	case settling:
		return nil, nil
	case len(media) > 0:
		return media, nil
	case len(lacking) > 0 && (!unsure || time.Since(f.missingSince) >= missingGrace):
		return nil, reason.New(reason.ArchiveMissing, "%s is not on the ISO in %s; seen: %s",
			f.opt.Archive, strings.Join(lacking, ", "), f.summary())
	}
	return nil, nil
}

func (f *Finder) medium(s *slot) *Medium {
	return &Medium{
		Where: s.where, VolumeID: s.seen.volume, Names: s.seen.names,
		archive: f.opt.Archive, id: s.seen.id,
		source: s.open, gate: s.gate, limit: f.opt.ReadTimeout,
		done: make(chan struct{}),
	}
}

// ended returns the error for a wait that ctx has ended.
func (f *Finder) ended(ctx context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err, cause := ctx.Err(), context.Cause(ctx)
	if !errors.Is(err, context.DeadlineExceeded) {
		if errors.Is(cause, err) {
			return fmt.Errorf("cannot find the Kubernetes ISO: %w", cause)
		}
		return fmt.Errorf("cannot find the Kubernetes ISO: %w: %w", err, cause)
	}
	code, drive := reason.ISONotFound, ""
	switch {
	case f.blind:
		code = reason.ISOUnreadable
	case !f.carrier:
		code, drive = reason.ISONoDrive, "; no optical drive and no block device with an ISO 9660 file system"
	}
	for _, s := range f.sorted() {
		if !s.present {
			continue
		}
		age, busy := s.gate.busy()
		switch {
		case s.fresh && s.seen.kind == damaged:
			code, drive = reason.ISODamaged, ""
		case code == reason.ISODamaged:
		case busy && age >= settleTime, s.fresh && s.seen.kind == unreadable:
			code, drive = reason.ISOUnreadable, ""
		}
	}
	return reason.New(code, "waited %v%s; seen: %s", time.Since(f.began).Round(time.Second), drive, f.summary())
}

// sorted yields the slots ordered by where they are.
func (f *Finder) sorted() func(yield func(string, *slot) bool) {
	keys := slices.SortedFunc(maps.Keys(f.slots), func(a, b string) int {
		if c := strings.Compare(f.slots[a].where, f.slots[b].where); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
	return func(yield func(string, *slot) bool) {
		for _, k := range keys {
			if !yield(k, f.slots[k]) {
				return
			}
		}
	}
}

// logChanges logs one line for each slot that shows something else than at the
// last call.
func (f *Finder) logChanges() {
	type line struct {
		where, seen string
	}
	var lines []line
	f.mu.Lock()
	for _, s := range f.sorted() {
		now := f.state(s)
		if s.logged == now || s.logged == "" && s.quiet() {
			continue
		}
		if s.present && !s.fresh && now == notRead {
			continue
		}
		s.logged = now
		lines = append(lines, line{s.where, now})
	}
	f.mu.Unlock()
	for _, l := range lines {
		f.opt.Log.LogAttrs(context.Background(), slog.LevelInfo, "device", slog.String("at", l.where), slog.String("seen", l.seen))
	}
}
