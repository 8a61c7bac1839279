//go:build lab && vm && linux

package vmlab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/lab"
)

// victimEnv makes the test program a VM's owner that waits to be killed: the directory it may use.
const victimEnv = "VMLAB_TEST_VICTIM"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		if err := victim(dir); err != nil {
			fmt.Println("victim:", err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

// victim starts a VM without a disk to boot from, says so, and waits for its end.
func victim(dir string) error {
	image, err := blankImage(dir)
	if err != nil {
		return err
	}
	defer image.Close()
	vm, err := Start(context.Background(), Options{Image: image, Dir: dir, Name: "victim"})
	if err != nil {
		return err
	}
	defer vm.Close()
	fmt.Println(vm.pid)
	select {}
}

// blankImage is an image that is good enough for qemu to start.
func blankImage(dir string) (*Image, error) {
	base, err := root(context.Background(), func(string) {})
	if err != nil {
		return nil, err
	}
	kernel, _, err := base.kernel()
	if err != nil {
		return nil, err
	}
	initrd := filepath.Join(dir, "initrd")
	disk, err := os.Create(filepath.Join(dir, "disk"))
	if err != nil {
		return nil, err
	}
	return &Image{kernel: kernel, initrd: initrd, disk: disk}, errors.Join(disk.Truncate(1<<20), os.WriteFile(initrd, nil, 0o644))
}

// requireVM skips the test where no VM can run. Where CI is set it fails instead.
func requireVM(t *testing.T) {
	t.Helper()
	lab.RequireRoot(t)
	var missing string
	if _, err := exec.LookPath(qemu); err != nil {
		missing = "needs " + qemu + " (internal/lab/deps-vm.sh installs it)"
	} else if runtime.GOARCH != "amd64" {
		missing = "needs an amd64 machine"
	}
	switch {
	case missing != "" && os.Getenv("CI") != "":
		t.Fatal(missing + " (CI is set, so this is a failure)")
	case missing != "":
		t.Skip(missing)
	}
}

// TestVMKilledOwner: a VM ends with the process that started it, however that ends.
func TestVMKilledOwner(t *testing.T) {
	requireVM(t)
	if _, err := root(t.Context(), func(s string) { t.Log(s) }); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe, "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var pid int
	if _, err := fmt.Fscan(out, &pid); err != nil {
		t.Fatalf("the victim did not come up: %v", err)
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil || !strings.HasPrefix(string(name), "qemu-system") {
		t.Fatalf("process %d is %q, %v; want qemu", pid, name, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for end := time.Now().Add(10 * time.Second); !errors.Is(unix.Kill(pid, 0), unix.ESRCH); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("10 s after its owner's death the VM is there")
		}
	}
}

func TestVMModuleOrder(t *testing.T) {
	needs := parseDependencies("kernel/a.ko: kernel/b.ko kernel/c-d.ko\nkernel/b.ko: kernel/c-d.ko\nkernel/c-d.ko:\n")
	for name, want := range map[string]string{"a": "kernel/c-d.ko kernel/b.ko kernel/a.ko", "b": "kernel/c-d.ko kernel/b.ko", "c_d": "kernel/c-d.ko"} {
		if got := strings.Join(needs[name], " "); got != want {
			t.Errorf("module %s needs %q, want %q", name, got, want)
		}
	}
}
