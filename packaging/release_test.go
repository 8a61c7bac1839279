package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestPackageVersion(t *testing.T) {
	for described, want := range map[string]string{
		"v1.2.3-0-gabcdef0":       "1.2.3",
		"v1.2.3-4-gabcdef0":       "1.2.3+4.gabcdef0",
		"v1.2.3-rc1-0-gabcdef0":   "1.2.3~rc1",
		"v1.2.3-rc.1-12-gabcdef0": "1.2.3~rc.1+12.gabcdef0",
		"v0.0.0-7-gabcdef0":       "0.0.0+7.gabcdef0",
	} {
		if got := packageVersion(described); got != want || !validVersion.MatchString(got) {
			t.Errorf("packageVersion(%q) = %q, want %q", described, got, want)
		}
	}
	for _, bad := range []string{"", "dev", "v1", "1.2-3", "1 2", "1_2", "../1"} {
		if validVersion.MatchString(bad) {
			t.Errorf("%q is taken as a version", bad)
		}
	}
}

// TestVersionsSort: what comes later is newer to dpkg.
func TestVersionsSort(t *testing.T) {
	if _, err := exec.LookPath("dpkg"); err != nil {
		t.Skip("no dpkg here")
	}
	order := []string{"0.0.0+7.gabcdef0", "0.0.0+10.g0000000", "1.2.3~rc1", "1.2.3", "1.2.3+4.gabcdef0", "1.2.4"}
	for i := range order[1:] {
		if err := exec.Command("dpkg", "--compare-versions", order[i], "lt", order[i+1]).Run(); err != nil {
			t.Errorf("%s is not older than %s", order[i], order[i+1])
		}
	}
}

func TestFindRelease(t *testing.T) {
	dir := t.TempDir()
	git := func(args ...string) {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=x", "-c", "user.email=x@example.com"}, args...)...)
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "GIT_COMMITTER_DATE=1000000000 +0200", "GIT_CONFIG_GLOBAL=/dev/null", "SOURCE_DATE_EPOCH=")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("git %s: %v: %s", args[0], err, out)
		}
	}
	find := func(version string) (release, error) { return findRelease(context.Background(), dir, version) }
	t.Setenv("SOURCE_DATE_EPOCH", "")
	t.Setenv("GIT_CEILING_DIRECTORIES", filepath.Dir(dir))
	if rel, err := find(""); err == nil {
		t.Errorf("a release without git: %+v", rel)
	}
	git("init", "-q")
	git("commit", "-q", "--allow-empty", "-m", "one")
	rel, err := find("")
	if err != nil || len(rel.version) != len("0.0.0+1.gabcdef0") || !rel.time.Equal(time.Unix(1e9, 0)) || rel.time.Location() != time.UTC {
		t.Errorf("before the first tag: %+v, %v", rel, err)
	}
	git("tag", "v2.0.0")
	if rel, err = find(""); err != nil || rel.version != "2.0.0" {
		t.Errorf("on the tag: %+v, %v", rel, err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	git("add", "file")
	if rel, err = find(""); err != nil || rel.version != "2.0.0+dirty" {
		t.Errorf("changed after the tag: %+v, %v", rel, err)
	}
	git("commit", "-q", "-m", "two")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if rel, err = find(""); err != nil || !strings.HasPrefix(rel.version, "2.0.0+1.g") || !strings.HasSuffix(rel.version, ".dirty") || !validVersion.MatchString(rel.version) {
		t.Errorf("changed later: %+v, %v", rel, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "86400")
	if rel, err = find("v3.1"); err != nil || rel.version != "3.1" || rel.time.Unix() != 86400 {
		t.Errorf("as asked for: %+v, %v", rel, err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if rel, err = find(""); err == nil {
		t.Errorf("a time that is none: %+v", rel)
	}
}

// TestReplaceable: what is not an earlier release is not removed for a new one.
func TestReplaceable(t *testing.T) {
	dir := t.TempDir()
	if err := replaceable(filepath.Join(dir, "none")); err != nil {
		t.Errorf("no directory: %v", err)
	}
	if err := replaceable(dir); err != nil {
		t.Errorf("an empty one: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "thesis"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := replaceable(dir); err == nil {
		t.Error("a directory with other files is taken for a release")
	}
	if err := writeSums(dir); err != nil {
		t.Fatal(err)
	}
	if err := replaceable(dir); err != nil {
		t.Errorf("a release: %v", err)
	}
}
