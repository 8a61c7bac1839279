package fscall

import (
	"io"
	"os"
	"path/filepath"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// readMounts returns the mounts in the order they were made, nil if they cannot
// be read.
func readMounts() []Mount {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer f.Close()
	return parseMounts(f)
}

func parseMounts(r io.Reader) []Mount {
	list, err := mountinfo.GetMountsFromReader(r, nil)
	if err != nil {
		return nil
	}
	mounts := make([]Mount, 0, len(list))
	for _, i := range list {
		mounts = append(mounts, Mount{
			ID: i.ID, Point: i.Mountpoint, Type: i.FSType, Source: i.Source, Options: i.VFSOptions,
			Device: unix.Mkdev(uint32(i.Major), uint32(i.Minor)),
		})
	}
	return mounts
}

// absolute makes a path absolute without asking the file system of the current
// directory, as os.Getwd would.
func absolute(name string) (string, bool) {
	if !filepath.IsAbs(name) {
		var buf [unix.PathMax]byte
		n, err := unix.Getcwd(buf[:])
		if err != nil || n < 1 {
			return "", false
		}
		name = filepath.Join(string(buf[:n-1]), name)
	}
	return filepath.Clean(name), filepath.IsAbs(name) // not "(unreachable)/..." of getcwd(2)
}

func readLink(name string) (string, bool) {
	to, err := os.Readlink(name)
	return to, err == nil
}
