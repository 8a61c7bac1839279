// Command etcd-nodeagent sets up etcd on a CloudStack etcd VM from the
// Kubernetes binaries ISO, or says in one line why it could not.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"cks-etcd/internal/reason"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), endSignals()...)
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(reason.Exit(err))
}

// endSignals are those that end a setup early. What the caller made us ignore,
// as nohup(1) does, stays ignored: asking for a signal would undo that.
func endSignals() []os.Signal {
	signals := []os.Signal{syscall.SIGTERM}
	for _, s := range []os.Signal{syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(s) {
			signals = append(signals, s)
		}
	}
	return signals
}
