package answers

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

func TestDefaultPath(t *testing.T) {
	for _, c := range []struct {
		euid int
		env  map[string]string
		want string
	}{
		{0, map[string]string{"HOME": "/root", "XDG_STATE_HOME": "/root/state"}, "/var/lib/etcd-fleet/answers.db"},
		{1000, map[string]string{"HOME": "/home/ann"}, "/home/ann/.local/state/etcd-fleet/answers.db"},
		{1000, map[string]string{"HOME": "/home/ann", "XDG_STATE_HOME": "/srv/state"}, "/srv/state/etcd-fleet/answers.db"},
		{1000, map[string]string{"HOME": "/home/ann", "XDG_STATE_HOME": "state"}, "/home/ann/.local/state/etcd-fleet/answers.db"},
		{1000, nil, ""},
	} {
		if got := DefaultPath(c.euid, func(name string) string { return c.env[name] }); got != c.want {
			t.Errorf("uid %d, %v: got %q, want %q", c.euid, c.env, got, c.want)
		}
	}
}

// TestContract is what everybody who keeps answers relies on. Each row begins
// with a new file and ends with what another process would read.
func TestContract(t *testing.T) {
	deep := included(1)
	deep.Deep, deep.SHA256, deep.Value, deep.Code = true, strings.Repeat("ab", 32), inspect.Broken, reason.ArchiveTruncated
	older, newer := missing(1), included(1)
	older.Rules, newer.Rules = inspect.Rules, inspect.Rules+1
	latin := included(1)
	latin.Key, latin.From, latin.Name = "at:/srv/caf\xe9.iso", "/srv/caf\xe9.iso", "\x00base64:caf\xe9"
	long := included(1)
	long.Key, long.File = "at:https://mirror.example/"+strings.Repeat("x", 4000), strings.Repeat("d/", 2000)
	nul := included(1)
	nul.Key, nul.File = "a\x00b", "c"
	second := failed(1)
	second.At, second.Code, second.Message, second.Next = began.Add(time.Hour), reason.ISOTruncated, "half of it", time.Time{}
	counted := func(f Failure, n int, first time.Time) Failure {
		f.Count, f.First = n, first
		return f
	}
	otherFile := included(1)
	otherFile.File = "k8s/kubeadm"
	local := missing(1)
	local.At = began.In(time.FixedZone("", 7200))
	dirty := missing(1)
	dirty.Message, dirty.Notes = "two\nlines \x1b[31m", []string{"a\tb"}
	clean := missing(1)
	clean.Message, clean.Notes = "two lines ?[31m", []string{"a b"}
	noRules, noCount := included(1), failed(2)
	noRules.Rules, noRules.Code, noCount.Rules = 0, "", 0

	for _, c := range []struct {
		name         string
		do           func(ctx context.Context, s *Store) error
		wantAnswers  []Answer
		wantFailures []Failure
	}{
		{"nothing", func(ctx context.Context, s *Store) error { return errors.Join(s.Put(ctx), s.Fail(ctx)) }, nil, nil},
		{"one", func(ctx context.Context, s *Store) error { return s.Put(ctx, included(1)) }, []Answer{included(1)}, nil},
		{"two at once", func(ctx context.Context, s *Store) error { return s.Put(ctx, included(1), missing(2)) }, []Answer{included(1), missing(2)}, nil},
		{"two files of one image", func(ctx context.Context, s *Store) error { return s.Put(ctx, included(1), otherFile) }, []Answer{included(1), otherFile}, nil},
		{"a later one replaces", func(ctx context.Context, s *Store) error {
			return errors.Join(s.Put(ctx, missing(1)), s.Put(ctx, included(1)))
		}, []Answer{included(1)}, nil},
		{"deep replaces", func(ctx context.Context, s *Store) error { return s.Put(ctx, included(1), deep) }, []Answer{deep}, nil},
		{"deep stays", func(ctx context.Context, s *Store) error { return s.Put(ctx, deep, included(1)) }, []Answer{deep}, nil},
		{"deep is replaced by deep", func(ctx context.Context, s *Store) error {
			again := deep
			again.Value, again.Code = inspect.Included, reason.Included
			return s.Put(ctx, again, deep)
		}, []Answer{deep}, nil},
		{"by other rules", func(ctx context.Context, s *Store) error { return s.Put(ctx, newer, older) }, []Answer{older}, nil},
		{"rules and code filled in", func(ctx context.Context, s *Store) error {
			return errors.Join(s.Put(ctx, noRules), s.Fail(ctx, noCount))
		},
			[]Answer{included(1)}, []Failure{counted(failed(2), 1, began)}},
		{"bytes of a path", func(ctx context.Context, s *Store) error { return s.Put(ctx, latin) }, []Answer{latin}, nil},
		{"long", func(ctx context.Context, s *Store) error { return s.Put(ctx, long) }, []Answer{long}, nil},
		{"separator in the key", func(ctx context.Context, s *Store) error { return s.Put(ctx, nul) }, []Answer{nul}, nil},
		{"another time zone", func(ctx context.Context, s *Store) error { return s.Put(ctx, local) }, []Answer{missing(1)}, nil},
		{"lines", func(ctx context.Context, s *Store) error { return s.Put(ctx, dirty) }, []Answer{clean}, nil},
		{"failure", func(ctx context.Context, s *Store) error { return s.Fail(ctx, failed(1)) }, nil, []Failure{counted(failed(1), 1, began)}},
		{"failures", func(ctx context.Context, s *Store) error {
			return errors.Join(s.Fail(ctx, failed(1), failed(2)), s.Fail(ctx, second))
		}, nil, []Failure{counted(second, 2, began), counted(failed(2), 1, began)}},
		{"the same failure twice at once", func(ctx context.Context, s *Store) error { return s.Fail(ctx, failed(1), second) }, nil, []Failure{counted(second, 2, began)}},
		{"an answer ends failures", func(ctx context.Context, s *Store) error {
			return errors.Join(s.Fail(ctx, failed(1), failed(2)), s.Put(ctx, included(1)))
		}, []Answer{included(1)}, []Failure{counted(failed(2), 1, began)}},
		{"a failure leaves the answer", func(ctx context.Context, s *Store) error {
			return errors.Join(s.Put(ctx, included(1)), s.Fail(ctx, failed(1)))
		}, []Answer{included(1)}, []Failure{counted(failed(1), 1, began)}},
		{"forget by template", func(ctx context.Context, s *Store) error {
			n, err := 0, errors.Join(s.Put(ctx, included(1), missing(2)), s.Fail(ctx, failed(1), failed(3)))
			if err == nil {
				n, err = s.Forget(ctx, func(s Subject) bool { return s.Template == "1" })
			}
			if err == nil && n != 2 {
				err = fmt.Errorf("%d were forgotten", n)
			}
			return err
		}, []Answer{missing(2)}, []Failure{counted(failed(3), 1, began)}},
		{"forget of other rules", func(ctx context.Context, s *Store) error {
			err := s.Put(ctx, newer, older)
			if err == nil {
				_, err = s.Forget(ctx, func(s Subject) bool { return s.Rules > inspect.Rules })
			}
			return err
		}, []Answer{older}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := newPath(t)
			if err := c.do(t.Context(), open(t, path, Options{})); err != nil {
				t.Fatal(err)
			}
			log, lines := logged()
			s := open(t, path, Options{Log: log})
			answers, failures, err := s.All(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			byID := cmp.Transformer("byID", func(all []Answer) map[ID]Answer { return indexed(all) })
			if d := cmp.Diff(c.wantAnswers, answers, byID); d != "" {
				t.Errorf("answers (-want +got):\n%s", d)
			}
			failuresByID := cmp.Transformer("byID", func(all []Failure) map[ID]Failure { return indexed(all) })
			if d := cmp.Diff(c.wantFailures, failures, failuresByID); d != "" {
				t.Errorf("failures (-want +got):\n%s", d)
			}
			if lines.Len() > 0 {
				t.Errorf("got %s, want nothing to complain about", lines)
			}

			ids := []ID{{key(99), "absent"}}
			for _, a := range c.wantAnswers {
				ids = append(ids, a.ID())
				if got, ok, err := s.Get(t.Context(), a.Key, a.File); err != nil || !ok || !cmp.Equal(a, got) {
					t.Errorf("Get: %+v, %v, %v", got, ok, err)
				}
			}
			for _, f := range c.wantFailures {
				ids = append(ids, f.ID())
			}
			some, someFailures, err := s.GetMany(t.Context(), ids)
			if err != nil || !cmp.Equal(indexed(c.wantAnswers), some) || !cmp.Equal(indexed(c.wantFailures), someFailures) {
				t.Errorf("GetMany: %v, %v, %v", some, someFailures, err)
			}
		})
	}
}

