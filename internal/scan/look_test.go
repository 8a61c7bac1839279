package scan

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

func TestConcurrentRequestsLookOnce(t *testing.T) {
	for _, tt := range []struct {
		name  string
		delay time.Duration // between two requests
		names []string
	}{
		{"at the same time", 0, []string{"203"}},
		{"one after the other, longer than the look", 50 * time.Millisecond, []string{"203"}},
		{"by different names", 0, []string{"203", "203-1-uuid", "203-1-uuid.iso", at("/a", "203")}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put("/a", "203", &fakeISO{value: inspect.Missing, read: takes(time.Second)})
				s := w.scanner(t, zoned("/a=east"))
				var work sync.WaitGroup
				for n := range 100 {
					work.Go(func() {
						time.Sleep(time.Duration(n) * tt.delay)
						d := admit.Decide(t.Context(), admit.Request{EtcdNodes: 3, ISO: tt.names[n%len(tt.names)], Version: "v1.33.1", Zone: "east"}, s, 0)
						if d.Allow {
							t.Errorf("request %d: %+v, want it refused", n, d)
						}
					})
				}
				work.Wait()
				if w.reads() != 1 {
					t.Errorf("%d reads, want 1", w.reads())
				}
			})
		})
	}
}

// Requests that found nothing remembered a moment before somebody else's look
// ended do not look again. An ISO that has changed meanwhile is another matter.
func TestLookAfterLook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		iso := w.put("/a", "203", &fakeISO{value: inspect.Missing})
		s := w.scanner(t, zoned("/a"))
		for _, step := range []struct {
			name  string
			set   func()
			reads int
		}{
			{"the first look", func() {}, 1},
			{"a moment later", func() { time.Sleep(time.Second) }, 1},
			{"it has changed", func() { iso.version++; iso.value = inspect.Included }, 2},
			{"much later", func() { time.Sleep(time.Minute) }, 3},
		} {
			step.set()
			a, err := s.Look(t.Context(), "203", "")
			if err != nil || a.Value != iso.value || w.reads() != step.reads {
				t.Errorf("%s: %+v, %v after %d reads, want %s after %d", step.name, a, err, w.reads(), iso.value, step.reads)
			}
		}
	})
}

func TestLookOutlivesItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Missing, read: takes(20 * time.Second)})
		s := w.scanner(t, zoned("/a=east"))
		first := admit.Decide(t.Context(), admit.Request{EtcdNodes: 1, ISO: "203", Zone: "east"}, s, 10*time.Second)
		if !first.Allow || first.Code != reason.AdmitUnchecked || first.Took != 10*time.Second {
			t.Errorf("the first request: %+v, want it allowed after 10 s, unchecked", first)
		}
		time.Sleep(11 * time.Second)
		if got := w.kept()[at("/a", "203")]; got != inspect.Missing {
			t.Errorf("kept %v, want the answer of the look that nobody waited for", w.kept())
		}
		second := admit.Decide(t.Context(), admit.Request{EtcdNodes: 1, ISO: "203", Zone: "east"}, s, 10*time.Second)
		if second.Allow || w.reads() != 1 || second.Took != 0 {
			t.Errorf("the second request: %+v after %d reads, want it refused at once", second, w.reads())
		}
	})
}

// A look of a round ends with the round, unless a request waits for it too.
func TestRequestJoinsRound(t *testing.T) {
	for _, request := range []bool{false, true} {
		t.Run(fmt.Sprint("request ", request), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put("/a", "203", &fakeISO{value: inspect.Missing, read: takes(time.Minute)})
				s := w.scanner(t, zoned("/a"))
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(30*time.Second, cancel)
				var work sync.WaitGroup
				if request {
					work.Go(func() {
						time.Sleep(10 * time.Second)
						if a, err := s.Look(t.Context(), "203", ""); err != nil || a.Value != inspect.Missing {
							t.Errorf("Look: %+v, %v", a, err)
						}
					})
				}
				r := s.Round(ctx)
				if r.Took != 30*time.Second || reason.Of(r.Err) != reason.Interrupted {
					t.Errorf("%+v, want it to end with its context", r)
				}
				if !request {
					synctest.Wait()
					if len(s.flights.running) != 0 {
						t.Error("a look goes on that nobody waits for")
					}
				}
				work.Wait()
				if w.reads() != 1 || request != (len(w.kept()) == 1) || len(w.counts()) != 0 {
					t.Errorf("%d reads, kept %v, failures %v", w.reads(), w.kept(), w.counts())
				}
			})
		})
	}
}

func TestLookTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{open: hang})
		c := zoned("/a")
		c.LookTimeout = time.Minute
		s := w.scanner(t, c)
		start := time.Now()
		_, err := s.Look(t.Context(), "203", "")
		if reason.Of(err) != reason.SourceStalled || time.Since(start) != time.Minute {
			t.Errorf("Look: %v after %v, want code %s after a minute", err, time.Since(start), reason.SourceStalled)
		}
	})
}

// Close ends what nobody waits for, and nothing is begun afterwards.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Missing, read: hang})
		s := w.scanner(t, zoned("/a"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := s.Look(ctx, "203", ""); reason.Of(err) != reason.SourceStalled {
			t.Errorf("Look: %v, want code %s", err, reason.SourceStalled)
		}
		s.ledger.add(answers.Answer{Key: "k", File: "f", Value: inspect.Missing, Code: reason.FileMissing, From: "kept"})
		start := time.Now()
		if err := s.Close(); err != nil || time.Since(start) != 0 {
			t.Errorf("Close: %v after %v", err, time.Since(start))
		}
		if w.kept()["kept"] != inspect.Missing {
			t.Error("Close did not write what was learned")
		}
		if _, err := s.Look(t.Context(), "203", ""); reason.Of(err) != reason.Interrupted || w.reads() != 1 {
			t.Errorf("Look after Close: %v after %d reads", err, w.reads())
		}
	}) // which fails if a goroutine is left
}

// How an ISO is named, and what it costs to find it.
func TestNames(t *testing.T) {
	for _, tt := range []struct {
		name, iso string
		round     bool // one was made before
		set       func(w *world)
		walks     int // more than those of the round
		code      reason.Code
	}{
		{"id", "203", false, nil, 0, reason.Included},
		{"unique name", "203-1-uuid", false, nil, 0, reason.Included},
		{"file name", "203-1-uuid.iso", false, nil, 0, reason.Included},
		{"path", at("/a", "203"), false, nil, 0, reason.Included},
		{"id that is none", "999", false, nil, 0, reason.NoCopy},
		{"unique name of another", "203-1-other", false, nil, 1, reason.NoCopy},
		{"name of an uploaded ISO", "5f1c", false, uploaded, 1, reason.Included},
		{"name of an uploaded ISO, after a round", "5f1c", true, uploaded, 0, reason.Included},
		{"beside the templates", "mine", false, beside, 1, reason.Included},
		{"beside the templates, after a round", "mine", true, beside, 0, reason.Included},
		{"path that is none", "/a/none.iso", false, nil, 0, reason.SourceMissing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.put("/a", "203", &fakeISO{value: inspect.Included})
			if tt.set != nil {
				tt.set(w)
			}
			s := w.scanner(t, zoned("/a=east"))
			before := 0
			if tt.round {
				s.Round(t.Context())
				before = w.walks
			}
			a, err := s.Look(t.Context(), tt.iso, "east")
			code := reason.Of(err)
			if err == nil {
				code = a.Code
			}
			if code != tt.code || w.walks-before != tt.walks {
				t.Errorf("Look: %v, %v after %d walks, want code %s after %d", a, err, w.walks-before, tt.code, tt.walks)
			}
			if err == nil && (a.Zone != "east" || a.Name == "" || a.From == "" || a.Key == "" || a.Rules != inspect.Rules || a.At.IsZero()) {
				t.Errorf("answer %+v lacks where it is from", a)
			}
		})
	}
}

// uploaded names the ISO as an upload does.
func uploaded(w *world) {
	c := &w.stores["/a"].copies[0]
	i := w.isos[c.Path]
	c.Name, c.Path = "5f1c", "/a/template/tmpl/1/203/5f1c.iso"
	w.isos[c.Path] = i
}

// beside adds an ISO that is of no template.
func beside(w *world) {
	w.put("/a", "204", &fakeISO{value: inspect.Included})
	c := &w.stores["/a"].copies[1]
	c.Template, c.Account, c.Dir, c.Name, c.Size, c.Path = "", "", "", "mine", -1, "/a/mine.iso"
	w.isos[c.Path] = &fakeISO{value: inspect.Included, size: 4096}
}

