package store

import (
	"context"
	"errors"
	"io/fs"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/fscall"
	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

// faulty fails or hangs where it is told to.
type faulty struct {
	system
	fail map[string]error
	hang map[string]bool
	wait <-chan struct{} // what a hanging call waits for
}

func (f *faulty) check(op, name string) error {
	key := op + " " + name
	if f.hang[key] {
		<-f.wait
	}
	if err := f.fail[key]; err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (f *faulty) list(dir string) ([]fs.DirEntry, error) {
	if err := f.check("list", dir); err != nil {
		return nil, err
	}
	return f.system.list(dir)
}

func (f *faulty) read(name string, limit int64) ([]byte, error) {
	if err := f.check("read", name); err != nil {
		return nil, err
	}
	return f.system.read(name, limit)
}

func (f *faulty) lstat(name string) (fs.FileInfo, error) {
	if err := f.check("lstat", name); err != nil {
		return nil, err
	}
	return f.system.lstat(name)
}

func (f *faulty) resolve(name string) (string, error) {
	if err := f.check("resolve", name); err != nil {
		return "", err
	}
	return f.system.resolve(name)
}

// A directory that cannot be read is reported, and the walk goes on.
func TestUnreadable(t *testing.T) {
	root := exportTree(t)
	tmpl := root + "/template/tmpl"
	for _, tt := range []struct {
		name string
		at   string
		err  error
		code reason.Code // of what Walk returns
		want []string    // of the copies in template/tmpl
	}{
		{"account", "list " + tmpl + "/1", syscall.EACCES, reason.SourceDenied, []string{"203/b.iso ", "204 iso-incomplete"}},
		{"template", "list " + tmpl + "/1/203", syscall.EACCES, "", []string{"203 source-denied", "203/b.iso ", "204 iso-incomplete"}},
		{"template, NFS", "list " + tmpl + "/1/203", syscall.ESTALE, "", []string{"203 source-unreachable", "203/b.iso ", "204 iso-incomplete"}},
		{"template went away", "list " + tmpl + "/1/203", syscall.ENOENT, "", []string{"203/b.iso ", "204 iso-incomplete"}},
		{"properties", "read " + tmpl + "/1/203/template.properties", syscall.EIO, "", []string{"203/a.iso source-unreachable", "203/b.iso ", "204 iso-incomplete"}},
		{"properties went away", "read " + tmpl + "/1/203/template.properties", syscall.ENOENT, "", []string{"203/a.iso iso-incomplete", "203/b.iso ", "204 iso-incomplete"}},
		{"ISO", "lstat " + tmpl + "/1/203/a.iso", syscall.EIO, "", []string{"203/a.iso source-unreachable", "203/b.iso ", "204 iso-incomplete"}},
		{"ISO went away", "lstat " + tmpl + "/1/203/a.iso", syscall.ENOENT, "", []string{"203/a.iso iso-incomplete", "203/b.iso ", "204 iso-incomplete"}},
		{"root", "list " + tmpl, syscall.EACCES, reason.SourceDenied, nil},
		{"root, NFS", "resolve " + tmpl, syscall.ESTALE, reason.SourceUnreachable, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var got []string
			f := &faulty{fail: map[string]error{tt.at: tt.err}}
			err := walk(t.Context(), f, tmpl, Options{}, func(c Copy) error {
				where := c.Dir
				if c.Path != "" {
					where = c.Path
				}
				code := ""
				if c.Err != nil {
					code = string(reason.Of(c.Err))
				}
				got = append(got, strings.TrimPrefix(strings.TrimPrefix(where, tmpl+"/1/"), tmpl+"/2/")+" "+code)
				return nil
			})
			if (err == nil) != (tt.code == "") || err != nil && reason.Of(err) != tt.code {
				t.Errorf("Walk returned %v, want %s", err, tt.code)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("copies (-want +got):\n%s", diff)
			}
		})
	}
	f := &faulty{fail: map[string]error{"list " + tmpl + "/1": syscall.EACCES, "list " + tmpl + "/2": syscall.EIO}}
	err := walk(t.Context(), f, tmpl, Options{}, nil)
	if reason.Of(err) != reason.SourceDenied || !strings.Contains(err.Error(), "and 1 more") {
		t.Errorf("Walk returned %v", err)
	}
	// Nobody knows whether the template is there.
	f = &faulty{fail: map[string]error{"lstat " + tmpl + "/1/203": syscall.EACCES}}
	got, err := template(t.Context(), f, root, "203", Options{})
	if reason.Of(err) != reason.SourceDenied || len(got) != 1 || got[0].Account != "2" {
		t.Errorf("Template returned %+v, %v", got, err)
	}
}

// A file server that does not answer holds up a walk for as long as it was
// told, and not for ever.
func TestHung(t *testing.T) {
	root := exportTree(t)
	tmpl := root + "/template/tmpl"
	const timeout = 30 * time.Second
	for _, tt := range []struct {
		name   string
		hang   []string
		code   reason.Code
		copies int
		took   time.Duration
	}{
		{"nothing", nil, "", 3, 0},
		{"root", []string{"resolve " + root}, reason.SourceStalled, 0, timeout},
		{"listing", []string{"list " + tmpl}, reason.SourceStalled, 0, timeout},
		{"account", []string{"list " + tmpl + "/1"}, reason.SourceStalled, 2, timeout},
		{"template", []string{"list " + tmpl + "/1/203"}, "", 3, timeout},
		{"properties", []string{"read " + tmpl + "/1/203/template.properties"}, "", 3, timeout},
		{"stat", []string{"lstat " + tmpl + "/1/203/a.iso"}, "", 3, timeout},
		{"everything", []string{"list " + tmpl + "/1/203", "list " + tmpl + "/1/8", "list " + tmpl + "/2/203", "list " + tmpl + "/2/204"}, reason.SourceStalled, 2, 3 * timeout},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				wait := make(chan struct{})
				f := &faulty{hang: map[string]bool{}, wait: wait}
				for _, h := range tt.hang {
					f.hang[h] = true
				}
				n := 0
				start := time.Now()
				err := walk(t.Context(), f, root, Options{}, func(c Copy) error {
					if c.Dir != "" {
						n++
					}
					return nil
				})
				took := time.Since(start)
				close(wait) // the server is back, and the workers end
				if (err == nil) != (tt.code == "") || err != nil && reason.Of(err) != tt.code {
					t.Errorf("Walk returned %v, want %s", err, tt.code)
				}
				if n != tt.copies || took != tt.took {
					t.Errorf("%d copies in %v, want %d in %v", n, took, tt.copies, tt.took)
				}
			})
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			wait := make(chan struct{})
			f := &faulty{hang: map[string]bool{"list " + tmpl: true}, wait: wait}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			start := time.Now()
			err := walk(ctx, f, root, Options{}, func(Copy) error { return nil })
			if reason.Of(err) != reason.SourceStalled || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
				t.Errorf("Walk returned %v after %v", err, time.Since(start))
			}
			close(wait)
		})
	})
}