func indexed[T interface{ ID() ID }](all []T) map[ID]T {
	m := make(map[ID]T)
	for _, one := range all {
		m[one.ID()] = one
	}
	return m
}

func TestOlderRulesGo(t *testing.T) {
	s := open(t, newPath(t), Options{})
	put(t, s, missing(1), missing(2))
	if err := s.Fail(t.Context(), failed(1)); err != nil {
		t.Fatal(err)
	}
	fresh := included(1)
	fresh.Rules = inspect.Rules + 1
	put(t, s, fresh)
	var got []string
	if _, err := s.Forget(t.Context(), func(s Subject) bool {
		got = append(got, fmt.Sprintf("%d %s", s.Rules, s.Template))
		return false
	}); err != nil {
		t.Fatal(err)
	}
	want := []string{fmt.Sprintf("%d 2", inspect.Rules), fmt.Sprintf("%d 1", inspect.Rules+1)}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("rules and template (-want +got):\n%s", d)
	}
}

func TestRefusals(t *testing.T) {
	s := open(t, newPath(t), Options{})
	unknown, noKey, noFile, badCode, huge := included(1), included(1), included(1), included(1), included(1)
	unknown.Value = inspect.Unknown
	noKey.Key = ""
	noFile.File = ""
	badCode.Code = "no-such-code"
	huge.From = strings.Repeat("x", maxRecord)
	for _, a := range []Answer{unknown, noKey, noFile, badCode, huge} {
		wantCode(t, s.Put(t.Context(), included(2), a), reason.Internal)
	}
	f, g := failed(1), failed(1)
	f.Key = ""
	g.Code = ""
	for _, f := range []Failure{f, g} {
		wantCode(t, s.Fail(t.Context(), failed(2), f), reason.Internal)
	}
	if answers, failures, err := s.All(t.Context()); err != nil || len(answers)+len(failures) > 0 {
		t.Errorf("got %v, %v, %v, want that nothing was kept", answers, failures, err)
	}
	_, err := Open(t.Context(), "", Options{})
	wantCode(t, err, reason.Usage)
}

