package scan

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
	"cks-etcd/internal/store"
)

// A world is stores and servers with ISOs, and a memory, as a test wants them.
type world struct {
	mu     sync.Mutex
	isos   map[string]*fakeISO // by location
	stores map[string]*fakeStore
	opened map[string]int // by location
	asked  map[string]int // for their identity, by location
	walks  int

	memory
}

// A fakeStore is a directory.
type fakeStore struct {
	copies  []store.Copy
	err     error                           // after the copies
	hang    func(ctx context.Context) error // called first; nil: at once
	panics  bool
	without bool // the copies cannot be found by their template
}

// A fakeISO is an image, by what a look at it comes to.
type fakeISO struct {
	version   int // part of its identity; below 0: it has none
	size      int64
	value     inspect.Value // Unknown with err
	err       error
	identify  error                           // instead of an identity
	open      func(ctx context.Context) error // called first; nil: at once
	read      func(ctx context.Context) error // by the check; nil: at once
	panics    bool
	changes   bool // while it is read
	ordinary  bool // no Kubernetes ISO
	blank     bool // the check says nothing
	hangsName func(ctx context.Context) error
}

func newWorld() *world {
	return &world{
		isos: make(map[string]*fakeISO), stores: make(map[string]*fakeStore),
		opened: make(map[string]int), asked: make(map[string]int),
		memory: memory{answers: make(map[answers.ID]answers.Answer), failures: make(map[answers.ID]answers.Failure)},
	}
}

// put adds an ISO of a template to a store.
func (w *world) put(root, id string, i *fakeISO) *fakeISO {
	w.mu.Lock()
	defer w.mu.Unlock()
	if i.size == 0 {
		i.size = 1 << 20
	}
	s := w.stores[root]
	if s == nil {
		s = &fakeStore{}
		w.stores[root] = s
	}
	name := id + "-1-uuid"
	dir := path.Join(root, "template/tmpl/1", id)
	s.copies = append(s.copies, store.Copy{
		Path: path.Join(dir, name+".iso"), Dir: dir, Account: "1", Template: id, Name: name, Size: i.size,
	})
	w.isos[path.Join(dir, name+".iso")] = i
	return i
}

// putFile adds an ISO that is of no template.
func (w *world) putFile(root, name string, i *fakeISO) {
	s := w.stores[root]
	if s == nil {
		s = &fakeStore{}
		w.stores[root] = s
	}
	c := store.Copy{Path: path.Join(root, name), Name: path.Base(name), Size: -1}
	s.copies = append(s.copies, c)
	w.isos[c.Path] = i
}

// change changes something while the scanner works.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// at is the location of an ISO that put has added.
func at(root, id string) string {
	return path.Join(root, "template/tmpl/1", id, id+"-1-uuid.iso")
}

// opens returns how often each location was opened.
func (w *world) opens() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.opened)
}

// reads returns how often anything was opened.
func (w *world) reads() int {
	n := 0
	for _, o := range w.opens() {
		n += o
	}
	return n
}

func (w *world) scanner(t *testing.T, c Config) *Scanner {
	t.Helper()
	s := build(c, &w.memory, w, w, slog.New(slog.DiscardHandler))
	s.check = w.check
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return s
}

func (w *world) iso(name string) (*fakeISO, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i, ok := w.isos[name]
	if !ok {
		return nil, reason.New(reason.SourceMissing, "%s: no such file", name)
	}
	now := *i
	return &now, nil
}

func (i *fakeISO) identity(name string) source.Identity {
	if i.version < 0 {
		return source.Identity{Kind: source.KindURL, URL: name, Size: i.size}
	}
	return source.Identity{Kind: source.KindURL, URL: name, Size: i.size, ETag: fmt.Sprintf("%q", fmt.Sprint(i.version))}
}

func (w *world) Identify(ctx context.Context, name string) (source.Identity, error) {
	w.mu.Lock()
	w.asked[name]++
	w.mu.Unlock()
	i, err := w.iso(name)
	if err != nil {
		return source.Identity{}, err
	}
	if i.hangsName != nil {
		if err := i.hangsName(ctx); err != nil {
			return source.Identity{}, err
		}
	}
	if i.identify != nil {
		return source.Identity{}, i.identify
	}
	return i.identity(name), nil
}

func (w *world) Open(ctx context.Context, name string) (image, error) {
	w.mu.Lock()
	w.opened[name]++
	w.mu.Unlock()
	i, err := w.iso(name)
	if err != nil {
		return nil, err
	}
	if i.open != nil {
		if err := i.open(ctx); err != nil {
			return nil, err
		}
	}
	return &fakeImage{fakeISO: i, name: name}, nil
}

type fakeImage struct {
	*fakeISO
	name string
}

func (i *fakeImage) ReadAt(p []byte, off int64) (int, error) { return 0, io.EOF }
func (i *fakeImage) Size() int64                             { return i.size }
func (i *fakeImage) Identity() source.Identity               { return i.identity(i.name) }
func (i *fakeImage) Stats() source.Stats                     { return source.Stats{Requests: 2, Bytes: 4096} }
func (i *fakeImage) Close() error {
	if i.changes {
		return reason.New(reason.SourceChanged, "%s", i.name)
	}
	return nil
}

