// Package layers_test holds the module's import rules: imports run downwards
// only, and each heavy or dangerous library has one door.
package layers_test

import (
	"bytes"
	"errors"
	"go/build"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// layers lists what each package of this module may import of it. The mains
// may import all but the other main.
var layers = map[string][]string{
	"reason":      {},
	"unixfs":      {},
	"isofs":       {},
	"archive":     {"reason"},
	"marker":      {"reason", "unixfs"},
	"stability":   {},
	"media":       {"isofs", "reason", "unixfs"},
	"install":     {"reason", "unixfs"},
	"unit":        {"reason", "stability", "unixfs"},
	"setup":       {"archive", "install", "marker", "media", "reason", "stability", "unit", "unixfs"},
	"strictyaml":  {"reason"},
	"inventory":   {"reason", "strictyaml"},
	"sshnode":     {"inventory", "marker", "reason", "stability"},
	"health":      {"reason"},
	"poll":        {"marker", "reason", "sshnode", "stability"},
	"inspect":     {"archive", "isofs", "reason"},
	"fscall":      {},
	"source":      {"fscall", "reason", "unixfs"},
	"store":       {"fscall", "reason"},
	"answers":     {"inspect", "reason", "unixfs"},
	"scan":        {"answers", "fscall", "inspect", "reason", "source", "store"},
	"admit":       {"answers", "inspect", "reason"},
	"watch":       {"admit", "answers", "fscall", "inspect", "reason", "scan", "source", "strictyaml", "unixfs"},
	"cmdline":     {"reason"},
	"term":        {"reason"},
	"report":      {"reason", "term"},
	"lab":         {"unixfs"},
	"vmlab":       {"lab", "vmlab/wire"},
	"vmlab/wire":  {},
	"vmlab/guest": {"vmlab/wire"},
	"lab/demo":    {"archive", "isofs", "lab", "marker", "reason"},
}

// doors lists who may import a library, by the beginning of its path.
var doors = map[string][]string{
	"github.com/coreos/go-systemd/v22/dbus":   {"internal/unit"},
	"github.com/coreos/go-systemd/v22/daemon": {"internal/watch"},
	"github.com/godbus/":                      {"internal/unit"},
	"golang.org/x/crypto/":                    {"internal/sshnode"},
	"github.com/skeema/knownhosts":            {"internal/sshnode"},
	"github.com/kevinburke/":                  {"internal/sshnode"},
	"github.com/urfave/cli/":                  {"nodeagent", "fleet", "internal/cmdline"},
	"github.com/goccy/go-yaml":                {"internal/inventory", "internal/strictyaml", "internal/watch"},
	"golang.org/x/term":                       {"internal/term", "fleet"},
	"go.etcd.io/bbolt":                        {"internal/answers"},
	"github.com/prometheus/":                  {"internal/watch"},
	"github.com/fsnotify/":                    {"internal/watch"},
	"net/http":                                {"internal/health", "internal/source", "internal/watch"},
	"github.com/kdomanski/":                   {}, // test images only
}

const module = "cks-etcd/"

// packages returns the imports of every package of this module, without those
// of its tests, by its path in the module. The files are read here, and not by a
// child such as "go list": what a child reads is unknown to the cache of test
// results, which would go on showing the result from before a change.
func packages(t *testing.T) map[string][]string {
	t.Helper()
	linux := build.Default
	linux.GOOS, linux.CgoEnabled, linux.BuildTags = "linux", false, []string{"lab", "vm"}
	pkgs := make(map[string][]string)
	err := filepath.WalkDir(".", func(dir string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if dir != "." {
			_, err := os.Stat(filepath.Join(dir, "go.mod")) // another module
			if name := d.Name(); err == nil || name == "testdata" || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "_") {
				return filepath.SkipDir
			}
		}
		p, err := linux.ImportDir(dir, 0)
		if _, none := errors.AsType[*build.NoGoError](err); none {
			return nil
		}
		if err == nil && len(p.GoFiles) > 0 {
			pkgs[filepath.ToSlash(dir)] = p.Imports
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(pkgs["nodeagent"]) == 0 || len(pkgs["internal/lab"]) == 0 {
		t.Fatalf("the packages were not read: %v", pkgs)
	}
	return pkgs
}

func TestLayers(t *testing.T) {
	for name, imports := range packages(t) {
		inner, internal := strings.CutPrefix(name, "internal/")
		may, known := layers[inner]
		testOnly := strings.HasSuffix(path.Base(inner), "test")
		if internal && !known && !testOnly {
			t.Errorf("%s has no entry in the table of layers", name)
		}
		for _, imp := range imports {
			if ours, ok := strings.CutPrefix(imp, module); ok {
				to := strings.TrimPrefix(ours, "internal/")
				switch {
				case strings.HasSuffix(to, "test"):
					t.Errorf("%s imports the test helper %s", name, to)
				case !strings.HasPrefix(ours, "internal/"):
					t.Errorf("%s imports the program %s", name, ours)
				case internal && !testOnly && !slices.Contains(may, to):
					t.Errorf("%s may not import %s", name, ours)
				}
			}
			for prefix, who := range doors {
				if strings.HasPrefix(imp, prefix) && !testOnly && !slices.Contains(who, name) {
					t.Errorf("%s may not import %s", name, imp)
				}
			}
		}
	}
}

// TestNodeAgentWithoutSSH keeps what an etcd node never needs out of its agent,
// however indirectly. Of the standard library, expvar and net/rpc bring net/http
// along.
func TestNodeAgentWithoutSSH(t *testing.T) {
	pkgs, modules := packages(t), required(t)
	linux := build.Default
	linux.GOOS, linux.CgoEnabled = "linux", false
	seen := map[string]bool{}
	var visit func(from, imp string)
	visit = func(from, imp string) {
		for _, bad := range []string{"golang.org/x/crypto/ssh", "go.etcd.io", "net/http", "expvar", "net/rpc", "cks-etcd/internal/sshnode", "cks-etcd/internal/answers"} {
			if imp == bad || strings.HasPrefix(imp, bad+"/") {
				t.Errorf("the node agent depends on %s, by way of %s", imp, from)
			}
		}
		first, _, _ := strings.Cut(imp, "/")
		if seen[imp] || !strings.Contains(first, ".") && first+"/" != module {
			return // of the standard library
		}
		seen[imp] = true
		imports, ours := pkgs[strings.TrimPrefix(imp, module)]
		if !ours {
			p, err := linux.ImportDir(modules.dir(t, imp), 0)
			if err != nil {
				t.Fatal(err)
			}
			imports = p.Imports
		}
		for _, next := range imports {
			visit(imp, next)
		}
	}
	visit("itself", module+"nodeagent")
	for _, want := range []string{"cks-etcd/internal/setup", "github.com/godbus/dbus/v5"} {
		if !seen[want] {
			t.Errorf("the imports were not followed to %s", want)
		}
	}
}

// A moduleSet is the modules that go.mod requires: directories in the module
// cache, by the modules' paths.
type moduleSet map[string]string

func required(t *testing.T) moduleSet {
	t.Helper()
	b, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	cache := os.Getenv("GOMODCACHE")
	if cache == "" {
		cache = filepath.Join(filepath.SplitList(build.Default.GOPATH)[0], "pkg", "mod")
	}
	set := moduleSet{}
	for line := range bytes.Lines(b) {
		f := strings.Fields(strings.TrimPrefix(string(line), "require "))
		if len(f) >= 2 && strings.Contains(f[0], ".") && strings.HasPrefix(f[1], "v") {
			set[f[0]] = filepath.Join(cache, escaped(f[0])+"@"+f[1])
		}
	}
	return set
}

// dir returns the directory of a package: in the module with the longest path
// that begins its own.
func (m moduleSet) dir(t *testing.T, pkg string) string {
	t.Helper()
	for mod := pkg; mod != "."; mod = path.Dir(mod) {
		if dir, ok := m[mod]; ok {
			return filepath.Join(dir, strings.TrimPrefix(pkg, mod))
		}
	}
	t.Fatalf("no module in go.mod has package %s", pkg)
	return ""
}

// escaped is a module's path in the cache, where letters have one case only
// (Go Modules Reference, "Module cache").
func escaped(modulePath string) string {
	var b strings.Builder
	for _, r := range modulePath {
		if unicode.IsUpper(r) {
			b.WriteByte('!')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
