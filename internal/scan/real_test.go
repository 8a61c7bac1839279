package scan

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/archive/archivetest"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
)

// Kinds of image that genisoimage makes.
const (
	withEtcd  = "with"
	noEtcd    = "without"
	emptyEtcd = "empty"
	ordinary  = "ordinary" // no Kubernetes ISO
)

// imageOf makes an image as create-kubernetes-binaries-iso.sh does.
func imageOf(t testing.TB, kind string) []byte {
	t.Helper()
	tool, err := exec.LookPath("genisoimage")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	files := map[string][]byte{"k8s/kubeadm": []byte("#!"), "docker/pause.tar": []byte("x"), "manifest.yaml": []byte("a: b\n")}
	switch kind {
	case withEtcd:
		files[inspect.EtcdArchive] = archivetest.Gzip(archivetest.Tar(archivetest.File("etcd-v3.5.21-linux-amd64/etcd", []byte("\x7fELF"))))
	case emptyEtcd:
		files[inspect.EtcdArchive] = nil
	case ordinary:
		files = map[string][]byte{"README": []byte("hello\n")}
	}
	for name, b := range files {
		name = filepath.Join(dir, "iso", name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	image := filepath.Join(dir, "image.iso")
	if out, err := exec.Command(tool, "-quiet", "-o", image, "-J", "-R", "-l", filepath.Join(dir, "iso")).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	b, err := os.ReadFile(image)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sparse writes an image of which only what is not zero takes space.
func sparse(t testing.TB, name string, image []byte) {
	t.Helper()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const block = 4096
	zero := string(make([]byte, block))
	for at := 0; at < len(image); at += block {
		b := image[at:min(at+block, len(image))]
		if string(b) == zero[:len(b)] {
			continue
		}
		if _, err := f.WriteAt(b, int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Truncate(int64(len(image))); err != nil {
		t.Fatal(err)
	}
}

// register puts an image into a store as CloudStack does, and returns its path.
func register(t testing.TB, root, id string, image []byte) string {
	t.Helper()
	dir := filepath.Join(root, "template/tmpl/1", id)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	name := id + "-1-7c82b718-0c4f-3a35-a89e-a95d188dc81c"
	path := filepath.Join(dir, name+".iso")
	sparse(t, path, image)
	properties := fmt.Sprintf("#\n#Thu Jan 01 00:00:00 UTC 2026\nid=%s\nuniquename=%s\niso=true\niso.filename=%s.iso\niso.size=%d\npublic=true\n",
		id, name, name, len(image))
	if err := os.WriteFile(filepath.Join(dir, "template.properties"), []byte(properties), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// counted counts what is opened and moved.
type counted struct {
	images
	opens, identified atomic.Int64
	mu                sync.Mutex
	bytes             int64
	names             []string
}

func (c *counted) Open(ctx context.Context, name string) (image, error) {
	c.opens.Add(1)
	c.mu.Lock()
	c.names = append(c.names, name)
	c.mu.Unlock()
	i, err := c.images.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return &countedImage{i, c}, nil
}

func (c *counted) Identify(ctx context.Context, name string) (source.Identity, error) {
	c.identified.Add(1)
	return c.images.Identify(ctx, name)
}

type countedImage struct {
	image
	of *counted
}

func (i *countedImage) Close() error {
	i.of.mu.Lock()
	i.of.bytes += i.Stats().Bytes
	i.of.mu.Unlock()
	return i.image.Close()
}

// countedAnswers counts transactions.
type countedAnswers struct {
	*answers.Store
	puts atomic.Int64
}

func (c *countedAnswers) Put(ctx context.Context, a ...answers.Answer) error {
	c.puts.Add(1)
	return c.Store.Put(ctx, a...)
}

// onDisk is a scanner on the real packages, with its counters.
func onDisk(t testing.TB, c Config, path string) (*Scanner, *counted, *countedAnswers) {
	t.Helper()
	kept, err := answers.Open(t.Context(), path, answers.Options{})
	if err != nil {
		t.Fatal(err)
	}
	o, err := source.New(source.Options{Timeout: time.Second, Netrc: "none"})
	if err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	images, remembered := &counted{images: opener{o}}, &countedAnswers{Store: kept}
	s := build(c, remembered, images, directories{0, nil, log}, log)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
		if err := kept.Close(); err != nil {
			t.Errorf("closing the answers: %v", err)
		}
		o.Close()
	})
	return s, images, remembered
}

// TestReal goes through rows 2 to 8 with real images in real directories, a real
// server and a real file of answers.
func TestReal(t *testing.T) {
	east, west, db := t.TempDir(), t.TempDir(), filepath.Join(t.TempDir(), "answers.db")
	good, bad := imageOf(t, withEtcd), imageOf(t, noEtcd)
	register(t, east, "203", good)
	register(t, west, "203", good)
	register(t, east, "204", bad)
	register(t, east, "205", imageOf(t, emptyEtcd))
	register(t, east, "9", imageOf(t, ordinary))
	cut := register(t, west, "206", good)
	if err := os.Truncate(cut, int64(len(good)/2)); err != nil {
		t.Fatal(err)
	}
	download := filepath.Join(west, "template/tmpl/1/207")
	if err := os.MkdirAll(download, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(download, "dnld123tmp_"), good, 0o644); err != nil {
		t.Fatal(err)
	}
	notISO := register(t, west, "208", []byte(strings.Repeat("<html>404</html>\n", 5000)))

	files := t.TempDir()
	sparse(t, filepath.Join(files, "setup.iso"), bad)
	// As in the field: the file is older than a moment, so that its time tells versions apart.
	past := time.Now().Add(-time.Hour)
	if err := os.Chtimes(filepath.Join(files, "setup.iso"), past, past); err != nil {
		t.Fatal(err)
	}
	var gets atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		gets.Add(1)
		http.FileServer(http.Dir(files)).ServeHTTP(rw, r)
	}))
	defer server.Close()
	gone := httptest.NewServer(nil)
	gone.Close()

	c := Config{
		Stores: []Store{{Path: east, Zone: "east"}, {Path: west, Zone: "west"}},
		URLs: []URL{
			{URL: server.URL + "/setup.iso", Zone: "west", Template: "301"},
			{URL: gone.URL + "/setup.iso", Zone: "west", Template: "302"},
		},
	}
	s, images, _ := onDisk(t, c, db)
	r := s.Round(t.Context())
	for _, v := range r.Visits {
		if v.Err != nil {
			t.Errorf("%s: %v", v.Name, v.Err)
		}
	}
	want := map[inspect.Value]int{inspect.Included: 1, inspect.Missing: 3, inspect.Broken: 1}
	for v, n := range want {
		if r.Found[v] != n {
			t.Errorf("found %v, want %v", r.Found, want)
		}
	}
	if r.Incomplete != 2 || r.Failed != 1 { // what is no ISO; the server that is gone is not even looked at
		t.Errorf("%d incomplete, %d failed, want 2 and 1: %+v", r.Incomplete, r.Failed, r)
	}
	listed := make(map[string]ISO)
	for _, i := range s.ISOs() {
		listed[i.Template] = i
	}
	for id, want := range map[string]inspect.Value{"203": inspect.Included, "204": inspect.Missing, "205": inspect.Broken, "206": "", "207": "", "208": "", "301": inspect.Missing, "302": ""} {
		i, ok := listed[id]
		got := inspect.Value("")
		if i.Answer != nil {
			got = i.Answer.Value
		}
		if !ok || got != want {
			t.Errorf("template %s is listed as %+v, want %q", id, i, want)
		}
	}
	if a := listed["203"].Answer; a == nil || a.Version != "3.5.21" || a.Arch != "amd64" || a.Names != "Rock Ridge" || len(listed["203"].Copies) != 2 {
		t.Errorf("template 203: %+v with %+v", listed["203"], a)
	}
	if _, ok := listed["9"]; ok {
		t.Error("an ISO that is none of Kubernetes is listed")
	}
	if f := listed["208"].Failure; f == nil || f.Code != reason.NotISO {
		t.Errorf("what is no ISO: %+v", f)
	}
	if f := listed["302"].Failure; f == nil || f.Code != reason.SourceUnreachable {
		t.Errorf("no storage endpoint: %+v", f)
	}

	// Row 2: each ISO is looked at once, by a new process too.
	opens := images.opens.Load()
	if r := s.Round(t.Context()); images.opens.Load() != opens+1 || r.Looks != 1 { // what is no ISO, again
		t.Errorf("second round: opened %v, want only what has failed", images.names[opens:])
	}
	again, others, _ := onDisk(t, c, db)
	again.Round(t.Context())
	if got := others.names; len(got) != 1 || got[0] != notISO {
		t.Errorf("a new process opened %v, want only what has failed", got)
	}
	again.Round(t.Context())
	if got := others.names; len(got) != 1 {
		t.Errorf("a new process opened %v, want what has failed three times left alone", got)
	}

	// Rows 5 and 6.
	requests := gets.Load()
	for _, tt := range []struct {
		iso, zone string
		allow     bool
		code      reason.Code
		cause     reason.Code
	}{
		{"203", "east", true, reason.Included, ""},
		{"203", "west", true, reason.Included, ""},
		{"203-1-7c82b718-0c4f-3a35-a89e-a95d188dc81c", "west", true, reason.Included, ""},
		{"204", "east", false, reason.ArchiveMissing, ""},
		{"204", "west", false, reason.ArchiveMissing, ""}, // the ISO's answer
		{"205", "east", false, reason.ArchiveEmpty, ""},
		{"206", "west", true, reason.AdmitUnchecked, reason.ISOIncomplete},
		{"207", "west", true, reason.AdmitUnchecked, reason.ISOIncomplete},
		{"208", "west", true, reason.AdmitUnchecked, reason.NotISO},
		{"208", "east", true, reason.AdmitUnchecked, reason.NoCopy},
		{"999", "east", true, reason.AdmitUnchecked, reason.NoCopy},
		{"301", "west", false, reason.ArchiveMissing, ""},
		{server.URL + "/setup.iso", "west", false, reason.ArchiveMissing, ""},
		{server.URL + "/none.iso", "west", true, reason.AdmitUnchecked, reason.SourceMissing},
		{gone.URL + "/setup.iso", "west", true, reason.AdmitUnchecked, reason.SourceUnreachable},
		{"302", "west", true, reason.AdmitUnchecked, reason.SourceUnreachable},
		{filepath.Join(east, "template/tmpl/1/204/204-1-7c82b718-0c4f-3a35-a89e-a95d188dc81c.iso"), "", false, reason.ArchiveMissing, ""},
		{east, "", true, reason.AdmitUnchecked, reason.SourceUnsupported}, // a directory
		{"s3://bucket/setup.iso", "east", true, reason.AdmitUnchecked, reason.SourceUnsupported},
	} {
		d := admit.Decide(t.Context(), admit.Request{EtcdNodes: 1, ISO: tt.iso, Version: "v1", Zone: tt.zone}, again, time.Minute)
		if d.Allow != tt.allow || d.Code != tt.code || d.Cause != tt.cause {
			t.Errorf("%s in %s: %+v, want allow %v, code %s, cause %s", tt.iso, tt.zone, d, tt.allow, tt.code, tt.cause)
		}
	}
	if n := gets.Load() - requests; n > 5 {
		t.Errorf("%d requests to the server for ISOs that are known or not there", n)
	}

	// Row 4: an ISO that has changed is another one.
	register(t, west, "208", good)
	if d := admit.Decide(t.Context(), admit.Request{EtcdNodes: 1, ISO: "208", Zone: "west"}, again, time.Minute); d.Code != reason.Included {
		t.Errorf("the ISO was registered again: %+v", d)
	}
}

// TestRealConcurrent has a hundred requests at once look at one real ISO.
func TestRealConcurrent(t *testing.T) {
	root := t.TempDir()
	register(t, root, "204", imageOf(t, noEtcd))
	s, images, _ := onDisk(t, zoned(root+"=east"), filepath.Join(t.TempDir(), "answers.db"))
	var work sync.WaitGroup
	for range 100 {
		work.Go(func() {
			if d := admit.Decide(t.Context(), admit.Request{EtcdNodes: 1, ISO: "204", Zone: "east"}, s, time.Minute); d.Allow {
				t.Errorf("%+v, want it refused", d)
			}
		})
	}
	work.Wait()
	if images.opens.Load() != 1 {
		t.Errorf("the ISO was opened %d times, want once", images.opens.Load())
	}
}
