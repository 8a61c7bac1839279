package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/inventory"
	"cks-etcd/internal/poll"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/sshnode"
	"cks-etcd/internal/term"
)

// Defaults of flags.
const (
	defaultTimeout        = 10 * time.Minute // cloud.kubernetes.etcd.node.setup.timeout
	defaultClusterTimeout = time.Hour        // cloud.kubernetes.cluster.start.timeout
)

// nodesOptions are the flags of the nodes commands.
type nodesOptions struct {
	args []string // hosts, "-" for standard input

	inventory, cluster string
	user, jump         string
	keys               []string
	agent              bool
	hostKeys           string
	knownHosts, config string
	unit               string
	dials              int
	output             string
	quiet, verbose     bool

	once                    bool // status
	timeout, clusterTimeout time.Duration
	startedAt               string
	checks                  int
	interval, bootGrace     time.Duration
	failFast                bool
	health                  healthOptions
}

func (o *nodesOptions) command() string {
	if o.once {
		return "nodes status"
	}
	return "nodes wait"
}

func waitCommand(std streams) *cli.Command {
	o := new(nodesOptions)
	return &cli.Command{
		Name:      "wait",
		Usage:     "wait until etcd was seen active twice on every node",
		ArgsUsage: "HOST...",
		Description: `Looks at all nodes side by side until each has a verdict: active on two
checks in a row within one life of the service, or the reason why not. A HOST
is [user@]name[:port], a node set such as etcd[1-3].example, a name of
ssh_config, or - for a list on standard input.

Examples:
etcd-fleet nodes wait 203.0.113.10:50000 203.0.113.10:50001
etcd-fleet nodes wait --health --timeout 5m 'etcd[1-3].example'
etcd-fleet nodes wait --inventory hosts.yaml --cluster prod -o jsonl

` + exitStatuses,
		Flags: slices.Concat([]cli.Flag{
			&cli.DurationFlag{Name: "timeout", Usage: "`DURATION` how long the nodes may take, 0 for ever", Value: defaultTimeout, DefaultText: "10m", Destination: &o.timeout},
			&cli.StringFlag{Name: "started-at", Usage: "`TIME` when the cluster's start began (RFC 3339 or seconds)", Destination: &o.startedAt, DefaultText: "not known"},
			&cli.DurationFlag{Name: "cluster-timeout", Usage: "`DURATION` the cluster's start timeout, from --started-at on", Value: defaultClusterTimeout, DefaultText: "1h", Destination: &o.clusterTimeout},
			&cli.IntFlag{Name: "checks", Usage: "`N` checks in a row that must find etcd active", Value: 2, DefaultText: "2", Destination: &o.checks},
			&cli.DurationFlag{Name: "interval", Usage: "`DURATION` between two looks at a node", Value: poll.DefaultInterval, DefaultText: "6s", Destination: &o.interval},
			&cli.DurationFlag{Name: "boot-grace", Usage: "`DURATION` in which a booting node may change its host key", Destination: &o.bootGrace, DefaultText: "0s"},
			&cli.BoolFlag{Name: "fail-fast", Usage: "stop at the first node that failed", Destination: &o.failFast},
		}, healthFlags(&o.health), commonFlags(o)),
		Action: o.action(std),
	}
}

func statusCommand(std streams) *cli.Command {
	o := &nodesOptions{once: true}
	return &cli.Command{
		Name:      "status",
		Usage:     "look at every node once",
		ArgsUsage: "HOST...",
		Description: `Takes one look at each node. One look cannot tell a service that runs from
one that keeps restarting; 'nodes wait' can.

Examples:
etcd-fleet nodes status etcd1.example etcd2.example
etcd-fleet nodes status --inventory hosts.yaml -o json

` + exitStatuses,
		Flags: slices.Concat([]cli.Flag{
			&cli.DurationFlag{Name: "timeout", Usage: "`DURATION` how long the look may take, 0 for ever", Value: 30 * time.Second, DefaultText: "30s", Destination: &o.timeout},
		}, healthFlags(&o.health), commonFlags(o)),
		Action: o.action(std),
	}
}

