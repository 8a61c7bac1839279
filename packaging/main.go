// Command packaging builds what is released: deb and rpm packages and tarballs of
// both programs for each architecture, their bill of materials, and SHA256SUMS.
//
//	go -C packaging run . -o ../dist
//
// The same commit gives the same bytes, on any machine with the same Go: every
// time is the commit's, every list is sorted, and no file of the machine enters.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// arches are the architectures of packages, as GOARCH.
var arches = []string{"amd64", "arm64"}

// A program is one of the two, and a package each.
type program struct {
	name    string // of the package and of the executable
	source  string // directory of its main package
	section int    // of its manual page
}

var programs = []program{
	{name: "etcd-nodeagent", source: "nodeagent", section: 8},
	{name: "etcd-fleet", source: "fleet", section: 1},
}

func main() {
	root := flag.String("root", "..", "`DIR` of the source tree")
	out := flag.String("o", "../dist", "`DIR` to write to: a new one, or one that this command wrote, which is replaced")
	version := flag.String("version", "", "`VERSION` to build; default: what git describe says")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *root, *out, *version, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "packaging: %v\n", err)
		os.Exit(1)
	}
}

// run builds everything into a directory of its own and then puts it in place of
// out, so that a failure leaves no half of a release there.
func run(ctx context.Context, root, out, version string, log io.Writer) error {
	root, err := filepath.Abs(root)
	if err != nil {
		return err
	}
	if out, err = filepath.Abs(out); err != nil {
		return err
	}
	if err := replaceable(out); err != nil {
		return err
	}
	rel, err := findRelease(ctx, root, version)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(out), ".dist-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	b := &builder{root: root, stage: filepath.Join(work, "stage"), out: filepath.Join(work, "out"), rel: rel, log: log}
	if err := os.Mkdir(b.out, 0o755); err != nil {
		return err
	}
	if err := b.build(ctx); err != nil {
		return err
	}
	if err := writeSums(b.out); err != nil {
		return err
	}
	if err := os.RemoveAll(out); err != nil {
		return err
	}
	return os.Rename(b.out, out)
}

// replaceable refuses a directory that holds anything but an earlier release: it is
// removed with all that is in it.
func replaceable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(dir, sumsFile)); err != nil {
		return fmt.Errorf("cannot replace %s: it is no earlier release: %w", dir, err)
	}
	return nil
}

// sumsFile is the last file that is written of a release.
const sumsFile = "SHA256SUMS"

// writeSums writes SHA256SUMS over the files of dir, for sha256sum -c.
func writeSums(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var lines []string
	for _, e := range entries {
		sum, err := fileSum(filepath.Join(dir, e.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%s  %s\n", sum, e.Name()))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[66:], b[66:]) })
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(strings.Join(lines, "")), 0o644)
}

// fileSum returns the SHA-256 of a file in hex.
func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", fmt.Errorf("cannot read %s: %w", path, err)
	}
	return fmt.Sprintf("%x", h.Sum(nil)), nil
}
