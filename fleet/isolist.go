package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

type isoListOptions struct {
	all    bool
	zone   string
	output string
	keep   answersOptions
}

func isoListCommand(std streams) *cli.Command {
	o := new(isoListOptions)
	return &cli.Command{
		Name:  "list",
		Usage: "list the answers that are remembered",
		Description: `Reads no ISO. In JSON, supportsetcd is true, false, or null for not known.

Examples:
etcd-fleet iso list
etcd-fleet iso list --zone zone1 -o json

` + statuses("0   the answers were listed", 2, 4),
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "show ISOs without Kubernetes, too", Destination: &o.all},
			&cli.StringFlag{Name: "zone", Usage: "`NAME` of the zone of the copy that was read", Destination: &o.zone, DefaultText: "any"},
			outputFlag(&o.output),
		}, answersFlags(&o.keep)),
		Action: func(c *cli.Context) error {
			if err := cmdline.NoArgs(c); err != nil {
				return err
			}
			if err := checkFormat(o.output); err != nil {
				return err
			}
			began := time.Now()
			return isoProblem(std, o.output, "iso list", began, runISOList(c, *o, std, began))
		},
	}
}

func runISOList(c *cli.Context, o isoListOptions, std streams, began time.Time) error {
	s, err := o.keep.open(c.Context, warnOn(std))
	if err != nil {
		return err
	}
	defer s.Close()
	known, failed, err := s.All(c.Context)
	if err != nil {
		return err
	}
	r := report.ISOReport{Command: "iso list", Started: began}
	type isoKey struct{ key, from string }
	at := map[isoKey]int{} // index in r.ISOs
	slices.SortFunc(known, func(a, b answers.Answer) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.File, b.File)) })
	for _, a := range known {
		switch {
		case o.zone != "" && a.Zone != o.zone, a.Rules != inspect.Rules:
		case !a.Kubernetes && !a.Value.Yes() && !o.all:
			r.LeftOut++
		default:
			i, seen := at[isoKey{a.Key, a.From}]
			if !seen {
				i = len(r.ISOs)
				at[isoKey{a.Key, a.From}] = i
				r.ISOs = append(r.ISOs, ofAnswer(a))
				continue
			}
			r.ISOs[i].Files = append(r.ISOs[i].Files, recalled(a))
		}
	}
	for _, f := range failed {
		if o.zone == "" || f.Zone == o.zone {
			r.ISOs = append(r.ISOs, ofFailure(f))
		}
	}
	slices.SortStableFunc(r.ISOs, func(a, b report.ISOResult) int { return cmp.Compare(a.ISO, b.ISO) })
	r.Ended = time.Now()
	if err := writeISOs(std.out, o.output, nil, report.CompleteISO(r)); err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return nil
}

// ofAnswer is a remembered answer as the report has it.
func ofAnswer(a answers.Answer) report.ISOResult {
	r := report.ISOResult{ISO: a.From, Name: a.Name, Template: a.Template, Zone: a.Zone, Kubernetes: &a.Kubernetes, VolumeID: a.VolumeID,
		Names: a.Names, Digest: a.Digest, Key: a.Key, Started: a.At, Ended: a.At, Files: []report.FileResult{recalled(a)}}
	if a.Size >= 0 {
		r.Size = &a.Size
	}
	return r
}

// ofFailure is what kept an ISO from being looked at, as the report has it.
func ofFailure(f answers.Failure) report.ISOResult {
	note := "tried once, "
	if f.Count > 1 {
		note = fmt.Sprintf("tried %d times, last ", f.Count)
	}
	note += f.At.Local().Format("2006-01-02 15:04")
	if f.Next.IsZero() {
		note += "; left alone until it changes or somebody asks"
	}
	return report.ISOResult{ISO: f.From, Name: f.Name, Template: f.Template, Zone: f.Zone, Key: f.Key, Started: f.First, Ended: f.At,
		Files: []report.FileResult{{File: f.File, Value: report.ValueUnknown, Code: f.Code, Message: f.Message, Notes: []string{note}, Checked: &f.At}}}
}

type isoForgetOptions struct {
	all  bool
	keep answersOptions
}

func isoForgetCommand(std streams) *cli.Command {
	o := new(isoForgetOptions)
	return &cli.Command{
		Name:      "forget",
		Usage:     "forget answers about ISOs, and failed tries",
		ArgsUsage: "ISO...",
		Description: `ISO is a path, a URL, a template id or a unique name, as 'iso list' has them.
The next background check, or the next request, looks at them again.

Examples:
etcd-fleet iso forget /mnt/secondary/template/tmpl/1/203/203-1-7c82.iso
etcd-fleet iso forget --all

` + statuses("0   forgotten\n1   nothing is remembered of them", 2, 4),
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "forget everything", Destination: &o.all},
		}, answersFlags(&o.keep)),
		Action: func(c *cli.Context) error { return runISOForget(c, *o, std) },
	}
}

func runISOForget(c *cli.Context, o isoForgetOptions, std streams) error {
	names := c.Args().Slice()
	if err := flagsFirst(names); err != nil {
		return err
	}
	if o.all == (len(names) > 0) {
		return reason.New(reason.Usage, "name what to forget, or everything with --all")
	}
	s, err := o.keep.open(c.Context, warnOn(std))
	if err != nil {
		return err
	}
	defer s.Close()
	n, err := s.Forget(c.Context, func(of answers.Subject) bool {
		return o.all || slices.ContainsFunc(names, func(name string) bool { return isCalled(of, name) })
	})
	if err != nil {
		return err
	}
	if n == 0 && !o.all {
		fmt.Fprintf(std.err, "etcd-fleet: nothing is remembered of %s\nhint: see what is with 'etcd-fleet iso list --all'\n", reason.Line(strings.Join(names, ", ")))
		return &cmdline.Told{Err: reason.New(reason.FileMissing, "nothing is remembered")}
	}
	noun := "answers"
	if n == 1 {
		noun = "answer"
	}
	if _, err := fmt.Fprintf(std.out, "forgot %d %s\n", n, noun); err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return nil
}

// isCalled reports whether an answer is about the ISO of that name. The name of
// a file that is here means that file, not others of the same name elsewhere.
func isCalled(of answers.Subject, name string) bool {
	if name == "" {
		return false
	}
	if of.From == where(name) {
		return true
	}
	if _, err := os.Lstat(name); err == nil {
		return false
	}
	return slices.Contains([]string{of.Key, of.From, of.Name, of.Template}, name)
}
