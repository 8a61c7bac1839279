package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/cmdline"
	"cks-etcd/internal/fscall"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
	"cks-etcd/internal/source"
	"cks-etcd/internal/store"
	"cks-etcd/internal/term"
)

// defaultJobs is how many images are read at the same time: enough to hide the
// latency of a network file system, few enough not to trouble it.
const defaultJobs = 8

// maxJobs bounds it: more only queue up at the storage.
const maxJobs = 256

// Answers are written when so many wait, or for so long: what a run that is killed
// has found out is not lost.
const (
	keepCount = 500
	keepEvery = 2 * time.Second
)

// quietStart is how long a run may take before it tells what it found where
// there is no live table: the report of a short one says it soon enough.
const quietStart = 5 * time.Second

type isoCheckOptions struct {
	args       []string
	files      []string
	deep       bool
	arch       string
	all        bool
	jobs       int
	cached     bool
	noRemember bool
	output     string
	quiet      bool
	source     sourceOptions
	keep       answersOptions
}

func isoCheckCommand(std streams) *cli.Command {
	o := new(isoCheckOptions)
	return &cli.Command{
		Name:      "check",
		Usage:     "say whether ISOs hold etcd",
		ArgsUsage: "WHAT...",
		Description: `WHAT is an ISO file, a block device, an http or https URL, a directory with
all below it (CloudStack's secondary storage is understood), or - for a list
on standard input. Nothing is mounted, and of a URL only ranges are read. In
directories, ISOs that hold no Kubernetes are left out.

Examples:
etcd-fleet iso check setup-v1.33.1-x86_64.iso
etcd-fleet iso check --deep --arch amd64 /mnt/secondary
etcd-fleet iso check --file k8s/kubeadm https://mirror.example/cks/setup.iso

` + isoExitStatuses,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "file", Usage: "`PATH` on the ISO; may be given again", DefaultText: inspect.EtcdArchive},
			&cli.BoolFlag{Name: "deep", Usage: "read the etcd archive to its end and verify it", Destination: &o.deep},
			&cli.StringFlag{Name: "arch", Usage: "`ARCH` etcd must be for, such as amd64; with --deep", Destination: &o.arch, DefaultText: "any"},
			&cli.BoolFlag{Name: "all", Usage: "show ISOs without Kubernetes, too", Destination: &o.all},
			&cli.IntFlag{Name: "jobs", Usage: "`N` ISOs read at the same time", Value: defaultJobs, DefaultText: fmt.Sprint(defaultJobs), Destination: &o.jobs},
			&cli.BoolFlag{Name: "cached", Usage: "take a remembered answer where the ISO has not changed", Destination: &o.cached},
			&cli.BoolFlag{Name: "no-remember", Usage: "do not keep the answers", Destination: &o.noRemember},
			outputFlag(&o.output),
			&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "no progress", Destination: &o.quiet},
		}, sourceFlags(&o.source), answersFlags(&o.keep)),
		Action: func(c *cli.Context) error {
			o.args, o.files = c.Args().Slice(), c.StringSlice("file")
			if err := checkFormat(o.output); err != nil {
				return err
			}
			began := time.Now()
			err := runISOCheck(c, *o, std)
			return isoProblem(std, o.output, "iso check", began, err)
		},
	}
}

// isoProblem gives a program that reads the report one, also when the run could
// not begin.
func isoProblem(std streams, format, command string, began time.Time, err error) error {
	var told *cmdline.Told
	if err == nil || format == "table" || errors.As(err, &told) || reason.Of(err) == reason.OutputUnwritable {
		return err
	}
	r := report.ISOReport{Command: command, Exit: reason.Exit(err), Started: began, Ended: time.Now(),
		Problem: &report.Problem{Code: reason.Of(err), Message: err.Error(), Hint: reason.HintOf(err)}}
	if werr := writeISOs(std.out, format, nil, report.CompleteISO(r)); werr != nil {
		return errors.Join(err, werr)
	}
	return err
}

func (o *isoCheckOptions) check() error {
	switch {
	case len(o.args) == 0:
		return reason.New(reason.NoISOs, "there is nothing to look at")
	case o.jobs < 1 || o.jobs > maxJobs:
		return reason.New(reason.Usage, "--jobs %d is not between 1 and %d", o.jobs, maxJobs)
	case o.arch != "" && !o.deep:
		return reason.New(reason.Usage, "--arch needs --deep")
	case o.cached && o.noRemember:
		return reason.New(reason.Usage, "--cached needs the answers that --no-remember leaves alone")
	}
	if slices.Contains(o.args, "") {
		return reason.New(reason.Usage, "an ISO without a name")
	}
	for i, f := range o.files {
		name := strings.TrimPrefix(path.Clean("/"+f), "/")
		if name == "" {
			return reason.New(reason.Usage, "--file %q names no file", f)
		}
		o.files[i] = name
	}
	if len(o.files) == 0 {
		o.files = []string{inspect.EtcdArchive}
	}
	return flagsFirst(o.args)
}

