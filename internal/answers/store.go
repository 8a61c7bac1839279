package answers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"time"

	"go.etcd.io/bbolt"

	"cks-etcd/internal/reason"
)

// schema is the version of the whole file: its buckets and what their keys are.
const schema = 1

// Buckets of the file.
const (
	aboutBucket    = "about" // the file itself
	answersBucket  = "answers"
	failuresBucket = "failures"

	schemaKey = "schema" // in about: a schemaRecord
)

// A schemaRecord has the form of all records, in every schema: a flipped bit is
// no newer version.
type schemaRecord struct {
	Schema int `json:"schema"`
}

const (
	// defaultTimeout is how long to wait for another process.
	defaultTimeout = 5 * time.Second
	// workLimit is how long a method may take once it has the file. A hundred
	// thousand answers take a second; a disk or a server that hangs takes forever.
	workLimit = 30 * time.Second
	// abandonAfter is how long a method goes on waiting for its own work after its
	// context has ended. It covers a write that is being synced.
	abandonAfter = 2 * time.Second
)

// Options of Open. The zero value is fit for use.
type Options struct {
	Timeout time.Duration // to wait for another process that has the file; 0: 5 s
	Rebuild bool          // set a damaged file aside and begin anew
	Log     *slog.Logger  // is told of records that cannot be used; nil: nobody is
}

// A Store is a file of answers. It is safe for concurrent use; its methods take
// turns.
type Store struct {
	path    string
	timeout time.Duration
	log     *slog.Logger
	aside   string

	turn chan struct{} // is full while a method works, who alone has what follows

	closed  bool
	sound   stamp           // of the file when it was last checked, or changed by us
	unsound stamp           // of a file that passed the checks, and failed bbolt
	named   map[string]bool // records that the log was told of
}

