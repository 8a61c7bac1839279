package poll

import (
	"fmt"
	"time"
)

// Deadline returns when a wait that begins now ends: after timeout, but never
// past the cluster's own start timeout, which runs since startedAt. A timeout
// of 0 or less does not end the wait, nor does the cluster's when startedAt is
// zero; with neither the deadline is zero. why says which one it is, for
// messages. The deadline may be in the past.
func Deadline(now, startedAt time.Time, timeout, clusterTimeout time.Duration) (deadline time.Time, why string) {
	if timeout > 0 {
		deadline = now.Add(timeout)
		why = fmt.Sprintf("the timeout of %s is over", span(timeout))
	}
	if startedAt.IsZero() || clusterTimeout <= 0 {
		return deadline, why
	}
	cluster := startedAt.Add(clusterTimeout)
	if !deadline.IsZero() && !cluster.Before(deadline) {
		return deadline, why
	}
	why = fmt.Sprintf("the cluster's start timeout of %s is over", span(clusterTimeout))
	if cluster.After(now) {
		return cluster, why
	}
	return cluster, fmt.Sprintf("the cluster's start timeout of %s was over %s before this wait began", span(clusterTimeout), span(now.Sub(cluster)))
}

// span gives d as people say it: "9 s", "1 min 5 s", "2 h 3 min".
func span(d time.Duration) string {
	d = max(d, 0).Round(time.Second)
	s, m, h := int(d.Seconds())%60, int(d.Minutes())%60, int(d.Hours())
	switch {
	case h > 0 && m > 0:
		return fmt.Sprintf("%d h %d min", h, m)
	case h > 0:
		return fmt.Sprintf("%d h", h)
	case m > 0 && s > 0:
		return fmt.Sprintf("%d min %d s", m, s)
	case m > 0:
		return fmt.Sprintf("%d min", m)
	}
	return fmt.Sprintf("%d s", s)
}
