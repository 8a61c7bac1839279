package source_test

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"cks-etcd/internal/reason"
)

func wantCode(t *testing.T, err error, want reason.Code) {
	t.Helper()
	if got := reason.Of(err); err == nil || got != want {
		t.Errorf("got error %v (%s), want the code %s", err, got, want)
	}
}

// nginxConf serves a directory in several ways. gzip is on for all types in one
// of them; nginx must not use it for ranges.
const nginxConf = `
daemon off;
master_process off;
pid %[1]s/pid;
error_log %[1]s/error.log;
events {}
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	server {
		listen %[2]s;
		root %[3]s;
		location /moved/ { rewrite ^/moved/(.*)$ /$1 redirect; }
		location /zipped/ { alias %[3]s/; gzip on; gzip_types *; gzip_min_length 1; gzip_http_version 1.0; gzip_proxied any; }
		location /no-tag/ { alias %[3]s/; etag off; }
		location /no-ranges/ { alias %[3]s/; max_ranges 0; }
		location /denied/ { deny all; }
	}
}
`

// startNginx serves dir on a free port of loopback.
func startNginx(t *testing.T, nginx, dir string) (url string, stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	run := t.TempDir()
	conf := filepath.Join(run, "nginx.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, nginxConf, run, addr, dir), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(nginx, "-p", run, "-c", conf, "-e", filepath.Join(run, "error.log"))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = func() {
		cmd.Process.Signal(syscall.SIGTERM)
		cmd.Wait()
	}
	for range 200 {
		resp, err := http.Get("http://" + addr + "/absent")
		if err == nil {
			resp.Body.Close()
			return "http://" + addr, stop
		}
		time.Sleep(25 * time.Millisecond)
	}
	stop()
	log, _ := os.ReadFile(filepath.Join(run, "error.log"))
	t.Fatalf("nginx does not answer\n%s", log)
	return "", nil
}
