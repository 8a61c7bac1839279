package media

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"cks-etcd/internal/reason"

	"github.com/google/go-cmp/cmp"
)

const wait = time.Minute // the deadline of the tests

// find runs one Find with the tests' deadline and returns where media were
// found, how long it took, and the error.
func find(t *testing.T, f *Finder) ([]string, time.Duration, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	start := time.Now()
	media, err := f.Find(ctx)
	var where []string
	for _, m := range media {
		where = append(where, m.Where)
		m.Close()
	}
	return where, time.Since(start), err
}

func TestFind(t *testing.T) {
	im := buildImages(t)
	eio := func(d *fakeDrive) { d.eioAt = 1 }
	for _, test := range []struct {
		name   string
		setUp  func(s *fakeSystem)
		want   []string
		code   reason.Code
		msg    string        // the whole message
		part   string        // or a part of it
		within time.Duration // 0: a second
	}{{
		name:  "one ISO",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.full) },
		want:  []string{"/dev/sr0"},
	}, {
		name:  "attached as a disk",
		setUp: func(s *fakeSystem) { s.add("/dev/vda", im.plain); s.add("/dev/xvdb", im.full) },
		want:  []string{"/dev/xvdb"},
	}, {
		name:  "B5: config drive first",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.config); s.add("/dev/sr1", im.full) },
		want:  []string{"/dev/sr1"},
	}, {
		name: "B8: several, all are returned",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", im.full)
			s.add("/dev/sr1", im.without)
			s.add("/dev/sr2", im.full2)
		},
		want: []string{"/dev/sr0", "/dev/sr2"},
	}, {
		name: "B68: no device",
		setUp: func(s *fakeSystem) {
		},
		code: reason.ISONoDrive, within: wait + time.Second,
		msg: "no drive for the ISO: waited 1m0s; no optical drive and no block device with an ISO 9660 file system; seen: no block device",
	}, {
		name:  "B68: disks only",
		setUp: func(s *fakeSystem) { s.add("/dev/vda", im.plain); s.add("/dev/loop3", "") },
		code:  reason.ISONoDrive, within: wait + time.Second,
		msg: "no drive for the ISO: waited 1m0s; no optical drive and no block device with an ISO 9660 file system; seen: /dev/vda no ISO 9660",
	}, {
		name: "no ISO",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", "")
			s.add("/dev/sr1", im.config)
			s.add("/dev/vda", im.plain)
		},
		code: reason.ISONotFound, within: wait + time.Second,
		msg: `no Kubernetes ISO: waited 1m0s; seen: /dev/sr0 empty, /dev/sr1 config drive "config-2", /dev/vda no ISO 9660`,
	}, {
		name:  "B6: config drive on a disk",
		setUp: func(s *fakeSystem) { s.add("/dev/xvdb", im.config) },
		code:  reason.ISONotFound, within: wait + time.Second,
		part: `seen: /dev/xvdb config drive "config-2"`,
	}, {
		name:  "seed by content, and another ISO",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.seed); s.add("/dev/sr1", im.other) },
		code:  reason.ISONotFound, within: wait + time.Second,
		part: `/dev/sr0 cloud-init seed "NOLABEL", /dev/sr1 other ISO "TOOLS" without the archive`,
	}, {
		name: "many partitions do not crowd the message",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", "")
			for _, p := range []string{"", "1", "14", "15", "16"} {
				s.add("/dev/vda"+p, im.plain)
			}
		},
		code: reason.ISONotFound, within: wait + time.Second,
		part: "seen: /dev/sr0 empty, /dev/vda no ISO 9660, /dev/vda1 no ISO 9660, /dev/vda14 no ISO 9660, 2 more with no ISO 9660",
	}, {
		name: "an extended partition has two sectors",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", "")
			s.add("/dev/sda2", truncated(t, im.plain, 0.002))
		},
		code: reason.ISONotFound, within: wait + time.Second,
		part: "seen: /dev/sr0 empty, /dev/sda2 no ISO 9660",
	}, {
		name:  "a directory in the archive's place",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.dir) },
		code:  reason.ArchiveMissing,
		part:  "etcd/etcd-linux-amd64.tar.gz is a directory",
	}, {
		name:  "a link in the archive's place",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.link) },
		code:  reason.ArchiveMissing,
		part:  "etcd/etcd-linux-amd64.tar.gz is a symbolic link",
	}, {
		name:  "Kubernetes ISO without the archive",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.without); s.add("/dev/sr1", "") },
		code:  reason.ArchiveMissing,
		msg: `etcd archive missing: etcd/etcd-linux-amd64.tar.gz is not on the ISO in /dev/sr0; ` +
			`seen: /dev/sr0 Kubernetes ISO "CDROM" without the archive, /dev/sr1 empty`,
	}, {
		name:  "archive of another architecture's name",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", im.arm) },
		code:  reason.ArchiveMissing,
		part:  `without the archive (etcd holds "etcd-linux-arm64.tar.gz")`,
	}, {
		name: "missing, but another medium cannot be read",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", im.without)
			eio(s.add("/dev/sr1", im.full))
		},
		code: reason.ArchiveMissing, within: missingGrace + 3*time.Second,
		part: "input/output error",
	}, {
		name:  "read errors",
		setUp: func(s *fakeSystem) { eio(s.add("/dev/sr0", im.full)) },
		code:  reason.ISOUnreadable, within: wait + time.Second,
		part: "seen: /dev/sr0 unreadable: sector ",
	}, {
		name: "not permitted",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", im.full).err = &os.PathError{Op: "open", Path: "/dev/sr0", Err: syscall.EPERM}
		},
		code: reason.ISOUnreadable, within: wait + time.Second,
		part: "seen: /dev/sr0 cannot be opened: operation not permitted",
	}, {
		name:  "truncated",
		setUp: func(s *fakeSystem) { s.add("/dev/sr0", truncated(t, im.full, 0.5)) },
		code:  reason.ISODamaged, within: wait + time.Second,
		part: "seen: /dev/sr0 damaged ISO: ",
	}, {
		name: "damaged beats unreadable",
		setUp: func(s *fakeSystem) {
			s.add("/dev/sr0", truncated(t, im.full, 0.5))
			eio(s.add("/dev/sr1", im.full))
		},
		code: reason.ISODamaged, within: wait + time.Second,
	}, {
		name:  "devices cannot be listed",
		setUp: func(s *fakeSystem) { s.fail = errors.New("cannot list block devices: no") },
		code:  reason.ISOUnreadable, within: wait + time.Second,
		part: "seen: cannot list block devices: no",
	}} {
		t.Run(test.name, func(t *testing.T) {
			sys := newFakeSystem()
			test.setUp(sys)
			synctest.Test(t, func(t *testing.T) {
				where, took, err := find(t, newFinder(Options{}, sys))
				if diff := cmp.Diff(test.want, where); diff != "" {
					t.Errorf("media (-want +got):\n%s", diff)
				}
				if len(test.want) > 0 {
					if err != nil {
						t.Error(err)
					}
				} else if got := reason.Of(err); got != test.code {
					t.Errorf("code = %v, want %v: %v", got, test.code, err)
				}
				if test.msg != "" && err.Error() != test.msg {
					t.Errorf("message\n got %s\nwant %s", err, test.msg)
				}
				if test.part != "" && !strings.Contains(err.Error(), test.part) {
					t.Errorf("message\n got %s\nwant %s in it", err, test.part)
				}
				if test.within == 0 {
					test.within = time.Second
				}
				if took > test.within {
					t.Errorf("took %v, want at most %v", took, test.within)
				}
				synctest.Wait() // a look may have begun as the deadline passed
				if n := sys.openCount(); n != 0 {
					t.Errorf("%d devices are still open", n)
				}
			})
		})
	}
}

