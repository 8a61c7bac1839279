//go:build lab && vm && linux

package vmlab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// parseDependencies reads modules.dep (modules.dep(5)): by module name the file, preceded by those it depends on, in the
// order to load them.
func parseDependencies(text string) map[string][]string {
	needs := map[string][]string{}
	for line := range strings.Lines(text) {
		file, deps, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		files := strings.Fields(deps) // each before what it depends on
		slices.Reverse(files)
		name, _, _ := strings.Cut(filepath.Base(file), ".ko")
		needs[strings.ReplaceAll(name, "-", "_")] = append(files, file)
	}
	return needs
}

// writeInitrd writes an initial RAM disk whose init is the guest program: the modules, and nothing else.
func writeInitrd(out, guest string, modules []string) error {
	var c cpio
	for _, dir := range []string{"dev", "proc", "root", "modules"} {
		c.add(dir, 0o40755, nil)
	}
	init, err := os.ReadFile(guest)
	if err != nil {
		return err
	}
	c.add("init", 0o100755, init)
	var order strings.Builder
	for _, m := range modules {
		b, err := os.ReadFile(m)
		if err != nil {
			return err
		}
		name := filepath.Base(m)
		c.add("modules/"+name, 0o100644, b)
		fmt.Fprintln(&order, name)
	}
	c.add("modules/order", 0o100644, []byte(order.String()))
	c.add("TRAILER!!!", 0, nil)
	return os.WriteFile(out, c.buf.Bytes(), 0o644)
}

// cpio is an archive in the "newc" form (Linux, Documentation/driver-api/early-userspace/buffer-format.rst).
type cpio struct {
	buf   bytes.Buffer
	inode int
}

func (c *cpio) add(name string, mode int, data []byte) {
	c.inode++
	fmt.Fprintf(&c.buf, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		c.inode, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	c.buf.WriteString(name + "\x00")
	c.pad()
	c.buf.Write(data)
	c.pad()
}

// pad fills up to a multiple of four bytes.
func (c *cpio) pad() {
	for c.buf.Len()%4 != 0 {
		c.buf.WriteByte(0)
	}
}
