package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/admit"
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
			&cli.IntFlag{Name: "etcd-nodes", Usage: "`N` etcd nodes asked for", Destination: &o.request.EtcdNodes, Required: true},
			&cli.StringFlag{Name: "iso", Usage: "`ISO` path, URL, template id or unique name", Destination: &o.request.ISO},
			&cli.StringFlag{Name: "version", Usage: "`NAME` of the Kubernetes version, for messages", Destination: &o.request.Version},
			&cli.StringFlag{Name: "zone", Usage: "`NAME` of the zone whose copy is read", Destination: &o.request.Zone, DefaultText: "any"},
			&cli.DurationFlag{Name: "wait", Usage: "`DURATION` a look may take; then allowed, unchecked", Value: admit.DefaultWait, DefaultText: "10s", Destination: &o.wait},
			&cli.StringFlag{Name: "config", Usage: "`FILE` of etcd-fleet watch, for its stores", Destination: &o.config, DefaultText: "in /etc/etcd-fleet", EnvVars: []string{"ETCD_FLEET_CONFIG"}},
			&cli.StringSliceFlag{Name: "store", Usage: "`[ZONE=]DIR` secondary storage; may be given again", DefaultText: "the configuration's"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT` text or json", Value: "text", DefaultText: "text", Destination: &o.output},
		}, sourceFlags(&o.source), answersFlags(&o.keep)),
		Action: func(c *cli.Context) error {
			o.stores = c.StringSlice("store")
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
	if err := o.check(); err != nil {
		return err
	}
	var d admit.Decision
	if o.request.EtcdNodes == 0 {
		// Nothing is opened for a cluster that needs no answer.
		d = admit.Decide(c.Context, o.request, nil, o.wait)
	} else {
		asker, done, err := o.asker(c, std)
		if err != nil {
			return err
		}
		d = admit.Decide(c.Context, o.request, asker, o.wait)
		done()
		if c.Context.Err() != nil && !d.Checked {
			return reason.New(reason.Interrupted, "%w", c.Context.Err())
		}
	}
	exit := reason.ExitYes
	if !d.Allow {
		exit = reason.ExitNo
	}
	var err error
	if o.output == "json" {
		e := json.NewEncoder(std.out)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		err = e.Encode(watch.Verdict(d))
	} else {
		_, err = fmt.Fprint(std.out, admissionText(d))
	}
	if err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return exitError(exit)
}

// asker returns who knows about ISOs: what is remembered, and the stores of the
// configuration. What cannot be had of that is no reason to refuse.
func (o *admitOptions) asker(c *cli.Context, std streams) (admit.Asker, func(), error) {
	warn := func(err error) { warnOn(std)(err.Error()) }
	var config scan.Config
	reach, err := o.source.options(c)
	if err != nil {
		return nil, nil, err
	}
	path := o.config
	if path == "" {
		path = defaultConfig
	}
	switch w, err := watch.ReadConfig(path); {
	case err == nil:
		config = w.Scan()
		if o.keep.path == "" {
			o.keep.path = w.Answers
		}
		if reach.CAFile == "" && len(reach.Headers) == 0 && reach.Netrc == "" {
			reach.CAFile, reach.Headers, reach.Netrc = w.HTTP.CA, w.HTTP.Headers, w.HTTP.Netrc
		}
	case o.config != "":
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
	opener, err := source.New(reach)
	if err != nil {
		return nil, nil, err
	}
	var memory scan.Answers
	kept, err := o.keep.open(c, warnOn(std))
	switch {
	case err == nil:
		memory = kept
	case o.keep.rebuild:
		opener.Close()
		return nil, nil, err
	default:
		warn(err)
	}
	o.request.ISO = localISO(o.request.ISO, len(config.Stores)+len(config.URLs) > 0)
	s := scan.New(config, memory, opener, nil)
	done := func() {
		if err := s.Close(); err != nil {
			warn(err)
		}
		opener.Close()
		if kept != nil {
			kept.Close()
		}
	}
	return s, done, nil
}

// localISO makes a path of a name without a slash that is a file here. A number
// is a template id where there are stores to have it.
func localISO(name string, stores bool) string {
	if strings.ContainsAny(name, "/:") {
		return name
	}
	if stores {
		if _, err := strconv.ParseUint(name, 10, 64); err == nil {
			return name
		}
		if info, err := os.Stat(name); err != nil || !info.Mode().IsRegular() {
			return name
		}
	}
	return where(name)
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
