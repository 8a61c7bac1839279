// Package scan keeps an answer about every Kubernetes ISO in CloudStack's
// secondary storage and at the URLs it is given: does it hold the etcd archive?
//
// In the background, rounds look at what has no answer yet. An ISO is looked at
// once: its answer is remembered by the identity of the copy that was read, and
// serves all its copies. A copy that cannot be read is tried again in later
// rounds, a few times, and is then left alone until it changes. A request for an
// ISO asks what is remembered, and otherwise has the copy of its zone read at
// once, whatever rounds have made of it.
//
//	Scanner
//	├─ round      one at a time; a site for each store and each server of URLs
//	│    └─ site       lists, identifies, recalls, then reads: with its own
//	│                  workers, so that a hung store delays only itself
//	├─ flights    reads that are under way; who asks for the same copy waits for it
//	└─ ledger     answers on their way to the file, written many at a time
//
// What an image holds is decided by package inspect, where ISOs are by package
// store, and how one is read by package source.
package scan

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/url"
	"path"
	"sync"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/fscall"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
	"cks-etcd/internal/store"
)

// Defaults of Config.
const (
	DefaultFailureLimit = 3
	// DefaultJobs keeps a disk array or a server busy without crowding out the
	// system VMs that serve templates from it.
	DefaultJobs = 4
	// DefaultLookTimeout is far beyond the few reads of a look, each of which has
	// its own deadline.
	DefaultLookTimeout = 2 * time.Minute
)

// A Store is a directory with ISOs: the mount point of a secondary storage, or
// any other.
type Store struct {
	Path string
	Zone string // name of the zone it serves; "" all zones
	Name string // for people; "": Path
}

// A URL is an ISO on a web server.
type URL struct {
	URL      string
	Zone     string // name of the zone it serves; "" all zones
	Name     string // unique name of the ISO; "": the base name of the URL
	Template string // id of the template; "" none
}

// A Config says what to look at. Fields that are zero have defaults.
type Config struct {
	Stores []Store
	URLs   []URL
	File   string // to look for on each ISO; "": inspect.EtcdArchive
	All    bool   // ISOs lists other than Kubernetes ISOs too

	FailureLimit int           // background looks at a copy that may fail; 0: DefaultFailureLimit
	Jobs         int           // looks at once in one store or at one server; 0: DefaultJobs
	LookTimeout  time.Duration // of one look at one copy; 0: DefaultLookTimeout
	ReadTimeout  time.Duration // of one call to a store's file system, as New was given it; 0: that of package store
	// Retry is the least time until a round tries a copy again that has failed. It
	// keeps rounds that events bring forward from using up the tries. 0: the next
	// round tries again.
	Retry time.Duration
}

// withDefaults returns c with its zero fields filled in.
func (c Config) withDefaults() Config {
	if c.File == "" {
		c.File = inspect.EtcdArchive
	}
	if c.FailureLimit <= 0 {
		c.FailureLimit = DefaultFailureLimit
	}
	if c.Jobs <= 0 {
		c.Jobs = DefaultJobs
	}
	if c.LookTimeout <= 0 {
		c.LookTimeout = DefaultLookTimeout
	}
	return c
}

// A Copy is one place where an ISO is.
type Copy struct {
	Location string // path, or URL without credentials; a directory where no file can be named
	Zone     string
	Store    string // name of the store, or host of the URL
	Key      string // identity; "" not known, or nothing to remember an answer by
	Err      error  // why it is not looked at: not complete, not readable, its store cannot be asked
}

// An ISO is an image with its copies. Copies with the same template id, unique
// name and size are of one ISO.
type ISO struct {
	Name       string // unique name of the template, else the base name
	Template   string // id of the template; "" none
	Account    string // id of its account; "" none
	Size       int64  // in bytes; -1 unknown
	Copies     []Copy
	Answer     *answers.Answer  // nil: none yet
	Failure    *answers.Failure // the latest one of a copy, while there is no answer
	Kubernetes bool             // by content; true also while nothing is known of that
}

// Scanner looks at ISOs. Its methods may be used by several goroutines.
type Scanner struct {
	images images
	stores stores
	check  func(context.Context, io.ReaderAt, int64, inspect.Request) (inspect.Image, []inspect.Result)
	log    *slog.Logger
	ledger *ledger

	flights flights
	turn    chan struct{} // held by the round that runs

	mu     sync.Mutex
	config Config
	step   func() // see Observe
	looked func(inspect.Value, error, time.Duration)
	isos   []ISO               // of the last round
	index  map[string]int      // of isos, by the keys and locations of their copies
	last   map[string][]*place // of the last round, by the id of their site
}

