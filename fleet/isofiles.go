package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"cks-etcd/internal/isofs"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
	"cks-etcd/internal/term"
	"cks-etcd/internal/unixfs"
)

// maxListed bounds how many names 'iso ls' shows: an image can name one
// directory many times in different places, and so never end.
const maxListed = 5_000_000

const isoFileExitStatuses = `Exit status:
0   done
1   there is no such file on the ISO
2   wrong usage
4   the ISO, or a part of it, cannot be read
70  internal error
130 interrupted`

type isoLsOptions struct {
	long, json bool
	source     sourceOptions
}

func isoLsCommand(std streams) *cli.Command {
	o := new(isoLsOptions)
	return &cli.Command{
		Name:      "ls",
		Usage:     "list the files on an ISO",
		ArgsUsage: "ISO [PATH]",
		Description: `Lists PATH and all below, as Linux shows it where the ISO is mounted.

Examples:
etcd-fleet iso ls setup-v1.33.1-x86_64.iso
etcd-fleet iso ls -l setup-v1.33.1-x86_64.iso etcd

` + isoFileExitStatuses,
		Flags: slices.Concat([]cli.Flag{
			&cli.BoolFlag{Name: "long", Aliases: []string{"l"}, Usage: "mode, size and time of each file, and where links lead", Destination: &o.long},
			&cli.BoolFlag{Name: "jsonl", Usage: "one JSON object a line", Destination: &o.json},
		}, sourceFlags(&o.source)),
		Action: func(c *cli.Context) error {
			if c.NArg() < 1 || c.NArg() > 2 {
				return reason.New(reason.Usage, "name one ISO, and at most one path on it")
			}
			if err := flagsFirst(c.Args().Slice()); err != nil {
				return err
			}
			return runISOLs(c, *o, std.out)
		},
	}
}

// withImage opens the image of that name and gives it to f.
func withImage(c *cli.Context, o *sourceOptions, name string, f func(*isofs.Image) error) error {
	reach, err := o.options(c)
	if err != nil {
		return err
	}
	opener, err := source.New(reach)
	if err != nil {
		return err
	}
	defer opener.Close()
	s, err := opener.Open(c.Context, name)
	if err != nil {
		return unknownErr(name, err)
	}
	im, err := isofs.Open(s, s.Size())
	if err == nil {
		err = f(im)
	}
	if cerr := s.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if c.Context.Err() != nil && err != nil {
		return reason.New(reason.Interrupted, "%s: %w", where(name), context.Cause(c.Context))
	}
	return imageErr(where(name), err)
}

// imageErr gives an error of reading an image its code.
func imageErr(name string, err error) error {
	var damage *isofs.Error
	var coded *reason.Error
	switch {
	case err == nil, errors.As(err, &coded):
		return err
	case errors.Is(err, isofs.ErrNotISO):
		return reason.New(reason.NotISO, "%s: %w", name, err)
	case errors.As(err, &damage):
		return reason.New(reason.ISODamaged, "%s: %w", name, err)
	case errors.Is(err, fs.ErrNotExist):
		return reason.New(reason.FileMissing, "%s: %w", name, err)
	}
	return reason.New(reason.ISOUnreadable, "%s: %w", name, err)
}

// onImage is a path as package isofs wants it.
func onImage(name string) string {
	if name = strings.TrimPrefix(path.Clean("/"+name), "/"); name == "" {
		return "."
	}
	return name
}

// listed is a file as 'iso ls --jsonl' writes it.
type listed struct {
	Path     string     `json:"path"`
	Type     string     `json:"type"` // "file", "directory", "link" or "other"
	Mode     string     `json:"mode"`
	Size     int64      `json:"size_bytes"`
	Modified *time.Time `json:"modified"` // nil: not recorded
	Link     string     `json:"link"`     // where a link leads
}

