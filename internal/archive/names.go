package archive

import (
	"archive/tar"
	"path"
	"strings"

	"cks-etcd/internal/reason"
)

// checkName refuses names that no release has and that would be dangerous to
// whoever unpacks the archive by its names.
func checkName(name string) error {
	if why := unsafe(name); why != "" {
		return reason.New(reason.ArchiveUnsafeName, "the name %q %s", shorten(name), why)
	}
	return nil
}

// unsafe says what is wrong with a name, "" when nothing is.
func unsafe(name string) (why string) {
	switch {
	case name == "":
		why = "is empty"
	case strings.HasPrefix(name, "/"):
		why = "is absolute"
	case strings.Contains(name, `\`):
		why = "has a backslash"
	case strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f }):
		why = "has a control character"
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			why = "leaves its directory"
		}
	}
	return why
}

// notRegular is the outcome for a program that is a link or a device. It cannot
// be run, and only where it points says whether somebody meant harm.
func notRegular(h *tar.Header, what string) error {
	var target string
	switch h.Typeflag {
	case tar.TypeLink: // by the name of another entry
		target = h.Linkname
	case tar.TypeSymlink:
		target = h.Linkname
		if target != "" && !path.IsAbs(target) {
			target = path.Join(path.Dir(h.Name), target)
		}
	default:
		return reason.New(reason.ArchiveNotExecutable, "%q is %s", h.Name, what)
	}
	if why := unsafe(target); why != "" {
		return reason.New(reason.ArchiveUnsafeName, "%q is %s to %q, which %s", h.Name, what, shorten(h.Linkname), why)
	}
	return reason.New(reason.ArchiveNotExecutable, "%q is %s to %q", h.Name, what, shorten(h.Linkname))
}

// programName returns which program the entry is meant to be, by its place and
// name. Directories are never one: the directory around the programs may itself
// be called etcd.
func programName(h *tar.Header) (string, bool) {
	if h.Typeflag == tar.TypeDir || strings.HasSuffix(h.Name, "/") {
		return "", false
	}
	dir, base := path.Split(path.Clean(h.Name))
	if !isProgram(base) || strings.Count(dir, "/") > 1 {
		return "", false
	}
	return base, true
}

// kind says what an entry is that is not a regular file, and "" for one that
// is. The types are those of POSIX.1-2017 and of GNU tar.
func kind(typeflag byte) string {
	switch typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse:
		return ""
	case tar.TypeLink:
		return "a hard link"
	case tar.TypeSymlink:
		return "a symbolic link"
	case tar.TypeChar, tar.TypeBlock:
		return "a device"
	case tar.TypeFifo:
		return "a named pipe"
	}
	return "neither a file nor a directory"
}

// hasData reports whether entries of this type carry data, as archive/tar sees
// it. Of the others the size is without meaning.
func hasData(typeflag byte) bool {
	switch typeflag {
	case tar.TypeLink, tar.TypeSymlink, tar.TypeChar, tar.TypeBlock, tar.TypeDir, tar.TypeFifo, tar.TypeXGlobalHeader:
		return false
	}
	return true
}

// dirVersion returns the version in the name of a release's directory, as in
// etcd-v3.5.21-linux-amd64/etcd, and "" where it is not named so.
func dirVersion(entry string) string {
	dir, _ := path.Split(path.Clean(entry))
	rest, ok := strings.CutPrefix(dir, "etcd-v")
	i := strings.LastIndex(rest, "-linux-")
	if !ok || i < 0 {
		return ""
	}
	if _, ok := parseVersion(rest[:i]); !ok {
		return ""
	}
	return rest[:i]
}

// shorten keeps a name from the archive from crowding out the rest of a message.
func shorten(s string) string {
	const limit = 200
	if len(s) <= limit {
		return s
	}
	return s[:limit] + "..."
}
