//go:build dist

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// distDir is what "make dist" wrote, and what these tests are about.
const distDir = "../dist"

// built returns the document of the release in distDir, which tells its version
// and time.
func built(t *testing.T) spdxDocument {
	t.Helper()
	names, err := filepath.Glob(distDir + "/*.spdx.json")
	if err != nil || len(names) != 1 {
		t.Fatalf("%d bills of materials in %s (make dist): %v", len(names), distDir, err)
	}
	b, err := os.ReadFile(names[0])
	if err != nil {
		t.Fatal(err)
	}
	var doc spdxDocument
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	return doc
}

func version(doc spdxDocument) string { return strings.TrimPrefix(doc.Name, "cks-etcd-") }

// file returns the path of the one file that matches.
func file(t *testing.T, pattern string) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(distDir, pattern))
	if err != nil || len(names) != 1 {
		t.Fatalf("%d files match %s: %v", len(names), pattern, err)
	}
	abs, err := filepath.Abs(names[0])
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// tool skips the test where a program is missing; in CI nothing is skipped.
func tool(t *testing.T, name string) {
	t.Helper()
	if _, err := exec.LookPath(name); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestDistReproducible builds a copy of the tree that lies elsewhere, with another
// umask, other times and another time zone, and wants the same bytes.
func TestDistReproducible(t *testing.T) {
	doc := built(t)
	tree := t.TempDir()
	list, err := git(t.Context(), "..", "ls-files", "--cached", "--others", "--exclude-standard")
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.Lines(list) {
		name = strings.TrimSpace(name)
		b, err := os.ReadFile(filepath.Join("..", name))
		if os.IsNotExist(err) { // removed, and not committed yet
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(tree, filepath.Dir(name)), 0o700)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(tree, name), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	created, err := time.Parse(time.RFC3339, doc.Creation.Created)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOURCE_DATE_EPOCH", fmt.Sprint(created.Unix()))
	t.Setenv("TZ", "Pacific/Chatham")
	out := filepath.Join(t.TempDir(), "dist")
	if err := run(t.Context(), tree, out, version(doc), io.Discard); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(distDir + "/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out + "/SHA256SUMS")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("a second build differs: %v\n%s\nwant\n%s", err, got, want)
	}
}

// TestDistSums: SHA256SUMS names every file, and its digests are right.
func TestDistSums(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS")
	cmd.Dir = distDir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	sums, err := os.ReadFile(distDir + "/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(distDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() != "SHA256SUMS" && !strings.Contains(string(sums), "  "+e.Name()+"\n") {
			t.Errorf("%s is not in SHA256SUMS", e.Name())
		}
	}
	if want := 2*len(programs)*len(arches) + len(programs)*len(arches) + 2; len(entries) != want {
		t.Errorf("%d files, want %d", len(entries), want)
	}
}

// TestDistBinaries takes the programs out of the tarballs: they are static, for the
// architecture, and exactly what the bill of materials says.
func TestDistBinaries(t *testing.T) {
	doc := built(t)
	ids := map[string]spdxPackage{}
	for _, p := range doc.Packages {
		if _, twice := ids[p.ID]; twice {
			t.Errorf("%s is there twice", p.ID)
		}
		ids[p.ID] = p
	}
	for _, r := range doc.Relationships {
		for _, id := range []string{r.Element, r.Related} {
			if _, ok := ids[id]; !ok && id != spdxDocumentID {
				t.Errorf("%s is related, and is not there", id)
			}
		}
	}
	checkout, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	for _, p := range programs {
		for _, arch := range arches {
			t.Run(p.name+" "+arch, func(t *testing.T) {
				members := untar(t, file(t, p.name+"_*_linux_"+arch+".tar.gz"))
				top := fmt.Sprintf("%s_%s_linux_%s/", p.name, version(doc), arch)
				b := members[top+"usr/bin/"+p.name]
				e, err := elf.NewFile(bytes.NewReader(b))
				if err != nil {
					t.Fatal(err)
				}
				if e.Machine != machines[arch] {
					t.Errorf("machine %v", e.Machine)
				}
				for _, prog := range e.Progs {
					if prog.Type == elf.PT_INTERP || prog.Type == elf.PT_DYNAMIC {
						t.Errorf("not static: it has a %v", prog.Type)
					}
				}
				if bytes.Contains(b, []byte(checkout+"/")) || bytes.Contains(b, []byte(os.Getenv("HOME")+"/go")) {
					t.Error("the binary tells where it was built")
				}
				own := ids[spdxID("binary", p.name, arch)]
				if sum := fmt.Sprintf("%x", sha256.Sum256(b)); len(own.Checksums) != 1 || own.Checksums[0].Value != sum {
					t.Errorf("sha256 %s, the bill says %+v", sum, own.Checksums)
				}
				info, err := buildinfo.Read(bytes.NewReader(b))
				if err != nil {
					t.Fatal(err)
				}
				linked := map[string]bool{}
				for _, r := range doc.Relationships {
					if r.Type == "STATIC_LINK" && r.Related == own.ID {
						linked[ids[r.Element].Name+" "+ids[r.Element].Version] = true
					}
				}
				if len(linked) != len(info.Deps)+1 || !linked["stdlib "+strings.TrimPrefix(info.GoVersion, "go")] {
					t.Errorf("the bill lists %d modules, the binary %d and the standard library", len(linked), len(info.Deps))
				}
				notices := members[top+"usr/share/licenses/"+p.name+"/NOTICES"]
				for _, m := range info.Deps {
					if !linked[m.Path+" "+m.Version] {
						t.Errorf("the bill lacks %s %s", m.Path, m.Version)
					}
					if !bytes.Contains(notices, []byte(m.Path+" "+m.Version)) {
						t.Errorf("the notices lack %s", m.Path)
					}
				}
				for name := range members {
					if !strings.HasPrefix(name, top) || path.Clean(name) != name {
						t.Errorf("member %q", name)
					}
				}
				if len(members[top+"LICENSE"]) == 0 {
					t.Error("no LICENSE")
				}
			})
		}
	}
}

// untar returns the files of a tarball.
func untar(t *testing.T, name string) map[string][]byte {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gz, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	members := map[string][]byte{}
	for r := tar.NewReader(gz); ; {
		h, err := r.Next()
		if err == io.EOF {
			return members
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if members[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDistLintian: nothing but what the packages explain.
func TestDistLintian(t *testing.T) {
	tool(t, "lintian")
	for _, p := range programs {
		t.Run(p.name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "lintian", "--no-cfg", "--allow-root", "--pedantic", "--display-info", "--fail-on", "error,warning,info,pedantic", file(t, p.name+"_*_amd64.deb"))
			out, err := cmd.CombinedOutput()
			if err != nil || len(out) > 0 {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// TestDistScripts: POSIX shell, as the shell and shellcheck see it.
func TestDistScripts(t *testing.T) {
	names, err := filepath.Glob("scripts/*/*")
	if err != nil || len(names) == 0 {
		t.Fatal(names, err)
	}
	for _, name := range names {
		output(t, "sh", "-n", name)
	}
	tool(t, "shellcheck")
	output(t, "shellcheck", append([]string{"--shell=sh"}, names...)...)
}

// A root is a Debian tree into which packages are installed.
type root string

// freshRoot returns a copy of a clean Debian tree with what the packages depend on
// and no more; the tree is made once and kept.
func freshRoot(t *testing.T) root {
	t.Helper()
	tool(t, "mmdebstrap")
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("needs root: a Debian tree is made (CI is set, so this is a failure)")
		}
		t.Skip("needs root: a Debian tree is made")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	const recipe = "dist-bookworm-2.tar" // another number for another recipe
	kept := filepath.Join(cache, "cks-etcd-lab", recipe)
	if _, err := os.Stat(kept); err != nil {
		if err := os.MkdirAll(filepath.Dir(kept), 0o755); err != nil {
			t.Fatal(err)
		}
		args := []string{"--mode=root", "--variant=minbase", "--format=tar", "--include=systemd,adduser,procps",
			`--aptopt=APT::Install-Recommends "false"`, "--dpkgopt=force-unsafe-io", "bookworm", kept + ".new"}
		output(t, "mmdebstrap", append(args, mirrors(t)...)...)
		if err := os.Rename(kept+".new", kept); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	output(t, "tar", "-C", dir, "--numeric-owner", "--exclude=./dev/*", "-xf", kept)
	// Scripts write there.
	if f, err := os.Create(filepath.Join(dir, "dev/null")); err != nil {
		t.Fatal(err)
	} else if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "dev/null"), 0o666); err != nil {
		t.Fatal(err)
	}
	return root(dir)
}

// mirrors returns the lines of sources.list by which this machine gets bookworm; none
// where it does not, and mmdebstrap takes its default.
func mirrors(t *testing.T) []string {
	t.Helper()
	var lines []string
	for line := range strings.Lines(output(t, "apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "main" && strings.HasPrefix(f[1], "bookworm") {
			lines = append(lines, "deb "+strings.Join(f, " "))
		}
	}
	return lines
}

func (r root) path(name string) string { return filepath.Join(string(r), name) }

// run runs a command in the tree.
func (r root) run(t *testing.T, args ...string) string {
	t.Helper()
	return output(t, "chroot", append([]string{string(r)}, args...)...)
}

func (r root) exists(name string) bool {
	_, err := os.Lstat(r.path(name))
	return err == nil
}

func (r root) write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(r.path(name)), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(r.path(name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// snapshot lists what is in the tree, without the notes of the package managers
// themselves and the caches that any installation renews.
func (r root) snapshot(t *testing.T) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(string(r), func(name string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(name, string(r))
		switch rel {
		case "/var/lib/dpkg", "/var/lib/rpm", "/var/log", "/var/cache", "/proc", "/sys":
			return filepath.SkipDir
		}
		names = append(names, rel)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// left returns what is in after and not in before, without what below allowed.
func left(before, after []string, allowed ...string) []string {
	var out []string
	for _, name := range after {
		ok := slices.ContainsFunc(allowed, func(a string) bool { return name == a || strings.HasPrefix(name, a+"/") })
		if _, was := slices.BinarySearch(before, name); !was && !ok {
			out = append(out, name)
		}
	}
	return out
}

// accounts are what remains of making a system user, on purpose: the files
// themselves were there, their backups and locks are new.
var accounts = []string{"/run/adduser", "/etc/passwd-", "/etc/group-", "/etc/shadow-", "/etc/gshadow-", "/etc/subuid-", "/etc/subgid-", "/etc/.pwd.lock"}

const (
	wants       = "/etc/systemd/system/multi-user.target.wants"
	agentWanted = wants + "/etcd-nodeagent.service"
	watchWanted = wants + "/etcd-fleet-watch.service"
)

// checkInstalled looks at what both formats must have done.
func (r root) checkInstalled(t *testing.T) {
	t.Helper()
	doc := built(t)
	for _, p := range programs {
		if got := r.run(t, p.name, "--version"); !strings.Contains(got, version(doc)) {
			t.Errorf("%s --version: %s", p.name, got)
		}
		if !r.exists(fmt.Sprintf("/usr/share/man/man%d/%s.%d.gz", p.section, p.name, p.section)) {
			t.Errorf("no manual page of %s", p.name)
		}
	}
	if !r.exists(agentWanted) || r.exists(watchWanted) {
		t.Errorf("enabled: agent %v, want true; watch %v, want false", r.exists(agentWanted), r.exists(watchWanted))
	}
	if got := r.run(t, "stat", "-c", "%a %U %G", "/etc/etcd-fleet"); got != "750 root etcd-fleet\n" {
		t.Errorf("/etc/etcd-fleet: %s", got)
	}
	if got := r.run(t, "getent", "passwd", "etcd-fleet"); !strings.HasSuffix(got, ":/var/lib/etcd-fleet:/usr/sbin/nologin\n") {
		t.Errorf("the user: %s", got)
	}
	r.run(t, "etcd-fleet", "watch", "--check", "--config", "/etc/etcd-fleet/watch.yaml")
	// Where the programs and units are is where systemd looks for them.
	if got := output(t, "systemd-analyze", "verify", "--man=no", "--root="+string(r), "etcd-nodeagent.service", "etcd-nodeagent-failed.service", "etcd-fleet-watch.service"); got != "" {
		t.Errorf("systemd-analyze verify: %s", got)
	}
	if r.exists("/run/etcd-nodeagent.lock") || r.exists("/var/lib/etcd-nodeagent") {
		t.Error("something was started, or made for it, where no systemd runs")
	}
}

// TestDistDeb installs, upgrades, removes and purges both packages in a clean tree
// in which no systemd runs, as an image builder does.
func TestDistDeb(t *testing.T) {
	r := freshRoot(t)
	before := r.snapshot(t)
	slices.Sort(before)
	dpkg := func(args ...string) string {
		t.Helper()
		t.Setenv("DEBIAN_FRONTEND", "noninteractive")
		return output(t, "dpkg", append([]string{"--root=" + string(r), "--no-debsig"}, args...)...)
	}
	debs := []string{file(t, "etcd-nodeagent_*_amd64.deb"), file(t, "etcd-fleet_*_amd64.deb")}
	dpkg(append([]string{"-i"}, debs...)...)
	r.checkInstalled(t)
	dpkg("--verify", "etcd-nodeagent", "etcd-fleet")

	// An upgrade keeps what was set, and what was switched off.
	const setting = "ETCD_NODEAGENT_ISO_WAIT=7m\n"
	r.write(t, "/etc/default/etcd-nodeagent", setting)
	r.run(t, "systemctl", "disable", "etcd-nodeagent.service")
	dpkg("-i", newer(t, debs[0]), newer(t, debs[1]))
	if got, err := os.ReadFile(r.path("/etc/default/etcd-nodeagent")); err != nil || string(got) != setting {
		t.Errorf("after the upgrade: %q, %v", got, err)
	}
	if r.exists(agentWanted) {
		t.Error("the upgrade has enabled what was disabled")
	}
	r.run(t, "systemctl", "enable", "etcd-nodeagent.service")

	r.write(t, "/var/lib/etcd-nodeagent/state.json", "{}")
	r.write(t, "/var/lib/etcd-fleet/answers.db", "")
	dpkg("-r", "etcd-nodeagent", "etcd-fleet")
	config := []string{
		"/etc/default/etcd-nodeagent", "/etc/etcd-fleet",
		// Whether the service is enabled is configuration to Debian.
		agentWanted, "/var/lib/systemd/deb-systemd-helper-enabled",
		"/var/lib/etcd-nodeagent", "/var/lib/etcd-fleet", // state, until the purge
	}
	if got := left(before, r.snapshot(t), slices.Concat(config, accounts)...); len(got) > 0 {
		t.Errorf("the removal leaves %v", got)
	}
	if got, err := os.ReadFile(r.path("/etc/default/etcd-nodeagent")); err != nil || string(got) != setting {
		t.Errorf("after the removal: %q, %v", got, err)
	}

	dpkg("-P", "etcd-nodeagent", "etcd-fleet")
	if got := left(before, r.snapshot(t), accounts...); len(got) > 0 {
		t.Errorf("the purge leaves %v", got)
	}
}

// newer returns a copy of a package whose version is higher.
func newer(t *testing.T, deb string) string {
	t.Helper()
	dir := t.TempDir()
	output(t, "dpkg-deb", "-R", deb, dir+"/x")
	control, err := os.ReadFile(dir + "/x/DEBIAN/control")
	if err != nil {
		t.Fatal(err)
	}
	head, rest, _ := strings.Cut(string(control), "\nVersion: ")
	if err := os.WriteFile(dir+"/x/DEBIAN/control", []byte(head+"\nVersion: 9"+rest), 0o644); err != nil {
		t.Fatal(err)
	}
	output(t, "dpkg-deb", "-Znone", "-b", dir+"/x", dir+"/newer.deb")
	return dir + "/newer.deb"
}

// TestDistRPM does the same with the rpms, in the same kind of tree: their scripts
// want no more than a shell, systemctl and useradd.
func TestDistRPM(t *testing.T) {
	tool(t, "rpm")
	r := freshRoot(t)
	before := r.snapshot(t)
	slices.Sort(before)
	rpm := func(args ...string) string {
		t.Helper()
		return output(t, "rpm", append([]string{"--root=" + string(r), "--dbpath=/var/lib/rpm", "--force-debian"}, args...)...)
	}
	rpms := []string{file(t, "etcd-nodeagent-*.x86_64.rpm"), file(t, "etcd-fleet-*.x86_64.rpm")}
	for _, name := range rpms {
		output(t, "rpm", "--checksig", "--nosignature", name)
	}
	if got := rpm(append([]string{"-i", "--nodeps"}, rpms...)...); got != "" {
		t.Errorf("rpm -i says %s", got)
	}
	r.checkInstalled(t)
	if got := rpm("-V", "--nodeps", "etcd-nodeagent", "etcd-fleet"); got != "" {
		t.Errorf("rpm -V: %s", got)
	}

	// Scripts run as in an upgrade: those of the old package with 1.
	const setting = "ETCD_NODEAGENT_ISO_WAIT=7m\n"
	r.write(t, "/etc/default/etcd-nodeagent", setting)
	rpm(append([]string{"-U", "--nodeps", "--replacepkgs"}, rpms...)...)
	if got, err := os.ReadFile(r.path("/etc/default/etcd-nodeagent")); err != nil || string(got) != setting || !r.exists(agentWanted) {
		t.Errorf("after the upgrade: %q, %v, enabled %v", got, err, r.exists(agentWanted))
	}

	rpm("-e", "--nodeps", "etcd-nodeagent", "etcd-fleet")
	if got := left(before, r.snapshot(t), slices.Concat(accounts, []string{
		"/etc/default/etcd-nodeagent.rpmsave",
		"/usr/share/licenses", // belongs to every rpm distribution's first package
	})...); len(got) > 0 {
		t.Errorf("the removal leaves %v", got)
	}

	// Nothing at all is needed to unpack them.
	empty := root(t.TempDir())
	output(t, "rpm", append([]string{"--root=" + string(empty), "--dbpath=/var/lib/rpm", "--force-debian", "-i", "--nodeps", "--noscripts"}, rpms...)...)
	if out, err := exec.CommandContext(context.Background(), empty.path("/usr/bin/etcd-nodeagent"), "--version").CombinedOutput(); err != nil {
		t.Errorf("the agent does not run out of an empty tree: %v: %s", err, out)
	}
}
