package answers

import (
	"bytes"
	"context"

	"go.etcd.io/bbolt"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// olderRules is how many versions of the rules an upgrade may leave out, and yet
// have the answers by the older ones removed one after the other.
const olderRules = 10

// Get returns the answer about a file of an image, and whether there is one that
// was found by the present inspect.Rules.
func (s *Store) Get(ctx context.Context, key, file string) (Answer, bool, error) {
	id := ID{key, file}
	answers, _, err := s.GetMany(ctx, []ID{id})
	a, ok := answers[id]
	return a, ok, err
}

// GetMany returns what is known about each of ids by the present inspect.Rules.
// The maps lack those about which nothing is.
func (s *Store) GetMany(ctx context.Context, ids []ID) (map[ID]Answer, map[ID]Failure, error) {
	answers, failures := make(map[ID]Answer), make(map[ID]Failure)
	err := s.view(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		for _, id := range ids {
			if err := ctx.Err(); err != nil {
				return err
			}
			key := recordKey(inspect.Rules, id)
			if a, ok := s.answer(tx, key); ok {
				answers[id] = a
			}
			if f, ok := s.failure(tx, key); ok {
				failures[id] = f
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, err
	}
	return answers, failures, nil
}

// All returns what is known by the present inspect.Rules, in no particular
// order.
func (s *Store) All(ctx context.Context) ([]Answer, []Failure, error) {
	var answers []Answer
	var failures []Failure
	prefix := rulesPrefix(inspect.Rules)
	err := s.view(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		err := each(ctx, tx, answersBucket, prefix, func(key, record []byte) {
			if a, err := decodeAnswer(key, record); err != nil {
				s.skip(answersBucket, key, err)
			} else {
				answers = append(answers, a)
			}
		})
		if err != nil {
			return err
		}
		return each(ctx, tx, failuresBucket, prefix, func(key, record []byte) {
			if f, err := decodeFailure(key, record); err != nil {
				s.skip(failuresBucket, key, err)
			} else {
				failures = append(failures, f)
			}
		})
	})
	if err != nil {
		return nil, nil, err
	}
	return answers, failures, nil
}

// Put keeps answers, all of them or none, and forgets the failures of the same
// image and file, and what older rules said. An answer that is not deep does not
// replace one that is and that was found by the same rules: the image is the same,
// and more of it was read. Text is cut to reason.MaxLine bytes, and Included needs
// no Code.
//
// It is an error to put inspect.Unknown: what nobody could tell is a Failure.
func (s *Store) Put(ctx context.Context, answers ...Answer) error {
	type entry struct {
		key, record []byte
		older       [][]byte // keys of the same by older rules
		deep        bool
	}
	// The caller may go on using its slice: guard may return before the work does.
	entries := make([]entry, 0, len(answers))
	for _, a := range answers {
		if a.Rules == 0 {
			a.Rules = inspect.Rules
		}
		if a.Code == "" && a.Value.Yes() {
			a.Code = reason.Included
		}
		key, record, err := encodeAnswer(a)
		if err != nil {
			return reason.New(reason.Internal, "cannot keep the answer about %s of %s: %w", a.File, a.Key, err)
		}
		e := entry{key: key, record: record, deep: a.Deep}
		for rules := max(1, a.Rules-olderRules); rules < a.Rules; rules++ {
			e.older = append(e.older, recordKey(rules, a.ID()))
		}
		entries = append(entries, e)
	}
	if len(entries) == 0 {
		return nil
	}
	return s.update(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		kept, failed := tx.Bucket([]byte(answersBucket)), tx.Bucket([]byte(failuresBucket))
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			if old, ok := s.answer(tx, e.key); !ok || e.deep || !old.Deep {
				if err := kept.Put(e.key, e.record); err != nil {
					return err
				}
			}
			for _, key := range append(e.older, e.key) {
				if err := failed.Delete(key); err != nil {
					return err
				}
			}
			for _, key := range e.older {
				if err := kept.Delete(key); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// Fail keeps failures, all of them or none. Each raises the Count of the one
// that is kept of the same image and file, whose First it takes over; the Count
// and First it comes with are those of the first failure only, where they are
// 1 and At if zero. Text is cut to reason.MaxLine bytes.
func (s *Store) Fail(ctx context.Context, failures ...Failure) error {
	mine := make([]Failure, 0, len(failures))
	for _, f := range failures {
		if f.Rules == 0 {
			f.Rules = inspect.Rules
		}
		f.Count = max(f.Count, 1)
		if f.First.IsZero() {
			f.First = f.At
		}
		f.First, f.At, f.Next = stamped(f.First), stamped(f.At), stamped(f.Next)
		f = f.clean()
		_, _, err := encodeFailure(f)
		if err == nil {
			err = f.ID().check()
		}
		if err == nil && !reason.Known(f.Code) {
			err = reason.New(reason.Internal, "unknown reason code %q", f.Code)
		}
		if err != nil {
			return reason.New(reason.Internal, "cannot keep the failure of %s of %s: %w", f.File, f.Key, err)
		}
		mine = append(mine, f)
	}
	if len(mine) == 0 {
		return nil
	}
	return s.update(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		kept := tx.Bucket([]byte(failuresBucket))
		for _, f := range mine {
			if err := ctx.Err(); err != nil {
				return err
			}
			if old, ok := s.failure(tx, recordKey(f.Rules, f.ID())); ok {
				f.Count, f.First = old.Count+1, old.First
			}
			key, record, err := encodeFailure(f)
			if err == nil {
				err = kept.Put(key, record)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// Forget removes the answers and failures that match, whatever rules they are
// of, and returns how many. A record that was changed since it was shown to
// match stays. match is called for records that cannot be read as well, with the
// little that is known of them; it is not called while the file is locked.
func (s *Store) Forget(ctx context.Context, match func(Subject) bool) (int, error) {
	type entry struct {
		bucket      string
		key, record []byte
		subject     Subject
	}
	var entries []entry
	err := s.view(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		for _, bucket := range []string{answersBucket, failuresBucket} {
			err := each(ctx, tx, bucket, nil, func(key, record []byte) {
				e := entry{bucket, bytes.Clone(key), bytes.Clone(record), subjectOf(key)}
				if bucket == answersBucket {
					if a, err := decodeAnswer(key, record); err == nil {
						e.subject = Subject{a.ID(), a.Rules, false, a.From, a.Name, a.Account, a.Template, a.Zone, a.At}
					}
				} else if f, err := decodeFailure(key, record); err == nil {
					e.subject = Subject{f.ID(), f.Rules, true, f.From, f.Name, "", f.Template, f.Zone, f.At}
				}
				e.subject.Failure = bucket == failuresBucket
				entries = append(entries, e)
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	matched := entries[:0]
	for _, e := range entries {
		if match(e.subject) {
			matched = append(matched, e)
		}
	}
	if len(matched) == 0 {
		return 0, nil
	}
	removed := 0
	err = s.update(ctx, func(ctx context.Context, tx *bbolt.Tx) error {
		for _, e := range matched {
			if err := ctx.Err(); err != nil {
				return err
			}
			b := tx.Bucket([]byte(e.bucket))
			if !bytes.Equal(b.Get(e.key), e.record) {
				continue
			}
			if err := b.Delete(e.key); err != nil {
				return err
			}
			removed++
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return removed, nil
}

func (s *Store) answer(tx *bbolt.Tx, key []byte) (Answer, bool) {
	record := tx.Bucket([]byte(answersBucket)).Get(key)
	if record == nil {
		return Answer{}, false
	}
	a, err := decodeAnswer(key, record)
	if err != nil {
		s.skip(answersBucket, key, err)
		return Answer{}, false
	}
	return a, true
}

func (s *Store) failure(tx *bbolt.Tx, key []byte) (Failure, bool) {
	record := tx.Bucket([]byte(failuresBucket)).Get(key)
	if record == nil {
		return Failure{}, false
	}
	f, err := decodeFailure(key, record)
	if err != nil {
		s.skip(failuresBucket, key, err)
		return Failure{}, false
	}
	return f, true
}

// each calls do for the records of a bucket whose keys begin with prefix.
func each(ctx context.Context, tx *bbolt.Tx, bucket string, prefix []byte, do func(key, record []byte)) error {
	c := tx.Bucket([]byte(bucket)).Cursor()
	for key, record := c.Seek(prefix); key != nil && bytes.HasPrefix(key, prefix); key, record = c.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if record == nil {
			continue // a bucket within, which this version does not know
		}
		do(key, record)
	}
	return nil
}
