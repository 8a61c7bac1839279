// Command etcd-fleet looks at CloudStack's etcd nodes from outside: whether
// etcd is active on each of them, and if not, why.
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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args, streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(reason.Exit(err))
}
