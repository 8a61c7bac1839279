package isofs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"runtime"
	"strings"
	"testing"
	"time"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/isofs/isotest"
)

// Images made to hurt. Answers are held against the standards and the source
// of Linux (fs/isofs), not against isoinfo: it crashes or never ends on loops
// of directories and of continuation areas, takes skip and XA bytes for
// entries, and does not tell damage from absence.

const wantedPath = "etcd/etcd-linux-amd64.tar.gz"

var wantedData = bytes.Repeat([]byte("etcd archive "), 300) // two sectors, the second in part

// An outcome is one of three answers, or a set of them where the standard
// leaves more than one open.
type outcome uint8

const (
	found   outcome = 1 << iota // the file, whole and with the right bytes
	missing                     // fs.ErrNotExist
	unknown                     // *isofs.Error: could not tell
	notISO                      // isofs.ErrNotISO
	refused                     // any other error
)

// notMissing is for damage that a reader may overcome or report, but must
// never take for an absent file.
const notMissing = found | unknown

func (o outcome) String() string {
	var s []string
	for i, name := range []string{"found", "missing", "unknown", "not an ISO", "refused"} {
		if o&(1<<i) != 0 {
			s = append(s, name)
		}
	}
	return strings.Join(s, " or ")
}

// answer asks an image for a file, as a user of the package does.
func answer(r io.ReaderAt, size int64, name string, want []byte) (outcome, error) {
	img, err := isofs.Open(r, size)
	if err != nil {
		return outcomeOf(err), fmt.Errorf("Open: %w", err)
	}
	f, err := img.Lookup(name)
	if err != nil {
		return outcomeOf(err), fmt.Errorf("Lookup: %w", err)
	}
	if f.IsDir() || f.Mode()&fs.ModeSymlink != 0 {
		return refused, fmt.Errorf("Lookup: %s is a %v", name, f.Mode())
	}
	if err := f.CheckExtents(); err != nil {
		return outcomeOf(err), fmt.Errorf("CheckExtents: %w", err)
	}
	if f.Size() > 1<<20 {
		return refused, fmt.Errorf("Size() = %d", f.Size())
	}
	got, err := io.ReadAll(f.Reader())
	if err != nil {
		return outcomeOf(err), fmt.Errorf("Read: %w", err)
	}
	if !bytes.Equal(got, want) {
		return refused, fmt.Errorf("wrong content: %d bytes %.40q", len(got), got)
	}
	return found, nil
}

func outcomeOf(err error) outcome {
	var damage *isofs.Error
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return missing // checked first: nothing that says this may say anything else
	case errors.As(err, &damage):
		return unknown
	case errors.Is(err, isofs.ErrNotISO):
		return notISO
	}
	return refused
}

// bounded runs f and fails the test when it takes long, panics, or allocates
// what only a header claims.
func bounded(t *testing.T, f func()) {
	t.Helper()
	const (
		limit  = 10 * time.Second // of wall clock, on a busy machine
		memory = 64 << 20         // allocated in all, garbage included
	)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	done := make(chan any, 1)
	go func() {
		defer func() { done <- recover() }()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > memory {
			t.Errorf("allocated %d MiB, want at most %d", n>>20, memory>>20)
		}
	}()
	select {
	case p := <-done:
		if p != nil {
			t.Fatalf("panic: %v", p)
		}
	case <-ctx.Done():
		buf := make([]byte, 64<<10)
		t.Fatalf("no answer after %v\n%s", limit, buf[:runtime.Stack(buf, true)])
	}
}

// walk visits the whole tree. Errors are expected; an endless tree is not.
func walk(t *testing.T, r io.ReaderAt, size int64) {
	img, err := isofs.Open(r, size)
	if err != nil {
		return
	}
	const entries, depth = 10_000, 64 // more than any image here has
	n := 0
	_ = fs.WalkDir(img, ".", func(name string, d fs.DirEntry, err error) error {
		if n++; n > entries {
			t.Errorf("walk has no end: at %.200q", name)
			return fs.SkipAll
		}
		if strings.Count(name, "/") > depth {
			t.Errorf("walk goes ever deeper: at %.200q", name)
			return fs.SkipAll
		}
		if name != "." && !fs.ValidPath(name) {
			t.Errorf("name %q is not a valid path", name)
		}
		if strings.ContainsAny(path.Base(name), "\x00\n") {
			t.Errorf("name %q holds a NUL or a newline", name)
		}
		return nil
	})
}

