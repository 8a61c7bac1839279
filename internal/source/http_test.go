package source

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"cks-etcd/internal/reason"
)

var past = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)

// A script answers the n-th request, counted from 1.
type script func(w http.ResponseWriter, r *http.Request, n int)

// serve runs a server with a script, and returns the URL of an image on it.
func serve(t *testing.T, answer script) string {
	t.Helper()
	var mu sync.Mutex
	n := 0
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n++
		i := n
		mu.Unlock()
		answer(w, r, i)
	}))
	t.Cleanup(s.Close)
	return s.URL + "/setup.iso"
}

// ok answers as a good server does.
func ok(w http.ResponseWriter, r *http.Request, data []byte, tag string) {
	if tag != "" {
		w.Header().Set("ETag", tag)
	}
	http.ServeContent(w, r, "setup.iso", past, bytes.NewReader(data))
}

// part answers with some bytes of a range, under the headers given.
func part(w http.ResponseWriter, b []byte, contentRange string, headers ...string) {
	w.Header().Set("Content-Range", contentRange)
	for i := 0; i < len(headers); i += 2 {
		w.Header().Set(headers[i], headers[i+1])
	}
	w.WriteHeader(http.StatusPartialContent)
	w.Write(b)
}

// hijack answers with raw bytes, and closes the connection.
func hijack(w http.ResponseWriter, raw string) {
	c, _, err := w.(http.Hijacker).Hijack()
	if err != nil {
		return
	}
	io.WriteString(c, raw)
	c.Close()
}