func runISOLs(c *cli.Context, o isoLsOptions, out io.Writer) error {
	w := &lister{out: out, o: o}
	err := withImage(c, &o.source, c.Args().First(), func(im *isofs.Image) error {
		var broken error
		err := fs.WalkDir(im, onImage(c.Args().Get(1)), func(name string, d fs.DirEntry, err error) error {
			switch {
			case c.Context.Err() != nil:
				return context.Cause(c.Context)
			case err != nil && name == onImage(c.Args().Get(1)):
				return err
			case err != nil:
				broken = err // the rest can still be listed
				return nil
			case name == ".":
				return nil
			}
			if w.n++; w.n > maxListed {
				return reason.New(reason.ISODamaged, "more than %d names; the ISO may name one directory many times", maxListed)
			}
			fi, err := d.Info()
			if err != nil {
				broken = err
				return nil
			}
			return w.file(name, fi)
		})
		if err == nil {
			err = broken
		}
		return err
	})
	if werr := w.flush(); werr != nil {
		return reason.New(reason.OutputUnwritable, "%w", werr)
	}
	if w.err != nil {
		return reason.New(reason.OutputUnwritable, "%w", w.err)
	}
	return err
}

// A lister writes the lines of 'iso ls'.
type lister struct {
	out io.Writer
	o   isoLsOptions
	n   int
	buf bytes.Buffer
	err error // of out
}

func (w *lister) file(name string, fi fs.FileInfo) error {
	f, _ := fi.(*isofs.File)
	link := ""
	if f != nil {
		link = f.Link()
	}
	mode := fi.Mode()
	switch {
	case w.o.json:
		l := listed{Path: name, Type: "other", Mode: mode.String(), Size: fi.Size(), Link: link}
		switch {
		case mode.IsRegular():
			l.Type = "file"
		case mode.IsDir():
			l.Type = "directory"
		case mode&fs.ModeSymlink != 0:
			l.Type = "link"
		}
		if t := fi.ModTime().UTC(); !t.IsZero() {
			l.Modified = &t
		}
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		w.buf.Write(append(b, '\n'))
	case w.o.long:
		at := "-"
		if t := fi.ModTime(); !t.IsZero() {
			at = t.UTC().Format("2006-01-02 15:04")
		}
		fmt.Fprintf(&w.buf, "%s %12d  %-16s  %s", mode, fi.Size(), at, shown(name, mode))
		if link != "" {
			fmt.Fprintf(&w.buf, " -> %s", reason.Line(link))
		}
		w.buf.WriteByte('\n')
	default:
		w.buf.WriteString(shown(name, mode) + "\n")
	}
	if w.buf.Len() < 32<<10 {
		return nil
	}
	if w.err = w.flush(); w.err != nil {
		return w.err
	}
	return nil
}

func (w *lister) flush() error {
	_, err := w.buf.WriteTo(w.out)
	return err
}

// shown is a path that cannot move the cursor; a directory ends with a slash.
func shown(name string, mode fs.FileMode) string {
	if mode.IsDir() {
		name += "/"
	}
	return reason.Line(name)
}

type isoCatOptions struct {
	to     string
	force  bool
	source sourceOptions
}

func isoCatCommand(std streams) *cli.Command {
	o := new(isoCatOptions)
	return &cli.Command{
		Name:      "cat",
		Usage:     "write one file of an ISO out",
		ArgsUsage: "ISO PATH",
		Description: `Writes the file to standard output, or with --to to a file that is there only
once it is whole.

Examples:
etcd-fleet iso cat setup-v1.33.1-x86_64.iso kubelet.service
etcd-fleet iso cat --to etcd.tar.gz setup.iso etcd/etcd-linux-amd64.tar.gz

` + isoFileExitStatuses,
		Flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "to", Usage: "`FILE` to write", Destination: &o.to, DefaultText: "standard output"},
			&cli.BoolFlag{Name: "force", Usage: "replace the file of --to", Destination: &o.force},
		}, sourceFlags(&o.source)),
		Action: func(c *cli.Context) error {
			if c.NArg() != 2 {
				return reason.New(reason.Usage, "name one ISO and one file on it")
			}
			if err := flagsFirst(c.Args().Slice()); err != nil {
				return err
			}
			return runISOCat(c, *o, std.out)
		},
	}
}

