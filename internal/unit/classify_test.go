package unit

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cks-etcd/internal/reason"
)

// TestClassifyRecorded reads what real etcd 3.4 and 3.6 wrote when each fault was
// provoked. The first line of a file is what must be found.
func TestClassifyRecorded(t *testing.T) {
	files, err := filepath.Glob("testdata/journal/*.txt")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
			want, ok := strings.CutPrefix(lines[0], "want: ")
			if !ok {
				t.Fatalf("no want in %q", lines[0])
			}
			code, said, found := Classify(lines[1:])
			if !found {
				code = "none"
			}
			if string(code) != want {
				t.Errorf("got %s (%s), want %s", code, said, want)
			}
			if found && (said == "" || said != reason.Line(said) || strings.Contains(said, "stacktrace")) {
				t.Errorf("not a line for people: %q", said)
			}
		})
	}
}

func TestClassify(t *testing.T) {
	tests := []struct {
		name string
		line string
		want reason.Code // "" for none
		said string
	}{
		{"B53 without a zap logger", "2020-05-21 10:00:00.000000 C | etcdmain: cannot access data directory: mkdir etcd1.etcd: permission denied", reason.DataDirDenied,
			"etcdmain: cannot access data directory: mkdir etcd1.etcd: permission denied"},
		{"B54", "flag provided but not defined: -enable-v2", reason.FlagRemoved, "flag provided but not defined: -enable-v2"},
		{"B56 before 3.5", "etcd on unsupported platform without ETCD_UNSUPPORTED_ARCH=arm64 set", reason.UnsupportedArch, ""},
		{"B56 since 3.5", `{"level":"error","caller":"etcdmain/etcd.go:277","msg":"Refusing to run etcd on unsupported architecture since ETCD_UNSUPPORTED_ARCH is not set","arch":"riscv64"}`, reason.UnsupportedArch, ""},
		{"B56 allowed", `{"level":"warn","msg":"running etcd on unsupported architecture since ETCD_UNSUPPORTED_ARCH is set","arch":"arm64"}`, "", ""},
		{"B104", `{"level":"warn","caller":"wal/wal.go:147","msg":"failed to preallocate an initial WAL file","path":"/n.etcd/member/wal.tmp/0.wal","segment-bytes":64000000,"error":"no space left on device"}`,
			reason.NoSpace, "failed to preallocate an initial WAL file /n.etcd/member/wal.tmp/0.wal: no space left on device"},
		{"B105", `{"level":"fatal","msg":"failed to open WAL","error":"open /n.etcd/member/wal: structure needs cleaning"}`, reason.DataDamaged, ""},
		{"WAL checksum", `{"level":"fatal","msg":"failed to read WAL, cannot be repaired","error":"walpb: crc mismatch"}`, reason.DataDamaged, "failed to read WAL, cannot be repaired: walpb: crc mismatch"},
		{"WAL that is repaired", `{"level":"warn","msg":"failed to repair","error":"walpb: crc mismatch"}`, "", ""},
		{"raft log lost", `panic: tocommit(107) is out of range [lastIndex(84)]. Was the raft log corrupted, truncated, or lost?`, reason.DataDamaged, ""},
		{"removed member", `{"level":"error","msg":"etcd server stopped","error":"the member has been permanently removed from the cluster"}`, reason.StaleData, ""},
		{"a WAL of another user", `{"level":"fatal","msg":"failed to open WAL","error":"open /n.etcd/member/wal/0.wal: permission denied"}`, reason.DataDirDenied, ""},
		{"mode of the directory is only a warning", `{"level":"warn","msg":"check file permission","error":"directory \"/n.etcd\" exist, but the permission is \"drwxr-xr-x\". The recommended permission is \"-rwx------\""}`, "", ""},
		{"flags repeated at level info", `{"level":"info","msg":"Running: ","args":["etcd","--name","no space left on device"]}`, "", ""},
		{"a record cut off", `{"level":"fatal","msg":"discovery failed","error":"listen tcp 10.0.0.1:2380: bind: address already in use","stacktr`, reason.PortInUse, ""},
		{"systemd's words are not etcd's", "etcd.service: Failed at step EXEC spawning /opt/bin/etcd: Permission denied", "", ""},
		{"no text", "", "", ""},
		{"not quite JSON", "{", "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			code, said, ok := Classify([]string{"something else", tt.line, `{"level":"info","msg":"closed etcd server"}`})
			if code != tt.want || ok != (tt.want != "") || tt.said != "" && said != tt.said {
				t.Errorf("got %q %q, want %q %q", code, said, tt.want, tt.said)
			}
		})
	}
}

func TestClassifyOrder(t *testing.T) {
	space := "panic: create wal error: no space left on device"
	port := "2026-12-01 21:49:58.225531 C | etcdmain: listen tcp 127.0.0.1:2380: bind: address already in use"
	peers := "2026-12-01 21:50:14.084262 E | rafthttp: request cluster ID mismatch (got a72fa321839b0b61 want 1690a20eda0a66b)"
	for _, tt := range []struct {
		lines []string
		want  reason.Code
	}{
		{[]string{space, port}, reason.PortInUse},    // the latest
		{[]string{port, peers}, reason.PortInUse},    // what ends etcd before what does not
		{[]string{peers, "usage"}, reason.StaleData}, // but if there is nothing else
	} {
		if got, said, _ := Classify(tt.lines); got != tt.want {
			t.Errorf("%q: got %s (%s), want %s", tt.lines, got, said, tt.want)
		}
	}
}

func TestLastError(t *testing.T) {
	got := LastError([]string{"etcd.service: Failed at step EXEC spawning /opt/bin/etcd: No such file or directory", "etcd.service: Main process exited, code=exited, status=203/EXEC"})
	if want := "etcd.service: Failed at step EXEC spawning /opt/bin/etcd: No such file or directory"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	stopped := `{"level":"error","msg":"setting up serving from embedded etcd failed.","error":"accept tcp 127.0.0.1:2380: use of closed network connection"}`
	lines := []string{`{"level":"info","msg":"x"}`, "usage", stopped}
	for _, s := range []string{"http: Server closed", "mux: server closed"} { // 3.6, as the race falls
		lines = append(lines, `{"level":"error","msg":"setting up serving from embedded etcd failed.","error":"`+s+`"}`)
	}
	if got := LastError(lines); got != "" {
		t.Errorf("got %q, want nothing", got)
	}
}

func FuzzClassify(f *testing.F) {
	files, _ := filepath.Glob("testdata/journal/*.txt")
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add(" | \n | C\n{\"error\":{}}\n{\"level\":1}")
	f.Fuzz(func(t *testing.T, s string) {
		code, said, ok := Classify(strings.Split(s, "\n"))
		if ok != reason.Known(code) || said != reason.Line(said) {
			t.Errorf("got %q, %q, %v", code, said, ok)
		}
	})
}
