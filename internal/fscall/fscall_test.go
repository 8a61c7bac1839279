package fscall

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// mounted are Calls in a place where the mounts named are mounted below /, the
// first with ID 1.
func mounted(points ...string) *Calls {
	c := New(nil)
	c.table.read = func() []Mount {
		mounts := []Mount{{ID: 100, Point: "/"}}
		for i, p := range points {
			mounts = append(mounts, Mount{ID: i + 1, Point: p})
		}
		return mounts
	}
	return c
}

// hang makes a call that hangs until release is closed, and returns how long it
// was waited for.
func hang(t *testing.T, c *Calls, name string, release <-chan struct{}) (time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	start := time.Now()
	_, err := Do(ctx, c, name, func() (int, error) { <-release; return 0, nil }, nil)
	return time.Since(start), err
}

// answers makes a call that is answered at once.
func answers(t *testing.T, c *Calls, name string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if v, err := Do(ctx, c, name, func() (int, error) { return 7, nil }, nil); v != 7 || err != nil {
		t.Errorf("%s: got %d and error %v, want 7", name, v, err)
	}
}

func TestDo(t *testing.T) {
	c := New(nil)
	answers(t, c, "x")
	failed := errors.New("no such file")
	dropped := func(int) { t.Error("a value was dropped") }
	if _, err := Do(t.Context(), c, "x", func() (int, error) { return 7, failed }, dropped); err != failed || Stalled(err) {
		t.Errorf("got %v, want %v", err, failed)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := Do(ctx, c, "x", func() (int, error) { t.Error("it was called"); return 0, nil }, dropped)
	if !Stalled(err) || !errors.Is(err, context.Canceled) || c.Lost() != 0 {
		t.Errorf("after the end of ctx: got %v and %d lost calls", err, c.Lost())
	}
}

// A call that was given up and comes back leaves nothing, whatever it brings.
func TestComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mounted("/mnt")
		release := make(chan struct{})
		var dropped []int
		for v, err := range []error{nil, errors.New("input/output error")} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, got := Do(ctx, c, "/mnt/x", func() (int, error) { <-release; return v + 5, err }, func(v int) { dropped = append(dropped, v) })
			cancel()
			if !Stalled(got) || !errors.Is(got, context.DeadlineExceeded) || !strings.Contains(got.Error(), "has not answered for 1s") {
				t.Errorf("got %v", got)
			}
		}
		if c.Lost() != 2 {
			t.Errorf("got %d lost calls, want 2", c.Lost())
		}
		close(release)
		synctest.Wait()
		if c.Lost() != 0 || len(c.slots) != 0 || len(c.at) != 0 || len(dropped) != 1 || dropped[0] != 5 {
			t.Errorf("%d calls are lost, %d hold slots, %d mounts are remembered, and %v was dropped, want only 5", c.Lost(), len(c.slots), len(c.at), dropped)
		}
	})
}

// The fifth call to a hung mount is not waited for, and one elsewhere is. Once a
// call has come back, the mount is asked again.
func TestHungMount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mounted("/mnt/a", "/mnt/b")
		one, all := make(chan struct{}), make(chan struct{})
		for i := range maxLostMount + 3 {
			release, want := all, time.Minute
			if i == 0 {
				release = one
			}
			if i >= maxLostMount {
				want = 0
			}
			d, err := hang(t, c, "/mnt/a/x", release)
			if d != want || !Stalled(err) {
				t.Errorf("call %d: got %v after %v, want no answer after %v", i, err, d, want)
			}
			if i >= maxLostMount && err.Error() != "the mount /mnt/a has not answered for 3m0s" {
				t.Errorf("call %d: got %v", i, err)
			}
		}
		answers(t, c, "/mnt/b/x")
		answers(t, c, "/mnt/ax")
		if d, err := hang(t, c, "/mnt/b/x", all); d != time.Minute || !Stalled(err) {
			t.Errorf("elsewhere: got %v after %v", err, d)
		}
		if got, want := c.Lost(), maxLostMount+1; got != want {
			t.Errorf("got %d lost calls, want %d", got, want)
		}
		close(one)
		synctest.Wait()
		answers(t, c, "/mnt/a/x")
		close(all)
		synctest.Wait()
		if c.Lost() != 0 || len(c.at) != 0 {
			t.Errorf("%d calls are lost for good, %d mounts remembered", c.Lost(), len(c.at))
		}
	})
}

