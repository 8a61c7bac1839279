package main

import (
	"context"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/media"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/setup"
	"cks-etcd/internal/unit"
)

func setupCommand(stderr io.Writer) *cli.Command {
	var cfg setup.Config
	var logFormat string
	return &cli.Command{
		Name:  "setup",
		Usage: "set up etcd from the ISO, or write the reason why not",
		Description: `Waits for the Kubernetes binaries ISO, verifies the etcd archive on it,
installs etcd into /opt/bin, enables and starts its unit, and ends once the
unit was seen active twice in a row. When that cannot be, the reason stands
in one line in /home/cloud/etcd-setup-failed. A node that is set up already
is left alone. Each step is one line on standard error.

Every flag can be set in the environment too: --iso-wait is
ETCD_NODEAGENT_ISO_WAIT, and so on.

Examples:
etcd-nodeagent setup
etcd-nodeagent setup --iso-wait 5m --log-format json

` + exitStatuses,
		Flags: []cli.Flag{
			&cli.DurationFlag{Name: "iso-wait", Usage: "`DURATION` how long to wait for the ISO to appear", Value: setup.DefaultISOWait, Destination: &cfg.ISOWait, DefaultText: "25m", EnvVars: env("iso-wait")},
			&cli.StringFlag{Name: "archive", Usage: "`PATH` etcd archive on the ISO", Value: setup.DefaultArchive, Destination: &cfg.Archive, EnvVars: env("archive"), DefaultText: setup.DefaultArchive},
			&cli.StringFlag{Name: "arch", Usage: "`GOARCH` architecture that the binaries must have", Value: runtime.GOARCH, Destination: &cfg.Arch, EnvVars: env("arch"), DefaultText: "this machine's"},
			&cli.StringFlag{Name: "sha256", Usage: "`HEX` SHA-256 that the archive must have", Destination: &cfg.SHA256, EnvVars: env("sha256"), DefaultText: "a sidecar's, if any"},
			&cli.StringFlag{Name: "unit", Usage: "`UNIT` systemd unit to enable and start", Value: setup.DefaultUnit, Destination: &cfg.Unit, EnvVars: env("unit"), DefaultText: setup.DefaultUnit},
			&cli.DurationFlag{Name: "start-timeout", Usage: "`DURATION` how long etcd may take to become and stay active", Value: setup.DefaultStartTimeout, Destination: &cfg.StartTimeout, EnvVars: env("start-timeout"), DefaultText: "5m"},
			&cli.StringFlag{Name: "bin-dir", Usage: "`DIR` where etcd, etcdctl and etcdutl go", Value: setup.DefaultBinDir, Destination: &cfg.BinDir, EnvVars: env("bin-dir"), DefaultText: setup.DefaultBinDir},
			&cli.StringFlag{Name: "marker", Usage: "`FILE` the one line of reason", Value: setup.DefaultMarker, Destination: &cfg.Marker, EnvVars: env("marker"), DefaultText: setup.DefaultMarker},
			&cli.StringFlag{Name: "state", Usage: "`FILE` machine-readable state", Value: setup.DefaultState, Destination: &cfg.State, EnvVars: env("state"), DefaultText: setup.DefaultState},
			&cli.StringFlag{Name: "lock", Usage: "`FILE` locked while a setup runs", Value: setup.DefaultLock, Destination: &cfg.Lock, EnvVars: env("lock"), DefaultText: setup.DefaultLock},
			&cli.StringFlag{Name: "log-format", Usage: "`FORMAT` log as text or json", Value: "text", Destination: &logFormat, EnvVars: env("log-format"), DefaultText: "text"},
		},
		Action: func(c *cli.Context) error {
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			log, err := newLog(stderr, logFormat)
			if err != nil {
				return err
			}
			// Who reads the log may end before the setup, a pager or cloud-init's tee;
			// the setup must not, without a word in the marker.
			signal.Ignore(syscall.SIGPIPE)
			cfg.Success = setup.DefaultSuccess
			cfg.Version = version
			if err := checkConfig(&cfg); err != nil {
				return err
			}
			if err := runSetup(c.Context, cfg, log); err != nil {
				return &cmdline.Told{Err: err}
			}
			return nil
		},
	}
}

// env returns the environment twin of a flag of setup.
func env(flag string) []string {
	return []string{"ETCD_NODEAGENT_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))}
}

// checkConfig refuses at once what would fail after the wait for the ISO.
func checkConfig(cfg *setup.Config) error {
	switch {
	case cfg.ISOWait < 0, cfg.StartTimeout <= 0:
		return reason.New(reason.Usage, "--iso-wait and --start-timeout cannot be negative, nor the latter 0")
	case cfg.SHA256 != "" && !isSHA256(cfg.SHA256):
		return reason.New(reason.Usage, "--sha256 %q is not 64 hexadecimal digits", cfg.SHA256)
	case cfg.Unit == "" || cfg.Arch == "":
		return reason.New(reason.Usage, "--unit and --arch cannot be empty")
	}
	cfg.Archive = strings.Trim(cfg.Archive, "/")
	if !fs.ValidPath(cfg.Archive) || cfg.Archive == "." {
		return reason.New(reason.Usage, "--archive %q is not a path on an ISO", cfg.Archive)
	}
	cfg.SHA256 = strings.ToLower(cfg.SHA256)
	if !strings.Contains(cfg.Unit, ".") {
		cfg.Unit += ".service"
	}
	if !serviceName.MatchString(cfg.Unit) {
		return reason.New(reason.Usage, "--unit %q is not the name of a service that can be started", cfg.Unit)
	}
	for _, p := range []struct{ flag, path string }{
		{"bin-dir", cfg.BinDir}, {"marker", cfg.Marker}, {"state", cfg.State}, {"lock", cfg.Lock},
	} {
		if !strings.HasPrefix(p.path, "/") {
			return reason.New(reason.Usage, "--%s %q is not an absolute path", p.flag, p.path)
		}
	}
	return nil
}

// serviceName matches the name of a service, an instance's included but not a
// template's (systemd.unit(5)).
var serviceName = regexp.MustCompile(`^[A-Za-z0-9:_.\\-]+(@[A-Za-z0-9:_.\\-][A-Za-z0-9:_.\\@-]*)?\.service$`)

func isSHA256(s string) bool {
	return len(s) == 64 && strings.Trim(strings.ToLower(s), "0123456789abcdef") == ""
}

// runSetup wires the real media, systemd and journal to a setup.
func runSetup(ctx context.Context, cfg setup.Config, log *slog.Logger) error {
	return setup.Run(ctx, cfg, setup.Env{
		Finder: media.New(media.Options{Archive: cfg.Archive, Log: log}),
		Connect: func(ctx context.Context) (setup.Bus, error) {
			b, err := unit.Connect(ctx)
			if err != nil {
				return nil, err
			}
			return b, nil
		},
		Journal:   unit.Journal,
		Preflight: unit.Preflight{}.Check,
		BootID:    bootID(),
		Log:       log,
	})
}

// bootID returns the kernel's id of this boot, or "" where there is none.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
