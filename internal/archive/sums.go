package archive

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
)

const (
	maxSums    = 1 << 20 // bytes of a list of digests; that of an etcd release has 3 KiB
	maxSumLine = 4 << 10 // bytes of a line: a digest and a path of Linux's PATH_MAX
)

// errNotSums is the cause of ParseSums for a file that is not, or not wholly, a
// list of SHA-256 digests, so that it cannot be told whether a name is in it.
var errNotSums = errors.New("not a list of SHA-256 digests")

// ParseSums returns the SHA-256 digest of the file called name, as 64 lower
// case hex digits, from a list in one of the forms that are in use:
//
//	HEX                   alone in the file, whatever the name
//	HEX  name             sha256sum, in text mode
//	HEX *name             sha256sum, in binary mode
//	SHA256 (name) = HEX   BSD, and sha256sum --tag
//
// Of paths only the last element is compared. Blank lines, lines that begin with
// "#", a byte order mark and carriage returns are ignored.
//
// The error wraps fs.ErrNotExist only when every line was understood and none
// is about name. Otherwise some were not, or two lines contradict each other, or
// it wraps the error of r.
func ParseSums(r io.Reader, name string) (string, error) {
	var (
		found, alone string
		lines, odd   int
		base         = path.Base(name)
	)
	lr := &io.LimitedReader{R: r, N: maxSums + 1}
	sc := bufio.NewScanner(lr)
	sc.Buffer(make([]byte, 0, maxSumLine), maxSumLine)
	for sc.Scan() {
		line := strings.TrimSpace(strings.TrimPrefix(sc.Text(), "\ufeff"))
		if line == "" || line[0] == '#' {
			continue
		}
		lines++
		sum, file, ok := parseSum(line)
		switch {
		case !ok:
			odd++
		case sum == "": // a line for another algorithm
		case file == "":
			alone = sum
		case path.Base(file) == base:
			if found != "" && found != sum {
				return "", fmt.Errorf("two digests of %s: %w", base, errNotSums)
			}
			found = sum
		}
	}
	switch err := sc.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return "", fmt.Errorf("line %d has more than %d bytes: %w", lines+1, maxSumLine, errNotSums)
	case err != nil:
		return "", fmt.Errorf("cannot read the list of digests: %w", err)
	case lr.N <= 0:
		return "", fmt.Errorf("more than %d bytes: %w", maxSums, errNotSums)
	case found != "":
		return found, nil
	case alone != "" && lines == 1:
		return alone, nil
	case lines == 0:
		return "", fmt.Errorf("empty: %w", errNotSums)
	case odd > 0 || alone != "":
		return "", fmt.Errorf("no digest of %s: %w", base, errNotSums)
	}
	return "", fmt.Errorf("no digest of %s among %d: %w", base, lines, fs.ErrNotExist)
}

// parseSum parses one line. The file is "" for a digest alone; the sum is ""
// for a line about another algorithm than SHA-256.
func parseSum(line string) (sum, file string, ok bool) {
	if algo, rest, found := strings.Cut(line, " ("); found && !strings.ContainsAny(algo, " *") {
		i := strings.LastIndex(rest, ") = ")
		if i <= 0 || algo == "" {
			return "", "", false
		}
		if !strings.EqualFold(algo, "SHA256") && !strings.EqualFold(algo, "SHA-256") {
			return "", "", true
		}
		sum, ok = parseHex(rest[i+len(") = "):])
		return sum, rest[:i], ok
	}
	// sha256sum escapes a name with a line break or backslash, and says so with
	// a backslash before the digest. No name that is asked for here has one.
	line = strings.TrimPrefix(line, `\`)
	digits, file, named := strings.Cut(line, " ")
	if sum, ok = parseHex(digits); !ok || !named {
		return sum, "", ok
	}
	file = strings.TrimPrefix(strings.TrimLeft(file, " "), "*")
	return sum, file, file != ""
}

func parseHex(s string) (string, bool) {
	s = strings.ToLower(strings.TrimSpace(s))
	b, err := hex.DecodeString(s)
	return s, err == nil && len(b) == sha256.Size
}
