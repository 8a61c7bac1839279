package archive

import (
	"cmp"
	"runtime/debug"
	"strconv"
	"strings"
)

// apiModule is the module of etcd's API. It is released in step with etcd since
// 3.5, and every program of a release depends on it.
const apiModule = "go.etcd.io/etcd/api/v3"

// etcdVersion returns the etcd version in a program's build information, and ""
// where it says none. The releases replace the API module by a directory of
// their own tree; the version that go.mod asks for is then the right one.
func etcdVersion(bi *debug.BuildInfo) string {
	for _, m := range bi.Deps {
		if m.Path != apiModule {
			continue
		}
		if m.Replace != nil {
			if v := released(m.Replace.Version); v != "" {
				return v
			}
		}
		if v := released(m.Version); v != "" {
			return v
		}
	}
	if strings.HasPrefix(bi.Main.Path, "go.etcd.io/etcd/") {
		return released(bi.Main.Version)
	}
	return ""
}

// released returns a module version without its "v", and "" for a version that
// is not one of a release: (devel), a placeholder, or made up from a commit.
func released(v string) string {
	v = strings.TrimPrefix(v, "v")
	p, ok := parseVersion(v)
	if !ok || p.core == [3]uint64{} {
		return ""
	}
	// A pseudo-version ends in a time of 14 digits and a commit of 12.
	if parts := strings.Split(p.pre, "-"); len(parts) > 1 && len(parts[len(parts)-1]) == 12 {
		return ""
	}
	v, _, _ = strings.Cut(v, "+")
	return v
}

// CompareVersions compares two versions of etcd as Semantic Versioning 2.0.0,
// section 11, orders them, with or without a leading "v": it returns -1, 0 or
// +1. Build metadata is ignored. What is not a version, such as "" for one that
// is not known, sorts before all that are.
func CompareVersions(a, b string) int {
	va, oka := parseVersion(strings.TrimPrefix(a, "v"))
	vb, okb := parseVersion(strings.TrimPrefix(b, "v"))
	if !oka || !okb {
		switch {
		case oka:
			return +1
		case okb:
			return -1
		}
		return 0
	}
	for i := range va.core {
		if c := cmp.Compare(va.core[i], vb.core[i]); c != 0 {
			return c
		}
	}
	return comparePre(va.pre, vb.pre)
}

// comparePre compares two prerelease parts; "" is the release, and the newest.
func comparePre(a, b string) int {
	switch {
	case a == b:
		return 0
	case a == "":
		return +1
	case b == "":
		return -1
	}
	as, bs := strings.Split(a, "."), strings.Split(b, ".")
	for i := range min(len(as), len(bs)) {
		na, erra := strconv.ParseUint(as[i], 10, 64)
		nb, errb := strconv.ParseUint(bs[i], 10, 64)
		c := 0
		switch {
		case erra == nil && errb == nil:
			c = cmp.Compare(na, nb)
		case erra == nil:
			c = -1 // numbers sort before words
		case errb == nil:
			c = +1
		default:
			c = strings.Compare(as[i], bs[i])
		}
		if c != 0 {
			return c
		}
	}
	return cmp.Compare(len(as), len(bs))
}

type version struct {
	core [3]uint64
	pre  string
}

// parseVersion parses "3.5.21" or "3.6.0-rc.1+build", without a leading "v".
func parseVersion(s string) (version, bool) {
	var v version
	s, _, _ = strings.Cut(s, "+")
	s, pre, hasPre := strings.Cut(s, "-")
	parts := strings.Split(s, ".")
	if len(parts) != len(v.core) || hasPre && pre == "" {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.ParseUint(p, 10, 64)
		if err != nil || p[0] == '+' {
			return v, false
		}
		v.core[i] = n
	}
	for _, c := range []byte(pre) {
		if !isVersionByte(c) {
			return v, false
		}
	}
	v.pre = pre
	return v, true
}

func isVersionByte(c byte) bool {
	return c == '.' || c == '-' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
