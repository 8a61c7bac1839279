package scan

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/store"
)

// The rows are those of what the system must do.

func TestRow2LookedAtOnce(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Missing})
	w.put("/a", "9", &fakeISO{value: inspect.Missing, ordinary: true})
	w.put("/b", "203", &fakeISO{value: inspect.Included}) // another copy of the first
	s := w.scanner(t, zoned("/a=east", "/b=west"))
	r := s.Round(t.Context())
	if r.Err != nil || r.Looks != 3 || r.ISOs != 3 || r.Copies != 4 || r.Known != 0 {
		t.Errorf("first round: %+v, want 3 looks at 3 ISOs with 4 copies", r)
	}
	if diff := cmp.Diff(map[inspect.Value]int{inspect.Included: 1, inspect.Missing: 2}, r.Found); diff != "" {
		t.Errorf("found (-want +got):\n%s", diff)
	}
	if r.Bytes != 3*4096 || r.Requests != 6 {
		t.Errorf("first round moved %d bytes by %d requests, want 12288 by 6", r.Bytes, r.Requests)
	}
	for _, again := range []*Scanner{s, w.scanner(t, zoned("/a=east", "/b=west"))} {
		if r := again.Round(t.Context()); r.Looks != 0 || r.Known != 3 {
			t.Errorf("later round: %+v, want no looks, and 3 ISOs that are known", r)
		}
	}
	if got := w.reads(); got != 3 {
		t.Errorf("%d images were read, want each ISO once, 3", got)
	}
	// The answer stands with the ISO, whichever copy it is from.
	isos := s.ISOs()
	if len(isos) != 2 { // not that of another kind
		t.Fatalf("%d ISOs are listed, want 2: %+v", len(isos), isos)
	}
	for i, want := range []inspect.Value{inspect.Included, inspect.Missing} {
		if isos[i].Answer == nil || isos[i].Answer.Value != want {
			t.Errorf("%s has answer %+v, want %s", isos[i].Name, isos[i].Answer, want)
		}
	}
	if len(isos[0].Copies) != 2 {
		t.Errorf("%s has copies %+v, want 2", isos[0].Name, isos[0].Copies)
	}
}

func TestRow2NoAnswerMeansNotChecked(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{err: reason.New(reason.ISOUnreadable, "input/output error"), value: inspect.Unknown})
	s := w.scanner(t, zoned("/a"))
	s.Round(t.Context())
	if len(w.kept()) != 0 {
		t.Errorf("answers %v are kept, want none", w.kept())
	}
	if i := s.ISOs(); len(i) != 1 || i[0].Answer != nil || i[0].Failure == nil || i[0].Failure.Code != reason.ISOUnreadable || !i[0].Kubernetes {
		t.Errorf("listed: %+v, want no answer, and the failure", i)
	}
	if _, ok, err := s.Known(t.Context(), "203", ""); ok || err != nil {
		t.Errorf("Known: %v, %v, want nothing", ok, err)
	}
}

func TestRow3BackgroundReadsAnyReadyCopy(t *testing.T) {
	incomplete := reason.New(reason.ISOIncomplete, "it has 10 of 20 bytes")
	for _, tt := range []struct {
		name string
		set  func(w *world)
		want map[string]int // opened; nil: any
	}{
		{"ISOs from before are read", func(*world) {}, map[string]int{at("/a", "203"): 1}},
		{"only the second copy is complete", func(w *world) {
			w.stores["/a"].copies[0].Err = incomplete
			w.put("/b", "203", &fakeISO{value: inspect.Included})
		}, map[string]int{at("/b", "203"): 1}},
		{"the first copy cannot be read", func(w *world) {
			w.isos[at("/a", "203")].err = reason.New(reason.ISOUnreadable, "input/output error")
			w.isos[at("/a", "203")].value = inspect.Unknown
			w.put("/b", "203", &fakeISO{value: inspect.Included, read: takes(time.Second)})
		}, nil},
		{"the first store is down", func(w *world) {
			w.stores["/a"] = &fakeStore{err: reason.New(reason.SourceUnreachable, "/a: stale file handle")}
			w.put("/b", "203", &fakeISO{value: inspect.Included})
		}, map[string]int{at("/b", "203"): 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.put("/a", "203", &fakeISO{value: inspect.Included})
				tt.set(w)
				s := w.scanner(t, zoned("/a=east", "/b=west"))
				s.Round(t.Context())
				if diff := cmp.Diff(tt.want, w.opens()); tt.want != nil && diff != "" {
					t.Errorf("opened (-want +got):\n%s", diff)
				}
				isos := s.ISOs()
				if len(isos) != 1 || isos[0].Answer == nil || !isos[0].Answer.Value.Yes() {
					t.Fatalf("listed: %+v, want one ISO, included", isos)
				}
			})
		})
	}
}

