package source

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// mountOf returns the mount point that a path leads to by its text alone, or ""
// where that is not known. It touches no file system but proc, since another
// could be the one that hangs. A path on the root may lead anywhere by a symbolic
// link, so the root is never the answer.
func mountOf(name string) string {
	if !filepath.IsAbs(name) {
		var buf [unix.PathMax]byte
		n, err := unix.Getcwd(buf[:]) // from the kernel's own tables; os.Getwd would stat
		if err != nil || n < 1 {
			return ""
		}
		name = filepath.Join(string(buf[:n-1]), name)
	}
	name = filepath.Clean(name)
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	defer f.Close()
	best := ""
	_, err = mountinfo.GetMountsFromReader(f, func(i *mountinfo.Info) (skip, stop bool) {
		p := i.Mountpoint
		if p != "/" && len(p) >= len(best) && (name == p || strings.HasPrefix(name, p+"/")) {
			best = p
		}
		return true, false
	})
	if err != nil {
		return ""
	}
	return best
}