// Answers remembers answers and failures. *answers.Store does.
type Answers interface {
	GetMany(ctx context.Context, ids []answers.ID) (map[answers.ID]answers.Answer, map[answers.ID]answers.Failure, error)
	Put(ctx context.Context, a ...answers.Answer) error
	Fail(ctx context.Context, f ...answers.Failure) error
}

// What a Scanner works with, so far as tests put something else in its place.
type (
	// images opens ISOs. source.Opener is one.
	images interface {
		Open(ctx context.Context, name string) (image, error)
		Identify(ctx context.Context, name string) (source.Identity, error)
	}
	// image is an open ISO. source.Source is one.
	image interface {
		io.ReaderAt
		Size() int64
		Identity() source.Identity
		Stats() source.Stats
		Close() error
	}
	// stores finds ISOs. Package store does.
	stores interface {
		Walk(ctx context.Context, root string, each func(store.Copy) error) error
		Template(ctx context.Context, root, id string) ([]store.Copy, error)
	}
)

// New returns a Scanner that remembers in a and reads by o. The caller closes
// both, after the Scanner. If a is nil, nothing is remembered. log may be nil.
func New(c Config, a Answers, o *source.Opener, log *slog.Logger) *Scanner {
	if a == nil {
		a = nowhere{}
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return build(c, a, opener{o}, directories{c.ReadTimeout, o.Calls(), log}, log)
}

func build(c Config, a Answers, i images, s stores, log *slog.Logger) *Scanner {
	return &Scanner{
		images: i, stores: s, check: inspect.Check, log: log,
		ledger:  newLedger(a, log),
		flights: newFlights(),
		turn:    make(chan struct{}, 1),
		config:  c.withDefaults(),
		step:    func() {},
		looked:  func(inspect.Value, error, time.Duration) {},
	}
}

// Observe has step called whenever a round has got on, as after each copy that it
// listed, identified or looked at, and looked after each look that a round began. Both
// are called by any goroutine, must return at once, and are used from the next round
// on.
func (s *Scanner) Observe(step func(), looked func(v inspect.Value, err error, took time.Duration)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.step, s.looked = step, looked
}

// Reload has c used from the next round and the next request on. A round that
// runs goes on with what it began with.
func (s *Scanner) Reload(c Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.config = c.withDefaults()
}

// Close ends looks whose callers have given up, waits for them, and writes what
// was learned and not written yet. The error is that of writing it. Afterwards
// nothing is looked at any more.
func (s *Scanner) Close() error {
	s.flights.close()
	ctx, cancel := context.WithTimeout(context.Background(), flushTimeout)
	defer cancel()
	return s.ledger.flush(ctx)
}

func (s *Scanner) settings() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.config
}

// nowhere remembers nothing.
type nowhere struct{}

func (nowhere) GetMany(context.Context, []answers.ID) (map[answers.ID]answers.Answer, map[answers.ID]answers.Failure, error) {
	return nil, nil, nil
}
func (nowhere) Put(context.Context, ...answers.Answer) error   { return nil }
func (nowhere) Fail(context.Context, ...answers.Failure) error { return nil }

// opener makes a source.Opener return the interface.
type opener struct{ *source.Opener }

func (o opener) Open(ctx context.Context, name string) (image, error) {
	src, err := o.Opener.Open(ctx, name)
	if err != nil {
		return nil, err // and no image: a nil *source.Source would not be nil
	}
	return src, nil
}

// directories are the stores of package store.
type directories struct {
	timeout time.Duration
	calls   *fscall.Calls
	log     *slog.Logger
}

func (d directories) Walk(ctx context.Context, root string, each func(store.Copy) error) error {
	return store.Walk(ctx, root, store.Options{Timeout: d.timeout, Calls: d.calls, Log: d.log}, each)
}

func (d directories) Template(ctx context.Context, root, id string) ([]store.Copy, error) {
	return store.Template(ctx, root, id, store.Options{Timeout: d.timeout, Calls: d.calls, Log: d.log})
}

// title is the name of the ISO for people.
func (u URL) title() string {
	if u.Name != "" {
		return u.Name
	}
	if p, err := url.Parse(u.URL); err == nil && path.Base(p.Path) != "." && path.Base(p.Path) != "/" {
		return path.Base(p.Path)
	}
	return source.Redact(u.URL)
}

// crash makes what a panic left behind an error. A fault that one image brings
// to light must not end the looks at all others.
func (s *Scanner) crash(p any, stack []byte, doing string) error {
	s.log.Error("a check crashed", "doing", doing, "panic", fmt.Sprint(p), "stack", string(stack))
	return reason.New(reason.Internal, "%s: %v", doing, p)
}
