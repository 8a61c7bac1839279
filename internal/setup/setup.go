// Package setup is the node agent's work from beginning to end: lock, look
// whether it is done already, find the ISO, verify and install etcd, start its
// unit and watch it, and leave either a ready state or one line of reason.
//
// The package holds the order of the steps and what each failure means for the
// next step; how a step is done is the business of media, archive, install,
// unit, stability and marker.
package setup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"cks-etcd/internal/marker"
	"cks-etcd/internal/media"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/unit"
)

// Defaults of Config's fields, as a CloudStack etcd node wants them.
const (
	DefaultArchive      = media.DefaultArchive
	DefaultUnit         = "etcd.service"
	DefaultBinDir       = "/opt/bin"
	DefaultMarker       = "/home/cloud/etcd-setup-failed"
	DefaultSuccess      = "/home/cloud/success"
	DefaultState        = "/var/lib/etcd-nodeagent/state.json"
	DefaultLock         = "/run/etcd-nodeagent.lock"
	DefaultISOWait      = 25 * time.Minute // 100 tries 15 s apart, as CloudStack's own script waits
	DefaultStartTimeout = 5 * time.Minute  // a member that starts with Type=notify waits for its peers' VMs
)

// Config says what to set up and where. Every field must be set; the Default
// constants are the values for a CloudStack etcd node.
type Config struct {
	Archive string // path of the etcd archive on the ISO
	Arch    string // GOARCH that the binaries must have
	SHA256  string // expected digest of the archive, in hex; empty: that of a sidecar on the ISO, if any
	Unit    string // systemd unit to enable and start
	BinDir  string // directory for etcd, etcdctl and etcdutl

	ISOWait      time.Duration // how long an ISO may take to appear
	StartTimeout time.Duration // how long etcd may take from the start job to the second look that finds it active

	Marker  string // failure marker: one line, the reason
	Success string // when this file exists the node was set up by other means, and nothing is done
	State   string // machine-readable state
	Lock    string // held while a setup runs

	Version string // of the agent, for the state file
}

// Finder finds the media that hold the archive; *media.Finder is the real one.
type Finder interface {
	Find(ctx context.Context) ([]*media.Medium, error)
	Seen() []string
}

// Bus is systemd, as far as a setup needs it; *unit.Bus is the real one.
type Bus interface {
	Reload(ctx context.Context) error
	Enable(ctx context.Context, name string) error
	Start(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	Status(ctx context.Context, name string) (unit.Status, error)
	Close()
}

// Env is what a setup touches outside its process, apart from files.
type Env struct {
	Finder    Finder
	Connect   func(context.Context) (Bus, error)
	Journal   func(ctx context.Context, name string, since time.Time, lines int) ([]string, error)
	Preflight func(ctx context.Context, s unit.Status) (warnings []string, err error)
	BootID    string
	Log       *slog.Logger
}

// Run sets the node up and returns nil when etcd is ready. Any other end is an
// error with a reason code that has been logged, and has been written to the
// marker and to the state file by the time Run returns. These two belong to the
// setup that holds the lock: who waits for it in vain, or may not open it, leaves
// them alone. When ctx is cancelled Run ends within a few seconds with
// reason.Interrupted.
func Run(ctx context.Context, cfg Config, env Env) (err error) {
	r := &run{Config: cfg, env: env, log: env.Log, began: time.Now()}
	r.state = marker.State{
		SchemaVersion: marker.SchemaVersion,
		Result:        marker.ResultRunning,
		BootID:        env.BootID,
		AgentVersion:  cfg.Version,
		Unit:          cfg.Unit,
		PID:           os.Getpid(),
		Started:       r.began,
	}

	unlock, err := r.acquire(ctx)
	switch reason.Of(err) {
	case reason.Ready:
	case reason.SetupRunning, reason.Interrupted, reason.NotPermitted:
		r.logFailure(err)
		return err
	default:
		return r.finish(err)
	}
	defer unlock()

	r.doing = "looking whether etcd is set up already"
	var done, again bool
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("panic", "value", fmt.Sprint(p), "stack", string(debug.Stack()))
			what, _, _ := strings.Cut(fmt.Sprint(p), "\n") // a stack may follow
			err = reason.New(reason.Internal, "panic while %s: %s", r.doing, what)
		}
		if !done {
			err = r.finish(r.interrupted(ctx, err))
		}
	}()
	if done, again = r.already(ctx); done {
		return nil
	}
	if err := r.step("clean", "removing a stale marker", func() (string, error) {
		return "", wrap(reason.InstallFailed, marker.Remove(r.Marker))
	}); err != nil {
		// A reason from last time that cannot be removed must not stop a setup
		// that would work.
		r.log.Warn("cannot remove the old marker", "err", err)
	}
	return r.steps(ctx, again)
}

// run is one setup in progress.
type run struct {
	Config
	env   Env
	log   *slog.Logger
	began time.Time
	doing string // the step in progress, in words

	// placed is the state of an earlier setup that did not end well, but whose
	// binaries are in place.
	placed *marker.State
	state  marker.State
}

// steps are those that may fail for a reason worth a marker. When again is
// true the binaries of an earlier setup are in place and only the unit is down.
func (r *run) steps(ctx context.Context, again bool) error {
	var changed []string
	if !again {
		var err error
		if changed, err = r.install(ctx); err != nil {
			return err
		}
	}
	return r.start(ctx, changed)
}

