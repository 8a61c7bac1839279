package scan

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

func TestRoundsDoNotOverlap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var now, most atomic.Int32
		w.stores["/a"] = &fakeStore{hang: func(ctx context.Context) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			return takes(time.Minute)(ctx)
		}}
		s := w.scanner(t, zoned("/a"))
		var work sync.WaitGroup
		for range 3 {
			work.Go(func() { s.Round(t.Context()) })
		}
		synctest.Wait()
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if r := s.Round(ctx); r.Err == nil {
			t.Errorf("a round that never had its turn says %+v", r)
		}
		work.Wait()
		if most.Load() != 1 || time.Since(start) != 3*time.Minute {
			t.Errorf("%d rounds at once, 3 took %v, want one after the other", most.Load(), time.Since(start))
		}
	})
}

func TestHungStoreDelaysOnlyItself(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(w *world)
		visit reason.Code // of the store that hangs
	}{
		{"in listing", func(w *world) { w.stores["/hung"].hang = stalls(time.Hour) }, reason.SourceStalled},
		{"in identifying", func(w *world) {
			for _, c := range w.stores["/hung"].copies {
				w.isos[c.Path].hangsName = stalls(30 * time.Second)
			}
		}, reason.SourceStalled},
		{"in opening", func(w *world) {
			for _, c := range w.stores["/hung"].copies {
				w.isos[c.Path].open = stalls(30 * time.Second)
			}
		}, reason.SourceStalled},
		{"in reading, until the look's time is over", func(w *world) {
			for _, c := range w.stores["/hung"].copies {
				w.isos[c.Path].read = hang
			}
		}, reason.SourceStalled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				const many = 300
				for n := range many {
					w.put("/hung", fmt.Sprint(1000+n), &fakeISO{value: inspect.Included})
					w.put("/well", fmt.Sprint(5000+n), &fakeISO{value: inspect.Included})
				}
				tt.set(w)
				s := w.scanner(t, zoned("/hung=east", "/well=west"))
				var done atomic.Int32
				time.AfterFunc(settleTime+2*flushAfter, func() { done.Store(int32(len(w.kept()))) })
				r := s.Round(t.Context())
				if done.Load() != many || r.Found[inspect.Included] != many {
					t.Errorf("the other store had %d answers after %v, and %v in the end, want %d", done.Load(), settleTime+2*flushAfter, r.Found, many)
				}
				if got := reason.Of(r.Visits[0].Err); got != tt.visit || r.Visits[1].Err != nil {
					t.Errorf("visits %+v, want code %s of the first alone", r.Visits, tt.visit)
				}
				// 300 ISOs that each take their deadline would take hours.
				if tt.name != "in listing" && r.Took > 10*time.Minute {
					t.Errorf("the round took %v", r.Took)
				}
				if got := w.counts(); len(got) != 0 {
					t.Errorf("a store that does not answer is counted as failures of its ISOs: %v", got)
				}
				if r.Err != nil {
					t.Errorf("the round says %v", r.Err)
				}
			})
		})
	}
}

// A few ISOs that cannot be read in time are at fault themselves where others of
// their store can be read.
func TestStalledISOsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for n := range 3 {
			w.put("/a", fmt.Sprint(n), &fakeISO{read: stalls(30 * time.Second)})
		}
		for n := range 40 {
			w.put("/a", fmt.Sprint(100+n), &fakeISO{value: inspect.Included})
		}
		s := w.scanner(t, zoned("/a"))
		for range 4 {
			s.Round(t.Context())
		}
		want := map[string]int{at("/a", "0"): 3, at("/a", "1"): 3, at("/a", "2"): 3}
		if diff := cmp.Diff(want, w.counts()); diff != "" {
			t.Errorf("failures (-want +got):\n%s", diff)
		}
		if len(w.kept()) != 40 {
			t.Errorf("%d answers, want 40", len(w.kept()))
		}
	})
}