func TestURL(t *testing.T) {
	for _, size := range []int{0, 1, 2048, headStart, headStart + 1, headEnd, 3<<20 + 77} {
		data := content(size)
		for _, tag := range []string{`"v1"`, `W/"v1"`, ""} {
			url := serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
				if r.Header.Get("Accept-Encoding") != "identity" || r.Header.Get("Range") == "" {
					t.Errorf("a request has the headers %v", r.Header)
				}
				ok(w, r, data, tag)
			})
			o := newOpener(t, Options{})
			s, err := o.Open(t.Context(), url)
			if err != nil {
				t.Fatalf("%d bytes, tag %s: %v", size, tag, err)
			}
			sameContent(t, s, data)
			id, err := o.Identify(t.Context(), url)
			if err != nil || id != s.Identity() {
				t.Errorf("Identify: got %+v and error %v, want %+v", id, err, s.Identity())
			}
			if size > 0 && (id.Key() == "" || id.ETag != tag || id.LastModified == "") {
				t.Errorf("got the identity %+v with the key %q", id, id.Key())
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestAnswers: what servers do wrong, and what is said of it. The first request
// is answered well unless the script says otherwise.
func TestAnswers(t *testing.T) {
	data := content(1 << 20)
	second := func(answer func(w http.ResponseWriter, r *http.Request)) script {
		return func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 1 {
				ok(w, r, data, `"v1"`)
				return
			}
			answer(w, r)
		}
	}
	first := func(answer func(w http.ResponseWriter, r *http.Request)) script {
		return func(w http.ResponseWriter, r *http.Request, n int) { answer(w, r) }
	}
	status := func(code int, headers ...string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
		}
	}
	always := func(b []byte, contentRange string, headers ...string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) { part(w, b, contentRange, headers...) }
	}
	raw := func(s string) func(w http.ResponseWriter, r *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) { hijack(w, s) }
	}
	head := data[headStart:headEnd]
	const headRange = "bytes 32768-65535/1048576"

	tests := []struct {
		name   string
		answer script
		want   reason.Code
	}{
		{"ignores ranges", first(func(w http.ResponseWriter, r *http.Request) { w.Write(data) }), reason.SourceNoRanges},
		{"200 to a later range", second(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			ok(w, r, data, `"v1"`)
		}), reason.SourceNoRanges},
		{"200 with another version", second(func(w http.ResponseWriter, r *http.Request) {
			r.Header = http.Header{}
			ok(w, r, data, `"v2"`)
		}), reason.SourceChanged},
		{"file replaced", second(func(w http.ResponseWriter, r *http.Request) { ok(w, r, data, `"v2"`) }), reason.SourceChanged},
		{"file replaced, precondition ignored", second(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Match")
			ok(w, r, data, `"v2"`)
		}), reason.SourceChanged},
		{"file grown", second(func(w http.ResponseWriter, r *http.Request) { ok(w, r, content(2<<20), `"v1"`) }), reason.SourceChanged},
		{"file cut", second(func(w http.ResponseWriter, r *http.Request) { ok(w, r, data[:100_000], `"v1"`) }), reason.SourceChanged},
		{"file gone", second(status(404)), reason.SourceMissing},
		{"tag lost", second(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("If-Match")
			ok(w, r, data, "")
		}), reason.SourceChanged},

		{"no Content-Range", first(status(206, "ETag", `"v1"`)), reason.SourceBadAnswer},
		{"Content-Range of another place", first(always(head, "bytes 0-32767/1048576")), reason.SourceBadAnswer},
		{"Content-Range of more", first(always(append(head, 0), "bytes 32768-65536/1048576")), reason.SourceBadAnswer},
		{"Content-Range without length", first(always(head, "bytes 32768-65535/*")), reason.SourceBadAnswer},
		{"Content-Range negative", first(always(head, "bytes 32768-65535/-1")), reason.SourceBadAnswer},
		{"Content-Range overflows", first(always(head, "bytes 32768-65535/18446744073709551617")), reason.SourceBadAnswer},
		{"Content-Range backwards", first(always(head, "bytes 65535-32768/1048576")), reason.SourceBadAnswer},
		{"Content-Range of other units", first(always(head, "lines 32768-65535/1048576")), reason.SourceBadAnswer},
		{"two Content-Range", first(raw("HTTP/1.1 206 Partial Content\r\nContent-Length: 32768\r\nContent-Range: " + headRange +
			"\r\nContent-Range: bytes 0-32767/1048576\r\n\r\n" + string(head))), reason.SourceBadAnswer},
		{"Content-Length of less", first(always(head[:100], headRange)), reason.SourceBadAnswer},
		{"multipart", first(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "multipart/byteranges; boundary=x")
			w.WriteHeader(206)
		}), reason.SourceBadAnswer},
		{"gzip", first(func(w http.ResponseWriter, r *http.Request) {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			z.Write(head)
			z.Close()
			part(w, b.Bytes(), headRange, "Content-Encoding", "gzip")
		}), reason.SourceBadAnswer},
		{"gzip of the whole", first(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(data)
		}), reason.SourceBadAnswer},
		{"endless body", first(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Range", headRange)
			w.WriteHeader(206)
			for r.Context().Err() == nil {
				if _, err := w.Write(head); err != nil {
					return
				}
			}
		}), reason.SourceBadAnswer},
		{"huge headers", first(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X", strings.Repeat("x", 2*maxHeader))
			ok(w, r, data, `"v1"`)
		}), reason.SourceBadAnswer},
		{"negative Content-Length", first(raw("HTTP/1.1 206 Partial Content\r\nContent-Length: -5\r\n\r\n")), reason.SourceBadAnswer},
		{"not HTTP", first(raw("SSH-2.0-OpenSSH_9\r\n")), reason.SourceBadAnswer},
		{"closes at once", first(raw("")), reason.SourceUnreachable},
		{"closes early, always", first(raw("HTTP/1.1 206 Partial Content\r\nContent-Length: 32768\r\nContent-Range: " + headRange + "\r\n\r\n")), reason.SourceUnreachable},

		{"401", first(status(401)), reason.SourceDenied},
		{"403", first(status(403)), reason.SourceDenied},
		{"404", first(status(404)), reason.SourceMissing},
		{"410", first(status(410)), reason.SourceMissing},
		{"400", first(status(400)), reason.SourceBadAnswer},
		{"204", first(status(204)), reason.SourceBadAnswer},
		{"304", first(status(304)), reason.SourceBadAnswer},
		{"416 without a length", first(status(416)), reason.SourceBadAnswer},
		{"500, always", first(status(500)), reason.SourceUnreachable},
		{"501", first(status(501)), reason.SourceUnreachable},
		{"503, come back in an hour", first(status(503, "Retry-After", "3600")), reason.SourceUnreachable},
		{"429, come back in an hour", first(status(429, "Retry-After", "3600")), reason.SourceUnreachable},

		{"redirects in a circle", first(status(302, "Location", "/setup.iso")), reason.SourceBadAnswer},
		{"redirect to nowhere", first(status(302)), reason.SourceBadAnswer},
		{"redirect to a file", first(status(302, "Location", "file:///etc/passwd")), reason.SourceBadAnswer},
		{"redirect to FTP", first(status(307, "Location", "ftp://127.0.0.1/x")), reason.SourceBadAnswer},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			// Far beyond what tries and pauses take: some fifty of these run at once.
			const timeout = 60 * time.Second
			o := newOpener(t, Options{Timeout: timeout})
			start := time.Now()
			s, err := o.Open(t.Context(), serve(t, test.answer))
			if err == nil {
				p := make([]byte, 4096)
				var n int
				n, err = s.ReadAt(p, 500_000)
				if err == nil && !bytes.Equal(p, data[500_000:504_096]) {
					t.Error("other bytes")
				}
				if err != nil && n > 0 {
					t.Errorf("got %d bytes with the error", n)
				}
				s.Close()
			}
			wantCode(t, err, test.want)
			if d := time.Since(start); d > timeout/2 { // waited for nothing
				t.Errorf("it took %v to say so", d)
			}
		})
	}
}

