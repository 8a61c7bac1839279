package source

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
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
		key = fmt.Sprintf("file:%x:%d:%d:%d.%09d", i.Device, i.Inode, i.Size, i.Modified.Unix(), i.Modified.Nanosecond())
	case KindURL:
		version := i.ETag
		if !strongTag(i.ETag) {
			if i.LastModified == "" {
				return ""
			}
			version += "@" + i.LastModified
		}
		key = "url:" + i.URL + ":" + strconv.FormatInt(i.Size, 10) + ":" + version
		if strings.ContainsFunc(key, func(r rune) bool { return r < ' ' || r > '~' }) {
			key = "url:" + strconv.QuoteToASCII(key)
		}
	}
	if len(key) > maxKey {
		sum := sha256.Sum256([]byte(key))
		key = i.Kind + ":sha256:" + hex.EncodeToString(sum[:])
	}
	return key
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