// What was known of a store stays listed, and known, while it cannot be asked.
func TestStoreDown(t *testing.T) {
	down := reason.New(reason.SourceUnreachable, "/a: stale file handle")
	for _, tt := range []struct {
		name string
		set  func(w *world)
	}{
		{"it cannot be listed", func(w *world) { w.stores["/a"] = &fakeStore{err: down} }},
		{"it cannot be listed to the end", func(w *world) {
			w.stores["/a"] = &fakeStore{copies: w.stores["/a"].copies[:1], err: down}
		}},
		{"its directories cannot be read", func(w *world) {
			for n := range w.stores["/a"].copies {
				c := &w.stores["/a"].copies[n]
				c.Path, c.Name, c.Size, c.Err = "", c.Template, -1, down
			}
		}},
		{"its ISOs cannot be identified", func(w *world) {
			for _, c := range w.stores["/a"].copies {
				w.isos[c.Path].identify = down
			}
		}},
		{"answers cannot be read", func(w *world) { w.readErr = reason.New(reason.AnswersBusy, "answers.db") }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.put("/a", "203", &fakeISO{value: inspect.Included})
			w.put("/a", "204", &fakeISO{value: inspect.Missing})
			w.put("/b", "204", &fakeISO{value: inspect.Missing})
			s := w.scanner(t, zoned("/a=east", "/b=west"))
			s.Round(t.Context())
			reads := w.reads()
			tt.set(w)
			r := s.Round(t.Context())
			if r.Looks != 0 || w.reads() != reads {
				t.Errorf("%d looks, want none: %+v", r.Looks, r)
			}
			isos := s.ISOs()
			if len(isos) != 2 || isos[0].Answer == nil || isos[1].Answer == nil || len(isos[1].Copies) != 2 {
				t.Errorf("listed: %+v, want what was known", isos)
			}
			if len(w.counts()) != 0 {
				t.Errorf("failures %v are counted", w.counts())
			}
			if w.readErr == nil && isos[1].Copies[0].Err == nil && tt.name != "it cannot be listed to the end" {
				t.Errorf("the copies are listed as if they could be read: %+v", isos[1].Copies)
			}
			w.readErr = nil
		})
	}
}

// One directory that cannot be read does not keep the others from being looked at.
func TestPartOfStoreDown(t *testing.T) {
	for _, code := range []reason.Code{reason.SourceStalled, reason.SourceDenied} {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Included})
		w.stores["/a"].err = reason.New(code, "/a/template/tmpl/7")
		s := w.scanner(t, zoned("/a"))
		r := s.Round(t.Context())
		if r.Found[inspect.Included] != 1 || reason.Of(r.Visits[0].Err) != code {
			t.Errorf("%s: %+v, want what could be listed to be read, and the error", code, r)
		}
	}
}

func TestRemovedISO(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Missing})
	s := w.scanner(t, zoned("/a"))
	s.Round(t.Context())
	w.stores["/a"].copies = w.stores["/a"].copies[:1]
	s.Round(t.Context())
	if got := s.ISOs(); len(got) != 1 || got[0].Template != "203" {
		t.Errorf("listed: %+v, want the one that is left", got)
	}
}

func TestIncompleteCopies(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/b", "203", &fakeISO{value: inspect.Included})
	w.put("/b", "204", &fakeISO{value: inspect.Included})
	incomplete := reason.New(reason.ISOIncomplete, "the download is under way")
	for n := range w.stores["/b"].copies {
		c := &w.stores["/b"].copies[n]
		c.Err, c.Name, c.Size, c.Path = incomplete, "", -1, ""
	}
	s := w.scanner(t, zoned("/a=east", "/b=west"))
	for range 4 {
		r := s.Round(t.Context())
		if r.Incomplete != 2 || r.Failed != 0 || len(w.counts()) != 0 {
			t.Errorf("%+v with failures %v, want 2 incomplete copies and no failures", r, w.counts())
		}
	}
	isos := s.ISOs()
	if len(isos) != 2 {
		t.Fatalf("listed: %+v, want 2 ISOs", isos)
	}
	for _, i := range isos {
		if i.Template == "203" && (i.Answer == nil || len(i.Copies) != 2) || i.Template == "204" && (i.Answer != nil || i.Failure != nil) {
			t.Errorf("listed: %+v, want the copies of a template side by side", i)
		}
	}
}

func TestReloadDuringRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Included, read: takes(time.Minute)})
		w.put("/b", "204", &fakeISO{value: inspect.Missing})
		s := w.scanner(t, zoned("/a"))
		time.AfterFunc(time.Second, func() { s.Reload(zoned("/b")) })
		if r := s.Round(t.Context()); r.Found[inspect.Included] != 1 || len(r.Visits) != 1 || r.Visits[0].Name != "/a" {
			t.Errorf("the round that ran: %+v, want it to end as it began", r)
		}
		r := s.Round(t.Context())
		if r.Found[inspect.Missing] != 1 || len(r.Visits) != 1 || r.Visits[0].Name != "/b" {
			t.Errorf("the next round: %+v, want the new store", r)
		}
		if i := s.ISOs(); len(i) != 1 || i[0].Template != "204" {
			t.Errorf("listed: %+v, want the new store's", i)
		}
	})
}

func TestReloadOtherFile(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Missing})
	c := zoned("/a")
	s := w.scanner(t, c)
	s.Round(t.Context())
	c.File = "etcd/etcd-linux-arm64.tar.gz"
	s.Reload(c)
	if _, ok, _ := s.Known(t.Context(), "203", ""); ok {
		t.Error("the answer about one file is taken for that about another")
	}
	w.isos[at("/a", "203")].value = inspect.Included
	if r := s.Round(t.Context()); r.Looks != 1 || !s.ISOs()[0].Answer.Value.Yes() || s.ISOs()[0].Answer.File != c.File {
		t.Errorf("%+v, want the ISO to be asked for the other file", r)
	}
}

func TestReloadFailureLimit(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: errors.New("odd")})
	c := zoned("/a")
	s := w.scanner(t, c)
	for range 5 {
		s.Round(t.Context())
	}
	c.FailureLimit = 5
	s.Reload(c)
	for range 5 {
		s.Round(t.Context())
	}
	if w.reads() != 5 {
		t.Errorf("%d reads, want 5", w.reads())
	}
}

func TestAll(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Missing, ordinary: true})
	c := zoned("/a")
	c.All = true
	s := w.scanner(t, c)
	s.Round(t.Context())
	if got := s.ISOs(); len(got) != 2 || got[1].Kubernetes {
		t.Errorf("listed: %+v, want both, one of which is no Kubernetes ISO", got)
	}
}

// A round that is interrupted ends soon, keeps what it has learned, and counts
// nothing.
func TestInterrupted(t *testing.T) {
	for _, tt := range []struct {
		name string
		set  func(w *world)
	}{
		{"while it reads", func(w *world) { w.isos[at("/a", "2")].read = hang }},
		{"while it identifies", func(w *world) { w.isos[at("/a", "2")].hangsName = hang }},
		{"while it lists", func(w *world) { w.stores["/b"] = &fakeStore{hang: hang} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put("/a", "1", &fakeISO{value: inspect.Included})
				w.put("/a", "2", &fakeISO{value: inspect.Included})
				w.stores["/b"] = &fakeStore{}
				tt.set(w)
				s := w.scanner(t, zoned("/a", "/b"))
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(time.Minute, cancel)
				start := time.Now()
				r := s.Round(ctx)
				if reason.Of(r.Err) != reason.Interrupted || time.Since(start) != time.Minute {
					t.Errorf("%+v after %v, want it interrupted after a minute", r, time.Since(start))
				}
				if len(w.counts()) != 0 {
					t.Errorf("failures %v are counted", w.counts())
				}
				if r.Looks > 0 && len(w.kept()) != r.Looks {
					t.Errorf("kept %v of %d looks", w.kept(), r.Looks)
				}
			}) // which fails if a goroutine is left
		})
	}
}

