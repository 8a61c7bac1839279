package answers

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// sample returns a file of answers with a tree of two levels, free pages and
// failures, and the n answers in it. before also has those that were in it one
// change earlier: a file whose later meta page is lost has them again.
func sample(t testing.TB, n int) (b []byte, now, before map[ID]Answer) {
	t.Helper()
	path := newPath(t)
	s := open(t, path, Options{})
	var all []Answer
	for i := range n + n/2 {
		all = append(all, included(i))
	}
	put(t, s, all...)
	if err := s.Fail(t.Context(), failed(-1), failed(-2)); err != nil {
		t.Fatal(err)
	}
	before = indexed(all)
	_, err := s.Forget(t.Context(), func(s Subject) bool { return !s.Failure && gone(s.Template, n) })
	if err != nil {
		t.Fatal(err)
	}
	answers, _, err := s.All(t.Context())
	if err != nil || len(answers) != n {
		t.Fatalf("got %d answers, %v, want %d", len(answers), err, n)
	}
	b, err = os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b, indexed(answers), before
}

// gone reports whether an answer is one of those beyond n.
func gone(template string, n int) bool {
	i, err := strconv.Atoi(template)
	return err == nil && i >= n
}

// place writes b where a store is looked for.
func place(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

// inUse returns how many bytes of the file are: what is behind them is a hole.
func inUse(t testing.TB, b []byte) int {
	t.Helper()
	m, _, err := readMeta(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	return int(m.pages) * int(m.pageSize)
}

// TestDamage has files that are none of answers. Each is named, nothing about
// it changes unless that was asked for, and then the old one is still there.
func TestDamage(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	valid, _, _ := sample(t, 300)
	used := inUse(t, valid)
	page := os.Getpagesize()
	edit := func(change func(b []byte)) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b := bytes.Clone(valid)
			change(b)
			place(t, path, b)
		}
	}
	bytesOf := func(b []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) { place(t, path, b) }
	}
	beside := func(make func(path string) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := make(path); err != nil {
				t.Fatal(err)
			}
		}
	}
	noise := make([]byte, 64<<10)
	rand.NewChaCha8([32]byte{1}).Read(noise)
	other := filepath.Join(t.TempDir(), "other.db")
	place(t, other, valid)

	for _, c := range []struct {
		name  string
		place func(t *testing.T, path string)
		want  string // in the error
		stays bool   // whatever was asked for
	}{
		{"empty", bytesOf(nil), "it is empty", false},
		{"one byte", bytesOf([]byte{0}), "too short", false},
		{"text", bytesOf(bytes.Repeat([]byte("etcd\n"), 10000)), "no file of answers", false},
		{"random", bytesOf(noise), "no file of answers", false},
		{"zeros", bytesOf(make([]byte, 64<<10)), "no file of answers", false},
		{"bad magic", edit(func(b []byte) { b[16] ^= 1; b[page+16] ^= 1 }), "no file of answers", false},
		{"both meta pages flipped", edit(func(b []byte) { b[16+40] ^= 1; b[page+16+40] ^= 1 }), "checksum", false},
		{"meta pages alone", bytesOf(valid[:2*page]), "truncated", false},
		{"cut in a meta page", bytesOf(valid[:page/2]), "truncated", false},
		{"cut in the middle", bytesOf(valid[:used/2]), "truncated", false},
		{"cut by a byte", bytesOf(valid[:used-1]), "truncated", false},
		{"all but the meta pages zero", edit(func(b []byte) { clear(b[2*page:]) }), "page ", false},
		{"all but the meta pages random", edit(func(b []byte) { copy(b[2*page:], noise) }), "page ", false},
		{"too large", beside(func(path string) error {
			if err := os.WriteFile(path, valid, 0o640); err != nil {
				return err
			}
			return os.Truncate(path, 1<<40)
		}), "1099511627776 bytes", false},
		{"pipe", beside(func(path string) error { return unix.Mkfifo(path, 0o640) }), "a pipe", false},
		{"socket", beside(func(path string) error {
			fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			// A socket's path is short: it is reached by way of its directory.
			dir, err := os.Open(filepath.Dir(path))
			if err != nil {
				return err
			}
			defer dir.Close()
			return unix.Bind(fd, &unix.SockaddrUnix{Name: filepath.Join("/proc/self/fd", strconv.Itoa(int(dir.Fd())), filepath.Base(path))})
		}), "a socket", false},
		{"link to a good one", beside(func(path string) error { return os.Symlink(other, path) }), "a symbolic link", false},
		{"link to nothing", beside(func(path string) error { return os.Symlink("nothing", path) }), "a symbolic link", false},
		{"directory", beside(func(path string) error { return os.Mkdir(path, 0o755) }), "a directory", true},
		{"device", beside(func(path string) error { return deviceAt(t, path) }), "a device", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := newPath(t)
			good := open(t, path, Options{Timeout: time.Second}) // before anything is there
			c.place(t, path)
			before, err := os.Lstat(path)
			if err != nil {
				t.Fatal(err)
			}
			_, err = Open(t.Context(), path, Options{})
			wantCode(t, err, reason.AnswersDamaged)
			if !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("got %q, want it to name the file and to say %q", err, c.want)
			}
			_, _, err = good.All(t.Context())
			wantCode(t, err, reason.AnswersDamaged)
			wantCode(t, good.Put(t.Context(), included(1)), reason.AnswersDamaged)
			after, err := os.Lstat(path)
			if err != nil || !os.SameFile(before, after) || before.Size() != after.Size() || before.ModTime() != after.ModTime() {
				t.Errorf("it was changed: %v, %v", after, err)
			}

			s, err := Open(t.Context(), path, Options{Rebuild: true})
			if c.stays {
				wantCode(t, err, reason.AnswersDamaged)
				if _, err := os.Lstat(path); err != nil {
					t.Error(err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if !strings.HasPrefix(s.SetAside(), path+asideMark) {
				t.Errorf("it was set aside as %q", s.SetAside())
			}
			aside, err := os.Lstat(s.SetAside())
			if err != nil || !os.SameFile(before, aside) || before.Size() != aside.Size() {
				t.Errorf("it is not what it was: %v, %v", aside, err)
			}
			put(t, s, included(1))
			for _, s := range []*Store{s, good} {
				if answers, _, err := s.All(t.Context()); err != nil || len(answers) != 1 {
					t.Errorf("anew: got %d answers, %v", len(answers), err)
				}
			}
			// A good one is never set aside.
			s = open(t, path, Options{Rebuild: true})
			if answers, _, err := s.All(t.Context()); err != nil || len(answers) != 1 || s.SetAside() != "" {
				t.Errorf("once more: got %d answers, %v, set aside as %q", len(answers), err, s.SetAside())
			}
		})
	}
	if b, err := os.ReadFile(other); err != nil || !bytes.Equal(b, valid) {
		t.Errorf("a link was followed: %v", err)
	}
}

