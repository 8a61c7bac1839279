package watch

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// A fakeScanner knows three ISOs.
type fakeScanner struct {
	mu      sync.Mutex
	isos    []scan.ISO
	config  scan.Config
	rounds  int
	closed  bool
	unready error // of usable
	round   func(context.Context) scan.Round
	look    func(ctx context.Context, iso, zone string) (answers.Answer, error)
	step    func()
}

func newFakeScanner() *fakeScanner {
	answer := func(name string, v inspect.Value, c reason.Code, message string) *answers.Answer {
		return &answers.Answer{
			Key: name, File: inspect.EtcdArchive, Value: v, Code: c, Message: message, Version: "3.5.21", Arch: "amd64",
			At: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), From: "/mnt/secondary/" + name, Name: name, Kubernetes: true,
		}
	}
	return &fakeScanner{isos: []scan.ISO{
		{Name: "with.iso", Template: "201", Account: "1", Size: 700 << 20, Answer: answer("with.iso", inspect.Included, reason.Included, ""), Copies: []scan.Copy{
			{Location: "/mnt/secondary/with.iso", Zone: "zone1", Store: "nfs1"},
			{Location: "/mnt/other/with.iso", Zone: "zone2", Store: "nfs2"},
		}},
		{Name: "without.iso", Template: "202", Size: 1, Answer: answer("without.iso", inspect.Missing, reason.ArchiveMissing, "it is not there"), Copies: []scan.Copy{
			{Location: "/mnt/secondary/without.iso", Zone: "zone1", Store: "nfs1"},
		}},
		{Name: "hung.iso", Template: "203", Size: -1, Failure: &answers.Failure{Count: 3, Code: reason.SourceStalled, Message: "no answer in time", From: "/mnt/secondary/hung.iso"}, Copies: []scan.Copy{
			{Location: "/mnt/secondary/hung.iso", Zone: "zone1", Store: "nfs1"},
		}},
		{Name: "coming.iso", Template: "204", Size: -1, Copies: []scan.Copy{
			{Location: "/mnt/secondary/204", Zone: "zone1", Store: "nfs1", Err: reason.New(reason.ISOIncomplete, "a download is under way")},
		}},
	}}
}

func (f *fakeScanner) Reload(c scan.Config) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.config = c
}

func (f *fakeScanner) Round(ctx context.Context) scan.Round {
	f.mu.Lock()
	f.rounds++
	round := f.round
	f.mu.Unlock()
	if round != nil {
		return round(ctx)
	}
	return scan.Round{Started: time.Now(), Took: time.Second, Looks: 2, Bytes: 4096}
}

func (f *fakeScanner) ISOs() []scan.ISO { return f.isos }

// Observe tells of two looks at once.
func (f *fakeScanner) Observe(step func(), looked func(inspect.Value, error, time.Duration)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.step = step
	looked(inspect.Included, nil, time.Second)
	looked(inspect.Unknown, errors.New("no"), time.Second)
}

func (f *fakeScanner) Known(_ context.Context, iso, _ string) (answers.Answer, bool, error) {
	for _, i := range f.isos {
		if (iso == i.Template || iso == i.Name || iso == i.Copies[0].Location) && i.Answer != nil {
			return *i.Answer, true, nil
		}
	}
	return answers.Answer{}, false, nil
}

func (f *fakeScanner) Look(ctx context.Context, iso, zone string) (answers.Answer, error) {
	if f.look != nil {
		return f.look(ctx, iso, zone)
	}
	return answers.Answer{}, reason.New(reason.SourceStalled, "%s: a read did not end", iso)
}

func (f *fakeScanner) backend() *backend {
	return &backend{
		scanner: f,
		usable: func(context.Context) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.unready
		},
		lost: func() int { return 2 },
		close: func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.closed = true
		},
	}
}

// newDaemon returns a daemon that uses f and c, without loops and listeners.
func newDaemon(t *testing.T, f *fakeScanner, c Config) *daemon {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	d := &daemon{
		log: log, notify: notifier{log}, listeners: map[string]*listener{}, failed: make(chan error, 1),
		kick: make(chan struct{}, 1), hint: make(chan struct{}, 1), ended: make(chan struct{}, 1),
	}
	d.metrics = newMetrics(d, "1.2.3")
	r := &running{Config: c, backend: f.backend()}
	r.before = new(atomic.Pointer[[]scan.ISO])
	r.life, r.end = context.WithCancel(t.Context())
	t.Cleanup(r.end)
	d.current.Store(r)
	return d
}

// config returns the configuration in text.
func config(t *testing.T, text string) Config {
	t.Helper()
	c, err := ParseConfig("/etc/etcd-fleet/watch.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}
