package watch

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const unitFile = "../../systemd/etcd-fleet-watch.service"

// analyze runs systemd-analyze on the unit, with a program in the place of ours,
// which is not installed here.
func analyze(t *testing.T, args ...string) string {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("systemd-analyze is missing")
		}
		t.Skip("systemd-analyze is missing")
	}
	b, err := os.ReadFile(unitFile)
	if err != nil {
		t.Fatal(err)
	}
	b = bytes.Replace(b, []byte("ExecStart=/usr/bin/etcd-fleet "), []byte("ExecStart=/bin/true "), 1)
	path := filepath.Join(t.TempDir(), filepath.Base(unitFile))
	if err := os.WriteFile(path, b, 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("systemd-analyze", append(args, path)...).CombinedOutput()
	if err != nil {
		t.Errorf("%v: %v\n%s", args, err, out)
	}
	return string(out)
}

func TestUnitIsValid(t *testing.T) {
	if out := analyze(t, "verify", "--man=no"); out != "" {
		t.Errorf("systemd-analyze verify says:\n%s", out)
	}
}

// TestUnitIsSandboxed: the exposure is at most 1.5 of 10.
func TestUnitIsSandboxed(t *testing.T) {
	analyze(t, "security", "--offline=true", "--no-pager", "--threshold=15")
}
