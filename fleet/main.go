// Command etcd-fleet looks at CloudStack's etcd nodes from outside: whether
// etcd is active on each of them, and if not, why. It also says whether the ISOs
// that they start from hold etcd, and refuses what cannot work.
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
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if len(os.Args) < 2 || os.Args[1] != "watch" { // a daemon has no terminal to lose; it reloads
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once
	err := run(ctx, os.Args, streams{os.Stdin, os.Stdout, os.Stderr})
	stop()
	os.Exit(reason.Exit(err))
}