func commonFlags(o *nodesOptions) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "inventory", Usage: "`FILE` YAML with hosts; see docs/inventory.md", Destination: &o.inventory, DefaultText: "none"},
		&cli.StringFlag{Name: "cluster", Usage: "`NAME` cluster of the inventory", Destination: &o.cluster, DefaultText: "all"},
		&cli.StringFlag{Name: "user", Aliases: []string{"l"}, Usage: "`NAME` login name", Destination: &o.user, DefaultText: "ssh_config's, or " + sshnode.DefaultUser},
		&cli.StringSliceFlag{Name: "identity", Aliases: []string{"i"}, Usage: "`FILE` private key; may be given again", DefaultText: "ssh_config's, or ~/.ssh/id_*"},
		&cli.StringFlag{Name: "jump", Aliases: []string{"J"}, Usage: "`HOSTS` jump hosts, [user@]host[:port],...", Destination: &o.jump, DefaultText: "ssh_config's"},
		&cli.BoolFlag{Name: "agent", Usage: "ask the SSH agent for keys, too", Destination: &o.agent},
		&cli.StringFlag{Name: "host-keys", Usage: "`POLICY` accept-new, strict or off", Value: sshnode.AcceptNew.String(), DefaultText: sshnode.AcceptNew.String(), Destination: &o.hostKeys},
		&cli.StringFlag{Name: "known-hosts", Usage: "`FILE` new host keys", Destination: &o.knownHosts, DefaultText: "etcd-fleet/known_hosts in XDG_STATE_HOME"},
		&cli.StringFlag{Name: "ssh-config", Usage: "`FILE` ssh_config to use, or none", Destination: &o.config, DefaultText: "~/.ssh/config"},
		&cli.StringFlag{Name: "unit", Usage: "`UNIT` systemd unit of etcd", Value: sshnode.DefaultUnit, DefaultText: sshnode.DefaultUnit, Destination: &o.unit},
		&cli.IntFlag{Name: "dials", Usage: "`N` connections made at the same time", Value: poll.DefaultDials, DefaultText: fmt.Sprint(poll.DefaultDials), Destination: &o.dials},
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` table, json, jsonl or junit", Value: "table", DefaultText: "table", Destination: &o.output},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "no progress", Destination: &o.quiet},
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "say more about connections", Destination: &o.verbose},
	}
}

func (o *nodesOptions) action(std streams) cli.ActionFunc {
	return func(c *cli.Context) error {
		o.args = c.Args().Slice()
		o.keys = c.StringSlice("identity")
		if !slices.Contains(formats, o.output) {
			return reason.New(reason.Usage, "--output %q is none of %s", o.output, strings.Join(formats, ", "))
		}
		began := time.Now()
		err := needs(c)
		if err == nil {
			err = runNodes(c.Context, *o, std)
		}
		var told *cmdline.Told
		if err != nil && !errors.As(err, &told) && reason.Of(err) != reason.OutputUnwritable && o.output != "table" {
			// A program that reads the report gets one however the run ended.
			r := report.Report{Command: o.command(), Exit: reason.Exit(err), Started: began, Ended: time.Now(),
				Problem: &report.Problem{Code: reason.Of(err), Message: err.Error(), Hint: reason.HintOf(err)}}
			if werr := write(std.out, o.output, nil, report.Complete(r, inventory.FoldNames)); werr != nil {
				return errors.Join(err, werr)
			}
		}
		return err
	}
}

// needs refuses flags that would do nothing without another one.
func needs(c *cli.Context) error {
	for _, f := range []struct{ flag, other string }{
		{"cluster-timeout", "started-at"}, {"health-port", "health"}, {"health-members", "health"},
	} {
		if c.IsSet(f.flag) && !c.IsSet(f.other) {
			return reason.New(reason.Usage, "--%s needs --%s", f.flag, f.other)
		}
	}
	return nil
}

// runNodes looks at the nodes and reports. Its error, where it is not about
// the call itself, has been told by the report.
func runNodes(ctx context.Context, o nodesOptions, std streams) error {
	policy, err := sshnode.ParseHostKeyPolicy(o.hostKeys)
	if err != nil {
		return reason.New(reason.Usage, "--host-keys: %w", err)
	}
	if err := o.check(); err != nil {
		return err
	}
	startedAt, err := parseTime(o.startedAt)
	if err != nil {
		return err
	}
	asker, err := o.health.asker()
	if err != nil {
		return err
	}
	hosts, warnings, err := o.hosts(ctx, std.in)
	if err != nil {
		return err
	}

	now := time.Now()
	deadline, why := poll.Deadline(now, startedAt, o.timeout, o.clusterTimeout)
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name
	}
	out := newOutput(std, o.output, o.quiet, term.Options{Noun: "etcd nodes", Deadline: deadline}, names)
	for _, w := range warnings {
		out.warn(w)
	}
	level := slog.LevelWarn
	if o.verbose {
		level = slog.LevelDebug
	}
	asking, stopAsking := context.WithCancel(ctx)
	defer stopAsking()
	dialer, err := sshnode.New(sshnode.Options{
		HostKeys: policy, KnownHosts: o.knownHosts, ConfigFile: o.config, KeyFiles: o.keys, Agent: o.agent,
		Passphrase: out.passphrase(asking, std), Unit: o.unit,
		Log: slog.New(&noteHandler{out: out, level: level}),
	})
	if err != nil {
		out.abandon()
		return err
	}
	defer dialer.Close()

	nodes := make([]poll.Node, len(hosts))
	ssh := make([]*sshnode.Node, len(hosts))
	for i, h := range hosts {
		ssh[i] = dialer.Node(h)
		nodes[i] = poll.Node{Name: h.Name, Member: h.Member, Prober: ssh[i]}
	}
	verdicts := poll.Run(ctx, nodes, poll.Options{
		Checks: o.checks, Interval: o.interval, BootGrace: o.bootGrace, Deadline: deadline, Why: why,
		Dials: o.dials, FailFast: o.failFast, Once: o.once,
	}, func(e poll.Event) { out.event(eventOf(e)) })

	r := report.Report{Command: o.command(), Started: now, DeadlineBy: why}
	if !deadline.IsZero() {
		r.Deadline = &deadline
	}
	var exits []int
	for i, v := range verdicts {
		// What --fail-fast stopped before the deadline says nothing of a deadline;
		// the node that stopped it has a status of its own.
		if stopped := o.failFast && v.Code == reason.Undecided && (deadline.IsZero() || v.Ended.Before(deadline)); !stopped {
			exits = append(exits, reason.Lookup(v.Code).Exit)
		}
		r.Nodes = append(r.Nodes, resultOf(v, hosts[i], ssh[i].Stats()))
	}
	if asker != nil && ctx.Err() == nil {
		asker.once = o.once
		r.Health, r.Warnings = asker.ask(ctx, now, deadline, hosts, ssh, verdicts)
		exits = append(exits, reason.Lookup(r.Health.Code).Exit)
	}
	if ctx.Err() != nil {
		exits = append(exits, reason.ExitInterrupted)
		r.Problem = &report.Problem{Code: reason.Interrupted, Message: context.Cause(ctx).Error()}
	}
	r.Ended = time.Now()
	r.Exit = reason.Worst(exits...)
	stopAsking() // for a passphrase that nobody needs any more
	if err := out.finish(r); err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return exitError(r.Exit)
}

// check refuses what would only fail later, or quietly mean something else.
func (o *nodesOptions) check() error {
	for _, a := range o.args {
		if strings.HasPrefix(a, "-") && a != "-" {
			return reason.New(reason.Usage, "%q stands after a host; flags go before the hosts", a)
		}
	}
	switch {
	case o.timeout < 0 || o.clusterTimeout < 0 || o.interval < 0 || o.bootGrace < 0:
		return reason.New(reason.Usage, "a duration cannot be negative")
	case !o.once && o.interval == 0:
		return reason.New(reason.Usage, "--interval cannot be 0")
	case !o.once && o.checks < 1:
		return reason.New(reason.Usage, "--checks %d is below 1", o.checks)
	case o.dials < 1:
		return reason.New(reason.Usage, "--dials %d is below 1", o.dials)
	case o.cluster != "" && o.inventory == "":
		return reason.New(reason.Usage, "--cluster %q needs --inventory", o.cluster)
	}
	return nil
}

// hosts lists what the arguments, standard input and the inventory name.
func (o *nodesOptions) hosts(ctx context.Context, in io.Reader) ([]inventory.Host, []string, error) {
	var lists [][]inventory.Host
	for _, a := range o.args {
		var list []inventory.Host
		var err error
		if a == "-" {
			list, err = readList(ctx, in)
		} else {
			list, err = inventory.ParseArg(a)
		}
		if err != nil {
			return nil, nil, err
		}
		lists = append(lists, list)
	}
	if o.inventory != "" {
		inv, err := inventory.ReadFile(o.inventory)
		if err != nil {
			return nil, nil, err
		}
		list, err := inv.Hosts(o.cluster)
		if err != nil {
			return nil, nil, err
		}
		lists = append(lists, list)
	}
	for _, list := range lists {
		for i, h := range list {
			list[i] = h.WithDefaults(inventory.Host{User: o.user, Jump: o.jump})
		}
	}
	hosts, warnings := inventory.Merge(lists...)
	if len(hosts) == 0 {
		return nil, nil, reason.New(reason.NoNodes, "there is nothing to look at")
	}
	return hosts, warnings, nil
}

// readList reads the hosts on standard input, which may be a terminal: a
// read that does not end is left behind when ctx ends.
func readList(ctx context.Context, in io.Reader) ([]inventory.Host, error) {
	hosts, err := await(ctx, func() ([]inventory.Host, error) { return inventory.ReadList(in) })
	if ctx.Err() != nil && err == context.Cause(ctx) {
		return nil, reason.New(reason.Interrupted, "reading the list of hosts: %w", err)
	}
	return hosts, err
}

// await runs f, and leaves it behind with ctx's cause when ctx ends first.
func await[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	c := make(chan result, 1)
	go func() {
		v, err := f()
		c <- result{v, err}
	}()
	select {
	case r := <-c:
		return r.v, r.err
	case <-ctx.Done():
		var zero T
		return zero, context.Cause(ctx)
	}
}

// parseTime reads --started-at: RFC 3339, CloudStack's form of it (a zone
// without a colon), or seconds since 1970.
func parseTime(s string) (time.Time, error) {
	if s == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02T15:04:05-0700"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, nil
		}
	}
	var seconds int64
	if _, err := fmt.Sscanf(s, "%d", &seconds); err == nil && fmt.Sprint(seconds) == s && seconds > 0 {
		return time.Unix(seconds, 0), nil
	}
	return time.Time{}, reason.New(reason.Usage, "--started-at %q is neither RFC 3339 (2026-01-02T15:04:05Z) nor seconds since 1970", s)
}

// exitError is the error that makes the program exit with status, which the
// report has told.
func exitError(status int) error {
	code := map[int]reason.Code{
		reason.ExitYes: reason.Ready, reason.ExitNo: reason.UnitFailed, reason.ExitUsage: reason.Usage,
		reason.ExitDeadline: reason.Undecided, reason.ExitUnknown: reason.ProbeUnreadable, reason.ExitInterrupted: reason.Interrupted,
	}
	c, ok := code[status]
	switch {
	case !ok:
		c = reason.Internal
	case c == reason.Ready:
		return nil
	}
	return &cmdline.Told{Err: &reason.Error{Code: c}}
}