func runISOCheck(c *cli.Context, o isoCheckOptions, std streams) error {
	if err := o.check(); err != nil {
		return err
	}
	ctx := c.Context
	args, err := isoArgs(ctx, o.args, std)
	if err != nil {
		return err
	}
	reach, err := o.source.options(c)
	if err != nil {
		return err
	}
	began := time.Now()
	out := newOutput(std, o.output, o.quiet, term.Options{Noun: "ISOs", Titles: report.ISOTitles}, nil)
	k := &isoChecker{o: o, out: out, kept: time.Now()}
	reach.Progress = k.downloaded
	if k.opener, err = source.New(reach); err != nil {
		out.abandon()
		return err
	}
	defer k.opener.Close()
	if !o.noRemember {
		if k.answers, err = o.keep.open(c.Context, out.warn); err != nil {
			if o.cached || o.keep.rebuild {
				out.abandon()
				return err
			}
			out.warn(fmt.Sprintf("answers are not kept: %v; hint: %s", err, reason.HintOf(err)))
			k.answers = nil
		} else {
			defer k.answers.Close()
		}
	}

	k.run(ctx, args)
	k.remember(ctx)

	r := report.ISOReport{Command: "iso check", Started: began, Ended: time.Now(), LeftOut: k.leftOut}
	var exits []int
	for _, i := range k.found {
		switch {
		case i == nil:
			r.Waiting++
			continue
		case len(i.Files) == 0:
			continue // left out
		}
		for _, f := range i.Files {
			exits = append(exits, reason.Lookup(f.Code).Exit)
		}
		r.ISOs = append(r.ISOs, *i)
	}
	if n := k.opener.Lost(); n > 0 {
		out.warn(fmt.Sprintf("%d reads have not come back from their storage; each holds a thread until it answers", n))
	}
	switch {
	case ctx.Err() != nil:
		exits = append(exits, reason.ExitInterrupted)
		r.Problem = &report.Problem{Code: reason.Interrupted, Message: context.Cause(ctx).Error()}
	case len(r.ISOs) == 0:
		exits = append(exits, reason.ExitUsage)
		message := "no ISO in " + strings.Join(args, ", ")
		if k.leftOut > 0 {
			message = fmt.Sprintf("no Kubernetes ISO in %s, only %d others", strings.Join(args, ", "), k.leftOut)
		}
		r.Problem = &report.Problem{Code: reason.NoISOs, Message: message}
	}
	r.Exit = reason.Worst(exits...)
	if err := out.finishISOs(r); err != nil {
		return reason.New(reason.OutputUnwritable, "%w", err)
	}
	return exitError(r.Exit)
}

// isoArgs replaces "-" by the lines of standard input.
func isoArgs(ctx context.Context, args []string, std streams) ([]string, error) {
	var out []string
	for _, a := range args {
		if a != "-" {
			out = append(out, a)
			continue
		}
		lines, err := readLines(ctx, std.in)
		if err != nil {
			return nil, err
		}
		out = append(out, lines...)
	}
	if len(out) == 0 {
		return nil, reason.New(reason.NoISOs, "the list on standard input is empty")
	}
	return out, nil
}

// An isoChecker looks at images side by side.
type isoChecker struct {
	o       isoCheckOptions
	out     *output
	opener  *source.Opener
	answers *answers.Store // nil: nothing is remembered

	mu      sync.Mutex
	found   []*report.ISOResult // in the order they were found; nil: not looked at yet
	leftOut int
	keep    []answers.Answer // not written yet
	kept    time.Time        // when some were written last
	keptErr bool             // it was said that answers are not kept
}

// An isoJob is one image to look at.
type isoJob struct {
	slot  int
	name  string
	copy  store.Copy // zero for an image that was named itself
	named bool
	err   error // why there is nothing to read
}