func TestRow4ThreeFailures(t *testing.T) {
	broken := reason.New(reason.ISODamaged, "a directory record is longer than its directory")
	w := newWorld()
	iso := w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: broken})
	s := w.scanner(t, zoned("/a=east"))
	for n := 1; n <= 5; n++ {
		r := s.Round(t.Context())
		want := min(n, 3)
		if w.reads() != want || w.counts()[at("/a", "203")] != want {
			t.Fatalf("round %d: %d reads, count %v, want %d of each", n, w.reads(), w.counts(), want)
		}
		if alone := r.LeftAlone == 1; alone != (n > 3) {
			t.Errorf("round %d: left alone %v, want %v", n, alone, n > 3)
		}
		if f := s.ISOs()[0].Failure; f == nil || f.Count != want || !f.Next.IsZero() != (want < 3) {
			t.Errorf("round %d: failure %+v is listed, want count %d", n, f, want)
		}
	}
	// A new scanner knows of it.
	again := w.scanner(t, zoned("/a=east"))
	if r := again.Round(t.Context()); r.Looks != 0 || r.LeftAlone != 1 {
		t.Errorf("after a restart: %+v, want it left alone", r)
	}
	// A request still looks. Its failure is not counted.
	if _, err := s.Look(t.Context(), "203", "east"); reason.Of(err) != reason.ISODamaged || w.reads() != 4 {
		t.Errorf("Look: %v after %d reads, want one more read with code %s", err, w.reads(), reason.ISODamaged)
	}
	if got := w.counts()[at("/a", "203")]; got != 3 {
		t.Errorf("count %d after a request, want 3", got)
	}
	// An ISO that has changed is another one.
	iso.version++
	if s.Round(t.Context()); w.reads() != 5 {
		t.Errorf("%d reads, want a changed ISO to be tried again", w.reads())
	}
	if f := s.ISOs()[0].Failure; f == nil || f.Count != 1 {
		t.Errorf("failure %+v, want the first one of the changed ISO", f)
	}
	// When it can be read at last, the failures are forgotten.
	iso.value, iso.err = inspect.Included, nil
	if r := s.Round(t.Context()); r.Found[inspect.Included] != 1 || s.ISOs()[0].Failure != nil {
		t.Errorf("round %+v, want the answer; listed: %+v", r, s.ISOs())
	}
}

func TestRow4RequestEndsIt(t *testing.T) {
	w := newWorld()
	iso := w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISOUnreadable, "input/output error")})
	s := w.scanner(t, zoned("/a"))
	for range 4 {
		s.Round(t.Context())
	}
	iso.value, iso.err = inspect.Missing, nil
	if r := s.Round(t.Context()); r.Looks != 0 {
		t.Fatalf("%+v, want no look", r)
	}
	if a, err := s.Look(t.Context(), "203", ""); err != nil || a.Value != inspect.Missing {
		t.Fatalf("Look: %+v, %v", a, err)
	}
	if i := s.ISOs(); i[0].Answer == nil || i[0].Failure != nil {
		t.Errorf("listed: %+v, want the answer at once", i)
	}
	if r := s.Round(t.Context()); r.Looks != 0 || r.Known != 1 || len(w.counts()) != 0 {
		t.Errorf("round %+v with failures %v, want the ISO to be known", r, w.counts())
	}
}

