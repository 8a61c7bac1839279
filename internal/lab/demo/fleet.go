//go:build lab && linux

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"cks-etcd/internal/reason"
)

// fleetTimeout is what etcd-fleet is given for its wait: two checks are 6 s apart.
const fleetTimeout = "1m"

// fromOutside looks at all hosts with etcd-fleet, as an operator would: over SSH, and asking etcd itself. Three are well,
// and the fourth has failed with reason why, so the answer is a no.
func (d *demo) fromOutside(ctx context.Context, dir, why string) error {
	d.p.step("etcd-fleet nodes wait --health, from outside, over SSH")
	args := []string{d.fleet, "nodes", "wait", "--health", "--health-members", "3", "--timeout", fleetTimeout,
		"-i", d.lab.KeyFile(), "--ssh-config", "none", "--known-hosts", filepath.Join(dir, "known_hosts")}
	args = append(args, d.ips...)
	r, err := d.lab.Run(ctx, nil, args...)
	if err != nil {
		return err
	}
	for line := range strings.Lines(r.Stderr + r.Stdout) {
		d.p.say("%s", strings.TrimRight(line, "\n"))
	}
	d.p.say("exit status %d", r.Exit)
	active := strings.Count(r.Stdout, " active ")
	if r.Exit != reason.ExitNo || active != 3 || !strings.Contains(r.Stdout, why) {
		return fmt.Errorf("etcd-fleet: exit status %d with %d active nodes, want %d with 3, and the fourth's reason", r.Exit, active, reason.ExitNo)
	}
	return nil
}
