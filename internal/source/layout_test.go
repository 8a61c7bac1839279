package source_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/source"
)

// tool skips the test without a program, and fails it where CI is set.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("%s is not installed", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return path
}

// cloudStackISO makes an image as create-kubernetes-binaries-iso.sh does, with
// so many container images. It returns its path; the archive has size bytes, or
// the image none if that is negative.
func cloudStackISO(t *testing.T, images, size int, args ...string) string {
	t.Helper()
	genisoimage := tool(t, "genisoimage")
	dir := filepath.Join(t.TempDir(), "iso")
	write := func(name string, b []byte) {
		t.Helper()
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{
		"cni/cni-plugins-amd64.tgz", "cri-tools/crictl-linux-amd64.tar.gz", "k8s/kubeadm", "k8s/kubelet", "k8s/kubectl",
		"kubelet.service", "10-kubeadm.conf", "network.yaml", "dashboard.yaml", "autoscaler.yaml", "provider.yaml", "manifest.yaml",
	} {
		write(name, bytes.Repeat([]byte(name), 10_000))
	}
	for i := range images {
		write(fmt.Sprintf("docker/registry.k8s.io_some-component-image-%d:v1.33.%d.tar", i, i), bytes.Repeat([]byte{byte(i)}, 20_000))
	}
	if size >= 0 {
		b := make([]byte, size)
		copy(b, "\x1f\x8b\x08\x00")
		write("etcd/etcd-linux-amd64.tar.gz", b)
	}
	out := filepath.Join(t.TempDir(), "setup.iso")
	args = append([]string{"-quiet", "-o", out}, append(args, dir)...)
	if b, err := exec.CommandContext(t.Context(), genisoimage, args...).CombinedOutput(); err != nil {
		t.Fatalf("genisoimage: %v\n%s", err, b)
	}
	return out
}

func newOpener(t *testing.T, o source.Options) *source.Opener {
	t.Helper()
	o.Netrc = "none"
	op, err := source.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(op.Close)
	return op
}

// TestPresenceCheckCost: 64 KiB and 4 requests, whether etcd is there or not.
func TestPresenceCheckCost(t *testing.T) {
	joliet, rock := []string{"-J", "-R", "-l"}, []string{"-R"}
	for _, test := range []struct {
		name   string
		images int
		size   int
		args   []string
	}{
		{"25 images", 25, 2 << 20, joliet},
		{"25 images, no etcd", 25, -1, joliet},
		{"300 images", 300, 2 << 20, joliet},
		{"300 images, no etcd", 300, -1, joliet},
		{"Rock Ridge alone", 25, 2 << 20, rock},
		{"Joliet alone", 25, 2 << 20, []string{"-J"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			iso := cloudStackISO(t, test.images, test.size, test.args...)
			server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(iso))))
			t.Cleanup(server.Close)
			for _, name := range []string{server.URL + "/setup.iso", iso} {
				s, err := newOpener(t, source.Options{}).Open(t.Context(), name)
				if err != nil {
					t.Fatal(err)
				}
				image, results := inspect.Check(t.Context(), s, s.Size(), inspect.Request{})
				if image.Err != nil || len(results) != 1 {
					t.Fatalf("got %+v and %d results", image, len(results))
				}
				if r := results[0]; test.size >= 0 && !r.Value.Yes() || test.size < 0 && !r.Value.No() {
					t.Errorf("got %s: %v", r.Value, r.Err)
				}
				got := s.Stats()
				t.Logf("%s: %d requests, %d bytes", name, got.Requests, got.Bytes)
				if got.Requests > 4 || got.Bytes > 64<<10 {
					t.Errorf("%s: got %d requests and %d bytes, want at most 4 and %d", name, got.Requests, got.Bytes, 64<<10)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// TestSequentialCost: reading 20 MB from the middle takes tens of requests, not
// thousands, and little that was not asked for.
func TestSequentialCost(t *testing.T) {
	const size, from = 24 << 20, 3<<20 + 2048
	name := filepath.Join(t.TempDir(), "setup.iso")
	if err := os.WriteFile(name, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(name, size); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.FileServer(http.Dir(filepath.Dir(name))))
	t.Cleanup(server.Close)
	s, err := newOpener(t, source.Options{}).Open(t.Context(), server.URL+"/setup.iso")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r := struct{ io.Reader }{io.NewSectionReader(s, from, 20<<20)}
	if n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, r, make([]byte, 4096)); n != 20<<20 || err != nil {
		t.Fatalf("read %d bytes, error %v", n, err)
	}
	if got := s.Stats(); got.Requests > 32 || got.Bytes > 22<<20 {
		t.Errorf("got %d requests and %d bytes", got.Requests, got.Bytes)
	}
}

// TestNginx reads from a real server, through real redirects and compression
// that is on for everything.
func TestNginx(t *testing.T) {
	nginx := tool(t, "nginx")
	iso := cloudStackISO(t, 25, 2<<20, "-J", "-R", "-l")
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(iso, old, old); err != nil {
		t.Fatal(err)
	}
	url, stop := startNginx(t, nginx, filepath.Dir(iso))
	defer stop()
	want, err := os.ReadFile(iso)
	if err != nil {
		t.Fatal(err)
	}
	o := newOpener(t, source.Options{})
	for _, at := range []string{"/setup.iso", "/moved/setup.iso", "/zipped/setup.iso", "/no-tag/setup.iso"} {
		s, err := o.Open(t.Context(), url+at)
		if err != nil {
			t.Errorf("%s: %v", at, err)
			continue
		}
		_, results := inspect.Check(t.Context(), s, s.Size(), inspect.Request{})
		if len(results) != 1 || !results[0].Value.Yes() {
			t.Errorf("%s: got %+v", at, results)
		}
		if got := s.Stats(); at == "/setup.iso" && (got.Requests > 4 || got.Bytes > 64<<10) {
			t.Errorf("%s: got %+v", at, got)
		}
		got, err := io.ReadAll(io.NewSectionReader(s, 0, s.Size()))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: got %d bytes and error %v, want %d", at, len(got), err, len(want))
		}
		id, err := o.Identify(t.Context(), url+at)
		if err != nil || id.Key() == "" || id != s.Identity() {
			t.Errorf("%s: Identify: got %+v and error %v, want %+v", at, id, err, s.Identity())
		}
		s.Close()
	}
	// Replaced by another file while it is read.
	s, err := o.Open(t.Context(), url+"/setup.iso")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.WriteFile(iso+"~", make([]byte, len(want)), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(iso+"~", iso); err != nil {
		t.Fatal(err)
	}
	_, err = s.ReadAt(make([]byte, 10), int64(len(want)-10))
	wantCode(t, err, "source-changed")
	now, err := o.Identify(t.Context(), url+"/setup.iso")
	if err != nil || now.Key() == s.Identity().Key() {
		t.Errorf("the other file has the key %q, error %v", now.Key(), err)
	}
	_, err = o.Open(t.Context(), url+"/no-ranges/setup.iso")
	wantCode(t, err, "source-no-ranges")
	_, err = o.Open(t.Context(), url+"/denied/setup.iso")
	wantCode(t, err, "source-denied")
	_, err = o.Open(t.Context(), url+"/absent.iso")
	wantCode(t, err, "source-missing")
}