func TestRow4EventsDoNotUseUpTries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISOUnreadable, "input/output error")})
		c := zoned("/a")
		c.Retry = time.Minute
		s := w.scanner(t, c)
		for range 59 {
			s.Round(t.Context())
			time.Sleep(time.Second)
		}
		if w.reads() != 1 {
			t.Errorf("%d reads in dozens of rounds within %s, want 1", w.reads(), c.Retry)
		}
		time.Sleep(time.Second)
		if s.Round(t.Context()); w.reads() != 2 {
			t.Errorf("%d reads after %s, want another try", w.reads(), c.Retry)
		}
	})
}

// decide asks for three etcd nodes.
func decide(t *testing.T, s *Scanner, iso, zone string) admit.Decision {
	t.Helper()
	return admit.Decide(t.Context(), admit.Request{EtcdNodes: 3, ISO: iso, Version: "v1.33.1", Zone: zone}, s, 0)
}

func TestRow5(t *testing.T) {
	for _, tt := range []struct {
		name    string
		iso     fakeISO
		before  bool // it is looked at in the background
		allow   bool
		checked bool
		code    reason.Code
		reads   int
	}{
		{"true goes ahead", fakeISO{value: inspect.Included}, true, true, true, reason.Included, 1},
		{"false is refused at once", fakeISO{value: inspect.Missing}, true, false, true, reason.ArchiveMissing, 1},
		{"unknown is checked, then true", fakeISO{value: inspect.Included}, false, true, true, reason.Included, 1},
		{"unknown is checked, then false", fakeISO{value: inspect.Missing}, false, false, true, reason.ArchiveMissing, 1},
		{"a check that cannot run lets it through", fakeISO{value: inspect.Unknown, err: reason.New(reason.ISOUnreadable, "input/output error")},
			true, true, false, reason.AdmitUnchecked, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.put("/a", "203", &tt.iso)
			s := w.scanner(t, zoned("/a=east"))
			if tt.before {
				s.Round(t.Context())
			}
			got := decide(t, s, "203", "east")
			if got.Allow != tt.allow || got.Checked != tt.checked || got.Code != tt.code {
				t.Errorf("got %+v, want allow %v, checked %v, code %s", got, tt.allow, tt.checked, tt.code)
			}
			for _, part := range []string{"v1.33.1", inspect.EtcdArchive, "203-1-uuid"} {
				if !got.Allow && !strings.Contains(got.Message, part) {
					t.Errorf("the refusal %q does not name %s", got.Message, part)
				}
			}
			if w.reads() != tt.reads {
				t.Errorf("%d reads, want %d", w.reads(), tt.reads)
			}
			// It is remembered.
			if again := decide(t, s, "203", "east"); again.Allow != got.Allow || again.Code != got.Code {
				t.Errorf("asked again: %+v, want %+v", again, got)
			}
			if tt.checked && w.reads() != tt.reads {
				t.Errorf("%d reads, want the answer to be remembered", w.reads())
			}
		})
	}
}

