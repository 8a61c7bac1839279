package main

import (
	"context"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/strictyaml"
)

// streams are the program's standard streams.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

const exitStatuses = `Exit status:
0   every node is active
1   a node failed, or is not running etcd
2   wrong usage or configuration
3   the deadline passed with a node still undecided
4   a node could not be looked at, and none is a definite no
70  internal error
130 interrupted`

// run is the whole program but for signals and the exit. Errors have been
// printed when it returns.
func run(ctx context.Context, args []string, std streams) error {
	err := cmdline.Run(ctx, &cli.App{
		Name:    "etcd-fleet",
		Usage:   "ask about CloudStack's etcd nodes and the ISOs they start from",
		Version: version,
		Description: `Examples:
etcd-fleet nodes wait 203.0.113.10:50000 203.0.113.10:50001
etcd-fleet nodes status --inventory hosts.yaml -o json
etcd-fleet iso check setup-v1.33.1-x86_64.iso /mnt/secondary
etcd-fleet admit --etcd-nodes 3 --iso 203 --zone zone1 --version v1.33.1
etcd-fleet completion bash >/etc/bash_completion.d/etcd-fleet`,
		Commands: []*cli.Command{
			{
				Name:        "nodes",
				Usage:       "look at etcd nodes over SSH",
				Subcommands: []*cli.Command{waitCommand(std), statusCommand(std)},
			},
			isoCommand(std),
			admitCommand(std),
			watchCommand(std),
			completionCommand(std),
			cmdline.ManCommand(std.out, cmdline.Manual{
				Section: 1,
				Files: [][2]string{
					{defaultConfig, "Configuration of the daemon."},
					{"/var/lib/etcd-fleet/answers.db", "Answers that root and the daemon keep."},
				},
				SeeAlso: "etcd-nodeagent(8), ssh_config(5)",
			}),
		},
		EnableBashCompletion: true,
	}, args, std.out, std.err)
	fmt.Fprint(std.err, strictyaml.Detail(err)) // the place in a file that is at fault
	return err
}