// However often a hung store is asked, by whomever, it takes a bounded number of
// workers, and the same ones as all other calls there.
func TestHungForLong(t *testing.T) {
	root := exportTree(t)
	synctest.Test(t, func(t *testing.T) {
		before := runtime.NumGoroutine()
		wait := make(chan struct{})
		f := &faulty{hang: map[string]bool{"resolve " + root: true}, wait: wait}
		o := Options{Calls: fscall.New(nil), Timeout: time.Second}
		for range 500 {
			if err := walk(t.Context(), f, root, o, nil); reason.Of(err) != reason.SourceStalled {
				t.Fatalf("Walk returned %v", err)
			}
			if _, err := template(t.Context(), f, root, "203", o); reason.Of(err) != reason.SourceStalled {
				t.Fatalf("Template returned %v", err)
			}
		}
		synctest.Wait()
		lost := o.Calls.Lost()
		if n := runtime.NumGoroutine() - before; lost == 0 || lost > 10 || n > lost+2 {
			t.Errorf("%d calls are lost, and %d goroutines left", lost, n)
		}
		// The server is back, and the store is as it was.
		close(wait)
		synctest.Wait()
		if n := o.Calls.Lost(); n != 0 {
			t.Errorf("%d calls are lost for good", n)
		}
		if got, err := template(t.Context(), f, root, "203", o); err != nil || len(got) != 2 {
			t.Errorf("Template returned %+v, %v", got, err)
		}
	})
}
