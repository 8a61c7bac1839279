// Command etcd-nodeagent sets up etcd on a CloudStack etcd VM from the
// Kubernetes binaries ISO, or says in one line why it could not.
package main

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"cks-etcd/internal/reason"
)

// version is set by the linker.
var version = "dev"

func main() {
	// The kernel hands a signal to the first thread, even where that one hangs in
	// a read of a dead drive and another could take it. Kept to this goroutine, it
	// does not read drives.
	runtime.LockOSThread()
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