// A file's name may be that of several ISOs: one of them without etcd must not
// speak for another one.
func TestSameFileName(t *testing.T) {
	down := reason.New(reason.SourceUnreachable, "stale file handle")
	for _, tt := range []struct {
		name  string
		set   func(w *world)
		allow bool
		code  reason.Code
	}{
		{"both without", func(w *world) {
			w.putFile("/a", "old/setup.iso", &fakeISO{value: inspect.Missing})
			w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Missing})
		}, false, reason.ArchiveMissing},
		{"one without", func(w *world) {
			w.putFile("/a", "old/setup.iso", &fakeISO{value: inspect.Missing})
			w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Included})
		}, true, reason.Included},
		{"one without, one unreadable", func(w *world) {
			w.putFile("/a", "old/setup.iso", &fakeISO{value: inspect.Missing})
			w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISOUnreadable, "input/output error")})
		}, true, reason.AdmitUnchecked},
		{"one without, in a zone with a store that is down", func(w *world) {
			w.putFile("/a", "setup.iso", &fakeISO{value: inspect.Missing})
			w.stores["/a2"] = &fakeStore{err: down}
		}, true, reason.AdmitUnchecked},
		{"without, in another zone, and the store of this one is down", func(w *world) {
			w.stores["/a"] = &fakeStore{err: down}
			w.putFile("/b", "setup.iso", &fakeISO{value: inspect.Missing})
		}, true, reason.AdmitUnchecked},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.stores["/a2"], w.stores["/b"] = &fakeStore{}, &fakeStore{}
			tt.set(w)
			s := w.scanner(t, zoned("/a=east", "/a2=east", "/b=west"))
			for _, when := range []string{"before a round", "after a round"} {
				if got := decide(t, s, "setup.iso", "east"); got.Allow != tt.allow || got.Code != tt.code {
					t.Errorf("%s: %+v, want allow %v, code %s", when, got, tt.allow, tt.code)
				}
				s.Round(t.Context())
			}
		})
	}
}

// A file that came since the last round is seen before a request is refused for
// others of its name.
func TestSameFileNameSinceRound(t *testing.T) {
	for _, tt := range []struct {
		name  string
		set   func(w *world)
		allow bool
		code  reason.Code
		walks int // more than those of the round, by Known and by Look
	}{
		{"with etcd", func(w *world) { w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Included}) }, true, reason.Included, 2},
		{"without", func(w *world) { w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Missing}) }, false, reason.ArchiveMissing, 2},
		{"not readable", func(w *world) {
			w.putFile("/a", "new/setup.iso", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISOUnreadable, "input/output error")})
		}, true, reason.AdmitUnchecked, 2},
		{"nobody can look", func(w *world) { w.stores["/a"].hang = hang }, true, reason.AdmitUnchecked, 1},
		{"none", func(*world) {}, false, reason.ArchiveMissing, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.putFile("/a", "old/setup.iso", &fakeISO{value: inspect.Missing})
				s := w.scanner(t, zoned("/a=east"))
				s.Round(t.Context())
				time.Sleep(time.Minute)
				tt.set(w)
				before := w.walks
				got := decide(t, s, "setup.iso", "east")
				if got.Allow != tt.allow || got.Code != tt.code || got.Took > admit.DefaultWait {
					t.Errorf("%+v, want allow %v, code %s", got, tt.allow, tt.code)
				}
				if n := w.walks - before; n != tt.walks {
					t.Errorf("%d walks, want %d", n, tt.walks)
				}
			})
		})
	}
}

// A zone that cannot be asked leaves a request for another zone the time for its
// own look.
func TestOtherZoneHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Missing})
		w.stores["/hung"] = &fakeStore{hang: hang}
		s := w.scanner(t, zoned("/a=east", "/hung=west"))
		got := decide(t, s, "203", "east")
		if got.Allow || got.Took > elsewhereTime {
			t.Errorf("got %+v, want it refused within %v", got, elsewhereTime)
		}
	})
}

// Of two stores in one zone, one that hangs does not keep the other from
// answering.
func TestOneOfTwoStoresHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.stores["/hung"] = &fakeStore{hang: hang}
		w.put("/a", "203", &fakeISO{value: inspect.Missing})
		s := w.scanner(t, zoned("/hung=east", "/a=east"))
		a, err := s.Look(t.Context(), "203", "east")
		if err != nil || a.Value != inspect.Missing {
			t.Errorf("Look: %+v, %v", a, err)
		}
		if _, ok, err := s.Known(t.Context(), "203", "east"); !ok || err != nil {
			t.Errorf("Known: %v, %v", ok, err)
		}
	})
}

// Without a memory, requests are answered all the same.
func TestNoMemory(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Missing})
	s := w.scanner(t, zoned("/a"))
	s.ledger = newLedger(nowhere{}, s.log)
	if got := decide(t, s, "203", ""); got.Allow || got.Code != reason.ArchiveMissing {
		t.Errorf("got %+v, want it refused", got)
	}
}