func TestRow6CopyOfTheZone(t *testing.T) {
	fails := reason.New(reason.ISOUnreadable, "input/output error")
	for _, tt := range []struct {
		name    string
		set     func(w *world)
		allow   bool
		code    reason.Code
		cause   reason.Code
		opened  map[string]int
		message string
	}{
		{"the copy of the zone is read, not another", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Included})
			w.put("/b", "203", &fakeISO{value: inspect.Missing})
		}, false, reason.ArchiveMissing, "", map[string]int{at("/b", "203"): 1}, ""},
		{"that copy cannot be checked", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing})
			w.put("/b", "203", &fakeISO{value: inspect.Unknown, err: fails})
		}, true, reason.AdmitUnchecked, reason.ISOUnreadable, map[string]int{at("/b", "203"): 1}, "input/output error"},
		{"that copy is not complete", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing})
			w.put("/b", "203", &fakeISO{value: inspect.Missing})
			w.stores["/b"].copies[0].Err = reason.New(reason.ISOIncomplete, "it has 10 of 20 bytes")
		}, true, reason.AdmitUnchecked, reason.ISOIncomplete, map[string]int{}, "10 of 20"},
		{"there is no copy in the zone", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing})
			w.stores["/b"] = &fakeStore{}
		}, true, reason.AdmitUnchecked, reason.NoCopy, map[string]int{}, "203 is on no store of zone west"},
		{"the zone has two stores, and one cannot be read", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Included})
			w.put("/b", "203", &fakeISO{value: inspect.Unknown, err: fails})
			w.put("/b2", "203", &fakeISO{value: inspect.Missing, open: takes(time.Second)})
		}, false, reason.ArchiveMissing, "", nil, ""},
		{"a store without a zone serves all", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Included})
			w.stores["/b"] = &fakeStore{}
			w.put("/all", "203", &fakeISO{value: inspect.Missing})
		}, false, reason.ArchiveMissing, "", map[string]int{at("/all", "203"): 1}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tt.set(w)
				c := zoned("/a=east", "/b=west")
				for _, root := range []string{"/b2", "/all"} {
					if w.stores[root] != nil {
						c.Stores = append(c.Stores, Store{Path: root, Zone: map[string]string{"/b2": "west"}[root]})
					}
				}
				s := w.scanner(t, c)
				got := decide(t, s, "203", "west")
				if got.Allow != tt.allow || got.Code != tt.code || got.Cause != tt.cause || !strings.Contains(got.Message, tt.message) {
					t.Errorf("got %+v, want allow %v, code %s, cause %s, message with %q", got, tt.allow, tt.code, tt.cause, tt.message)
				}
				if diff := cmp.Diff(tt.opened, w.opens()); tt.opened != nil && diff != "" {
					t.Errorf("opened (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// The answer is that of the ISO: a copy in the zone is not read again where
// another copy of the same ISO has been.
func TestRow6AnswerOfAnotherCopy(t *testing.T) {
	for _, tt := range []struct {
		name string
		size int64
		code reason.Code
	}{
		{"the same ISO", 1 << 20, reason.ArchiveMissing},
		{"another one of the same name", 2 << 20, reason.Included},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			w.put("/a", "203", &fakeISO{value: inspect.Missing})
			s := w.scanner(t, zoned("/a=east", "/b=west"))
			s.Round(t.Context())
			w.put("/b", "203", &fakeISO{value: inspect.Included, size: tt.size})
			if got := decide(t, s, "203", "west"); got.Code != tt.code {
				t.Errorf("got %+v, want code %s", got, tt.code)
			}
		})
	}
}

func TestRow7NoEtcdNodes(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Missing})
	s := w.scanner(t, zoned("/a"))
	got := admit.Decide(t.Context(), admit.Request{ISO: "203"}, s, 0)
	if !got.Allow || got.Code != reason.NotAsked || w.reads() != 0 || len(w.asked) != 0 || w.walks != 0 {
		t.Errorf("got %+v after %d reads and %v questions, want it allowed without any", got, w.reads(), w.asked)
	}
}

func TestRow8SupportsEtcdIsListed(t *testing.T) {
	w := newWorld()
	w.put("/a", "203", &fakeISO{value: inspect.Included})
	w.put("/a", "204", &fakeISO{value: inspect.Missing})
	w.put("/a", "205", &fakeISO{value: inspect.Unknown, err: errors.New("odd")})
	s := w.scanner(t, zoned("/a"))
	s.Round(t.Context())
	got := make(map[string]inspect.Value)
	for _, i := range s.ISOs() {
		got[i.Template] = ""
		if i.Answer != nil {
			got[i.Template] = i.Answer.Value
		}
	}
	want := map[string]inspect.Value{"203": inspect.Included, "204": inspect.Missing, "205": ""}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
}