func TestNoFile(t *testing.T) {
	path := newPath(t)
	s := open(t, path, Options{Rebuild: true})
	if _, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); ok || err != nil {
		t.Errorf("got %v, %v, want no answer and no error", ok, err)
	}
	if n, err := s.Forget(t.Context(), func(Subject) bool { return true }); n != 0 || err != nil {
		t.Errorf("got %d, %v, want nothing to forget", n, err)
	}
	if _, err := os.Lstat(filepath.Dir(path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reading has made a directory: %v", err)
	}

	defer unix.Umask(unix.Umask(0o077))
	put(t, s, included(1))
	for name, want := range map[string]fs.FileMode{path: 0o640, filepath.Dir(path): fs.ModeDir | 0o750} {
		if info, err := os.Stat(name); err != nil || info.Mode() != want {
			t.Errorf("%s: got %v, %v, want %v", name, info.Mode(), err, want)
		}
	}

	// Somebody has removed it: what is not there is not remembered.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); ok || err != nil {
		t.Errorf("removed: got %v, %v", ok, err)
	}
	put(t, s, included(2))
	if _, ok, err := s.Get(t.Context(), key(2), inspect.EtcdArchive); !ok || err != nil {
		t.Errorf("made again: got %v, %v", ok, err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) != 1 {
		t.Errorf("got %v, %v, want the file alone", entries, err)
	}
}

