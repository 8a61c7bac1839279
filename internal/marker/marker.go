// Package marker is what the node agent leaves behind for others to read: the
// failure marker, exactly one line that says why the setup failed, and the state
// file, the same and more for machines. The agent writes both; the fleet reads
// them from another host, as bytes that it does not trust.
//
// The marker lies in the home directory of an unprivileged user, who may plant
// links, directories and pipes there at any moment. Files are therefore written
// under a name nobody can guess, renamed into place relative to the open
// directory, and looked at again afterwards; a link is never followed, neither
// to write nor to read.
//
// The functions over files exist on Linux only, ParseLine and ParseState
// everywhere.
package marker

import (
	"bytes"

	"cks-etcd/internal/reason"
)

const (
	// maxMarker is how many bytes of a marker are read. A line of the agent's is
	// shorter than reason.MaxLine; a marker written by hand has some room.
	maxMarker = 4 << 10

	// maxState is the size of the largest state file, written or read. It has room
	// for some dozen steps and as many devices.
	maxState = 64 << 10
)

// ParseLine returns the line of a marker's content b: the first line that is not
// blank, printable, and cut as reason.Line cuts. No more than 4 KiB
// are looked at. It is empty when there is no text; a marker that is there
// without a text still means that the setup failed.
func ParseLine(b []byte) string {
	b = b[:min(len(b), maxMarker)]
	for line := range bytes.Lines(b) {
		if s := reason.Line(string(line)); s != "" {
			return s
		}
	}
	return ""
}