// An uncheckable is a way in which an ISO cannot be checked.
type uncheckable struct {
	name   string
	config Config
	iso    string
	set    func(w *world)
	cause  reason.Code
	visit  reason.Code // of the store in a round; "" no error
}

// uncheckables are the ways that rows 16 and 17 name, and more.
func uncheckables() []uncheckable {
	return []uncheckable{
		{"ISO missing on storage", zoned("/a=east"), "203", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing})
			delete(w.isos, at("/a", "203"))
		}, reason.SourceMissing, ""},
		{"storage missing", zoned("/gone=east"), "203", func(*world) {}, reason.SourceMissing, reason.SourceMissing},
		{"object storage", zoned("s3://bucket=east"), "203", func(*world) {}, reason.SourceUnsupported, reason.SourceUnsupported},
		{"RBD", zoned("rbd:pool=east"), "203", func(*world) {}, reason.SourceUnsupported, reason.SourceUnsupported},
		{"NFS by its URL", zoned("nfs://nfs1/export=east"), "203", func(*world) {}, reason.SourceUnsupported, reason.SourceUnsupported},
		{"a path of another kind", zoned("/a=east"), "rbd:pool/203", func(w *world) { w.stores["/a"] = &fakeStore{} }, reason.SourceUnsupported, ""},
		{"the lister fails", zoned("/a=east"), "203-1-uuid", func(w *world) {
			w.stores["/a"] = &fakeStore{err: errors.New("readdirent: input/output error")}
		}, reason.SourceUnreachable, reason.SourceUnreachable},
		{"the lister crashes", zoned("/a=east"), "uploaded", func(w *world) {
			w.stores["/a"] = &fakeStore{panics: true}
		}, reason.Internal, reason.Internal},
		{"the lister hangs", zoned("/a=east"), "203", func(w *world) {
			w.stores["/a"] = &fakeStore{hang: stalls(30 * time.Second)}
		}, reason.SourceStalled, reason.SourceStalled},
		{"direct download, nothing on storage", zoned("/a=east"), "203", func(w *world) { w.stores["/a"] = &fakeStore{} }, reason.NoCopy, ""},
		{"direct download, by its properties", zoned("/a=east"), "203", func(w *world) {
			w.stores["/a"] = &fakeStore{copies: []store.Copy{{
				Dir: "/a/template/tmpl/1/203", Account: "1", Template: "203", Name: "203-1-uuid", Size: -1,
				Properties: map[string]string{"directdownload": "true"}, Err: reason.New(reason.ISOIncomplete, "there is no ISO"),
			}}}
		}, reason.DirectDownload, ""},
		{"no properties yet", zoned("/a=east"), "203-1-uuid", func(w *world) {
			w.stores["/a"] = &fakeStore{copies: []store.Copy{{
				Dir: "/a/template/tmpl/1/203", Account: "1", Template: "203", Size: -1, Err: reason.New(reason.ISOIncomplete, "there are no properties"),
			}}}
		}, reason.ISOIncomplete, ""},
		{"no storage endpoint", Config{URLs: []URL{{URL: "http://127.0.0.1:9/203.iso", Zone: "east", Template: "203"}}}, "203", func(w *world) {
			w.isos["http://127.0.0.1:9/203.iso"] = &fakeISO{identify: reason.New(reason.SourceUnreachable, "connection refused"),
				open: func(context.Context) error { return reason.New(reason.SourceUnreachable, "connection refused") }}
		}, reason.SourceUnreachable, ""},
		{"no store in the zone", zoned("/a=west"), "203", func(w *world) { w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: errors.New("odd")}) }, reason.NoCopy, ""},
		{"nothing is configured", Config{}, "203", func(*world) {}, reason.NoCopy, ""},
		{"an answer nobody understands", zoned("/a=east"), "203", func(w *world) { w.put("/a", "203", &fakeISO{value: "command not found"}) }, reason.Internal, ""},
		{"no answer at all", zoned("/a=east"), "203", func(w *world) { w.put("/a", "203", &fakeISO{blank: true}) }, reason.Internal, ""},
		{"unknown without a reason", zoned("/a=east"), "203", func(w *world) { w.put("/a", "203", &fakeISO{value: inspect.Unknown}) }, reason.Internal, ""},
		{"the look crashes", zoned("/a=east"), "203", func(w *world) { w.put("/a", "203", &fakeISO{panics: true}) }, reason.Internal, ""},
		{"the ISO changes while it is read", zoned("/a=east"), "203", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing, changes: true})
		}, reason.SourceChanged, ""},
		{"the look hangs", zoned("/a=east"), "203", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Missing, read: hang})
		}, reason.SourceStalled, ""},
		{"identities cannot be asked for", zoned("/a=east"), "203", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: reason.New(reason.SourceDenied, "permission denied"),
				identify: reason.New(reason.SourceDenied, "permission denied")})
		}, reason.SourceDenied, ""},
		{"answers cannot be read", zoned("/a=east"), "203", func(w *world) {
			w.put("/a", "203", &fakeISO{value: inspect.Unknown, err: reason.New(reason.ISODamaged, "no root directory")})
			w.readErr = reason.New(reason.AnswersDamaged, "answers.db")
		}, reason.ISODamaged, ""},
	}
}