func TestSweep(t *testing.T) {
	path := newPath(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	abandoned, fresh := path+newMark+"1", path+newMark+"2"
	for _, name := range []string{abandoned, fresh} {
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	past := time.Now().Add(-2 * abandonedAfter)
	if err := os.Chtimes(abandoned, past, past); err != nil {
		t.Fatal(err)
	}
	put(t, open(t, path, Options{}), included(1))
	if _, err := os.Lstat(abandoned); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what a killed process left is there: %v", err)
	}
	if _, err := os.Lstat(fresh); err != nil {
		t.Errorf("what may be another's work is gone: %v", err)
	}
}

// TestBusy holds the lock as another process would.
func TestBusy(t *testing.T) {
	path := newPath(t)
	s := open(t, path, Options{Timeout: 50 * time.Millisecond})
	put(t, s, included(1))
	hold := func(how int) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Flock(int(f.Fd()), how); err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := hold(unix.LOCK_EX)
	_, _, err := s.Get(t.Context(), key(1), inspect.EtcdArchive)
	wantCode(t, err, reason.AnswersBusy)
	if !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "context") {
		t.Errorf("got %q, want the path and plain words", err)
	}
	wantCode(t, s.Put(t.Context(), included(2)), reason.AnswersBusy)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(10*time.Millisecond, cancel)
	patient := open2(t, path, Options{Timeout: time.Hour})
	_, _, err = patient.Get(ctx, key(1), inspect.EtcdArchive)
	wantCode(t, err, reason.Interrupted)
	f.Close()

	f = hold(unix.LOCK_SH)
	if _, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); !ok || err != nil {
		t.Errorf("beside a reader: got %v, %v", ok, err)
	}
	wantCode(t, s.Put(t.Context(), included(2)), reason.AnswersBusy)
	f.Close()
	put(t, s, included(2))
}

