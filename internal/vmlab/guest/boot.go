//go:build vm && linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// The initial RAM disk's layout.
const (
	modulesDir  = "/modules"
	modulesList = "/modules/order" // file names, one a line, in the order to load them
	rootDevice  = "/dev/vda"
	rootDir     = "/root"
)

// rootPatience bounds the wait for the disk. The kernel finds it in a fraction of a second.
const rootPatience = 20 * time.Second

// boot loads the drivers, mounts the root file system and becomes its init. It returns only if it fails.
func boot() error {
	for _, m := range []struct{ kind, at string }{{"devtmpfs", "/dev"}, {"proc", "/proc"}} {
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("cannot mount %s: %w", m.at, err)
		}
	}
	order, err := os.ReadFile(modulesList)
	if err != nil {
		return err
	}
	for name := range strings.FieldsSeq(string(order)) {
		if err := loadModule(filepath.Join(modulesDir, name)); err != nil {
			return fmt.Errorf("cannot load %s: %w", name, err)
		}
	}
	if err := os.RemoveAll(modulesDir); err != nil { // it is memory
		return err
	}
	if err := mountRoot(); err != nil {
		return err
	}
	if err := unix.Mount("/dev", rootDir+"/dev", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move /dev: %w", err)
	}
	if err := unix.Unmount("/proc", 0); err != nil {
		return fmt.Errorf("cannot unmount /proc: %w", err)
	}
	if err := os.Chdir(rootDir); err != nil {
		return err
	}
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("cannot move the root: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "HOME=") })
	return syscall.Exec("/sbin/init", []string{"/sbin/init"}, env)
}

func loadModule(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.FinitModule(int(f.Fd()), "", 0)
}

// mountRoot mounts the disk, which may take a moment to be found.
func mountRoot() error {
	for end := time.Now().Add(rootPatience); ; {
		err := unix.Mount(rootDevice, rootDir, "ext4", unix.MS_NOATIME, "")
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("cannot mount %s: %w", rootDevice, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
