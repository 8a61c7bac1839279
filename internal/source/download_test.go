package source

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cks-etcd/internal/reason"
)

func TestDownload(t *testing.T) {
	data := content(2<<20 + 5)
	whole := func(w http.ResponseWriter, r *http.Request, n int) {
		r.Header = http.Header{}
		ok(w, r, data, `"v1"`)
	}
	dir := t.TempDir()
	empty := func(t *testing.T) {
		t.Helper()
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left in the directory: %v, error %v", left, err)
		}
	}
	t.Run("whole", func(t *testing.T) {
		var last, total int64
		o := newOpener(t, Options{Download: true, TempDir: dir, Progress: func(_ string, n, of int64) { last, total = n, of }})
		url := serve(t, whole)
		s, err := o.Open(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		empty(t)
		sameContent(t, s, data)
		if last != int64(len(data)) || total != last {
			t.Errorf("progress ended with %d of %d", last, total)
		}
		if got := s.Stats(); got.Requests != 2 || got.Bytes != int64(len(data)) {
			t.Errorf("got %+v", got)
		}
		if id, err := o.Identify(t.Context(), url); err != nil || id.Key() != s.Identity().Key() || id.Key() == "" {
			t.Errorf("Identify: got %q and error %v, want %q", id.Key(), err, s.Identity().Key())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Run("breaks off once", func(t *testing.T) {
		o := newOpener(t, Options{Download: true, TempDir: dir})
		s, err := o.Open(t.Context(), serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 2 {
				hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nshort")
				return
			}
			whole(w, r, n)
		}))
		if err != nil {
			t.Fatal(err)
		}
		sameContent(t, s, data)
		s.Close()
	})
	t.Run("no length", func(t *testing.T) {
		o := newOpener(t, Options{Download: true, TempDir: dir})
		s, err := o.Open(t.Context(), serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			w.(http.Flusher).Flush()
			w.Write(data)
		}))
		if err != nil {
			t.Fatal(err)
		}
		sameContent(t, s, data)
		if key := s.Identity().Key(); key != "" {
			t.Errorf("got the key %q for what has no version", key)
		}
		s.Close()
	})
	for name, test := range map[string]struct {
		answer script
		want   reason.Code
	}{
		"too large": {func(w http.ResponseWriter, r *http.Request, n int) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n")
		}, reason.SourceBadAnswer},
		"stops": {func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Content-Length", "1000000")
			w.Write(data[:1000])
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, reason.SourceStalled},
		"breaks off always": {func(w http.ResponseWriter, r *http.Request, n int) {
			hijack(w, "HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\nshort")
		}, reason.SourceUnreachable},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newOpener(t, Options{Download: true, TempDir: dir, Timeout: 300 * time.Millisecond}).Open(t.Context(), serve(t, test.answer))
			wantCode(t, err, test.want)
		})
	}
	t.Run("nowhere to put it", func(t *testing.T) {
		_, err := newOpener(t, Options{Download: true, TempDir: filepath.Join(dir, "absent")}).Open(t.Context(), serve(t, whole))
		wantCode(t, err, reason.DownloadUnwritable)
	})
	t.Run("not needed", func(t *testing.T) {
		s, err := newOpener(t, Options{Download: true, TempDir: filepath.Join(dir, "absent")}).Open(t.Context(),
			serve(t, func(w http.ResponseWriter, r *http.Request, n int) { ok(w, r, data, `"v1"`) }))
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Stats(); got.Requests != 1 {
			t.Errorf("got %+v", got)
		}
		s.Close()
	})
	empty(t)
}