// open2 is Open without its look at the file.
func open2(t *testing.T, path string, o Options) *Store {
	t.Helper()
	moved := path + ".moved"
	if err := os.Rename(path, moved); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, o)
	if err := os.Rename(moved, path); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestContextEnded(t *testing.T) {
	s := open(t, newPath(t), Options{})
	put(t, s, included(1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, _, err := s.All(ctx)
	wantCode(t, err, reason.Interrupted)
	wantCode(t, s.Put(ctx, included(2)), reason.Interrupted)
	ctx, cancel = context.WithTimeout(t.Context(), 0)
	defer cancel()
	_, _, err = s.All(ctx)
	wantCode(t, err, reason.AnswersBusy)
}

// TestHang has work that never ends: callers go on, and one turn is lost.
func TestHang(t *testing.T) {
	s, err := Open(t.Context(), newPath(t), Options{Timeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	put(t, s, included(1))
	free := make(chan struct{})
	ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the work must have begun by then
	defer cancel()
	err = s.view(ctx, func(context.Context, *bbolt.Tx) error { <-free; return nil })
	wantCode(t, err, reason.AnswersBusy)
	_, _, err = s.All(t.Context())
	wantCode(t, err, reason.AnswersBusy)
	close(free)
	if err := s.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	_, _, err = s.All(t.Context())
	wantCode(t, err, reason.Internal)
}

// alter changes the file behind the store's back, by way of bbolt.
func alter(t *testing.T, path string, change func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(path, 0o640, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(change); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func putSchema(n int) func(tx *bbolt.Tx) error {
	return func(tx *bbolt.Tx) error {
		record, err := encode(aboutBucket, []byte(schemaKey), schemaRecord{n})
		if err == nil {
			err = tx.Bucket([]byte(aboutBucket)).Put([]byte(schemaKey), record)
		}
		return err
	}
}

func TestSchema(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(tx *bbolt.Tx) error
		want   reason.Code
	}{
		{"newer", putSchema(schema + 1), reason.AnswersNewer},
		{"zero", putSchema(0), reason.AnswersDamaged},
		{"no number", func(tx *bbolt.Tx) error {
			return tx.Bucket([]byte(aboutBucket)).Put([]byte(schemaKey), []byte("x"))
		}, reason.AnswersDamaged},
		{"none", func(tx *bbolt.Tx) error { return tx.Bucket([]byte(aboutBucket)).Delete([]byte(schemaKey)) }, reason.AnswersDamaged},
		{"another program's", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(aboutBucket)) }, reason.AnswersDamaged},
		{"a bucket short", func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte(answersBucket)) }, reason.AnswersDamaged},
		{"more than is known", func(tx *bbolt.Tx) error {
			b, err := tx.CreateBucket([]byte("zones"))
			if err == nil {
				_, err = b.CreateBucket([]byte("within"))
			}
			if err == nil {
				err = tx.Bucket([]byte(aboutBucket)).Put([]byte("made-by"), []byte("2.0"))
			}
			if err == nil {
				_, err = tx.Bucket([]byte(answersBucket)).CreateBucket([]byte("within"))
			}
			return err
		}, reason.Ready},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := newPath(t)
			s := open(t, path, Options{})
			put(t, s, included(1))
			alter(t, path, c.change)
			_, err := Open(t.Context(), path, Options{})
			wantCode(t, err, c.want)
			_, _, err = s.All(t.Context()) // that was opened before
			wantCode(t, err, c.want)
			wantCode(t, s.Put(t.Context(), included(2)), c.want)
			if c.want == reason.AnswersNewer {
				_, err := Open(t.Context(), path, Options{Rebuild: true})
				wantCode(t, err, c.want)
			}
		})
	}
}

