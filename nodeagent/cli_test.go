package main

import (
	"context"
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"cks-etcd/internal/reason"
)

func TestMain(m *testing.M) {
	labInit()
	testscript.Main(m, map[string]func(){
		"etcd-nodeagent": func() {
			os.Exit(reason.Exit(run(context.Background(), os.Args, os.Stdout, os.Stderr)))
		},
	})
}

// TestScript runs the command line as a user would; each script says first
// what it is about.
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
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
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if err != nil {
		got = err.Error()
	}
	if want := "exit status " + args[0]; got != want && (args[0] != "0" || err != nil) {
		ts.Fatalf("got %s, want %s", got, want)
	}
}

// narrow wants standard output to fit a terminal of 80 columns.
func narrow(ts *testscript.TestScript, neg bool, args []string) {
	column := 0
	for _, r := range ts.ReadFile("stdout") {
		if column++; r == '\n' {
			column = 0
		} else if column > 80 {
			ts.Fatalf("a line of help is wider than 80 columns")
		}
	}
}
