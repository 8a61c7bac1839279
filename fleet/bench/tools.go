//go:build lab && linux

package main

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"cks-etcd/internal/poll"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/report"
)

// fanout is how many connections every tool may make at once: etcd-fleet's
// default, so that none is held back by a smaller default of its own.
const fanout = poll.DefaultDials

// A contender is a tool and how it makes two checks.
type contender struct {
	name  string
	once  bool // measured in the first repetition only: minutes each
	args  []string
	runs  int              // of args, for two checks
	pause time.Duration    // between the checks, by intent; within a run
	count func(string) int // nodes that standard output says are active
}

// contenders lists the tools, the one that others are compared with first.
func contenders(s *site, fleet string) []contender {
	f := fmt.Sprint(fanout)
	check := "systemctl is-active etcd"
	nodes := fmt.Sprintf("127.0.1.[1-%d]", len(s.addrs))
	if len(s.addrs) == 1 {
		nodes = s.addrs[0]
	}
	etcdFleet := func(command string, flags ...string) []string {
		args := append([]string{fleet, "nodes", command, "-q", "-o", "json", "--ssh-config", s.config, "--host-keys", "strict", "--dials", f}, flags...)
		return append(args, nodes)
	}
	ansible := func(module string) []string {
		return []string{"ansible", "all", "-i", s.hosts, "-f", f, "--ssh-common-args", "-F " + s.config,
			"-e", "ansible_python_interpreter=/usr/bin/python3", "-m", module, "-a", check}
	}
	return []contender{
		{name: "etcd-fleet nodes status, twice", runs: 2, count: countReady, args: etcdFleet("status", "--timeout", "2m")},
		{name: "etcd-fleet nodes wait, 2 checks", runs: 1, count: countReady, pause: poll.DefaultInterval,
			args: etcdFleet("wait", "--checks", "2", "--timeout", "2m")},
		{name: "clush, twice", runs: 2, count: countLines, args: []string{"clush", "-w", nodes, "-f", f, "-o", "-F " + s.config, check}},
		{name: "parallel-ssh, twice", runs: 2, count: countLines,
			args: []string{"parallel-ssh", "-h", s.hosts, "-p", f, "-i", "-x", "-F " + s.config, check}},
		{name: "ansible -m raw, twice", runs: 2, count: countLines, args: ansible("raw")},
		{name: "ansible -m command, twice", runs: 2, count: countLines, args: ansible("command"), once: true},
	}
}

// environment is what the tools run in: a home without anybody's settings.
func (s *site) environment() []string {
	return []string{
		"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=" + s.home, "LC_ALL=C.UTF-8",
		"ANSIBLE_CONFIG=" + filepath.Join(s.dir, "none"), "ANSIBLE_NOCOLOR=1",
	}
}

// countLines counts the answers of systemctl, with or without a name before.
func countLines(out string) int {
	n := 0
	for line := range strings.Lines(out) {
		if words := strings.Fields(line); len(words) > 0 && words[len(words)-1] == "active" {
			n++
		}
	}
	return n
}

// countReady counts the verdicts of etcd-fleet.
func countReady(out string) int {
	var r report.Report
	if json.Unmarshal([]byte(out), &r) != nil {
		return 0
	}
	n := 0
	for _, node := range r.Nodes {
		if node.Code == reason.Ready {
			n++
		}
	}
	return n
}