// TestRecords has one record that cannot be used among others that can.
func TestRecords(t *testing.T) {
	at := recordKey(inspect.Rules, included(1).ID())
	write := func(text string) func(*bbolt.Bucket) error {
		return func(b *bbolt.Bucket) error {
			record := fmt.Appendf(nil, "%08x %s", checksum(answersBucket, at, []byte(text)), text)
			return b.Put(at, record)
		}
	}
	const body = `"key":"file:fd00:1:836763648:1751371200.123456789","file":"etcd/etcd-linux-amd64.tar.gz","rules":1`
	for _, c := range []struct {
		name   string
		change func(*bbolt.Bucket) error
		usable bool
	}{
		{"as it should be", write(`{"v":1,` + body + `,"value":"missing","code":"archive-missing"}`), true},
		{"field that is not known", write(`{"v":1,` + body + `,"value":"missing","code":"archive-missing","colour":{"a":[1]}}`), true},
		{"value that is not known", write(`{"v":1,` + body + `,"value":"partly","code":"archive-missing"}`), false},
		{"unknown", write(`{"v":1,` + body + `,"value":"unknown","code":"iso-truncated"}`), false},
		{"code that is not known", write(`{"v":1,` + body + `,"value":"missing","code":"archive-shy"}`), false},
		{"newer version", write(`{"v":2,` + body + `,"value":"missing","code":"archive-missing"}`), false},
		{"no version", write(`{` + body + `,"value":"missing","code":"archive-missing"}`), false},
		{"another's", write(`{"v":1,"key":"x","file":"y","rules":1,"value":"missing","code":"archive-missing"}`), false},
		{"no JSON", write(`}`), false},
		{"other JSON", write(`[1]`), false},
		{"empty", func(b *bbolt.Bucket) error { return b.Put(at, nil) }, false},
		{"short", func(b *bbolt.Bucket) error { return b.Put(at, []byte("0123456")) }, false},
		{"no checksum", func(b *bbolt.Bucket) error { return b.Put(at, []byte("0123456x {}")) }, false},
		{"huge", func(b *bbolt.Bucket) error { return b.Put(at, make([]byte, maxRecord+1)) }, false},
		{"a flipped bit", func(b *bbolt.Bucket) error {
			record := []byte(strings.Clone(string(b.Get(at))))
			record[len(record)/2] ^= 1
			return b.Put(at, record)
		}, false},
		{"in another's place", func(b *bbolt.Bucket) error {
			return b.Put(at, b.Get(recordKey(inspect.Rules, included(2).ID())))
		}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := newPath(t)
			put(t, open(t, path, Options{}), included(1), included(2), included(3))
			alter(t, path, func(tx *bbolt.Tx) error { return c.change(tx.Bucket([]byte(answersBucket))) })
			log, lines := logged()
			s := open(t, path, Options{Log: log})
			for range 2 {
				answers, _, err := s.All(t.Context())
				if want := map[bool]int{true: 3, false: 2}[c.usable]; err != nil || len(answers) != want {
					t.Fatalf("got %d answers, %v, want %d", len(answers), err, want)
				}
				if _, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); err != nil || ok != c.usable {
					t.Errorf("got %v, %v, want %v", ok, err, c.usable)
				}
			}
			if got := strings.Count(lines.String(), "level=WARN"); got != map[bool]int{true: 0, false: 1}[c.usable] {
				t.Errorf("got %d warnings:\n%s", got, lines)
			}
			if !c.usable && !strings.Contains(lines.String(), key(1)) {
				t.Errorf("the record is not named:\n%s", lines)
			}

			n, err := s.Forget(t.Context(), func(s Subject) bool { return s.Key == key(1) })
			if err != nil || n != 1 {
				t.Errorf("Forget: got %d, %v, want 1", n, err)
			}
			put(t, s, missing(1))
			if a, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); err != nil || !ok || a.Value != inspect.Missing {
				t.Errorf("looked at again: got %v, %v, %v", a, ok, err)
			}
		})
	}
}

// TestFailureRecord damages a failure: the count begins anew.
func TestFailureRecord(t *testing.T) {
	path := newPath(t)
	s := open(t, path, Options{})
	if err := s.Fail(t.Context(), failed(1)); err != nil {
		t.Fatal(err)
	}
	at := recordKey(inspect.Rules, failed(1).ID())
	alter(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(failuresBucket)).Put(at, []byte("x")) })
	for want := range 2 {
		if err := s.Fail(t.Context(), failed(1)); err != nil {
			t.Fatal(err)
		}
		_, failures, err := s.GetMany(t.Context(), []ID{failed(1).ID()})
		if got := failures[failed(1).ID()].Count; err != nil || got != want+1 {
			t.Errorf("got %d, %v, want %d", got, err, want+1)
		}
	}
}

// TestForgetChanged changes a record between the look at it and its removal.
func TestForgetChanged(t *testing.T) {
	s := open(t, newPath(t), Options{})
	put(t, s, missing(1), missing(2))
	n, err := s.Forget(t.Context(), func(sub Subject) bool {
		if sub.Key == key(1) {
			put(t, s, included(1)) // the file is not locked
		}
		return true
	})
	if err != nil || n != 1 {
		t.Errorf("got %d, %v, want 1", n, err)
	}
	if a, ok, err := s.Get(t.Context(), key(1), inspect.EtcdArchive); err != nil || !ok || a.Value != inspect.Included {
		t.Errorf("got %v, %v, %v, want the new answer", a, ok, err)
	}
}
