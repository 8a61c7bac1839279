//go:build lab && linux

package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A result is what was measured of one contender.
type result struct {
	missing bool
	failed  int    // repetitions in which not all nodes were seen active
	costs   []cost // of the others
}

// printTable prints medians and their ratios to the first contender's.
func printTable(w io.Writer, tools []contender, results []result) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-34s %8s %6s %14s %6s %13s\n", "two checks by", "wall s", "ratio", "client CPU s", "ratio", "nodes CPU s")
	base := results[0]
	for i, r := range results {
		name := tools[i].name
		if r.missing {
			fmt.Fprintf(&b, "%-34s not installed\n", name)
			continue
		}
		if len(r.costs) == 0 {
			fmt.Fprintf(&b, "%-34s failed\n", name)
			continue
		}
		if tools[i].pause > 0 {
			name += " *"
		}
		if tools[i].once {
			name += ", once"
		}
		wall := median(r.costs, func(c cost) time.Duration { return c.wall - tools[i].pause })
		client := median(r.costs, clientOf)
		fmt.Fprintf(&b, "%-34s %8.2f %6.1f %14.2f %6.1f %13.1f\n", name,
			wall, wall/median(base.costs, wallOf), client, client/median(base.costs, clientOf), median(r.costs, nodesOf))
		if r.failed > 0 {
			fmt.Fprintf(&b, "  (failed in %d more repetitions)\n", r.failed)
		}
	}
	for _, tool := range tools {
		if tool.pause > 0 {
			fmt.Fprintf(&b, "\n* over one connection; without the %s that lie between the two checks by intent, with the jitter of up to a tenth of them\n", tool.pause)
		}
	}
	b.WriteString("once: one repetition only\n")
	b.WriteString("Client CPU is user and system time of the tool and all it started; nodes CPU that of the sshds and what they ran.\n")
	_, err := io.WriteString(w, b.String())
	return err
}

func wallOf(c cost) time.Duration   { return c.wall }
func clientOf(c cost) time.Duration { return c.client }
func nodesOf(c cost) time.Duration  { return c.nodes }

// median returns the median of a part of costs, in seconds; NaN of none.
func median(costs []cost, part func(cost) time.Duration) float64 {
	if len(costs) == 0 {
		return math.NaN()
	}
	var list []time.Duration
	for _, c := range costs {
		list = append(list, part(c))
	}
	slices.Sort(list)
	mid := list[len(list)/2]
	if len(list)%2 == 0 {
		mid = (mid + list[len(list)/2-1]) / 2
	}
	return mid.Seconds()
}
