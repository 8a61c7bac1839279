package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// packageRelease is the revision of the packaging of one version, the last part of
// a package's version.
const packageRelease = "1"

// A release is what is being built.
type release struct {
	version string    // of packages and programs: "1.2.3", "1.2.3+4.gabcdef0", "0.0.0+12.gabcdef0.dirty"
	time    time.Time // of everything that carries a time, UTC, whole seconds
}

// findRelease asks git for the version, unless one is given, and for the time of
// the last commit, unless SOURCE_DATE_EPOCH gives one. A tree with changes that are
// not committed has a version of its own
// (https://reproducible-builds.org/specs/source-date-epoch/).
func findRelease(ctx context.Context, root, version string) (release, error) {
	if version == "" {
		described, err := git(ctx, root, "describe", "--tags", "--long", "--abbrev=7", "--match=v[0-9]*")
		if err != nil { // no tag yet
			count, cerr := git(ctx, root, "rev-list", "--count", "HEAD")
			hash, herr := git(ctx, root, "rev-parse", "--short=7", "HEAD")
			if err := errors.Join(cerr, herr); err != nil {
				return release{}, fmt.Errorf("cannot find the version (give -version outside of a git checkout): %w", err)
			}
			described = fmt.Sprintf("v0.0.0-%s-g%s", count, hash)
		}
		version = packageVersion(described)
		changed, err := git(ctx, root, "status", "--porcelain", "--untracked-files=no")
		if err != nil {
			return release{}, fmt.Errorf("cannot tell whether the tree is the commit's: %w", err)
		}
		if changed != "" {
			version = dirty(version)
		}
	}
	version = strings.TrimPrefix(version, "v")
	if !validVersion.MatchString(version) {
		return release{}, fmt.Errorf("%q cannot be the version of a package", version)
	}
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if epoch == "" {
		var err error
		if epoch, err = git(ctx, root, "log", "-1", "--format=%ct"); err != nil {
			return release{}, fmt.Errorf("cannot find the time of the last commit (set SOURCE_DATE_EPOCH): %w", err)
		}
	}
	s, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil || s < 0 {
		return release{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is not a number of seconds", epoch)
	}
	return release{version: version, time: time.Unix(s, 0).UTC()}, nil
}

// validVersion matches what both deb-version(7) and rpm take as an upstream
// version; a hyphen would begin the revision.
var validVersion = regexp.MustCompile(`^[0-9][A-Za-z0-9.+~]*$`)

// packageVersion turns the long form of git describe, "v1.2.3-4-gabcdef0", into
// a version: "1.2.3" on the tag itself, "1.2.3+4.gabcdef0" after it, which sorts
// before 1.2.4. A candidate, "v1.2.3-rc1", becomes "1.2.3~rc1", which sorts before
// 1.2.3.
func packageVersion(described string) string {
	m := describedForm.FindStringSubmatch(described)
	if m == nil {
		return described
	}
	version := strings.ReplaceAll(m[1], "-", "~")
	if m[2] != "0" {
		version += "+" + m[2] + "." + m[3]
	}
	return version
}

// dirty marks the version of a tree that is not what was committed, so that nobody
// takes it for that.
func dirty(version string) string {
	if strings.Contains(version, "+") {
		return version + ".dirty"
	}
	return version + "+dirty"
}

var describedForm = regexp.MustCompile(`^v(.+)-([0-9]+)-(g[0-9a-f]+)$`)

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(exit.Stderr)))
		}
		return "", fmt.Errorf("git %s: %w", args[0], err)
	}
	return strings.TrimSpace(string(out)), nil
}