// tree is the ordinary image that a case damages.
type tree struct {
	tb   testing.TB
	spec isotest.Spec
	root, etcd, wanted,
	before, // the record before wanted
	after, // the record after wanted
	k8s *isotest.Node
}

func newTree(tb testing.TB) *tree {
	t := &tree{
		tb:     tb,
		before: isotest.File("aaa", []byte("before")),
		wanted: isotest.File("etcd-linux-amd64.tar.gz", wantedData),
		after:  isotest.File("zzz", []byte("after")),
		k8s:    isotest.Dir("k8s", isotest.File("kubeadm", []byte("kubeadm"))),
	}
	t.etcd = isotest.Dir("etcd", t.before, t.wanted, t.after)
	t.root = isotest.Dir("", t.etcd, t.k8s)
	t.spec = isotest.Spec{VolumeID: "CDROM", RockRidge: true, Root: t.root}
	return t
}

// without takes the wanted file out.
func (t *tree) without() { t.etcd.Children = []*isotest.Node{t.before, t.after} }

// fill puts so many other files between the first and the wanted one that
// this one is in another sector of the directory.
func (t *tree) fill() {
	c := []*isotest.Node{t.before}
	for i := range 30 {
		c = append(c, isotest.File(fmt.Sprintf("filler-%02d", i), nil))
	}
	t.etcd.Children = append(c, t.wanted, t.after)
}

// atSectorEnd makes n the last record of the directory's first sector, so
// that a length of 255 leads past the sector's end. Two sectors follow.
func (t *tree) atSectorEnd(n *isotest.Node) {
	const count = 50
	var c []*isotest.Node
	for i := range count { // as long as the wanted name: they can change places
		c = append(c, isotest.File(fmt.Sprintf("fill-linux-amd%02d.tar.gz", i), nil))
	}
	t.etcd.Children = c
	img := isotest.Build(t.tb, t.spec)
	dir, _ := img.Extent(t.etcd)
	last := 0
	for i, f := range c {
		if img.Record(f, 0) < dir+isotest.SectorSize {
			last = i
		}
	}
	c[last] = n
	if n != t.wanted {
		c[count-1] = t.wanted
	}
}

type hostileCase struct {
	name   string
	damage func(*tree)
	mutate func(*tree, *isotest.Image) // after the image is built
	want   outcome
}

func runHostile(t *testing.T, cases []hostileCase) {
	t.Helper()
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			tr := newTree(t)
			if tc.damage != nil {
				tc.damage(tr)
			}
			img := isotest.Build(t, tr.spec)
			if tc.mutate != nil {
				tc.mutate(tr, img)
			}
			bounded(t, func() {
				got, err := answer(img, img.Size(), wantedPath, wantedData)
				if got&tc.want == 0 {
					t.Errorf("answer = %v (%v), want %v", got, err, tc.want)
				}
				checkError(t, err)
				if got, err := answer(img, -1, wantedPath, wantedData); got == missing && tc.want&missing == 0 {
					t.Errorf("answer with the size unknown = %v (%v), want %v", got, err, tc.want)
				}
				walk(t, img, img.Size())
			})
		})
	}
}

// runIntact is for images that are as they should be. Where the file is found
// a file that is not there must be missing: nothing may look like damage.
func runIntact(t *testing.T, cases []hostileCase) {
	t.Helper()
	runHostile(t, cases)
	for _, tc := range cases {
		if tc.want != found {
			continue
		}
		t.Run(tc.name+", another file", func(t *testing.T) {
			tr := newTree(t)
			if tc.damage != nil {
				tc.damage(tr)
			}
			img := isotest.Build(t, tr.spec)
			if tc.mutate != nil {
				tc.mutate(tr, img)
			}
			if got, err := answer(img, img.Size(), "etcd/absent", nil); got != missing {
				t.Errorf("answer = %v (%v), want missing", got, err)
			}
		})
	}
}

// checkError holds an error of the reader to what it promises: it says
// what is wrong, in one printable line.
func checkError(t *testing.T, err error) {
	t.Helper()
	var damage *isofs.Error
	if !errors.As(err, &damage) {
		return
	}
	if damage.What == "" {
		t.Errorf("error %+v does not say what is wrong", damage)
	}
	for _, r := range err.Error() {
		if r < ' ' || r == 0x7f {
			t.Errorf("error %q holds a control character", err)
			break
		}
	}
}
