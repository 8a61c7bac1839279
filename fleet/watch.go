package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/watch"
)

// defaultConfig is the configuration that the package installs.
const defaultConfig = "/etc/etcd-fleet/watch.yaml"

func watchCommand(std streams) *cli.Command {
	var config, format string
	var verbose, check, rebuild bool
	return &cli.Command{
		Name:  "watch",
		Usage: "look at new ISOs in the background, and answer requests",
		Description: `A daemon: looks at the ISOs of the configured stores and URLs that have no
answer yet, every few minutes, and serves what it knows: /healthz, /readyz,
/metrics, /api/v1/isos and /api/v1/admit. SIGHUP reads the configuration
again. docs/watch.md describes the configuration and the API.

Examples:
etcd-fleet watch --config watch.yaml
etcd-fleet watch --config watch.yaml --check

` + statuses("0   stopped by a signal, or --check found nothing wrong", 2, 4),
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "config", Usage: "`FILE` configuration", Value: defaultConfig, DefaultText: defaultConfig, Destination: &config, EnvVars: []string{"ETCD_FLEET_CONFIG"}},
			&cli.BoolFlag{Name: "check", Usage: "read the configuration and its files, say what is wrong, and end", Destination: &check},
			&cli.BoolFlag{Name: "rebuild", Usage: "set a damaged file of answers aside and begin anew", Destination: &rebuild},
			&cli.StringFlag{Name: "log-format", Usage: "`FORMAT` text or json", Value: "text", DefaultText: "text", Destination: &format},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "log every request and every look", Destination: &verbose},
		},
		Action: func(c *cli.Context) error {
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			level := slog.LevelInfo
			if verbose {
				level = slog.LevelDebug
			}
			var h slog.Handler
			switch format {
			case "text":
				h = slog.NewTextHandler(std.err, &slog.HandlerOptions{Level: level, ReplaceAttr: noTimeUnderJournal(os.Getenv)})
			case "json":
				h = slog.NewJSONHandler(std.err, &slog.HandlerOptions{Level: level})
			default:
				return reason.New(reason.Usage, "--log-format %q is neither text nor json", format)
			}
			hangup := make(chan os.Signal, 1)
			o := watch.Options{ConfigPath: config, Log: slog.New(h), Hangup: hangup, Version: version, Rebuild: rebuild}
			if check {
				return checkWatch(o, std)
			}
			signal.Notify(hangup, syscall.SIGHUP)
			defer signal.Stop(hangup)
			return watch.Run(c.Context, o)
		},
	}
}

// checkWatch says whether the daemon would take the configuration, and what it
// would look at.
func checkWatch(o watch.Options, std streams) error {
	if err := watch.Check(o); err != nil {
		return err
	}
	c, err := watch.ReadConfig(o.ConfigPath)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(std.out, "%s can be used: stores: %d, URLs: %d\n", o.ConfigPath, len(c.Stores), len(c.URLs)); err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return nil
}

// noTimeUnderJournal leaves the time out where the journal puts its own.
func noTimeUnderJournal(getenv func(string) string) func([]string, slog.Attr) slog.Attr {
	if getenv("JOURNAL_STREAM") == "" {
		return nil
	}
	return func(groups []string, a slog.Attr) slog.Attr {
		if len(groups) == 0 && a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}
}