// What cannot be checked never refuses a request: with nothing remembered, after
// rounds that have failed until the ISO is left alone, and where an earlier ISO in its
// place is known to lack etcd.
func TestRow16NeverRefuses(t *testing.T) {
	for _, tt := range uncheckables() {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tt.set(w)
				s := w.scanner(t, tt.config)
				allowed := func(when string) {
					t.Helper()
					if got := decide(t, s, tt.iso, "east"); !got.Allow || got.Checked || got.Took > admit.DefaultWait {
						t.Errorf("%s: %+v, want it allowed, unchecked, in time", when, got)
					}
				}
				allowed("at first")
				for range DefaultFailureLimit + 1 {
					s.Round(t.Context())
				}
				allowed("left alone by rounds")
				for location, i := range w.isos {
					earlier := *i
					earlier.version++ // any other
					a := answers.Answer{Key: earlier.identity(location).Key(), File: inspect.EtcdArchive, From: location, Value: inspect.Missing, Code: reason.ArchiveMissing}
					if err := w.Put(t.Context(), a); err != nil {
						t.Error(err)
					}
				}
				allowed("with an answer about an earlier ISO")
			})
		})
	}
}

// What cannot be checked is an error with a code, of the request and in the round,
// and is never taken for "missing".
func TestRow17(t *testing.T) {
	for _, tt := range uncheckables() {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				tt.set(w)
				s := w.scanner(t, tt.config)
				for range 2 {
					got := decide(t, s, tt.iso, "east")
					if !got.Allow || got.Checked || got.Code != reason.AdmitUnchecked || got.Cause != tt.cause {
						t.Errorf("got %+v, want it allowed, unchecked, for %s", got, tt.cause)
					}
					// The same once a round has been made.
					r := s.Round(t.Context())
					if len(r.Visits) > 0 {
						if got := r.Visits[0].Err; got != nil && reason.Of(got) != tt.visit || got == nil && tt.visit != "" {
							t.Errorf("the round says %v of the store, want code %q", got, tt.visit)
						}
					}
					if r.Found[inspect.Missing] != 0 || len(w.kept()) != 0 {
						t.Errorf("found %v, kept %v: could not tell is not missing", r.Found, w.kept())
					}
				}
			})
		})
	}
}
