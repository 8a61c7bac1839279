package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// A builder makes one release. Its stage holds what packages and tarballs have in
// common:
//
//	ARCH/PROGRAM           the static binary
//	man/PROGRAM.SECTION.gz
//	completion/SHELL       of etcd-fleet
//	notices/PROGRAM        licences of the modules that are linked in
//	copyright/PROGRAM      the same as Debian wants it
//	PROGRAM.changelog.yaml what changelogs of packages say, in nfpm's form
//	changelog.gz           docs/changelog.md
type builder struct {
	root, stage, out string
	rel              release
	log              io.Writer
}

func (b *builder) build(ctx context.Context) error {
	boms := &bill{rel: b.rel}
	for _, p := range programs {
		var binaries []binary
		for _, arch := range arches {
			path := b.staged(arch, p.name)
			if err := b.step("build "+p.name+" for "+arch, func() error { return b.compile(ctx, p, arch, path) }); err != nil {
				return err
			}
			bin, err := readBinary(p.name, arch, path)
			if err != nil {
				return err
			}
			binaries = append(binaries, bin)
		}
		boms.add(binaries)
		if err := b.documents(ctx, p, binaries); err != nil {
			return err
		}
		for _, arch := range arches {
			for _, format := range []string{"deb", "rpm"} {
				if err := b.step(format+" of "+p.name+" for "+arch, func() error { return b.pack(p, arch, format) }); err != nil {
					return err
				}
			}
			if err := b.step("tarball of "+p.name+" for "+arch, func() error { return b.tarball(p, arch) }); err != nil {
				return err
			}
		}
	}
	return boms.write(filepath.Join(b.out, "cks-etcd_"+b.rel.version+".spdx.json"))
}

func (b *builder) step(what string, do func() error) error {
	began := time.Now()
	if err := do(); err != nil {
		return fmt.Errorf("cannot %s: %w", what, err)
	}
	fmt.Fprintf(b.log, "%-36s %6.2f s\n", what, time.Since(began).Seconds())
	return nil
}

func (b *builder) staged(path ...string) string {
	return filepath.Join(append([]string{b.stage}, path...)...)
}

// compile builds a static binary in which nothing tells of this machine.
func (b *builder) compile(ctx context.Context, p program, arch, path string) error {
	_, err := b.run(ctx, []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOAMD64=v1", "GOARM64=v8.0"},
		"go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+b.rel.version, "-o", path, "./"+p.source)
	return err
}

// documents stages what is made of the program itself and of its modules.
func (b *builder) documents(ctx context.Context, p program, binaries []binary) error {
	// The pages are the same for all architectures; only this machine's can print them.
	native := b.staged(runtime.GOARCH, p.name)
	if runtime.GOOS != "linux" {
		native = b.staged("native", p.name)
		if _, err := b.run(ctx, []string{"CGO_ENABLED=0"}, "go", "build", "-o", native, "-ldflags", "-X main.version="+b.rel.version, "./"+p.source); err != nil {
			return err
		}
	}
	page, err := b.run(ctx, []string{fmt.Sprintf("SOURCE_DATE_EPOCH=%d", b.rel.time.Unix())}, native, "man")
	if err != nil {
		return err
	}
	if page, err = gzipped(page); err != nil {
		return err
	}
	if err := writeStaged(b.staged("man", fmt.Sprintf("%s.%d.gz", p.name, p.section)), page); err != nil {
		return err
	}
	if p.name == "etcd-fleet" {
		for _, shell := range []string{"bash", "zsh", "fish"} {
			script, err := b.run(ctx, nil, native, "completion", shell)
			if err != nil {
				return err
			}
			if err := writeStaged(b.staged("completion", shell), script); err != nil {
				return err
			}
		}
	}
	if err := b.notices(ctx, p, binaries); err != nil {
		return err
	}
	return b.changelog(p)
}

// run runs a command in the source tree and returns its standard output.
func (b *builder) run(ctx context.Context, env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = b.root
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s %s: %w: %s", filepath.Base(name), strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.Bytes(), nil
}

func writeStaged(path string, content []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}
