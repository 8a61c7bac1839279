//go:build lab && linux

// Command demo shows what etcd-nodeagent and etcd-fleet do, on real systemd hosts of this machine: three of them get a Kubernetes
// ISO with etcd after they have started and become a cluster; a fourth gets one without etcd and says so. Everything it
// makes is gone when it ends, also when it fails or is interrupted. Its exit status is 0 only if all went as promised.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"cks-etcd/internal/lab"
	"cks-etcd/internal/reason"
)

func main() {
	lab.Init()
	var programs programs
	flag.StringVar(&programs.agent, "agent", "", "the etcd-nodeagent program; without it one is built")
	flag.StringVar(&programs.fleet, "fleet", "", "the etcd-fleet program; without it one is built")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintln(os.Stderr, "usage: demo [-agent FILE] [-fleet FILE]")
		os.Exit(reason.ExitUsage)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once; the kernel then cleans up after it
	err := run(ctx, &printer{out: os.Stdout}, programs)
	switch {
	case err == nil:
		return
	case ctx.Err() != nil:
		fmt.Fprintln(os.Stderr, "demo: interrupted; cleaned up")
		if !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "demo:", err)
		}
		os.Exit(reason.ExitInterrupted)
	default:
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		os.Exit(reason.ExitNo)
	}
}
