package fscall

import (
	"path/filepath"
	"strings"
	"sync"
	"time"
)

const (
	// tableAge is how old the table of mounts may be: reading it costs as much as
	// some hundred calls to a file system.
	tableAge = time.Second
	// maxLinks is how many symbolic links of one path are followed, as in Linux.
	maxLinks = 40
)

// A Mount is one in the namespace of this process (proc_pid_mountinfo(5)).
type Mount struct {
	ID      int
	Point   string
	Type    string // of the file system, such as ext4, nfs4 or fuse.sshfs
	Source  string // such as /dev/sda1 or server:/export
	Options string // of the file system, separated by commas
	Device  uint64 // st_dev of its files (stat(2))
}

// A mountKey tells a mount from a later one at the same point.
type mountKey struct {
	id    int
	point string
}

// Device returns the mount whose files have the device number dev, as of a second
// ago at most, and false if there is none or that cannot be told. It asks no file
// system but proc.
func (c *Calls) Device(dev uint64) (Mount, bool) {
	for _, m := range c.table.list() {
		if m.Device == dev {
			return m, true
		}
	}
	return Mount{}, false
}

// mountOf returns the mount that a path leads to, and false where that cannot be
// told. It asks no file system but proc and the root's, since another one may be
// what hangs. So links on other mounts are not followed.
func (c *Calls) mountOf(name string) (mountKey, bool) {
	mounts := c.table.list()
	if len(mounts) == 0 {
		return mountKey{}, false
	}
	name, ok := absolute(name)
	if !ok {
		return mountKey{}, false
	}
	for range maxLinks {
		m := under(mounts, name)
		to, linked := "", false
		if m.Point == "/" {
			to, linked = firstLink(name)
		}
		if !linked {
			return mountKey{m.ID, m.Point}, m.Point != ""
		}
		name = to
	}
	return mountKey{}, false
}

// under returns the mount that an absolute path is on by its text alone.
func under(mounts []Mount, name string) Mount {
	var best Mount
	for _, m := range mounts {
		p := m.Point
		in := name == p || p == "/" || strings.HasPrefix(name, p) && name[len(p)] == '/'
		if in && len(p) >= len(best.Point) { // a later one covers an earlier one
			best = m
		}
	}
	return best
}

// firstLink returns the path with its first symbolic link followed.
func firstLink(name string) (string, bool) {
	for i := 1; i <= len(name); i++ {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if to, ok := readLink(name[:i]); ok {
			if !filepath.IsAbs(to) {
				to = filepath.Join(filepath.Dir(name[:i]), to)
			}
			return filepath.Join(to, name[i:]), true
		}
	}
	return name, false
}

// A table is the mounts as they were a moment ago.
type table struct {
	read func() []Mount

	mu     sync.Mutex
	at     time.Time
	mounts []Mount
}

func (t *table) list() []Mount {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now := time.Now(); t.at.IsZero() || now.Sub(t.at) >= tableAge || now.Before(t.at) {
		t.mounts, t.at = t.read(), now
	}
	return t.mounts
}
