package unit

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// Limits of what is taken from the journal.
const (
	// JournalLines is how many lines Classify should be given: a panic of etcd
	// and its usage text push the line that matters up by dozens.
	JournalLines = 200
	// maxJournalLines bounds what may be asked for.
	maxJournalLines = 10_000
	// maxJournal bounds the memory for journalctl's answer, in bytes; the end is kept.
	maxJournal = 1 << 20
	// maxJournalLine bounds one line, in bytes: etcd's lines with a stack trace
	// stay below 4 KiB.
	maxJournalLine = 16 << 10
	// journalTimeout bounds journalctl: it reads every file of a large journal.
	journalTimeout = 15 * time.Second
)

// Journal returns the last lines that the unit, and systemd about the unit,
// logged in this boot, oldest first: those since a time if it is not zero and
// anything was logged since (the clock may have been set back), else all. They
// are raw text of at most maxJournalLine bytes each: pass them through
// reason.Line before they are shown. It starts journalctl, the only reader that
// knows every version of the journal's format.
func Journal(ctx context.Context, unit string, since time.Time, lines int) ([]string, error) {
	return journal(ctx, "journalctl", unit, since, lines)
}

// journal is Journal with the program to run.
func journal(ctx context.Context, program, unit string, since time.Time, lines int) ([]string, error) {
	lines = min(max(lines, 1), maxJournalLines)
	if !since.IsZero() {
		out, err := journalctl(ctx, program, lines, "--unit="+unit, fmt.Sprintf("--since=@%d", since.Unix()))
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
	return journalctl(ctx, program, lines, "--unit="+unit)
}

// journalctl runs program with what selects the lines.
func journalctl(ctx context.Context, program string, lines int, match ...string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, journalTimeout)
	defer cancel()
	args := append([]string{"--boot", "--no-pager", "--quiet", "--output=cat", "--lines=" + strconv.Itoa(lines)}, match...)
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = []string{"LC_ALL=C", "PATH=/usr/bin:/bin:/usr/sbin:/sbin", "SYSTEMD_COLORS=0"}
	out, errs := tail{max: maxJournal}, tail{max: maxJournalLine}
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = time.Second // a grandchild may hold the pipes
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		if s := strings.TrimSpace(errs.String()); s != "" {
			return nil, fmt.Errorf("cannot read the journal: %w: %s", err, s)
		}
		return nil, fmt.Errorf("cannot read the journal: %w", err)
	}
	return split(out.String(), out.cut, lines), nil
}

// split cuts text into its last n lines. The first line of a text that lost its
// beginning is not whole, and is left out.
func split(text string, cut bool, n int) []string {
	text = strings.TrimRight(text, "\n")
	if text == "" {
		return nil
	}
	all := strings.Split(text, "\n")
	if cut {
		all = all[1:]
	}
	all = all[max(len(all)-n, 0):]
	for i, l := range all {
		all[i] = l[:min(len(l), maxJournalLine)]
	}
	return all
}

// A tail is a writer that keeps the last max bytes.
type tail struct {
	max int
	buf []byte
	cut bool // something was dropped
}

func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	if len(p) > t.max {
		p, t.cut = p[len(p)-t.max:], true
	}
	if drop := len(t.buf) + len(p) - t.max; drop > 0 {
		t.buf, t.cut = append(t.buf[:0], t.buf[drop:]...), true
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

func (t *tail) String() string { return string(bytes.ToValidUTF8(t.buf, []byte("?"))) }