// What was unmounted lazily keeps its calls for ever, which is not the fault of
// what is mounted at its place.
func TestMountedAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mounted("/mnt")
		release := make(chan struct{})
		for range maxLostMount + 1 {
			hang(t, c, "/mnt/x", release)
		}
		c.table.read = func() []Mount { return []Mount{{ID: 100, Point: "/"}, {ID: 2, Point: "/mnt"}} }
		time.Sleep(tableAge)
		answers(t, c, "/mnt/x")
		close(release)
	})
}

// However many calls come at once, and however often, a hung mount takes a bounded
// number of workers, and leaves some to the others.
func TestThousandCalls(t *testing.T) {
	for _, test := range []struct {
		name  string
		names []string // of what is called, in turn
		most  int      // lost calls
	}{
		{"one mount", []string{"/mnt/a/x"}, fewCalls + maxMount}, // the first few are counted nowhere yet
		{"many mounts", []string{"/mnt/a/x", "/mnt/b/x", "/mnt/c/x", "/mnt/d/x", "/mnt/e/x"}, maxCalls},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := mounted("/mnt/a", "/mnt/b", "/mnt/c", "/mnt/d", "/mnt/e", "/mnt/f")
				before := runtime.NumGoroutine()
				release := make(chan struct{})
				for round := range 3 {
					var callers sync.WaitGroup
					for i := range 1000 {
						callers.Go(func() {
							if d, err := hang(t, c, test.names[i%len(test.names)], release); !Stalled(err) || d > time.Minute {
								t.Errorf("got %v after %v", err, d)
							}
						})
					}
					callers.Wait()
					synctest.Wait()
					if got := c.Lost(); got == 0 || got > test.most {
						t.Errorf("round %d: %d calls are lost, want at most %d", round, got, test.most)
					}
					if n := runtime.NumGoroutine() - before; n > c.Lost()+2 {
						t.Errorf("round %d: %d goroutines for %d lost calls", round, n, c.Lost())
					}
				}
				if len(test.names) == 1 {
					answers(t, c, "/mnt/f/x")
				}
				close(release)
				synctest.Wait()
				answers(t, c, "/mnt/f/x")
				if c.Lost() != 0 || len(c.slots) != 0 || len(c.at) != 0 {
					t.Errorf("%d calls are lost, %d hold slots, %d mounts are remembered", c.Lost(), len(c.slots), len(c.at))
				}
			})
		})
	}
}

// Calls wait for each other, and none is refused, where the file system is only
// slow.
func TestSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := mounted("/mnt")
		var under, most atomic.Int32
		var callers sync.WaitGroup
		for range 1000 {
			callers.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := Do(ctx, c, "/mnt/x", func() (int, error) {
					most.Store(max(most.Load(), under.Add(1)))
					time.Sleep(time.Second)
					under.Add(-1)
					return 0, nil
				}, nil)
				if err != nil {
					t.Error(err)
				}
			})
		}
		callers.Wait()
		synctest.Wait()
		if got := most.Load(); got < maxMount || got > fewCalls+maxMount || len(c.slots) != 0 || len(c.at) != 0 {
			t.Errorf("%d calls were under way at once; afterwards %d hold slots, %d mounts are remembered", got, len(c.slots), len(c.at))
		}
	})
}

// Many callers whose time is over as the answers come: each gets one or the other,
// and nothing is lost.
func TestAtTheSameMoment(t *testing.T) {
	c := New(nil)
	var got, dropped atomic.Int32
	const n = 500
	var callers sync.WaitGroup
	for i := range n {
		callers.Go(func() {
			ctx, cancel := context.WithCancel(t.Context())
			_, err := Do(ctx, c, fmt.Sprint(i), func() (int, error) { cancel(); return 0, nil }, func(int) { dropped.Add(1) })
			if err == nil {
				got.Add(1)
			}
		})
	}
	callers.Wait()
	for c.Lost() > 0 || len(c.slots) > 0 {
		runtime.Gosched()
	}
	if got.Load()+dropped.Load() > n || got.Load() == 0 {
		t.Errorf("%d values were returned and %d dropped, of %d", got.Load(), dropped.Load(), n)
	}
}