// Open checks the file at path. None is as good as one without answers: it is
// made by the first change. What is no file of answers, be it damaged, empty, a
// link or a directory, is answers-damaged, and with o.Rebuild gets another name
// beside the old one, see SetAside; only directories and devices are left alone.
//
// No lock is held when Open returns. A file that this process may read and not
// write is opened as well; changes are answers-unwritable then.
func Open(ctx context.Context, path string, o Options) (*Store, error) {
	if path == "" {
		return nil, reason.New(reason.Usage, "no file for answers").WithHint("name one with --answers, or set HOME")
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return nil, reason.New(reason.AnswersUnwritable, "cannot find %s: %w", path, err)
	}
	s := &Store{
		path:    abs,
		timeout: o.Timeout,
		log:     o.Log,
		turn:    make(chan struct{}, 1),
		named:   make(map[string]bool),
	}
	if s.timeout <= 0 {
		s.timeout = defaultTimeout
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	var found fs.FileInfo
	if o.Rebuild { // and nobody else's: a file that came later is not set aside
		err := s.guard(ctx, "read", func(context.Context, context.Context) error {
			found, _ = os.Lstat(abs)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	err = s.view(ctx, func(context.Context, *bbolt.Tx) error { return nil })
	if o.Rebuild && found != nil && reason.Of(err) == reason.AnswersDamaged {
		if err := s.rebuild(ctx, found); err != nil {
			return nil, err
		}
		err = s.view(ctx, func(context.Context, *bbolt.Tx) error { return nil })
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// SetAside is the new path of the damaged file that Open has set aside; empty
// when it has not.
func (s *Store) SetAside() string { return s.aside }

// Close waits for a method that is at work, and makes all others fail.
func (s *Store) Close() error {
	late := time.NewTimer(abandonAfter)
	defer late.Stop()
	select {
	case s.turn <- struct{}{}:
		s.closed = true
		<-s.turn
		return nil
	case <-late.C:
		return reason.New(reason.AnswersBusy, "%s: earlier work on it has not come back", s.path)
	}
}

// view runs work in a transaction that only reads; not at all, without an
// error, when there is no file.
func (s *Store) view(ctx context.Context, work func(context.Context, *bbolt.Tx) error) error {
	return s.guard(ctx, "read", func(ctx, wait context.Context) error {
		err := s.transact(ctx, wait, false, work)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
}

// update runs work in a transaction that is on the disk when update returns nil.
func (s *Store) update(ctx context.Context, work func(context.Context, *bbolt.Tx) error) error {
	return s.guard(ctx, "write", func(ctx, wait context.Context) error { return s.transact(ctx, wait, true, work) })
}

func (s *Store) rebuild(ctx context.Context, found fs.FileInfo) error {
	return s.guard(ctx, "write", func(_, wait context.Context) (err error) {
		s.aside, err = s.setAside(wait, found)
		return err
	})
}

// guard calls work when it is its turn, in a goroutine of its own: what it does
// may hang in the kernel. Work that has not come back in time keeps its turn, so
// there is one lost goroutine at most. It gets ctx, and a context to wait for
// the lock in; after an error of guard nothing that work touches may be used.
func (s *Store) guard(ctx context.Context, verb string, work func(ctx, wait context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return s.explain(verb, err)
	}
	began := time.Now()
	limited, cancel := context.WithTimeout(ctx, s.timeout+workLimit)
	defer cancel()
	wait, cancelWait := context.WithTimeout(limited, s.timeout)
	defer cancelWait()
	select {
	case s.turn <- struct{}{}:
	case <-wait.Done():
		return s.explain(verb, lateError{"earlier work on it has not ended " + after(began), wait.Err()})
	}
	if s.closed {
		<-s.turn
		return reason.New(reason.Internal, "cannot %s %s: it is closed", verb, s.path)
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.turn }()
		done <- work(limited, wait)
	}()
	select {
	case err := <-done:
		return s.explain(verb, err)
	case <-limited.Done():
	}
	late := time.NewTimer(abandonAfter)
	defer late.Stop()
	select {
	case err := <-done:
		return s.explain(verb, err)
	case <-late.C:
		return s.explain(verb, lateError{"no end of it " + after(began), limited.Err()})
	}
}

func after(began time.Time) string {
	return fmt.Sprintf("after %v", time.Since(began).Round(100*time.Millisecond))
}

// A lateError says what was waited for in vain.
type lateError struct {
	what string
	err  error // of the context
}

func (e lateError) Error() string { return e.what }
func (e lateError) Unwrap() error { return e.err }

// explain makes a *reason.Error of what went wrong.
func (s *Store) explain(verb string, err error) error {
	if _, known := errors.AsType[*reason.Error](err); known || err == nil {
		return err
	}
	switch {
	case errors.Is(err, context.Canceled):
		return reason.New(reason.Interrupted, "cannot %s %s: %w", verb, s.path, err)
	case errors.Is(err, context.DeadlineExceeded):
		if _, late := errors.AsType[lateError](err); !late {
			err = lateError{"no end of it in time", err}
		}
		return reason.New(reason.AnswersBusy, "cannot %s %s: %w", verb, s.path, err)
	case verb == "read":
		return reason.New(reason.AnswersUnwritable, "cannot read %s: %w", s.path, err).
			WithHint("check owner and mode of the file, or choose another with --answers")
	}
	return reason.New(reason.AnswersUnwritable, "cannot write %s: %w", s.path, err)
}

// transact runs work on the file, which is checked first.
func (s *Store) transact(ctx, wait context.Context, write bool, work func(context.Context, *bbolt.Tx) error) (err error) {
	f, err := s.acquire(wait, write)
	if err != nil {
		return err
	}
	found, err := stampOf(f)
	if err == nil {
		err = s.examine(ctx, f, found)
	}
	if err != nil {
		release(f)
		return err
	}

	// The checks have left nothing for bbolt to stumble over, unless somebody who
	// does not ask for the lock changes the file under it. A read beyond the end of
	// a mapped file is SIGBUS, which is to be a panic like the others.
	debug.SetPanicOnFault(true) // of this goroutine, which ends soon
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		// bbolt's locks may be held forever: it is left alone, with its mapping.
		s.sound, s.unsound = stamp{}, found
		release(f)
		err = damaged("%s changed while it was in use, or is damaged: %v", s.path, p)
	}()

	db, err := bbolt.Open(s.path, fileMode, &bbolt.Options{
		ReadOnly:     !write,
		Timeout:      time.Second, // the lock is held already
		MaxSize:      maxFile,
		NoStatistics: true,
		OpenFile:     func(string, int, os.FileMode) (*os.File, error) { return f, nil },
	})
	if err != nil {
		release(f)
		return err
	}
	checked := func(tx *bbolt.Tx) error {
		if err := checkSchema(tx, s.path); err != nil {
			return err
		}
		return work(ctx, tx)
	}
	if write {
		s.sound = stamp{}
		if err = db.Update(checked); err == nil {
			// What bbolt has written is sound. Without a stamp it is checked again.
			s.sound, _ = stampOf(f)
		}
	} else {
		err = db.View(checked)
	}
	if closeErr := db.Close(); err == nil {
		err = closeErr
	}
	return err
}

// examine checks the file unless it is as it was when it was last found sound.
func (s *Store) examine(ctx context.Context, f *os.File, found stamp) error {
	switch found {
	case s.sound:
		return nil
	case s.unsound:
		return damaged("%s could not be used before, and has not changed", s.path)
	}
	warning, err := verify(ctx, f, found.size)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, errNewerFormat):
		return reason.New(reason.AnswersNewer, "%s: %w", s.path, err)
	default:
		return damaged("%s: %w", s.path, err)
	}
	if warning != "" {
		s.name(warning)
	}
	s.sound = found
	return nil
}

// begin fills a new file.
func begin(tx *bbolt.Tx) error {
	for _, name := range []string{answersBucket, failuresBucket} {
		if _, err := tx.CreateBucket([]byte(name)); err != nil {
			return err
		}
	}
	about, err := tx.CreateBucket([]byte(aboutBucket))
	if err != nil {
		return err
	}
	record, err := encode(aboutBucket, []byte(schemaKey), schemaRecord{schema})
	if err != nil {
		return err
	}
	return about.Put([]byte(schemaKey), record)
}

func checkSchema(tx *bbolt.Tx, path string) error {
	about := tx.Bucket([]byte(aboutBucket))
	if about == nil {
		return damaged("%s is the file of another program", path)
	}
	var r schemaRecord
	err := decode(aboutBucket, []byte(schemaKey), about.Get([]byte(schemaKey)), &r)
	switch {
	case err != nil:
		return damaged("%s: the version of its schema cannot be read: %w", path, err)
	case r.Schema > schema:
		return reason.New(reason.AnswersNewer, "%s has version %d of the schema, where %d is known", path, r.Schema, schema)
	case r.Schema < 1:
		return damaged("%s has version %d of the schema", path, r.Schema)
	}
	for _, name := range []string{answersBucket, failuresBucket} {
		if tx.Bucket([]byte(name)) == nil {
			return damaged("%s has no bucket %q", path, name)
		}
	}
	return nil
}

// skip names a record that cannot be used.
func (s *Store) skip(bucket string, key []byte, err error) {
	id := subjectOf(key).ID
	s.name(fmt.Sprintf("a record of %s cannot be used, and is left out: %s %s: %v", bucket, id.Key, id.File, err))
}

// name tells the log something about the file, once.
func (s *Store) name(what string) {
	if s.named[what] || len(s.named) == maxNamed {
		return
	}
	s.named[what] = true
	s.log.Warn(reason.Line(what), "answers", s.path)
}

// maxNamed bounds what the log is told of one file, and what is kept to tell
// it once.
const maxNamed = 100
