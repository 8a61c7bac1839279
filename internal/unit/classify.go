package unit

import (
	"encoding/json"
	"strings"

	"cks-etcd/internal/reason"
)

// A fault is a known way of etcd to fail. A line shows it that holds all of has.
type fault struct {
	code reason.Code
	has  []string
}

// faults lists what etcd 3.4 to 3.6 write, in the order in which a line is
// tried: a full disk is a full disk, whichever file it hit.
func faults() []fault {
	is := func(c reason.Code, has ...string) fault { return fault{c, has} }
	return []fault{
		is(reason.NoSpace, "no space left on device"),
		is(reason.PortInUse, "bind: address already in use"),
		is(reason.AddressNotLocal, "bind: cannot assign requested address"),
		is(reason.AlreadyBootstrapped, "has already been bootstrapped"),
		is(reason.FlagRemoved, "flag provided but not defined: "),
		is(reason.UnsupportedArch, "unsupported platform without ETCD_UNSUPPORTED_ARCH"),              // before 3.5
		is(reason.UnsupportedArch, "unsupported architecture since ETCD_UNSUPPORTED_ARCH is not set"), // since 3.5

		// A member that was removed: its data is of no use any more.
		is(reason.StaleData, "the member has been permanently removed from the cluster"),
		is(reason.StaleData, "data-dir used by this member must be removed"),

		// The write-ahead log, then the database, then what the file system says (B105).
		is(reason.DataDamaged, "crc mismatch"),
		is(reason.DataDamaged, "wal: max entry size limit exceeded"),
		is(reason.DataDamaged, "failed to read WAL"),
		is(reason.DataDamaged, "proto: Record: "),
		is(reason.DataDamaged, "Was the raft log corrupted, truncated, or lost?"),
		is(reason.DataDamaged, "failed to recover v3 backend from snapshot"),
		is(reason.DataDamaged, "invalid database"),
		is(reason.DataDamaged, "database", "file size too small"),
		is(reason.DataDamaged, "database", "checksum error"),
		is(reason.DataDamaged, "structure needs cleaning"),

		// B53, and the like for files within the directory.
		is(reason.DataDirDenied, "cannot access data directory"),
		is(reason.DataDirDenied, "failed to list data directory"),
		is(reason.DataDirDenied, "error listing data dir"), // before 3.5
		is(reason.DataDirDenied, "permission denied", "/member/"),
		is(reason.DataDirDenied, "read-only file system", "/member/"),
	}
}

// mismatch is the fault of members that do not know each other's cluster. It
// does not end etcd, and comes from either side, so any other fault goes first.
func mismatch() fault { return fault{reason.StaleData, []string{"cluster ID mismatch"}} }

func (f fault) in(text string) bool {
	for _, s := range f.has {
		if !strings.Contains(text, s) {
			return false
		}
	}
	return true
}

// Classify looks in lines of a unit's journal, oldest first, for a fault of etcd
// that is known, and returns its code and what etcd said about it in one line.
// The latest one counts. Only complaints are looked at: what etcd logs at level
// info repeats its flags and may say anything.
func Classify(lines []string) (reason.Code, string, bool) {
	known, other := faults(), mismatch()
	var code reason.Code
	var said string
	for i := len(lines) - 1; i >= 0; i-- {
		e, ok := complaint(lines[i])
		if !ok {
			continue
		}
		for _, f := range known {
			if e.warning && f.code == reason.DataDamaged {
				continue // etcd says so of a WAL that it then repairs
			}
			if f.in(e.text) {
				return f.code, reason.Line(e.text), true
			}
		}
		if code == "" && other.in(e.text) {
			code, said = other.code, reason.Line(e.text)
		}
	}
	return code, said, code != ""
}

// LastError returns the last thing that etcd called fatal, an error or a panic,
// in one line, and "" if there is none. It is for faults that are not known.
// What every etcd that is stopped calls an error does not count.
func LastError(lines []string) string {
	for i := len(lines) - 1; i >= 0; i-- {
		if e, ok := complaint(lines[i]); ok && e.severe && !stopping(e.text) {
			return reason.Line(e.text)
		}
	}
	return ""
}

// stopping reports whether etcd says so whenever it is stopped.
func stopping(text string) bool {
	for _, s := range []string{"use of closed network connection", "http: Server closed", "mux: server closed"} {
		if strings.Contains(text, s) {
			return true
		}
	}
	return false
}

// An entry is one log line that complains.
type entry struct {
	text    string
	severe  bool // error or worse, by the line's own level or form
	warning bool // by the line's own level
}

// complaint reads a line as etcd writes it: a JSON object (zap, the default since
// 3.5), "date time LEVEL | package: message" (capnslog, 3.4), or plain text from
// the flag parser, the Go runtime or systemd.
func complaint(line string) (entry, bool) {
	if strings.HasPrefix(line, "{") {
		var z struct {
			Level, Msg, Error string
			Path, Dir         string
		}
		if json.Unmarshal([]byte(line), &z) == nil {
			return zapEntry(z.Level, z.Msg, z.Error, z.Path+z.Dir)
		}
		// A line that was cut off is still searched as text.
	}
	if level, msg, ok := capnslog(line); ok {
		switch level {
		case "C", "E":
			return entry{text: msg, severe: true}, true
		case "W":
			return entry{text: msg, warning: true}, true
		}
		return entry{}, false
	}
	e := entry{text: line}
	for _, s := range []string{"panic: ", "fatal error: ", "flag provided but not defined: ", "invalid value "} {
		e.severe = e.severe || strings.HasPrefix(line, s)
	}
	e.severe = e.severe || strings.Contains(line, ": Failed at step ") // systemd: before the program ran
	return e, strings.TrimSpace(line) != ""
}

// zapEntry joins the fields that say what is wrong, and with what.
func zapEntry(level, msg, err, where string) (entry, bool) {
	switch level {
	case "info", "debug":
		return entry{}, false
	}
	if where != "" && !strings.Contains(err, where) {
		msg += " " + where
	}
	if err != "" && err != msg {
		msg += ": " + err
	}
	return entry{text: msg, severe: level != "warn", warning: level == "warn"}, true
}

// capnslog takes "2026-12-01 21:49:03.753105 C | etcdmain: message" apart. A
// journal whose writer dropped the time has the rest of it.
func capnslog(line string) (level, msg string, ok bool) {
	head, msg, ok := strings.Cut(line, " | ")
	if !ok || len(head) == 0 || len(head) > len("2006-01-02 15:04:05.000000 I") {
		return "", "", false
	}
	level = head[len(head)-1:]
	if !strings.Contains("CEWNIDT", level) || len(head) > 1 && head[len(head)-2] != ' ' {
		return "", "", false
	}
	return level, msg, true
}
