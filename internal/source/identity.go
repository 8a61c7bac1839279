package source

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"cks-etcd/internal/fscall"
)

// Kinds of source.
const (
	KindFile   = "file"
	KindDevice = "device"
	KindURL    = "url"
)

// An Identity tells one image from another, and from its own later versions,
// without reading it.
type Identity struct {
	Kind string // KindFile, KindDevice or KindURL

	Device, Inode uint64    // of a file
	Modified      time.Time // of a file, as exactly as its file system has it
	// Changed is when content or attributes of a file changed last (st_ctime): unlike
	// Modified it cannot be set back. The zero time where it is not known.
	Changed time.Time
	// Volume is, of a file on a network file system, what that was mounted from,
	// such as "nfs=server:/export". It stands for Device, a number that the kernel
	// makes up at each mount and gives to another one later.
	Volume string

	Size int64

	// URL is where the answer came from after redirects, without user, password
	// and query. Instead of the query, which may hold a signature that differs
	// each time, it has a hash of the URL as it was named.
	URL          string
	ETag         string // as the server sent it, with W/ if it is weak
	LastModified string // as the server sent it; "" if it is too recent to tell two versions apart
}

// maxKey is the length of the longest key in bytes.
const maxKey = 256

// Key returns a printable form of i that is the same for the same image and
// differs after each change: at most 256 bytes, longer ones are hashed. It is ""
// where no change could be noticed, so that no answer can be kept: for a block
// device, whose medium may be another one each time, and for a URL without a
// strong entity tag or a modification time (RFC 9110, 8.8.1).
func (i Identity) Key() string {
	var key string
	switch i.Kind {
	case KindFile:
		volume := i.Volume // never without "=", which no number has
		if volume == "" {
			volume = strconv.FormatUint(i.Device, 16)
		}
		key = fmt.Sprintf("file:%s:%d:%d:%d.%09d", volume, i.Inode, i.Size, i.Modified.Unix(), i.Modified.Nanosecond())
		if !i.Changed.IsZero() {
			key += fmt.Sprintf(":%d.%09d", i.Changed.Unix(), i.Changed.Nanosecond())
		}
	case KindURL:
		version := i.ETag
		if !strongTag(i.ETag) {
			if i.LastModified == "" {
				return ""
			}
			version += "@" + i.LastModified
		}
		key = "url:" + i.URL + ":" + strconv.FormatInt(i.Size, 10) + ":" + version
	}
	if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
		key = i.Kind + ":" + strconv.QuoteToASCII(key)
	}
	if len(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = i.Kind + ":sha256:" + hex.EncodeToString(sum[:])
	}
	return key
}

// A deviceMount finds the mount whose files have a device number, without asking
// its file system.
type deviceMount func(dev uint64) (fscall.Mount, bool)

// identify returns the identity of a file or block device.
func identify(info fs.FileInfo, mounted deviceMount) Identity {
	id := Identity{Kind: KindFile, Size: info.Size(), Modified: info.ModTime()}
	if info.Mode()&fs.ModeDevice != 0 {
		id.Kind = KindDevice
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		id.Device, id.Inode, id.Changed = uint64(st.Dev), uint64(st.Ino), changed(st)
	}
	// Only file systems without a device of their own have a number made up, of
	// major 0 (Linux, Documentation/admin-guide/devices.txt).
	if id.Kind == KindFile && unix.Major(id.Device) == 0 {
		if m, ok := mounted(id.Device); ok {
			id.Volume = volume(m)
		}
	}
	return id
}

// volume is what Identity has of a mount: "" where inode numbers may differ after
// another mount of the same, so that an answer about one file could become that
// about another.
func volume(m fscall.Mount) string {
	kind := ""
	switch m.Type {
	case "nfs", "nfs4":
		kind = "nfs" // one server, one file id, whichever version is spoken (fileid in RFC 1813 and RFC 8881)
	case "ceph":
		kind = "ceph" // the inode number is the cluster's own
	case "fuse.glusterfs":
		kind = "glusterfs" // made from the file's id in the volume
	case "cifs", "smb3":
		// The server's numbers, unless the client counts (mount.cifs(8), noserverino).
		if slices.Contains(strings.Split(m.Options, ","), "serverino") {
			kind = "smb"
		}
	}
	// What else runs over FUSE mostly counts inodes as they are looked up.
	if kind == "" || m.Source == "" || m.Source == "none" {
		return ""
	}
	return kind + "=" + m.Source
}

// hashDigits is how much of a SHA-256 stands for a URL in another one.
const hashDigits = 16

// identityURL names a resource that was asked for as named and found at final.
func identityURL(named, final *url.URL) string {
	u := url.URL{Scheme: final.Scheme, Host: final.Host, Path: final.Path, RawPath: final.RawPath}
	if named.RawQuery != "" || final.RawQuery != "" {
		sum := sha256.Sum256([]byte(named.Redacted()))
		u.RawQuery = hex.EncodeToString(sum[:])[:hashDigits]
	}
	return u.String()
}
