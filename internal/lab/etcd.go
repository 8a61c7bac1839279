//go:build lab && linux

package lab

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// etcdModule is the module in the etcd module's build information whose version is etcd's.
const etcdModule = "go.etcd.io/etcd/server/v3"

// Etcd returns a directory that holds real etcd and etcdctl programs for this machine, statically linked. They are built
// from the module internal/lab/etcd when the cache has none of its present state (2 minutes).
func Etcd(ctx context.Context) (string, error) { return EtcdFor(ctx, runtime.GOARCH) }

// EtcdFor is Etcd for another architecture, a GOARCH.
func EtcdFor(ctx context.Context, arch string) (string, error) {
	src, err := etcdSource(ctx)
	if err != nil {
		return "", err
	}
	key, err := sourceKey(src)
	if err != nil {
		return "", fmt.Errorf("cannot read etcd's module: %w", err)
	}
	name, err := buildName(ctx, "etcd", src, arch, key)
	if err != nil {
		return "", err
	}
	return cached(ctx, name, func(ctx context.Context, tmp string) error {
		if err := os.Mkdir(tmp, 0o755); err != nil {
			return err
		}
		_, err := goTool(ctx, src, staticBuild(arch), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", tmp+"/", "./cmd/...")
		return err
	})
}

// EtcdVersion returns the version of the etcd program at path, like "3.6.5", from its build information.
func EtcdVersion(path string) (string, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("cannot read etcd's version: %w", err)
	}
	for _, d := range info.Deps {
		if d.Path == etcdModule {
			return strings.TrimPrefix(d.Version, "v"), nil
		}
	}
	return "", fmt.Errorf("cannot read etcd's version: %s is not built from %s", path, etcdModule)
}

// GoProgram builds a Go program of one file, which imports nothing but the standard library, for a GOARCH ("" is this
// machine's), and returns its path in the cache: a stand-in for etcd that fails the way a test wants it.
func GoProgram(ctx context.Context, arch, source string) (string, error) {
	if arch == "" {
		arch = runtime.GOARCH
	}
	name, err := buildName(ctx, "program", "", arch, source)
	if err != nil {
		return "", err
	}
	return cached(ctx, name, func(ctx context.Context, tmp string) error {
		dir, err := os.MkdirTemp("", "lab-program-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o644); err != nil {
			return err
		}
		_, err = goTool(ctx, dir, append(staticBuild(arch), "GO111MODULE=off"), "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", tmp, "main.go")
		return err
	})
}

// buildName is the cache's name for what the go command in dir builds from a source: another version of Go builds another
// program.
func buildName(ctx context.Context, what, dir, arch, source string) (string, error) {
	version, err := goTool(ctx, dir, nil, "env", "GOVERSION")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(source + version))
	return what + "-" + arch + "-" + hex.EncodeToString(sum[:6]), nil
}

// staticBuild is the environment of a build for hosts: no C library to be missed, no setting of the developer's.
func staticBuild(arch string) []string {
	return []string{"CGO_ENABLED=0", "GOOS=linux", "GOARCH=" + arch, "GOFLAGS=", "GOWORK=off"}
}

// etcdSource finds the etcd module's directory. It cannot be embedded (it is a module of its own), so the go command
// is asked: tests and the demo run inside the project's module.
func etcdSource(ctx context.Context) (string, error) {
	dir, err := goTool(ctx, "", nil, "list", "-f", "{{.Dir}}", "cks-etcd/internal/lab")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "etcd"), nil
}

// goTool runs the go command in dir and returns its standard output, trimmed.
func goTool(ctx context.Context, dir string, env []string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	if err := run(cmd, &out); err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, lastLines(out.Bytes(), 5))
	}
	return strings.TrimSpace(out.String()), nil
}

// sourceKey names the state of a module's files.
func sourceKey(dir string) (string, error) {
	h := sha256.New()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(dir, p)
		fmt.Fprintf(h, "%s %d\n%s", rel, len(b), b)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
