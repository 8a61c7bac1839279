package inventory

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strings"

	"cks-etcd/internal/reason"
)

// maxBytes is the longest list and the longest inventory that are read. It
// holds MaxHosts entries of a hundred bytes; more is the wrong file.
const maxBytes = 1 << 20

// ReadList reads hosts as ParseArg understands them, one argument a line, from
// standard input or a file. Empty lines count for nothing, and neither does
// what follows a "#" at the beginning of a line or after white space. It reads
// until r ends, and fails on more than 1 MiB or MaxHosts hosts.
func ReadList(r io.Reader) ([]Host, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxBytes+1))
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot read the list of hosts: %w", err)
	}
	if len(b) > maxBytes {
		return nil, reason.New(reason.Usage, "cannot read the list of hosts: it is longer than %d bytes", maxBytes)
	}
	b = bytes.TrimPrefix(b, []byte("\ufeff"))
	sc := bufio.NewScanner(bytes.NewReader(b))
	sc.Buffer(nil, maxBytes+1)
	var hosts []Host
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(uncomment(sc.Text()))
		if line == "" {
			continue
		}
		if strings.ContainsAny(line, " \t") {
			return nil, reason.New(reason.Usage, "cannot use line %d of the list of hosts: there is white space in it; each host has its own line", n)
		}
		more, err := parseHosts(line)
		if err == nil && len(hosts)+len(more) > MaxHosts {
			err = errTooMany
		}
		if err != nil {
			return nil, reason.New(reason.Usage, "line %d of the list of hosts: %w", n, err)
		}
		hosts = append(hosts, more...)
	}
	if err := sc.Err(); err != nil {
		return nil, reason.New(reason.Usage, "cannot read the list of hosts: %w", err)
	}
	if len(hosts) == 0 {
		return nil, reason.New(reason.NoNodes, "the list names no host")
	}
	return hosts, nil
}

// errTooMany is what a list or an inventory fails with that goes on and on.
var errTooMany = fmt.Errorf("cannot use more than %d hosts", MaxHosts)

// uncomment returns line without a comment.
func uncomment(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			return line[:i]
		}
	}
	return line
}
