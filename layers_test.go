// Package layers_test holds the module's import rules: imports run downwards
// only, and each heavy or dangerous library has one door.
package layers_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// layers lists what each package of this module may import of it. The mains
// may import all but the other main.
var layers = map[string][]string{
	"reason":    {},
	"isofs":     {},
	"archive":   {"reason"},
	"marker":    {"reason"},
	"stability": {},
	"media":     {"isofs", "reason"},
	"install":   {"reason"},
	"unit":      {"reason", "stability"},
	"setup":     {"archive", "install", "marker", "media", "reason", "stability", "unit"},
	"inventory": {"reason"},
	"sshnode":   {"inventory", "marker", "reason", "stability"},
	"health":    {"reason"},
	"poll":      {"marker", "reason", "sshnode", "stability"},
	"cmdline":   {"reason"},
	"term":      {"reason"},
	"report":    {"reason", "term"},
	"lab":       {},
	"lab/demo":  {"archive", "isofs", "lab", "marker", "reason"},
}

// doors lists who may import a library, by the beginning of its path.
var doors = map[string][]string{
	"github.com/coreos/go-systemd/": {"internal/unit"},
	"github.com/godbus/":            {"internal/unit"},
	"golang.org/x/crypto/":          {"internal/sshnode"},
	"github.com/skeema/knownhosts":  {"internal/sshnode"},
	"github.com/kevinburke/":        {"internal/sshnode"},
	"github.com/urfave/cli/":        {"nodeagent", "fleet", "internal/cmdline"},
	"github.com/goccy/go-yaml":      {"internal/inventory"},
	"golang.org/x/term":             {"internal/term", "fleet"},
	"github.com/kdomanski/":         {}, // test images only
}

func TestLayers(t *testing.T) {
	type pkg struct {
		ImportPath string
		Imports    []string
	}
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "-tags", "lab", "./...")
	out, err := cmd.Output()
	if err != nil {
		var e *exec.ExitError
		if errors.As(err, &e) {
			t.Fatalf("%v: %s", err, e.Stderr)
		}
		t.Fatal(err)
	}
	const module = "cks-etcd/"
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p pkg
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimPrefix(p.ImportPath, module)
		inner, internal := strings.CutPrefix(name, "internal/")
		may, known := layers[inner]
		testOnly := strings.HasSuffix(path.Base(inner), "test")
		if internal && !known && !testOnly {
			t.Errorf("%s has no entry in the table of layers", name)
		}
		for _, imp := range p.Imports {
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
// however indirectly.
func TestNodeAgentWithoutSSH(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./nodeagent").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		for _, bad := range []string{"golang.org/x/crypto/ssh", "go.etcd.io/", "net/http", "cks-etcd/internal/sshnode", "cks-etcd/internal/answers"} {
			if dep == bad || strings.HasPrefix(dep, bad+"/") || strings.HasSuffix(bad, "/") && strings.HasPrefix(dep, bad) {
				t.Errorf("the node agent depends on %s", dep)
			}
		}
	}
}