// deviceAt makes a device, or skips the test where that needs another user.
func deviceAt(t *testing.T, path string) error {
	err := unix.Mknod(path, unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3)))
	if errors.Is(err, unix.EPERM) {
		if os.Getenv("CI") != "" {
			t.Fatal("making a device needs root")
		}
		t.Skip("making a device needs root")
	}
	return err
}

// TestNewerFormat has a file of a later bbolt.
func TestNewerFormat(t *testing.T) {
	b, _, _ := sample(t, 10)
	for _, at := range []int{0, os.Getpagesize()} {
		binary.NativeEndian.PutUint32(b[at+headerSize+4:], metaVersion+1)
	}
	sumMetas(b)
	path := newPath(t)
	place(t, path, b)
	_, err := Open(t.Context(), path, Options{Rebuild: true})
	wantCode(t, err, reason.AnswersNewer)
}

// sumMetas makes the checksums of the meta pages right.
func sumMetas(b []byte) {
	for _, at := range []int{0, os.Getpagesize()} {
		if len(b) >= at+headerSize+metaSize {
			p := b[at+headerSize:]
			sum := fnv.New64a()
			sum.Write(p[:metaSize-8])
			binary.NativeEndian.PutUint64(p[metaSize-8:], sum.Sum64())
		}
	}
}