func (w *world) check(ctx context.Context, r io.ReaderAt, size int64, q inspect.Request) (inspect.Image, []inspect.Result) {
	i := r.(*fakeImage)
	if i.panics {
		panic("index out of range")
	}
	if i.read != nil {
		if err := i.read(ctx); err != nil {
			return inspect.Image{}, []inspect.Result{{File: q.Files[0], Value: inspect.Unknown, Err: err}}
		}
	}
	if i.blank {
		return inspect.Image{}, nil
	}
	info := inspect.Image{Names: "Rock Ridge", Kubernetes: inspect.Yes}
	if i.ordinary {
		info.Kubernetes = inspect.No
	}
	res := inspect.Result{File: q.Files[0], Value: i.value, Err: i.err}
	if res.Value.No() && res.Err == nil {
		res.Err = reason.New(reason.ArchiveMissing, "%s is not on the ISO", q.Files[0])
	}
	return info, []inspect.Result{res}
}

func (w *world) Walk(ctx context.Context, root string, each func(store.Copy) error) error {
	w.mu.Lock()
	w.walks++
	s := w.stores[root]
	w.mu.Unlock()
	if s == nil {
		return reason.New(reason.SourceMissing, "%s: no such directory", root)
	}
	if s.panics {
		panic("nil map")
	}
	if s.hang != nil {
		if err := s.hang(ctx); err != nil {
			return err
		}
	}
	for _, c := range s.copies {
		if err := each(c); err != nil {
			return err
		}
	}
	return s.err
}

func (w *world) Template(ctx context.Context, root, id string) ([]store.Copy, error) {
	w.mu.Lock()
	s := w.stores[root]
	w.mu.Unlock()
	if s == nil {
		return nil, reason.New(reason.SourceMissing, "%s: no such directory", root)
	}
	if s.hang != nil {
		if err := s.hang(ctx); err != nil {
			return nil, err
		}
	}
	if s.without {
		return nil, nil
	}
	var found []store.Copy
	for _, c := range s.copies {
		if c.Template == id {
			found = append(found, c)
		}
	}
	return found, nil
}

// A memory remembers answers as answers.Store does.
type memory struct {
	lock     sync.Mutex
	answers  map[answers.ID]answers.Answer
	failures map[answers.ID]answers.Failure
	puts     int // transactions
	fails    int
	readErr  error
	writeErr error
}

func (m *memory) GetMany(ctx context.Context, ids []answers.ID) (map[answers.ID]answers.Answer, map[answers.ID]answers.Failure, error) {
	m.lock.Lock()
	defer m.lock.Unlock()
	if m.readErr != nil {
		return nil, nil, m.readErr
	}
	as, fs := make(map[answers.ID]answers.Answer), make(map[answers.ID]answers.Failure)
	for _, id := range ids {
		if a, ok := m.answers[id]; ok {
			as[id] = a
		}
		if f, ok := m.failures[id]; ok {
			fs[id] = f
		}
	}
	return as, fs, nil
}

func (m *memory) Put(ctx context.Context, all ...answers.Answer) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(all) == 0 {
		return nil
	}
	if m.writeErr != nil {
		return m.writeErr
	}
	m.puts++
	for _, a := range all {
		if a.Key == "" || a.File == "" || !definite(a.Value) || !reason.Known(a.Code) {
			return fmt.Errorf("cannot be kept: %+v", a)
		}
		m.answers[a.ID()] = a
		delete(m.failures, a.ID())
	}
	return nil
}

func (m *memory) Fail(ctx context.Context, all ...answers.Failure) error {
	m.lock.Lock()
	defer m.lock.Unlock()
	if len(all) == 0 {
		return nil
	}
	if m.writeErr != nil {
		return m.writeErr
	}
	m.fails++
	for _, f := range all {
		if f.Key == "" || f.File == "" || !reason.Known(f.Code) {
			return fmt.Errorf("cannot be kept: %+v", f)
		}
		if old, ok := m.failures[f.ID()]; ok {
			f.Count, f.First = old.Count+1, old.First
		}
		m.failures[f.ID()] = f
	}
	return nil
}

// counts returns the counts of all failures, by location.
func (m *memory) counts() map[string]int {
	m.lock.Lock()
	defer m.lock.Unlock()
	all := make(map[string]int)
	for _, f := range m.failures {
		all[f.From] += f.Count
	}
	return all
}

// kept returns the values of all answers, by the location they are from.
func (m *memory) kept() map[string]inspect.Value {
	m.lock.Lock()
	defer m.lock.Unlock()
	all := make(map[string]inspect.Value)
	for _, a := range m.answers {
		all[a.From] = a.Value
	}
	return all
}

// hang waits for ctx, and then fails with the code of the wait.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return reason.Ended(ctx, "hanging")
}

// stalls fails after a while, as a read does whose deadline has passed.
func stalls(after time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(after):
			return reason.New(reason.SourceStalled, "no answer for %s", after)
		case <-ctx.Done():
			return reason.Ended(ctx, "hanging")
		}
	}
}

// takes is a step that takes a while.
func takes(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-time.After(d):
			return nil
		case <-ctx.Done():
			return reason.Ended(ctx, "hanging")
		}
	}
}

// zoned is a configuration with one store for each argument, "/mnt/a=east" or
// only "/mnt/a".
func zoned(stores ...string) Config {
	var c Config
	for _, s := range stores {
		root, zone, _ := strings.Cut(s, "=")
		c.Stores = append(c.Stores, Store{Path: root, Zone: zone})
	}
	return c
}