// A truncated image is never one without the archive, wherever it ends.
func TestTruncatedIsNeverMissing(t *testing.T) {
	im := buildImages(t)
	b, err := os.ReadFile(im.full)
	if err != nil {
		t.Fatal(err)
	}
	name := t.TempDir() + "/cut.iso"
	for end := len(b); end >= 0; end -= 2048 * (1 + end>>16) {
		if err := os.WriteFile(name, b[:end], 0o600); err != nil {
			t.Fatal(err)
		}
		sys := newFakeSystem()
		sys.add("/dev/sr0", name)
		o := look(func() (volume, error) {
			return openImage(sys, device{path: "/dev/sr0", num: sys.drives["/dev/sr0"].num})
		}, DefaultArchive)
		switch o.kind {
		case missing, other, seed:
			t.Errorf("cut at %d: %s", end, o.text)
		}
	}
}

// What is named beside a missing archive costs no more than the names, however
// many there are: the agent has 40 MB for everything.
func TestCrowdedDirectory(t *testing.T) {
	sys := newFakeSystem()
	d := sys.add("/dev/sr0", crowded(t))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	o := look(func() (volume, error) { return openImage(sys, device{path: "/dev/sr0", num: d.num}) }, DefaultArchive)
	runtime.ReadMemStats(&after)
	if want := `Kubernetes ISO without the archive (etcd holds "f000", "f001", "f002")`; o.kind != missing || o.text != want {
		t.Errorf("saw %d %q, want %q", o.kind, o.text, want)
	}
	if got := after.TotalAlloc - before.TotalAlloc; got > 2<<20 {
		t.Errorf("allocated %d bytes", got)
	}
}

