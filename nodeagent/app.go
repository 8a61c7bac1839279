package main

import (
	"context"
	"io"
	"os"

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
		Commands: []*cli.Command{
			setupCommand(stderr), statusCommand(stdout), failedCommand(stdout, os.Getenv),
			cmdline.ManCommand(stdout, manual),
		},
	}, args, stdout, stderr)
}

// manual is what the manual page says beyond the help texts.
var manual = cmdline.Manual{
	Section: 8,
	Files: [][2]string{
		{"/home/cloud/etcd-setup-failed", "The marker: exactly one line, the reason why etcd is not set up."},
		{"/home/cloud/success", "Where it exists the node was set up by other means, and nothing is done."},
		{"/var/lib/etcd-nodeagent/state.json", "The same for machines: code, hint, steps with their times, what was seen."},
		{"/var/lib/etcd-nodeagent/ready", "The service made etcd ready; it is not started again."},
		{"/etc/default/etcd-nodeagent", "Environment of the service: ETCD_NODEAGENT_ISO_WAIT=5m, and so on."},
		{"/run/etcd-nodeagent.env", "Environment of the service in this boot, written by cloud-init; asks for a setup."},
		{"/run/etcd-nodeagent.lock", "Locked while a setup runs."},
	},
	SeeAlso: "etcd-fleet(1), systemctl(1), journalctl(1), cloud-init(1)",
}