// TestFlippedBits flips one bit at a time. A file in which one is flipped is
// damaged, or everything that is read is what was written, and what is not read
// is named.
func TestFlippedBits(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	valid, want, before := sample(t, 40)
	flips := 1500
	if testing.Short() {
		flips = 300
	}
	path := newPath(t)
	place(t, path, valid)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	random := rand.New(rand.NewPCG(1, 2))
	page, used := os.Getpagesize(), inUse(t, valid)
	var damaged, skipped, harmless int
	for i := range flips {
		// Every other one hits the heads of pages, where the structure is.
		at := random.IntN(used)
		if i%2 == 0 {
			at = at/page*page + random.IntN(200)
		}
		bit := byte(1) << random.IntN(8)
		if _, err := f.WriteAt([]byte{valid[at] ^ bit}, int64(at)); err != nil {
			t.Fatal(err)
		}
		log, lines := logged()
		s, err := Open(t.Context(), path, Options{Log: log})
		var answers []Answer
		if err == nil {
			answers, _, err = s.All(t.Context())
		}
		named := strings.Count(lines.String(), "level=WARN")
		switch {
		case err != nil:
			wantCode(t, err, reason.AnswersDamaged)
			if named > 0 || strings.Contains(err.Error(), "while it was in use") {
				t.Errorf("byte %d, bit %02x passed the checks: %v\n%s", at, bit, err, lines)
			}
			damaged++
		case named > 0:
			if len(answers) < len(want)-1 {
				t.Errorf("byte %d, bit %02x: got %d answers of %d\n%s", at, bit, len(answers), len(want), lines)
			}
			skipped++
		case len(answers) != len(want):
			t.Errorf("byte %d, bit %02x: got %d answers of %d, and not a word", at, bit, len(answers), len(want))
		default:
			harmless++
		}
		for _, a := range answers {
			if !reflect.DeepEqual(before[a.ID()], a) {
				t.Fatalf("byte %d, bit %02x: got %+v, want %+v", at, bit, a, before[a.ID()])
			}
		}
		if _, err := f.WriteAt(valid[at:at+1], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d flips of %d bytes: %d times damaged, %d times a record or a meta page named, %d times harmless", flips, used, damaged, skipped, harmless)
}

// TestLostPages zeroes each page in turn, and puts each in another's place.
func TestLostPages(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	valid, want, before := sample(t, 40)
	page, used := os.Getpagesize(), inUse(t, valid)
	for name, change := range map[string]func(b []byte, at int){
		"zeroed":     func(b []byte, at int) { clear(b[at : at+page]) },
		"another's":  func(b []byte, at int) { copy(b[at:at+page], valid[used-page:]) },
		"half":       func(b []byte, at int) { clear(b[at+page/2 : at+page]) },
		"cut before": func(b []byte, at int) { clear(b[at:]) },
	} {
		damaged := 0
		for at := 0; at < used-page; at += page {
			b := bytes.Clone(valid)
			change(b, at)
			path := newPath(t)
			place(t, path, b)
			log, lines := logged()
			s, err := Open(t.Context(), path, Options{Log: log})
			var answers []Answer
			if err == nil {
				answers, _, err = s.All(t.Context())
			}
			if err != nil {
				wantCode(t, err, reason.AnswersDamaged)
				damaged++
			} else if len(answers) < len(want) && lines.Len() == 0 {
				t.Errorf("%s page %d: got %d answers of %d, and not a word", name, at/page, len(answers), len(want))
			}
			for _, a := range answers {
				if !reflect.DeepEqual(before[a.ID()], a) {
					t.Errorf("%s page %d: got %+v", name, at/page, a)
				}
			}
		}
		t.Logf("%s: %d of %d pages made it damaged", name, damaged, used/page-1)
		if damaged == 0 {
			t.Errorf("%s: no page was missed", name)
		}
	}
}

// TestChangedInUse cuts the file while bbolt has it mapped, which nobody does
// who asks for the lock: reads of the mapping end in SIGBUS.
func TestChangedInUse(t *testing.T) {
	for _, write := range []bool{false, true} {
		b, _, _ := sample(t, 300)
		path := newPath(t)
		place(t, path, b)
		s := open(t, path, Options{Timeout: time.Second})
		work := func(ctx context.Context, tx *bbolt.Tx) error {
			if err := os.Truncate(path, 0); err != nil {
				return err
			}
			return each(ctx, tx, answersBucket, nil, func(_, record []byte) { _ = bytes.Clone(record) })
		}
		do := s.view
		if write {
			do = s.update
		}
		err := do(t.Context(), work)
		wantCode(t, err, reason.AnswersDamaged)
		if !strings.Contains(err.Error(), "while it was in use") {
			t.Errorf("got %q", err)
		}
		_, _, err = s.All(t.Context())
		wantCode(t, err, reason.AnswersDamaged)

		// The lock is free again, though the mapping is not.
		s = open(t, path, Options{Timeout: time.Second, Rebuild: true})
		put(t, s, included(1))
	}
}

// TestPanic has bbolt fail on a file that passed the checks. It is not tried
// again until the file changes.
func TestPanic(t *testing.T) {
	path := newPath(t)
	s := open(t, path, Options{Timeout: time.Second})
	put(t, s, included(1))
	calls := 0
	for range 3 {
		err := s.view(t.Context(), func(context.Context, *bbolt.Tx) error { calls++; panic("assertion failed") })
		wantCode(t, err, reason.AnswersDamaged)
	}
	if calls != 1 {
		t.Errorf("got %d calls, want 1", calls)
	}
	alter(t, path, func(tx *bbolt.Tx) error { return tx.Bucket([]byte(aboutBucket)).Put([]byte("x"), []byte("y")) })
	put(t, s, included(2))
}

// TestRebuildAtOnce has many that set the same file aside: one succeeds, and
// nothing that is kept afterwards is lost.
func TestRebuildAtOnce(t *testing.T) {
	for range 10 {
		path := newPath(t)
		place(t, path, make([]byte, 64<<10))
		var wg sync.WaitGroup
		var aside sync.Map
		for i := range 8 {
			wg.Go(func() {
				s, err := Open(context.Background(), path, Options{Rebuild: true})
				if err == nil {
					err = s.Put(context.Background(), included(i))
				}
				if err != nil {
					t.Error(err)
					return
				}
				if s.SetAside() != "" {
					aside.Store(s.SetAside(), i)
				}
			})
		}
		wg.Wait()
		answers, _, err := open(t, path, Options{}).All(t.Context())
		if err != nil || len(answers) != 8 {
			t.Errorf("got %d answers, %v, want 8", len(answers), err)
		}
		n := 0
		aside.Range(func(_, _ any) bool { n++; return true })
		if left, err := filepath.Glob(path + asideMark + "*"); err != nil || n != 1 || len(left) != 1 {
			t.Errorf("got %d set aside, %v, %v, want 1", n, left, err)
		}
	}
}

// TestSwappedForLink has somebody put links in the way at every step.
func TestSwappedForLink(t *testing.T) {
	dir := t.TempDir()
	victim := filepath.Join(dir, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "answers.db")
	s := open(t, path, Options{Timeout: time.Second})
	put(t, s, included(1))
	for range 2 {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(victim, path); err != nil {
			t.Fatal(err)
		}
		wantCode(t, s.Put(t.Context(), included(2)), reason.AnswersDamaged)
		s = open(t, path, Options{Rebuild: true})
		put(t, s, included(3))
	}
	if b, err := os.ReadFile(victim); err != nil || string(b) != "precious" {
		t.Errorf("got %q, %v", b, err)
	}
	if info, err := os.Stat(victim); err != nil || info.Mode() != 0o600 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if info, err := os.Lstat(path); err != nil || info.Mode().Type() != fs.FileMode(0) {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
}

// FuzzOpen edits a good file: four bytes of edits are an offset and a byte. The
// checksums of the meta pages are made right again when sum is set, so that
// what they protect is reached. size cuts or lengthens the file.
func FuzzOpen(f *testing.F) {
	valid, _, want := sample(f, 40)
	page, used := os.Getpagesize(), inUse(f, valid)
	valid = valid[:used]
	at := func(offset int, b ...byte) []byte {
		var edits []byte
		for i, v := range b {
			edits = append(edits, byte((offset+i)>>16), byte((offset+i)>>8), byte(offset+i), v)
		}
		return edits
	}
	f.Add([]byte{}, 0, false)
	f.Add([]byte{}, -page, true)
	f.Add([]byte{}, 5*page, false)
	for p := range used / page {
		f.Add(at(p*page+8, flagBranch), 0, true)
		f.Add(at(p*page+10, 0xff, 0xff, 1), 0, true)
		f.Add(at(p*page+16, 0, 0, 0, 0xff, 0xff), 0, true)
		f.Add(at(p*page+24, 2, 0, 0, 0, 3), 0, true)
	}
	for field := 8; field < metaSize; field += 8 { // of both meta pages
		f.Add(append(at(headerSize+field, 3), at(page+headerSize+field, 3)...), 0, true)
		f.Add(append(at(headerSize+field+7, 0xff), at(page+headerSize+field+7, 0xff)...), 0, true)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, edits []byte, size int, sum bool) {
		b := bytes.Clone(valid)
		for ; len(edits) >= 4; edits = edits[4:] {
			b[(int(edits[0])<<16|int(edits[1])<<8|int(edits[2]))%len(b)] = edits[3]
		}
		if n := len(b) + size%(1<<20); n >= 0 && n <= len(b) {
			b = b[:n]
		} else if n > len(b) {
			b = append(b, make([]byte, n-len(b))...)
		}
		if sum {
			sumMetas(b)
		}
		file, err := os.CreateTemp(dir, "answers")
		if err != nil {
			t.Fatal(err)
		}
		path := file.Name()
		defer os.Remove(path)
		if _, err := file.Write(b); err != nil {
			t.Fatal(err)
		}
		file.Close()

		s, err := Open(t.Context(), path, Options{Timeout: time.Second})
		if err != nil {
			if code := reason.Of(err); code != reason.AnswersDamaged && code != reason.AnswersNewer {
				t.Fatal(err)
			}
			if strings.Contains(err.Error(), "while it was in use") {
				t.Fatalf("it passed the checks: %v", err)
			}
			return
		}
		answers, _, err := s.All(t.Context())
		if err != nil {
			t.Fatalf("it was opened, and not read: %v", err)
		}
		for _, a := range answers {
			if !reflect.DeepEqual(want[a.ID()], a) {
				t.Fatalf("got %+v, want %+v", a, want[a.ID()])
			}
		}
		fresh := missing(1)
		err = s.Put(t.Context(), fresh)
		if err == nil {
			err = s.Fail(t.Context(), failed(2))
		}
		if err != nil && reason.Of(err) != reason.AnswersUnwritable {
			t.Fatalf("it was read, and not written: %v", err)
		}
		s = open(t, path, Options{Timeout: time.Second})
		a, ok, readErr := s.Get(t.Context(), fresh.Key, inspect.EtcdArchive)
		if readErr != nil || err == nil && (!ok || a.Value != inspect.Missing) {
			t.Fatalf("what was written is not read: %v, %v, %v", a, ok, readErr)
		}
	})
}
