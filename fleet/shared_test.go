package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/isofs/isotest"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

// kubernetesISO is an image without etcd.
func kubernetesISO(t *testing.T, extra ...*isotest.Node) []byte {
	t.Helper()
	root := append([]*isotest.Node{isotest.Dir("k8s", isotest.File("kubeadm", []byte("x")))}, extra...)
	img := isotest.Build(t, isotest.Spec{RockRidge: true, Root: isotest.Dir("", root...)})
	b := make([]byte, img.Size())
	if _, err := img.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

// TestRow1AskAnISO: whether a file is on an ISO, the etcd archive or any other, by
// its Rock Ridge name.
func TestRow1AskAnISO(t *testing.T) {
	dir := t.TempDir()
	with, without := filepath.Join(dir, "with.iso"), filepath.Join(dir, "without.iso")
	archive := isotest.Dir("etcd", isotest.File("etcd-linux-amd64.tar.gz", []byte("\x1f\x8b\x08 and so on")))
	for name, b := range map[string][]byte{with: kubernetesISO(t, archive), without: kubernetesISO(t)} {
		if err := os.WriteFile(name, b, 0o444); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
		exit int
	}{
		{[]string{with}, report.ValueIncluded, reason.ExitYes},
		{[]string{without}, report.ValueMissing, reason.ExitNo},
		{[]string{"--file", "k8s/kubeadm", without}, report.ValueIncluded, reason.ExitYes},
		{[]string{"--file", "k8s/KUBEADM", without}, report.ValueMissing, reason.ExitNo}, // the name in ISO 9660 without Rock Ridge
		{[]string{"--file", "etcd/etcd-linux-arm64.tar.gz", with}, report.ValueMissing, reason.ExitNo},
	} {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"etcd-fleet", "iso", "check", "--no-remember", "-o", "json"}, tt.args...), streams{strings.NewReader(""), &out, io.Discard})
		var r report.ISOReport
		if err := json.Unmarshal(out.Bytes(), &r); err != nil {
			t.Fatalf("%v: %v: %s", tt.args, err, out.String())
		}
		if got := reason.Exit(err); got != tt.exit || len(r.ISOs) != 1 || r.ISOs[0].Files[0].Value != tt.want {
			t.Errorf("%v: exit status %d, want %d and %q: %s", tt.args, got, tt.exit, tt.want, out.String())
		}
	}
}

// TestSharedAnswers has the daemon, commands that check and forget ISOs, and requests
// use one file of answers at the same time, each in its own process: nobody fails for
// it, and no answer is lost.
func TestSharedAnswers(t *testing.T) {
	const isos = 8 // for the daemon, and as many for the commands
	dir := t.TempDir()
	image, past := kubernetesISO(t), time.Now().Add(-time.Hour)
	path := func(of string, n int) string { return filepath.Join(dir, of, fmt.Sprintf("%d.iso", n)) }
	for _, of := range []string{"watched", "checked"} {
		if err := os.Mkdir(filepath.Join(dir, of), 0o755); err != nil {
			t.Fatal(err)
		}
		for n := range isos {
			if err := os.WriteFile(path(of, n), image, 0o644); err != nil {
				t.Fatal(err)
			}
			if err := os.Chtimes(path(of, n), past, past); err != nil {
				t.Fatal(err)
			}
		}
	}
	kept, socket, config := filepath.Join(dir, "answers.db"), filepath.Join(dir, "w.sock"), filepath.Join(dir, "watch.yaml")
	text := fmt.Sprintf("stores: [{path: %s}]\nanswers: %s\nlisten: ['unix:%s']\n", filepath.Join(dir, "watched"), kept, socket)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	var log bytes.Buffer // read after the end of the daemon only
	daemon := exec.Command("etcd-fleet", "watch", "--config", config)
	daemon.Stderr = &log
	if err := daemon.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	t.Cleanup(func() {
		daemon.Process.Kill() // nothing if it has ended
		if t.Failed() {
			t.Logf("the daemon's log:\n%s", log.String())
		}
	})
	client := &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	get := func(target string) (int, string) {
		resp, err := client.Get("http://etcd-fleet" + target)
		if err != nil {
			return 0, err.Error()
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return 0, err.Error()
		}
		return resp.StatusCode, string(b)
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("not in time: " + what)
			}
		}
	}
	eventually("the first round", func() bool { code, _ := get("/readyz"); return code == 200 })

	// A command, and the exit statuses it may have.
	command := func(exits []int, args ...string) string {
		var out, said strings.Builder
		cmd := exec.Command("etcd-fleet", slices.Insert(slices.Clone(args), 2, "--answers", kept)...)
		cmd.Stdout, cmd.Stderr = &out, &said
		err := cmd.Run()
		if !slices.Contains(exits, cmd.ProcessState.ExitCode()) || strings.Contains(said.String(), "warning: ") {
			t.Errorf("%v: %v, want exit status of %v, and no warning\n%s", args, err, exits, said.String())
		}
		return out.String()
	}
	listed := func() map[string]bool {
		var r report.ISOReport
		if out := command([]int{0}, "iso", "list", "-o", "json"); json.Unmarshal([]byte(out), &r) != nil {
			t.Errorf("iso list: %s", out)
		}
		all := make(map[string]bool)
		for _, i := range r.ISOs {
			all[i.ISO] = i.Files[0].Value == report.ValueMissing
		}
		return all
	}

	var work sync.WaitGroup
	done := make(chan struct{})
	var rounds sync.WaitGroup
	rounds.Go(func() { // one after the other
		for {
			select {
			case <-done:
				return
			case <-time.After(20 * time.Millisecond):
				daemon.Process.Signal(syscall.SIGHUP)
			}
		}
	})
	for half := range 2 {
		work.Go(func() {
			for n := half; n < isos; n += 2 {
				command([]int{reason.ExitNo}, "iso", "check", "-q", path("checked", n))
			}
		})
	}
	work.Go(func() {
		for n := range isos {
			command([]int{reason.ExitYes, reason.ExitNo}, "iso", "forget", path("watched", n)) // no: not looked at again yet
		}
	})
	work.Go(func() {
		for n := range 3 * isos {
			if code, body := get("/api/v1/admit?etcd_nodes=3&iso=" + path("watched", n%isos)); code != 200 || !strings.Contains(body, `"code":"archive-missing"`) {
				t.Errorf("a request about an ISO without etcd: %d %s", code, body)
			}
		}
	})
	work.Wait()
	close(done)
	rounds.Wait()

	for n, all := 0, listed(); n < isos; n++ {
		if !all[path("checked", n)] {
			t.Errorf("the answer about %s was lost", path("checked", n))
		}
	}
	daemon.Process.Signal(syscall.SIGHUP)
	eventually("answers about what was forgotten", func() bool { return len(listed()) == 2*isos })
	daemon.Process.Signal(syscall.SIGTERM)
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("the daemon: %v", err)
		}
	case <-time.After(30 * time.Second):
		t.Fatal("the daemon does not end")
	}
	if got := listed(); len(got) != 2*isos {
		t.Errorf("%d answers after the end of the daemon, want %d: %v", len(got), 2*isos, got)
	}
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "level=WARN") || strings.Contains(line, "level=ERROR") {
			t.Errorf("the daemon: %s", line)
		}
	}
}
