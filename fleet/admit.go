package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/answers"
	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
	"cks-etcd/internal/source"
	"cks-etcd/internal/watch"
)

type admitOptions struct {
	request admit.Request
	wait    time.Duration
	config  string
	given   bool // --etcd-nodes
	stores  []string
	output  string
	source  sourceOptions
	keep    answersOptions
}

func admitCommand(std streams) *cli.Command {
	o := new(admitOptions)
	return &cli.Command{
		Name:  "admit",
		Usage: "decide whether a cluster with etcd nodes may be created",
		Description: `Refuses a request only where it certainly cannot work: its ISO is known to
hold no etcd archive, or one that is of no use. An answer that is remembered
decides; without one the ISO is looked at, in the copy of the zone. Where
nobody can tell, the request is allowed, and that is said.

Examples:
etcd-fleet admit --etcd-nodes 3 --iso setup-v1.33.1-x86_64.iso
etcd-fleet admit --etcd-nodes 3 --iso 203 --zone zone1 --version v1.33.1
etcd-fleet admit --etcd-nodes 3 --iso 203 --store zone1=/mnt/sec -o json

` + statuses("0   allowed\n1   refused", reason.ExitUsage),
		Flags: slices.Concat([]cli.Flag{
			&cli.IntFlag{Name: "etcd-nodes", Usage: "`N` etcd nodes asked for", Destination: &o.request.EtcdNodes, DefaultText: "none, it must be given"},
			&cli.StringFlag{Name: "iso", Usage: "`ISO` path, URL, template id or unique name", Destination: &o.request.ISO},
			&cli.StringFlag{Name: "version", Usage: "`NAME` of the Kubernetes version, for messages", Destination: &o.request.Version},
			&cli.StringFlag{Name: "zone", Usage: "`NAME` of the zone whose copy is read", Destination: &o.request.Zone, DefaultText: "any"},
			&cli.DurationFlag{Name: "wait", Usage: "`DURATION` all of it may take; then allowed, unchecked", Value: admit.DefaultWait, DefaultText: "10s", Destination: &o.wait},
			&cli.StringFlag{Name: "config", Usage: "`FILE` of etcd-fleet watch, for its stores", Destination: &o.config, DefaultText: "in /etc/etcd-fleet", EnvVars: []string{"ETCD_FLEET_CONFIG"}},
			&cli.StringSliceFlag{Name: "store", Usage: "`[ZONE=]DIR` secondary storage; may be given again", DefaultText: "the configuration's"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` text or json", Value: "text", DefaultText: "text", Destination: &o.output},
		}, sourceFlags(&o.source), answersFlags(&o.keep)),
		Action: func(c *cli.Context) error {
			o.given, o.stores = c.IsSet("etcd-nodes"), c.StringSlice("store")
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			return runAdmit(c, *o, std)
		},
	}
}

func (o *admitOptions) check() error {
	switch {
	case o.output != "text" && o.output != "json":
		return reason.New(reason.Usage, "--output %q is neither text nor json", o.output)
	case !o.given:
		return reason.New(reason.Usage, "--etcd-nodes is needed: the number of etcd nodes of the cluster, 0 for none")
	case o.request.EtcdNodes < 0:
		return reason.New(reason.Usage, "--etcd-nodes %d is below 0", o.request.EtcdNodes)
	case o.request.EtcdNodes > 0 && o.request.ISO == "":
		return reason.New(reason.Usage, "--iso is needed when there are etcd nodes")
	case o.wait <= 0:
		return reason.New(reason.Usage, "--wait must be above 0")
	}
	return nil
}

func runAdmit(c *cli.Context, o admitOptions, std streams) error {
	began := time.Now()
	if err := o.check(); err != nil {
		return err
	}
	warn := warnOn(std)
	ctx, cancel := context.WithTimeoutCause(c.Context, o.wait, reason.New(reason.SourceStalled, "it took longer than %s", o.wait))
	defer cancel()
	var d admit.Decision
	done := func() error { return nil }
	if o.request.EtcdNodes == 0 {
		// Nothing is opened for a cluster that needs no answer.
		d = admit.Decide(ctx, o.request, nil, o.wait)
	} else {
		asker, finish, err := o.asker(ctx, c, std)
		switch {
		case err == nil:
			d, done = admit.Decide(ctx, o.request, asker, o.wait), finish
		case ctx.Err() == nil:
			return err
		default:
			warn(err.Error())
			d = admit.Unchecked(o.request, err)
		}
		if c.Context.Err() != nil && !d.Checked {
			return reason.New(reason.Interrupted, "%w", c.Context.Err())
		}
	}
	d.Took = time.Since(began)
	err := writeDecision(std.out, o.output, d)
	// The answer is kept in what is left of the time; where there is none, there is
	// nothing to close that the end of the program does not.
	_, kept := await(ctx, func() (struct{}, error) { return struct{}{}, done() })
	if kept != nil && d.Checked {
		warn(fmt.Sprintf("the answer may not have been kept: %v", kept))
	}
	switch {
	case err != nil:
		return reason.New(reason.OutputUnwritable, "%w", err)
	case !d.Allow:
		return exitError(reason.ExitNo)
	}
	return nil
}

func writeDecision(w io.Writer, format string, d admit.Decision) error {
	if format != "json" {
		_, err := io.WriteString(w, admissionText(d))
		return err
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(watch.Verdict(d))
}

// asker returns who knows about ISOs: what is remembered, and the stores of the
// configuration. What cannot be had of that is no reason to refuse. All that it
// opens may be on a file system that hangs, so it gives up with ctx.
func (o *admitOptions) asker(ctx context.Context, c *cli.Context, std streams) (admit.Asker, func() error, error) {
	warn := func(err error) { warnOn(std)(err.Error()) }
	reach, err := o.source.options(c)
	if err != nil {
		return nil, nil, err
	}
	path := o.config
	if path == "" {
		path = defaultConfig
	}
	var config scan.Config
	w, err := inTime(ctx, "reading "+path, func() (watch.Config, error) { return watch.ReadConfig(path) })
	switch {
	case err == nil:
		config = w.Scan()
		if o.keep.path == "" {
			o.keep.path = w.Answers
		}
		if reach.CAFile == "" && len(reach.Headers) == 0 && reach.Netrc == "" {
			reach.CAFile, reach.Headers, reach.Netrc = w.HTTP.CA, w.HTTP.Headers, w.HTTP.Netrc
		}
	case o.config != "", ctx.Err() != nil:
		return nil, nil, err
	case !errors.Is(err, fs.ErrNotExist):
		warn(err)
	}
	if len(o.stores) > 0 {
		config.Stores = nil
	}
	for _, s := range o.stores {
		zone, dir, ok := strings.Cut(s, "=")
		if !ok {
			zone, dir = "", s
		}
		if dir == "" {
			return nil, nil, reason.New(reason.Usage, "--store %q names no directory", s)
		}
		config.Stores = append(config.Stores, scan.Store{Path: where(dir), Zone: zone})
	}
	named, stores := o.request.ISO, len(config.Stores)+len(config.URLs) > 0
	iso, err := inTime(ctx, "looking for "+source.Redact(named), func() (string, error) { return localISO(named, stores), nil })
	if err != nil {
		return nil, nil, err
	}
	o.request.ISO = iso
	opener, err := inTime(ctx, "reading the CA and netrc files", func() (*source.Opener, error) { return source.New(reach) })
	if err != nil {
		return nil, nil, err
	}
	// Half of the time is left for a look without what is remembered.
	half, cancel := context.WithTimeoutCause(ctx, o.wait/2, reason.New(reason.AnswersBusy, "no answer within %s", o.wait/2))
	defer cancel()
	var memory scan.Answers
	opening := "opening the answers"
	if o.keep.path != "" {
		opening += " in " + o.keep.path
	}
	kept, err := inTime(half, opening, func() (*answers.Store, error) { return o.keep.open(half, warnOn(std)) })
	switch {
	case err == nil:
		memory = kept
	case o.keep.rebuild, ctx.Err() != nil:
		opener.Close()
		return nil, nil, err
	default:
		warn(err)
	}
	s := scan.New(config, memory, opener, nil)
	finish := func() error {
		err := s.Close()
		opener.Close()
		if memory != nil {
			err = errors.Join(err, kept.Close())
		}
		return err
	}
	return s, finish, nil
}

// inTime runs f, and leaves it behind when ctx ends first. The error is then what
// ended ctx, with what f was doing.
func inTime[T any](ctx context.Context, doing string, f func() (T, error)) (T, error) {
	v, err := await(ctx, f)
	if ctx.Err() != nil && err == context.Cause(ctx) {
		err = reason.Ended(ctx, "%s", doing)
	}
	return v, err
}

// localISO makes a path of a name without a slash that is a file here. A number
// is a template id where there are stores to have it.
func localISO(name string, stores bool) string {
	if strings.ContainsAny(name, "/:") {
		return name
	}
	if _, err := strconv.ParseUint(name, 10, 64); err == nil && stores {
		return name
	}
	if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() || !stores && strings.HasSuffix(name, ".iso") {
		return where(name)
	}
	return name
}

// admissionText is a decision for people: what, and why; a hint below it.
func admissionText(d admit.Decision) string {
	word := "allowed"
	switch {
	case !d.Allow:
		word = "refused"
	case d.Code == reason.AdmitUnchecked:
		word = "allowed, unchecked"
	}
	text := word + ": " + reason.Line(strings.TrimPrefix(d.Message, word+": ")) + "\n"
	if d.Hint != "" && d.Code != reason.Included && d.Code != reason.NotAsked {
		text += "hint: " + reason.Line(d.Hint) + "\n"
	}
	return text
}