func TestRoundContainsPanics(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{panics: true})
	w.put("/a", "204", &fakeISO{value: inspect.Included})
	w.put("/a", "205", &fakeISO{value: inspect.Included, hangsName: func(context.Context) error { panic("odd") }})
	w.stores["/b"] = &fakeStore{panics: true}
	s := w.scanner(t, zoned("/a", "/b"))
	r := s.Round(t.Context())
	if r.Found[inspect.Included] != 1 || r.Failed != 1 || reason.Of(r.Visits[1].Err) != reason.Internal {
		t.Errorf("%+v, want the fault to be that of one ISO and one store", r)
	}
	if got := w.counts(); got[at("/a", "203")] != 1 || got[at("/a", "205")] != 1 {
		t.Errorf("failures %v, want one of each", got)
	}
}

// Answers are written many at a time, and read many at a time.
func TestBatches(t *testing.T) {
	w := newWorld()
	for n := range 2*batch + 1 {
		w.put("/a", fmt.Sprint(n), &fakeISO{value: inspect.Missing})
	}
	s := w.scanner(t, zoned("/a"))
	s.Round(t.Context())
	if len(w.answers) != 2*batch+1 || w.puts > 10 {
		t.Errorf("%d answers in %d transactions, want %d in few", len(w.answers), w.puts, 2*batch+1)
	}
}

// What was learned is not lost for long if the round takes long.
func TestAnswersAreWrittenSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for n := range 10 {
			w.put("/a", fmt.Sprint(n), &fakeISO{value: inspect.Missing, read: takes(time.Second)})
		}
		w.put("/a", "hung", &fakeISO{value: inspect.Missing, read: takes(time.Hour)})
		c := zoned("/a")
		c.Jobs, c.LookTimeout = 2, 2*time.Hour
		s := w.scanner(t, c)
		var written atomic.Int32
		time.AfterFunc(time.Minute, func() { written.Store(int32(len(w.kept()))) })
		s.Round(t.Context())
		if written.Load() != 10 {
			t.Errorf("%d of 10 answers were written a minute after they had been found", written.Load())
		}
	})
}

// Answers that cannot be written are not looked for again, and are written once
// that is possible.
func TestAnswersCannotBeWritten(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Unknown, err: errors.New("odd")})
	s := w.scanner(t, zoned("/a"))
	w.writeErr = reason.New(reason.AnswersUnwritable, "no space left on device")
	r := s.Round(t.Context())
	if reason.Of(r.Err) != reason.AnswersUnwritable || r.Found[inspect.Included] != 1 {
		t.Errorf("%+v, want the answer, and why it is not written", r)
	}
	if i := s.ISOs(); len(i) != 2 || i[0].Answer == nil {
		t.Errorf("listed: %+v, want the answer", i)
	}
	reads := w.opens()[at("/a", "203")]
	s.Round(t.Context())
	if a, ok, err := s.Known(t.Context(), "203", ""); !ok || err != nil || !a.Value.Yes() {
		t.Errorf("Known: %+v, %v, %v, want the answer", a, ok, err)
	}
	if _, err := s.Look(t.Context(), "204", ""); err == nil {
		t.Error("Look gave an answer about an ISO that cannot be read")
	}
	w.writeErr = nil
	s.Round(t.Context())
	if w.opens()[at("/a", "203")] != reads || len(w.kept()) != 1 {
		t.Errorf("opened %v, kept %v, want the answer written and not found anew", w.opens(), w.kept())
	}
	if got := w.counts()[at("/a", "204")]; got < 2 {
		t.Errorf("%d failures are counted, want those of before as well", got)
	}
}

// An image without an identity to remember is looked at each round.
func TestNothingToRememberBy(t *testing.T) {
	w := newWorld()
	u := "http://mirror.example/setup.iso"
	w.isos[u] = &fakeISO{version: -1, size: 1, value: inspect.Included}
	s := w.scanner(t, Config{URLs: []URL{{URL: u}}})
	for n := 1; n <= 3; n++ {
		if s.Round(t.Context()); w.reads() != n || len(w.kept()) != 0 || len(s.ISOs()) != 1 || s.ISOs()[0].Answer == nil {
			t.Errorf("round %d: %d reads, kept %v, listed %+v", n, w.reads(), w.kept(), s.ISOs())
		}
	}
	w.isos[u].err, w.isos[u].value = errors.New("odd"), inspect.Unknown
	for range 5 {
		s.Round(t.Context())
	}
	if w.reads() != 6 {
		t.Errorf("%d reads, want 3 more that failed", w.reads())
	}
}