// A disc is read as Linux mounts it: from its last session, where the drive
// says that there are several.
func TestSessions(t *testing.T) {
	kube := map[string]string{"k8s/kubeadm": "x"}
	image, second := sessions(t, kube, map[string]string{DefaultArchive: "archive"})
	for _, test := range []struct {
		start int64
		want  kind
	}{{0, missing}, {second, holds}} {
		sys := newFakeSystem()
		d := sys.add("/dev/sr0", image)
		d.start = test.start
		o := look(func() (volume, error) { return openImage(sys, device{path: "/dev/sr0", num: d.num}) }, DefaultArchive)
		if o.kind != test.want {
			t.Errorf("session at %d: saw %q", test.start, o.text)
		}
	}
	sys := newFakeSystem()
	sys.add("/dev/sr0", image).start = second
	media, err := newFinder(Options{}, sys).Find(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer media[0].Close()
	r, err := media[0].Open()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(r); string(got) != "archive" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
}

func TestArrival(t *testing.T) {
	im := buildImages(t)
	for _, test := range []struct {
		name   string
		arrive func(s *fakeSystem)
		hint   bool
		within time.Duration
	}{
		{"inserted, seen by the re-scan", func(s *fakeSystem) { s.drives["/dev/sr0"].image = im.full }, false, 2 * defaultRescan},
		{"inserted, seen by an event", func(s *fakeSystem) { s.drives["/dev/sr0"].image = im.full }, true, minGap},
		{"plugged in as a disk", func(s *fakeSystem) { s.drives["/dev/vdb"] = &fakeDrive{num: devnum{252, 16}, image: im.full} }, true, minGap},
		{"mounted by somebody", func(s *fakeSystem) {
			s.points["/mnt"] = fakeMount{devnum{7, 3}, t.TempDir()}
			writeTree(t, s.points["/mnt"].dir, map[string]string{DefaultArchive: "x"})
		}, false, 2 * defaultRescan},
	} {
		t.Run(test.name, func(t *testing.T) {
			sys := newFakeSystem()
			sys.add("/dev/sr0", "")
			synctest.Test(t, func(t *testing.T) {
				hints := make(chan struct{}, 1)
				o := Options{Uevents: func(context.Context) (<-chan struct{}, error) { return hints, nil }}
				if test.hint {
					o.Rescan = time.Hour
				}
				const at = 5*time.Second + time.Millisecond
				time.AfterFunc(at, func() {
					sys.change(func() { test.arrive(sys) })
					if test.hint {
						hints <- struct{}{}
					}
				})
				where, took, err := find(t, newFinder(o, sys))
				if len(where) != 1 || err != nil {
					t.Fatalf("found %v, %v", where, err)
				}
				if took < at || took > at+test.within {
					t.Errorf("took %v, want %v more than %v", took, test.within, at)
				}
			})
		})
	}
}

// A drive that answers late but in time is judged together with the others.
func TestSettles(t *testing.T) {
	im := buildImages(t)
	sys := newFakeSystem()
	sys.add("/dev/sr0", im.full)
	synctest.Test(t, func(t *testing.T) {
		slow := sys.add("/dev/sr1", im.full2)
		slow.hang = make(chan struct{})
		time.AfterFunc(settleTime/2, func() { close(slow.hang) })
		where, _, err := find(t, newFinder(Options{}, sys))
		if diff := cmp.Diff([]string{"/dev/sr0", "/dev/sr1"}, where); diff != "" || err != nil {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}

func TestHang(t *testing.T) {
	im := buildImages(t)
	t.Run("others go on", func(t *testing.T) {
		sys := newFakeSystem()
		sys.add("/dev/sr1", im.full)
		synctest.Test(t, func(t *testing.T) {
			bad := sys.add("/dev/sr0", im.full2)
			bad.hang = make(chan struct{})
			where, took, err := find(t, newFinder(Options{}, sys))
			if !slices.Equal(where, []string{"/dev/sr1"}) || err != nil {
				t.Errorf("found %v, %v", where, err)
			}
			if took > defaultRescan+settleTime {
				t.Errorf("took %v", took)
			}
			close(bad.hang)
		})
	})
	t.Run("to the end", func(t *testing.T) {
		sys := newFakeSystem()
		synctest.Test(t, func(t *testing.T) {
			bad := sys.add("/dev/sr0", im.full)
			bad.hang = make(chan struct{})
			f := newFinder(Options{}, sys)
			_, took, err := find(t, f)
			if reason.Of(err) != reason.ISOUnreadable || !strings.Contains(err.Error(), "/dev/sr0 does not answer for 1m0s") {
				t.Error(err)
			}
			if took != wait {
				t.Errorf("took %v, want %v", took, wait)
			}
			// A second run does not add a second stuck thread.
			if _, _, err := find(t, f); reason.Of(err) != reason.ISOUnreadable {
				t.Error(err)
			}
			if n := sys.opens["/dev/sr0"]; n != 1 {
				t.Errorf("opened %d times, want once", n)
			}
			close(bad.hang)
			sys.change(func() { bad.hang = nil })
			if where, _, err := find(t, f); len(where) != 1 {
				t.Errorf("after it answers again: %v, %v", where, err)
			}
		})
	})
	t.Run("holds up a no for the grace only", func(t *testing.T) {
		sys := newFakeSystem()
		sys.add("/dev/sr0", im.without)
		synctest.Test(t, func(t *testing.T) {
			bad := sys.add("/dev/sr1", im.full)
			bad.hang = make(chan struct{})
			_, took, err := find(t, newFinder(Options{}, sys))
			if reason.Of(err) != reason.ArchiveMissing || took < missingGrace || took > missingGrace+2*defaultRescan {
				t.Errorf("after %v: %v", took, err)
			}
			close(bad.hang)
		})
	})
	t.Run("answers within the grace", func(t *testing.T) {
		sys := newFakeSystem()
		sys.add("/dev/sr0", im.without)
		synctest.Test(t, func(t *testing.T) {
			bad := sys.add("/dev/sr1", im.full)
			bad.hang = make(chan struct{})
			time.AfterFunc(missingGrace-5*time.Second, func() { close(bad.hang) })
			where, _, err := find(t, newFinder(Options{}, sys))
			if !slices.Equal(where, []string{"/dev/sr1"}) {
				t.Errorf("found %v, %v", where, err)
			}
		})
	})
}

func TestEventStorm(t *testing.T) {
	sys := newFakeSystem()
	sys.add("/dev/sr0", "")
	synctest.Test(t, func(t *testing.T) {
		storm := func(ctx context.Context) (<-chan struct{}, error) {
			c := make(chan struct{})
			go func() {
				defer close(c)
				for {
					select {
					case c <- struct{}{}:
					case <-ctx.Done():
						return
					}
					select {
					case <-time.After(time.Millisecond):
					case <-ctx.Done():
						return
					}
				}
			}()
			return c, nil
		}
		find(t, newFinder(Options{Uevents: storm}, sys))
		if limit := int(wait/minGap) + 2; sys.lists > limit || sys.lists < limit/2 {
			t.Errorf("%d looks in %v, want about %d", sys.lists, wait, limit)
		}
	})
}

func TestNoEvents(t *testing.T) {
	im := buildImages(t)
	for name, source := range map[string]func(context.Context) (<-chan struct{}, error){
		"cannot open": func(context.Context) (<-chan struct{}, error) { return nil, syscall.EPERM },
		"lost": func(context.Context) (<-chan struct{}, error) {
			c := make(chan struct{})
			close(c)
			return c, nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			sys := newFakeSystem()
			d := sys.add("/dev/sr0", "")
			synctest.Test(t, func(t *testing.T) {
				time.AfterFunc(5*time.Second, func() { sys.change(func() { d.image = im.full }) })
				where, took, err := find(t, newFinder(Options{Uevents: source}, sys))
				if len(where) != 1 || took > 5*time.Second+2*defaultRescan {
					t.Errorf("after %v: %v, %v", took, where, err)
				}
			})
		})
	}
}

func TestCancel(t *testing.T) {
	shutdown := errors.New("shutting down")
	for _, cause := range []error{nil, shutdown} {
		sys := newFakeSystem()
		sys.add("/dev/sr0", "")
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			time.AfterFunc(3*time.Second, func() { cancel(cause) })
			start := time.Now()
			media, err := newFinder(Options{}, sys).Find(ctx)
			if media != nil || !errors.Is(err, context.Canceled) || cause != nil && !errors.Is(err, cause) {
				t.Errorf("%v, %v", media, err)
			}
			if took := time.Since(start); took != 3*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// What an earlier Find saw is not an answer to the next.
func TestFindLooksAgain(t *testing.T) {
	im := buildImages(t)
	sys := newFakeSystem()
	d := sys.add("/dev/sr0", im.full)
	synctest.Test(t, func(t *testing.T) {
		f := newFinder(Options{}, sys)
		if where, _, err := find(t, f); len(where) != 1 {
			t.Fatal(where, err)
		}
		sys.change(func() { d.image = "" })
		where, _, err := find(t, f)
		if len(where) != 0 || reason.Of(err) != reason.ISONotFound {
			t.Errorf("found %v, %v", where, err)
		}
		if want := `/dev/sr0 empty, earlier ISO "CDROM" with etcd/etcd-linux-amd64.tar.gz`; !strings.Contains(err.Error(), want) {
			t.Errorf("message\n got %s\nwant %s in it", err, want)
		}
		sys.change(func() { delete(sys.drives, "/dev/sr0") })
		find(t, f)
		want := []string{`/dev/sr0 gone, earlier ISO "CDROM" with etcd/etcd-linux-amd64.tar.gz`}
		if diff := cmp.Diff(want, f.Seen()); diff != "" {
			t.Errorf("Seen (-want +got):\n%s", diff)
		}
	})
}

func TestMounts(t *testing.T) {
	im := buildImages(t)
	loop3 := devnum{7, 3}
	full := map[string]string{DefaultArchive: "x", "k8s/kubeadm": "x"}
	kube := map[string]string{"k8s/kubeadm": "x"}
	for _, test := range []struct {
		name  string
		dev   *fakeDrive // of the mount; nil: none
		files map[string]string
		want  []string
		code  reason.Code
	}{
		{"no node", nil, full, []string{"/mnt"}, ""},
		{"no node, archive missing", nil, kube, nil, reason.ArchiveMissing},
		{"device preferred", &fakeDrive{image: im.full}, full, []string{"/dev/sr0"}, ""},
		{"device denies", &fakeDrive{image: im.without}, full, nil, reason.ArchiveMissing},
		{"device cannot be opened", &fakeDrive{err: syscall.EPERM}, full, []string{"/mnt"}, ""},
		{"device cannot be opened, archive missing", &fakeDrive{err: syscall.EPERM}, kube, nil, reason.ArchiveMissing},
		{"device damaged", &fakeDrive{image: truncated(t, im.full, 0.5)}, full, []string{"/mnt"}, ""},
		{"device damaged, mount cannot deny", &fakeDrive{image: truncated(t, im.full, 0.5)}, kube, nil, reason.ISODamaged},
	} {
		t.Run(test.name, func(t *testing.T) {
			sys := newFakeSystem()
			dir := t.TempDir()
			writeTree(t, dir, test.files)
			sys.points["/mnt"] = fakeMount{loop3, dir}
			if test.dev != nil {
				test.dev.num = loop3
				sys.drives["/dev/sr0"] = test.dev
			}
			synctest.Test(t, func(t *testing.T) {
				where, _, err := find(t, newFinder(Options{}, sys))
				if diff := cmp.Diff(test.want, where); diff != "" {
					t.Errorf("media (-want +got):\n%s", diff)
				}
				if err != nil && reason.Of(err) != test.code {
					t.Errorf("code = %v, want %v: %v", reason.Of(err), test.code, err)
				}
			})
		})
	}
}

// The log has a line for each change, and none for what stays.
func TestLogsChangesOnly(t *testing.T) {
	im := buildImages(t)
	sys := newFakeSystem()
	d := sys.add("/dev/sr0", "")
	sys.add("/dev/loop0", "")
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		h := slog.NewTextHandler(&log, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
				return slog.Attr{}
			}
			return a
		}})
		time.AfterFunc(15*time.Second, func() { sys.change(func() { d.image = im.other }) })
		time.AfterFunc(25*time.Second, func() { sys.change(func() { d.image = "" }) })
		time.AfterFunc(35*time.Second, func() { sys.change(func() { d.hang = make(chan struct{}) }) })
		find(t, newFinder(Options{Log: slog.New(h)}, sys))
		want := `msg=device at=/dev/sr0 seen=empty
msg=device at=/dev/sr0 seen="other ISO \"TOOLS\" without the archive"
msg=device at=/dev/sr0 seen="empty, earlier other ISO \"TOOLS\" without the archive"
msg=device at=/dev/sr0 seen="does not answer, earlier other ISO \"TOOLS\" without the archive"
`
		if diff := cmp.Diff(want, log.String()); diff != "" {
			t.Errorf("log (-want +got):\n%s", diff)
		}
		close(d.hang)
	})
}

// TestPanic: a bug that a medium finds is a panic where Find or the read was
// called, not in a goroutine that nobody watches.
func TestPanic(t *testing.T) {
	for _, test := range []struct {
		name string
		do   func()
	}{
		{"look", func() {
			sys := newFakeSystem()
			sys.add("/dev/sr0", "").broken = "a bug"
			newFinder(Options{}, sys).Find(t.Context())
		}},
		{"read", func() {
			b := bound{gate: newGate(), where: "/dev/sr0", limit: time.Minute}
			call(b, func() (int, error) { panic("a bug") }, func(int) {})
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "a bug\n") {
					t.Errorf("got panic %q", got)
				}
			}()
			test.do()
		})
	}
}
