package answers

import (
	"context"
	"slices"
	"testing"
	"time"

	"cks-etcd/internal/inspect"
)

// many is a large store of a large cloud.
const many = 10_000

// large returns a file with many answers.
func large(t testing.TB) string {
	t.Helper()
	path := newPath(t)
	s := open(t, path, Options{})
	var all []Answer
	for i := range many {
		all = append(all, included(i))
	}
	for batch := range slices.Chunk(all, 1000) {
		put(t, s, batch...)
	}
	return path
}

// TestMany tells how long it takes to keep and to read many answers.
func TestMany(t *testing.T) {
	if withoutRaces(t) {
		return
	}
	start := time.Now()
	path := large(t)
	kept := time.Since(start)

	start = time.Now()
	s := open(t, path, Options{})
	opened := time.Since(start)
	start = time.Now()
	if _, ok, err := s.Get(t.Context(), key(many/2), inspect.EtcdArchive); !ok || err != nil {
		t.Fatalf("got %v, %v", ok, err)
	}
	got := time.Since(start)
	start = time.Now()
	answers, _, err := s.All(t.Context())
	if err != nil || len(answers) != many {
		t.Fatalf("got %d answers, %v, want %d", len(answers), err, many)
	}
	read := time.Since(start)
	var ids []ID
	for _, a := range answers {
		ids = append(ids, a.ID())
	}
	start = time.Now()
	found, _, err := s.GetMany(t.Context(), ids)
	if err != nil || len(found) != many {
		t.Fatalf("got %d answers, %v, want %d", len(found), err, many)
	}
	asked := time.Since(start)
	ms := func(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }
	t.Logf("%d answers: put in batches of 1000 %v, open %v, get one %v, all %v, get each in one go %v",
		many, ms(kept), ms(opened), ms(got), ms(read), ms(asked))
}

// BenchmarkOpenGet is what a command does that asks for one answer of many: the
// whole file is checked.
func BenchmarkOpenGet(b *testing.B) {
	path := large(b)
	for b.Loop() {
		s, err := Open(context.Background(), path, Options{})
		if err == nil {
			_, _, err = s.Get(context.Background(), key(many/2), inspect.EtcdArchive)
		}
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkGet is what a daemon does, whose file nobody else has changed.
func BenchmarkGet(b *testing.B) {
	s := open(b, large(b), Options{})
	for b.Loop() {
		if _, ok, err := s.Get(context.Background(), key(many/2), inspect.EtcdArchive); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}

// BenchmarkPut keeps one answer among many.
func BenchmarkPut(b *testing.B) {
	s := open(b, large(b), Options{})
	for b.Loop() {
		if err := s.Put(context.Background(), missing(many/2)); err != nil {
			b.Fatal(err)
		}
	}
}
