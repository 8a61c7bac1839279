package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"cks-etcd/internal/isofs/isotest"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

// writeISO writes a small image with one file of Kubernetes.
func writeISO(t *testing.T) string {
	t.Helper()
	img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", isotest.Dir("k8s", isotest.File("kubeadm", []byte("x"))))})
	b := make([]byte, img.Size())
	if _, err := img.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "plain.iso")
	if err := os.WriteFile(name, b, 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestISOCheckInterrupted: Ctrl-C prints and keeps what is known, and says what
// was not looked at.
func TestISOCheckInterrupted(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never says a word
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	iso, kept := writeISO(t), filepath.Join(t.TempDir(), "answers.db")
	ctx, interrupt := context.WithCancelCause(t.Context())
	var out, progress bytes.Buffer
	lines := &notify{w: &out, when: `"type":"iso"`, then: func() { interrupt(errors.New("interrupt signal received")) }}
	began := time.Now()
	err = run(ctx, []string{"etcd-fleet", "iso", "check", "--jobs", "2", "--answers", kept, "-o", "jsonl",
		"http://" + silent.Addr().String() + "/a.iso", iso}, streams{strings.NewReader(""), lines, &progress})
	if got := reason.Exit(err); got != reason.ExitInterrupted {
		t.Errorf("exit status %d, want %d: %v", got, reason.ExitInterrupted, err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v to end", took)
	}
	all := strings.Split(strings.TrimSpace(out.String()), "\n")
	var last report.ISOResultLine
	if err := json.Unmarshal([]byte(all[len(all)-1]), &last); err != nil {
		t.Fatalf("%v: %s", err, out.String())
	}
	if len(last.ISOs) != 1 || last.ISOs[0].Files[0].Value != report.ValueMissing || last.Waiting != 1 || last.Result != report.ResultInterrupted {
		t.Errorf("the report: %d ISOs, %d not looked at, %s: %s", len(last.ISOs), last.Waiting, last.Result, last.Summary)
	}

	// The answer was kept.
	out.Reset()
	if err := run(t.Context(), []string{"etcd-fleet", "iso", "list", "--answers", kept}, streams{strings.NewReader(""), &out, &progress}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), iso) {
		t.Errorf("the answer about %s was lost:\n%s", iso, out.String())
	}
}

// notify calls then once something that contains when was written.
type notify struct {
	w    *bytes.Buffer
	when string
	then func()
}

func (n *notify) Write(p []byte) (int, error) {
	if n.then != nil && bytes.Contains(p, []byte(n.when)) {
		n.then()
		n.then = nil
	}
	return n.w.Write(p)
}

// TestISOCheckURL: a presence check of a URL moves at most 64 KiB in at most 4
// requests, and the login in the URL is shown nowhere.
func TestISOCheckURL(t *testing.T) {
	iso := writeISO(t)
	old := time.Now().Add(-time.Hour) // a file of this second may change without another Last-Modified
	if err := os.Chtimes(iso, old, old); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if user, password, _ := r.BasicAuth(); user != "op" || password != "s3cret" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		http.ServeFile(w, r, iso)
	}))
	defer server.Close()
	var out, progress bytes.Buffer
	url := strings.Replace(server.URL, "http://", "http://op:s3cret@", 1) + "/plain.iso"
	err := run(t.Context(), []string{"etcd-fleet", "iso", "check", "--answers", filepath.Join(t.TempDir(), "a.db"), "-o", "json", url},
		streams{strings.NewReader(""), &out, &progress})
	if got := reason.Exit(err); got != reason.ExitNo {
		t.Errorf("exit status %d, want %d: %v\n%s", got, reason.ExitNo, err, out.String())
	}
	var r report.ISOReport
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if i := r.ISOs[0]; i.Requests > 4 || i.Bytes > 64<<10 || i.Requests != int(asked.Load()) || i.Key == "" {
		t.Errorf("%d requests (the server saw %d), %d bytes, identity %q", i.Requests, asked.Load(), i.Bytes, i.Key)
	}
	if strings.Contains(out.String()+progress.String(), "s3cret") {
		t.Errorf("the password is shown:\n%s%s", out.String(), progress.String())
	}
}