// run looks at everything that args name, and returns when it is done or ctx
// ended.
func (k *isoChecker) run(ctx context.Context, args []string) {
	jobs := make(chan isoJob)
	var workers sync.WaitGroup
	for range k.o.jobs {
		workers.Go(func() {
			for j := range jobs {
				k.look(ctx, j)
			}
		})
	}
	kinds := make(chan chan argKind, k.o.jobs)
	workers.Go(func() { k.askKinds(ctx, args, kinds) })
	for _, a := range args {
		var kind argKind
		if next, ok := <-kinds; ok {
			kind = <-next
		}
		if ctx.Err() != nil {
			k.slot() // not looked at
			continue
		}
		k.expand(ctx, a, kind, func(j isoJob) error {
			j.slot = k.slot()
			select {
			case jobs <- j:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
	}
	close(jobs)
	workers.Wait()
}

// An argKind is what an argument is.
type argKind struct {
	dir bool
	err error // why that cannot be told
}

// askKinds asks what the arguments are and sends it in their order: a few are asked
// about ahead, so that those on a mount that hangs are waited for together.
func (k *isoChecker) askKinds(ctx context.Context, args []string, kinds chan<- chan argKind) {
	defer close(kinds)
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, a := range args {
		kind := make(chan argKind, 1)
		select {
		case kinds <- kind:
		case <-ctx.Done():
			return
		}
		asking.Go(func() {
			var of argKind
			if !source.IsURL(a) {
				of.dir, of.err = k.isDir(ctx, a)
			}
			kind <- of
		})
	}
}

func (k *isoChecker) slot() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.found = append(k.found, nil)
	return len(k.found) - 1
}

// expand finds the images that one argument names.
func (k *isoChecker) expand(ctx context.Context, arg string, kind argKind, each func(isoJob) error) {
	if kind.err != nil || !kind.dir {
		each(isoJob{name: arg, named: true, err: kind.err})
		return
	}
	err := store.Walk(ctx, arg, store.Options{Timeout: k.o.source.readTimeout, Calls: k.opener.Calls()}, func(c store.Copy) error {
		name := c.Path
		if name == "" {
			name = c.Dir
		}
		return each(isoJob{name: name, copy: c, err: c.Err})
	})
	if err != nil && ctx.Err() == nil {
		each(isoJob{name: arg, err: unknownErr(arg, err)})
	}
}

// isDir reports whether the argument is a directory. It may be on a mount that
// hangs.
func (k *isoChecker) isDir(ctx context.Context, name string) (bool, error) {
	within, cancel := context.WithTimeout(ctx, k.o.source.readTimeout)
	defer cancel()
	fi, err := fscall.Do(within, k.opener.Calls(), name, func() (fs.FileInfo, error) { return os.Stat(name) }, nil)
	switch {
	case fscall.Stalled(err) && ctx.Err() != nil:
		return false, reason.Ended(ctx, "%s", name)
	case fscall.Stalled(err):
		return false, reason.New(reason.SourceStalled, "%s: %w", name, err)
	case err != nil:
		return false, unknownErr(name, err)
	}
	return fi.IsDir(), nil
}

// look looks at one image and keeps the result.
func (k *isoChecker) look(ctx context.Context, j isoJob) {
	r := report.ISOResult{ISO: source.Redact(j.name), Name: j.copy.Name, Template: j.copy.Template, Started: time.Now()}
	k.show(term.Row{Name: r.ISO, State: "reading", Tone: term.Busy, Since: r.Started})
	answered := k.ask(ctx, j, &r)
	r.Ended = time.Now()
	if ctx.Err() != nil && !answered {
		return // nothing that it says now was found out
	}
	k.mu.Lock()
	if !j.named && !k.o.all && r.Kubernetes != nil && !*r.Kubernetes && !slices.ContainsFunc(r.Files, func(f report.FileResult) bool { return f.Value == report.ValueIncluded }) {
		r.Files = nil
		k.leftOut++
	}
	k.found[j.slot] = &r
	k.mu.Unlock()
	row := report.ISORow(r)
	if len(r.Files) == 0 {
		row.State = "left out"
	}
	if k.out.live || row.Tone != term.Good && time.Since(k.out.began) > quietStart {
		k.out.screen.Update(row)
	}
	if k.out.jsonl != nil && len(r.Files) > 0 {
		k.out.keep(k.out.jsonl.ISO(r))
	}
}

// ask fills in r, and reports whether every question got an answer.
func (k *isoChecker) ask(ctx context.Context, j isoJob, r *report.ISOResult) bool {
	if j.err != nil {
		k.unknown(r, j.err)
		return false
	}
	if k.o.cached && k.answers != nil && k.recall(ctx, j, r) {
		return true
	}
	s, err := k.opener.Open(ctx, j.name)
	if err != nil {
		k.unknown(r, unknownErr(j.name, err))
		return false
	}
	size, id := s.Size(), s.Identity()
	r.Size, r.Key = &size, id.Key()
	image, results := inspect.Check(ctx, s, size, inspect.Request{
		Files: k.o.files, Deep: k.o.deep, Arch: k.o.arch, TempDir: k.o.source.tempDir,
		Progress: func(read, total int64) { k.progress(r.ISO, r.Started, "deep", read, total) },
	})
	closed := s.Close()
	stats := s.Stats()
	r.Requests, r.Bytes = stats.Requests, stats.Bytes
	if closed != nil && reason.Of(closed) == reason.SourceChanged {
		k.unknown(r, closed)
		return false
	}
	r.VolumeID, r.Names, r.Digest = image.VolumeID, image.Names, image.Digest
	if image.Kubernetes != inspect.CouldNotTell {
		yes := image.Kubernetes == inspect.Yes
		r.Kubernetes = &yes
	}
	now := time.Now()
	answered := true
	for _, f := range results {
		r.Files = append(r.Files, fileResult(f, now))
		answered = answered && f.Value != inspect.Unknown
		// Another architecture may well be asked for next time.
		if f.Value != inspect.Unknown && r.Key != "" && reason.Of(f.Err) != reason.ArchiveWrongArch {
			a := answers.Of(r.Key, image, f)
			a.At, a.From, a.Size = now, where(j.name), size
			a.Name, a.Account, a.Template = j.copy.Name, j.copy.Account, j.copy.Template
			k.mu.Lock()
			k.keep = append(k.keep, a)
			due := len(k.keep) >= keepCount || time.Since(k.kept) > keepEvery
			k.mu.Unlock()
			if due {
				k.remember(ctx)
			}
		}
	}
	return answered
}

// recall answers from what is remembered, if all of it is.
func (k *isoChecker) recall(ctx context.Context, j isoJob, r *report.ISOResult) bool {
	id, err := k.opener.Identify(ctx, j.name)
	if err != nil || id.Key() == "" {
		return false
	}
	var files []report.FileResult
	var last answers.Answer
	for _, f := range k.o.files {
		a, ok, err := k.answers.Get(ctx, id.Key(), f)
		if err != nil || !ok || k.o.deep && !a.Deep || k.o.arch != "" && a.Arch != k.o.arch {
			return false
		}
		files = append(files, recalled(a))
		last = a
	}
	size := id.Size
	r.Size, r.Key, r.Kubernetes, r.VolumeID, r.Names, r.Digest = &size, last.Key, &last.Kubernetes, last.VolumeID, last.Names, last.Digest
	r.Files = files
	return true
}

// unknown makes every answer about an image "could not tell".
func (k *isoChecker) unknown(r *report.ISOResult, err error) {
	r.Files = nil
	for _, f := range k.o.files {
		r.Files = append(r.Files, report.FileResult{File: f, Value: report.ValueUnknown, Code: reason.Of(err), Message: err.Error(), Hint: reason.HintOf(err)})
	}
}

// rememberWithin bounds the keeping of answers after a Ctrl-C.
const rememberWithin = 5 * time.Second

// remember writes the answers that wait, also after an interrupt.
func (k *isoChecker) remember(ctx context.Context) {
	if k.answers == nil {
		return
	}
	k.mu.Lock()
	keep := k.keep
	k.keep, k.kept = nil, time.Now()
	k.mu.Unlock()
	if len(keep) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rememberWithin)
	defer cancel()
	err := k.answers.Put(ctx, keep...)
	k.mu.Lock()
	say := err != nil && !k.keptErr
	k.keptErr = k.keptErr || err != nil
	k.mu.Unlock()
	if say {
		k.out.warn(fmt.Sprintf("answers are not kept: %v; hint: %s", err, reason.HintOf(err)))
	}
}

func (k *isoChecker) show(r term.Row) {
	if k.out.live {
		k.out.screen.Update(r)
	}
}

func (k *isoChecker) downloaded(name string, read, total int64) {
	k.progress(source.Redact(name), k.out.began, "download", read, total)
}

// progress shows how far a long read is.
func (k *isoChecker) progress(iso string, since time.Time, state string, read, total int64) {
	row := term.Row{Name: iso, State: state, Tone: term.Busy, Since: since}
	if total > 0 {
		row.Checks = fmt.Sprintf("%d%%", min(read*100/total, 100))
	}
	k.show(row)
}

// fileResult is a new answer as the report has it.
func fileResult(f inspect.Result, at time.Time) report.FileResult {
	out := report.FileResult{File: f.File, Value: string(f.Value), Code: reason.Included, Version: f.Version, Arch: f.Arch,
		SHA256: f.SHA256, Deep: f.Deep, Notes: f.Notes, Checked: &at}
	if f.Value == inspect.Included || f.Value == inspect.Broken {
		out.Size = &f.Size
	}
	if f.Err != nil {
		out.Code, out.Message, out.Hint = reason.Of(f.Err), f.Err.Error(), reason.HintOf(f.Err)
	}
	return out
}

// recalled is a remembered answer as the report has it.
func recalled(a answers.Answer) report.FileResult {
	return report.FileResult{File: a.File, Value: string(a.Value), Code: a.Code, Message: a.Message, Version: a.Version, Arch: a.Arch,
		SHA256: a.SHA256, Deep: a.Deep, Notes: a.Notes, Remembered: true, Checked: &a.At}
}
