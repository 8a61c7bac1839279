package main

import (
	"context"
	"io"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
)

const exitStatuses = `Exit status:
0   etcd is set up: installed, enabled, and seen active twice in a row
1   setup failed for a definite reason
2   wrong usage
3   a deadline passed: no ISO came, or etcd did not get active in time
4   could not tell: the medium or systemd could not be read
70  internal error
130 interrupted`

// run is the whole program but for signals and the exit. Errors have been
// printed when it returns.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	return cmdline.Run(ctx, &cli.App{
		Name:        "etcd-nodeagent",
		Usage:       "set up etcd on this node from the Kubernetes ISO",
		Version:     version,
		Description: "Run 'etcd-nodeagent help setup' for what a setup does and its flags.",
		Commands:    []*cli.Command{setupCommand(stderr), statusCommand(stdout)},
	}, args, stdout, stderr)
}
