package report

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/reason"
)

// Summary is the whole result in one line: "1 of 3 etcd nodes failed (10 s)".
// Definite failures come first, then what could not be told.
func Summary(r Report) string {
	took := " (" + Took(r.Ended.Sub(r.Started)) + ")"
	if len(r.Nodes) == 0 {
		if r.Problem != nil {
			return because(r.Problem.Message, r.Problem.Code) + took
		}
		return "no etcd nodes" + took
	}
	type count struct {
		state string
		exit  int
		n     int
	}
	var bad []count
	good := 0
	for i := range r.Nodes {
		n := &r.Nodes[i]
		if n.ok() {
			good++
			continue
		}
		at := slices.IndexFunc(bad, func(c count) bool { return c.state == n.State })
		if at < 0 {
			bad = append(bad, count{n.State, reason.Lookup(n.Code).Exit, 0})
			at = len(bad) - 1
		}
		bad[at].n++
	}
	slices.SortStableFunc(bad, func(a, b count) int {
		return cmp.Or(cmp.Compare(definite(a.exit), definite(b.exit)), cmp.Compare(b.n, a.n))
	})
	total := len(r.Nodes)
	noun := "etcd nodes"
	if total == 1 {
		noun = "etcd node"
	}
	var text string
	if len(bad) == 0 {
		text = fmt.Sprintf("%d of %d %s active", good, total, noun)
		if h := r.Health; h != nil && h.Code != reason.Ready {
			text += ", but " + because(h.Message, h.Code)
		} else if h != nil {
			text += ", cluster healthy"
		}
	} else {
		text = fmt.Sprintf("%d of %d %s %s", bad[0].n, total, noun, spoken(bad[0].state))
		for _, c := range bad[1:] {
			text += fmt.Sprintf(", %d %s", c.n, spoken(c.state))
		}
	}
	if r.Exit == reason.ExitInterrupted {
		text = "interrupted: " + text
	}
	return text + took
}

// definite orders exit statuses by how much they say.
func definite(exit int) int {
	switch exit {
	case reason.ExitNo:
		return 0
	case reason.ExitDeadline:
		return 1
	}
	return 2
}

// spoken turns a state into words: "auth-refused" is "auth refused".
func spoken(state string) string { return strings.ReplaceAll(state, "-", " ") }

// Took writes a duration for a sentence: "10 s", "2 min 5 s", "1 h 2 min".
func Took(d time.Duration) string {
	s := int64(max(d, 0).Round(time.Second) / time.Second)
	switch {
	case s < 60:
		return fmt.Sprintf("%d s", s)
	case s < 3600 && s%60 == 0:
		return fmt.Sprintf("%d min", s/60)
	case s < 3600:
		return fmt.Sprintf("%d min %d s", s/60, s%60)
	case s/60%60 == 0:
		return fmt.Sprintf("%d h", s/3600)
	}
	return fmt.Sprintf("%d h %d min", s/3600, s/60%60)
}
