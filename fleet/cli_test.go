package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cks-etcd/internal/archive/archivetest"
)

func TestMain(m *testing.M) {
	labInit()
	testscript.Main(m, map[string]func(){"etcd-fleet": main})
}

// TestScript runs the command line as a user would; each script says first
// what it is about.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Setup: func(env *testscript.Env) error {
			return os.WriteFile(filepath.Join(env.WorkDir, "release.tar.gz"), archivetest.Archive("3.5.21", "amd64"), 0o644)
		},
		Condition: func(name string) (bool, error) {
			if name != "images" {
				return false, fmt.Errorf("unknown condition %q", name)
			}
			_, err := exec.LookPath("genisoimage")
			return err == nil || os.Getenv("CI") != "", nil // CI must not skip
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": exitStatus,
			"narrow": narrow,
		},
	})
}

// exitStatus runs a command and wants the given exit status: "status 3 cmd...".
func exitStatus(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N command...")
	}
	got := "exit status 0"
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		got = err.Error()
	}
	if want := "exit status " + args[0]; got != want {
		ts.Fatalf("got %s, want %s", got, want)
	}
}

// narrow wants standard output to fit a terminal of 80 columns.
func narrow(ts *testscript.TestScript, neg bool, args []string) {
	for i, line := range strings.Split(ts.ReadFile("stdout"), "\n") {
		if len([]rune(line)) > 80 {
			ts.Fatalf("line %d of help is wider than 80 columns: %s", i+1, line)
		}
	}
}