// step runs one step, and logs and records its result with the time it took.
// What do returns as its first value is the detail for the log.
func (r *run) step(name, doing string, do func() (detail string, err error)) error {
	r.doing = doing
	r.state.Step = name
	r.saveProgress()
	began := time.Now()
	detail, err := do()
	took := time.Since(began)
	rec := marker.Step{Name: name, Seconds: took.Round(time.Millisecond).Seconds(), Result: marker.StepOK}
	if err != nil {
		rec.Result = string(reason.Of(err))
		r.log.Error(name, "took", took, "err", reason.Line(err.Error()))
	} else {
		r.log.Info(name, "took", took, "detail", detail)
	}
	r.state.Steps = append(r.state.Steps, rec)
	return err
}

// saveProgress writes the running state, so that a setup that was killed can be
// told from one that never ran. It is a help, never a condition.
func (r *run) saveProgress() {
	r.state.Message = r.doing
	if err := marker.WriteState(r.State, r.state); err != nil {
		r.log.Warn("cannot write the state file", "err", err)
	}
}

// already reports whether there is nothing to do: done when the node is set up
// and etcd is active, again when it is set up and only the unit is down.
func (r *run) already(ctx context.Context) (done, again bool) {
	began := time.Now()
	if _, err := os.Lstat(r.Success); err == nil {
		r.log.Info("check", "took", time.Since(began), "detail", "nothing to do: "+r.Success+" exists")
		return true, false
	}
	old, err := marker.ReadState(r.State)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, false
	case err != nil:
		r.log.Warn("cannot read the state file; setting up from the beginning", "err", err)
		return false, false
	case old.Unit != r.Unit:
		return false, false
	case old.Result != marker.ResultReady:
		if r.inPlace(old) {
			r.placed = &old
		}
		return false, false
	}
	active, err := r.active(ctx)
	found := "etcd is installed, and " + r.Unit + " is not active"
	switch {
	case err != nil:
		r.log.Warn("cannot ask systemd whether etcd is active", "err", err)
		found = "etcd is installed"
	case active:
		r.log.Info("check", "took", time.Since(began), "detail", "nothing to do: "+r.Unit+" is active since an earlier setup")
		return true, false
	}
	if !r.inPlace(old) {
		return false, false
	}
	r.log.Info("check", "took", time.Since(began), "detail", found)
	r.state.Archive = old.Archive
	r.state.Binaries = old.Binaries
	return false, true
}

// active looks once whether the unit is active.
func (r *run) active(ctx context.Context) (bool, error) {
	bus, err := r.env.Connect(ctx)
	if err != nil {
		return false, err
	}
	defer bus.Close()
	s, err := bus.Status(ctx, r.Unit)
	return s.ActiveState == "active", err
}

// inPlace reports whether the binaries that old lists are still the ones in
// BinDir, so that the ISO, which may be gone by now, is not needed again.
func (r *run) inPlace(old marker.State) bool {
	if len(old.Binaries) == 0 {
		return false
	}
	for _, b := range old.Binaries {
		sum, err := fileDigest(r.BinDir, b.Name)
		if err != nil || sum != b.SHA256 {
			return false
		}
	}
	return true
}

// finish writes how the setup ended, and returns err.
func (r *run) finish(err error) error {
	r.state.Ended = time.Now()
	r.state.Seen = r.env.Finder.Seen()
	if err == nil {
		r.state.Result = marker.ResultReady
		r.state.Code = reason.Ready
		r.state.Class = reason.OK
		r.state.Step, r.state.Message, r.state.Hint = "", "", ""
		if err := marker.WriteState(r.State, r.state); err != nil {
			r.log.Warn("cannot write the state file", "err", err)
		}
		r.log.Info("ready", "took", time.Since(r.began), "detail", "etcd is active")
		return nil
	}
	code := reason.Of(err)
	line := reason.Line(err.Error())
	r.state.Result = marker.ResultFailed
	r.state.Code = code
	r.state.Class = reason.Lookup(code).Class
	r.state.Message = line
	r.state.Hint = reason.HintOf(err)
	if err := marker.Write(r.Marker, line); err != nil {
		r.log.Error("cannot write the failure marker", "path", r.Marker, "err", err)
	}
	if err := marker.WriteState(r.State, r.state); err != nil {
		r.log.Error("cannot write the state file", "path", r.State, "err", err)
	}
	r.logFailure(err)
	return err
}

// logFailure is the last line of a setup that failed.
func (r *run) logFailure(err error) {
	r.log.Error("failed", "took", time.Since(r.began), "code", reason.Of(err), "err", reason.Line(err.Error()), "hint", reason.HintOf(err))
}

// interrupted gives an error that came from a cancelled ctx its own code, with
// what was being done. A deadline of a single step is not an interrupt, and what
// was found for certain just before one stays the answer.
func (r *run) interrupted(ctx context.Context, err error) error {
	code := reason.Of(err)
	if err == nil || ctx.Err() == nil || reason.Lookup(code).Class == reason.Permanent || code == reason.Internal && !errors.Is(err, context.Canceled) {
		return err
	}
	if seen := r.env.Finder.Seen(); len(seen) > 0 {
		return reason.New(reason.Interrupted, "%w while %s; seen: %s", context.Cause(ctx), r.doing, strings.Join(seen, ", "))
	}
	return reason.New(reason.Interrupted, "%w while %s", context.Cause(ctx), r.doing)
}

// wrap gives err the code c, unless it has one already.
func wrap(c reason.Code, err error) error {
	if err == nil {
		return nil
	}
	var e *reason.Error
	if errors.As(err, &e) {
		return err
	}
	return reason.New(c, "%w", err)
}