// TestTransient: what goes away by itself is waited for, and no byte is lost.
func TestTransient(t *testing.T) {
	data := content(1 << 20)
	tests := map[string]script{
		"503 twice": func(w http.ResponseWriter, r *http.Request, n int) {
			if n%3 != 0 {
				w.WriteHeader(503)
				return
			}
			ok(w, r, data, `"v1"`)
		},
		"429 with Retry-After": func(w http.ResponseWriter, r *http.Request, n int) {
			if n == 2 {
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(429)
				return
			}
			ok(w, r, data, `"v1"`)
		},
		"closes before the answer": func(w http.ResponseWriter, r *http.Request, n int) {
			if n%2 == 1 {
				hijack(w, "")
				return
			}
			ok(w, r, data, `"v1"`)
		},
		"closes in the middle of each body": func(w http.ResponseWriter, r *http.Request, n int) {
			var first, last int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
			last = min(last, len(data)-1)
			half := data[first : first+(last-first)/2+1]
			hijack(w, fmt.Sprintf("HTTP/1.1 206 Partial Content\r\nETag: \"v1\"\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/%d\r\n\r\n%s",
				last-first+1, first, last, len(data), half))
		},
		"answers with less than was asked for": func(w http.ResponseWriter, r *http.Request, n int) {
			var first, last int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
			last = min(last, first+(last-first)/4+1000, len(data)-1)
			part(w, data[first:last+1], fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)), "ETag", `"v1"`)
		},
		"says that it is not encoded": func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Content-Encoding", "identity")
			ok(w, r, data, `"v1"`)
		},
		"stops in the middle once": func(w http.ResponseWriter, r *http.Request, n int) {
			if n != 2 {
				ok(w, r, data, `"v1"`)
				return
			}
			var first, last int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &first, &last)
			w.Header().Set("Content-Length", strconv.Itoa(last-first+1))
			part(w, data[first:first+10], fmt.Sprintf("bytes %d-%d/%d", first, last, len(data)), "ETag", `"v1"`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := newOpener(t, Options{Timeout: 12 * time.Second}).Open(t.Context(), serve(t, answer))
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			p := make([]byte, 300_000)
			if _, err := s.ReadAt(p, 200_000); err != nil || !bytes.Equal(p, data[200_000:500_000]) {
				t.Errorf("got error %v, or other bytes", err)
			}
		})
	}
}

func TestServerStalls(t *testing.T) {
	data := content(1 << 20)
	const stallLimit = 20 * time.Second // below the default timeout, far beyond 1 s on a busy machine
	for name, answer := range map[string]script{
		"no answer": func(w http.ResponseWriter, r *http.Request, n int) { <-r.Context().Done() },
		"no body": func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Content-Length", "32768")
			part(w, nil, "bytes 32768-65535/1048576")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
		"one byte at a time": func(w http.ResponseWriter, r *http.Request, n int) {
			w.Header().Set("Content-Length", "32768")
			part(w, nil, "bytes 32768-65535/1048576")
			for r.Context().Err() == nil {
				w.Write(data[:1])
				w.(http.Flusher).Flush()
				select {
				case <-r.Context().Done():
				case <-time.After(20 * time.Millisecond):
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			_, err := newOpener(t, Options{Timeout: time.Second}).Open(t.Context(), serve(t, answer))
			wantCode(t, err, reason.SourceStalled)
			if d := time.Since(start); d > stallLimit {
				t.Errorf("it took %v", d)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		start := time.Now()
		_, err := newOpener(t, Options{}).Open(ctx, serve(t, func(w http.ResponseWriter, r *http.Request, n int) {
			cancel()
			<-r.Context().Done()
		}))
		wantCode(t, err, reason.Interrupted)
		if d := time.Since(start); d > stallLimit || !errors.Is(err, context.Canceled) {
			t.Errorf("got %v after %v", err, d)
		}
	})
}

func TestUnreachable(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	_, err = newOpener(t, Options{}).Open(t.Context(), "http://u:secret@"+l.Addr().String()+"/setup.iso")
	wantCode(t, err, reason.SourceUnreachable)
	if strings.Contains(err.Error(), "secret") {
		t.Errorf("the error shows the password: %v", err)
	}
}
