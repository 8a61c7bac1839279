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
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	err := run(ctx, os.Args, os.Stdout, os.Stderr)
	stop()
	os.Exit(reason.Exit(err))
}