func runISOCat(c *cli.Context, o isoCatOptions, out io.Writer) error {
	return withImage(c, &o.source, c.Args().First(), func(im *isofs.Image) error {
		name := onImage(c.Args().Get(1))
		f, err := im.Lookup(name)
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", name, err)
		case f.Link() != "":
			return reason.New(reason.FileMissing, "%s is a symbolic link to %s", name, reason.Line(f.Link()))
		case !f.Mode().IsRegular():
			return reason.New(reason.FileMissing, "%s is no regular file", name)
		}
		if err := f.CheckExtents(); err != nil {
			return err
		}
		r := f.Reader()
		if o.to != "" {
			return writeFile(c.Context, o.to, o.force, r)
		}
		if term.Detect(out, os.Getenv).TTY != nil {
			if binary, err := isBinary(r); err != nil || binary {
				if err != nil {
					return err
				}
				return reason.New(reason.Usage, "%s is not text and standard output is a terminal", name).WithHint("write it to a file with --to, or to a pipe")
			}
		}
		return copyOut(out, r)
	})
}

// isBinary looks at the beginning of a file as file(1) and grep(1) do.
func isBinary(r *io.SectionReader) (bool, error) {
	head := make([]byte, 1024)
	n, err := r.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return false, err
	}
	return bytes.IndexByte(head[:n], 0) >= 0 || strings.ContainsRune(string(head[:n]), '\x1b'), nil
}

// copyOut tells an error of the image from one of the output.
func copyOut(w io.Writer, r io.Reader) error {
	buf := make([]byte, 1<<20)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return reason.New(reason.OutputUnwritable, "%w", werr)
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// writeFile writes what r has to the file of that name, which is there only once
// it is whole. A file that was there stays, unless force is set; what is no file
// stays in any case.
func writeFile(ctx context.Context, name string, force bool, r io.Reader) error {
	// An interrupt ends the reads of r, and leaves a moment to clean up in.
	late, giveUp := context.WithCancelCause(context.WithoutCancel(ctx))
	defer giveUp(nil)
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(closePatience, func() { giveUp(context.Cause(ctx)) })
	})()
	_, err := await(late, func() (struct{}, error) { return struct{}{}, writeNew(name, force, r) })
	return err
}

// maxBase is how much of a file's name stands in that of its unfinished copy: a
// name has 255 bytes at most.
const maxBase = 200

func writeNew(name string, force bool, r io.Reader) (err error) {
	unwritable := func(err error) error { return reason.New(reason.OutputUnwritable, "%w", err) }
	switch fi, err := os.Lstat(name); {
	case err != nil:
	case !fi.Mode().IsRegular() && fi.Mode()&fs.ModeSymlink == 0:
		return reason.New(reason.Usage, "%s is there, and no file", name).WithHint("choose another name, or write to standard output")
	case !force:
		return reason.New(reason.Usage, "%s is there already", name).WithHint("choose another name, or replace it with --force")
	}
	base := filepath.Base(name)
	temp := filepath.Join(filepath.Dir(name), "."+base[:min(len(base), maxBase)]+"."+unixfs.RandomHex(8))
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return unwritable(err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(temp)
		}
	}()
	if err := copyOut(f, r); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return unwritable(err)
	}
	if err := f.Close(); err != nil {
		return unwritable(err)
	}
	if !force {
		// Fails if somebody was faster. Some file systems have no links.
		err := os.Link(temp, name)
		switch {
		case err == nil:
			return os.Remove(temp)
		case !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.ENOTSUP):
			return unwritable(err)
		}
	}
	if err := os.Rename(temp, name); err != nil {
		return unwritable(err)
	}
	return nil
}