func TestURLs(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included, size: 4096})
	u := "http://user:secret@mirror.example/cks/203-1-uuid.iso"
	w.isos[u] = &fakeISO{size: 4096, value: inspect.Included}
	c := zoned("/a=east")
	c.URLs = []URL{{URL: u, Zone: "west", Template: "203", Name: "203-1-uuid"}}
	s := w.scanner(t, c)
	if r := s.Round(t.Context()); r.Looks != 1 || r.ISOs != 1 || r.Copies != 2 {
		t.Errorf("%+v, want one look at one ISO with 2 copies", r)
	}
	isos := s.ISOs()
	if len(isos) != 1 || len(isos[0].Copies) != 2 {
		t.Fatalf("listed: %+v, want one ISO with 2 copies", isos)
	}
	want := []Copy{
		{Location: at("/a", "203"), Zone: "east", Store: "/a"},
		{Location: "http://mirror.example/cks/203-1-uuid.iso", Zone: "west", Store: "mirror.example"},
	}
	for n, got := range isos[0].Copies {
		got.Key = ""
		if got != want[n] {
			t.Errorf("copy %+v, want %+v", got, want[n])
		}
	}
	for _, a := range w.answers {
		if a.From != want[0].Location && a.From != want[1].Location {
			t.Errorf("the answer is from %s, which is no location", a.From)
		}
	}
}

// Answers that a request finds while a round runs stay listed.
func TestAnswerDuringRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		iso := w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: errors.New("odd")})
		w.put("/b", "204", &fakeISO{value: inspect.Included, read: takes(time.Minute)})
		c := zoned("/a", "/b")
		c.FailureLimit = 1
		s := w.scanner(t, c)
		time.AfterFunc(time.Second, func() {
			w.change(func() { iso.value, iso.err = inspect.Missing, nil })
			if _, err := s.Look(t.Context(), "203", ""); err != nil {
				t.Errorf("Look: %v", err)
			}
		})
		s.Round(t.Context())
		if i := s.ISOs(); len(i) != 2 || i[0].Answer == nil || i[1].Answer == nil {
			t.Errorf("listed: %+v, want both answers", i)
		}
	})
}

func TestObserve(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISODamaged, "no root directory")})
	s := w.scanner(t, zoned("/a"))
	var mu sync.Mutex
	steps, looked := 0, make(map[string]int)
	s.Observe(func() {
		mu.Lock()
		defer mu.Unlock()
		steps++
	}, func(v inspect.Value, err error, took time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		looked[fmt.Sprint(v, " ", reason.Of(err))]++
	})
	s.Round(t.Context())
	if _, err := s.Look(t.Context(), "204", ""); err == nil {
		t.Error("Look gave an answer about a damaged ISO")
	}
	if diff := cmp.Diff(map[string]int{"included ready": 1, " iso-damaged": 1}, looked); diff != "" || steps < 6 {
		t.Errorf("%d steps, looks (-want +got):\n%s", steps, diff)
	}
}

// An old answer whose value is not understood is not an answer.
func TestAnswerNobodyUnderstands(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	id := answers.ID{Key: w.isos[at("/a", "203")].identity(at("/a", "203")).Key(), File: inspect.EtcdArchive}
	w.answers[id] = answers.Answer{Key: id.Key, File: id.File, Value: "perhaps"}
	s := w.scanner(t, zoned("/a"))
	if _, ok, err := s.Known(t.Context(), "203", ""); ok || err != nil {
		t.Errorf("Known: %v, %v, want nothing", ok, err)
	}
	if r := s.Round(t.Context()); r.Looks != 1 {
		t.Errorf("%+v, want a look", r)
	}
}
