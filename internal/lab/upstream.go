//go:build lab && linux

package lab

import (
	"fmt"
	"strings"
)

// UnitPath is where CloudStack's user data puts etcd's unit, with mode UnitMode.
const (
	UnitPath = "/etc/systemd/system/etcd.service"
	UnitMode = 0o755 // systemd warns that it is executable, and goes on
)

// Member is an etcd member as the others know it.
type Member struct{ Name, IP string }

// UpstreamUnit returns the text of the etcd.service that CloudStack's user data gives an etcd node: the same type,
// restart rule and flags, in the same order; in particular without a data directory, a working directory and a user.
func UpstreamUnit(name, ip string, members []Member) string {
	peers := make([]string, len(members))
	for i, m := range members {
		peers[i] = fmt.Sprintf("%s=http://%s:2380", m.Name, m.IP)
	}
	flags := []string{
		"--name " + name,
		fmt.Sprintf("--initial-advertise-peer-urls http://%s:2380", ip),
		fmt.Sprintf("--listen-peer-urls http://%s:2380", ip),
		fmt.Sprintf("--advertise-client-urls http://%s:2379", ip),
		fmt.Sprintf("--listen-client-urls http://%s:2379,http://127.0.0.1:2379", ip),
		"--initial-cluster-token etcd-cluster-1",
		"--initial-cluster " + strings.Join(peers, ","),
		"--initial-cluster-state new",
	}
	return "[Unit]\nDescription=etcd member " + name + "\n\n" +
		"[Service]\nType=exec\nExecStart=/opt/bin/etcd \\\n  " + strings.Join(flags, " \\\n  ") +
		"\nRestart=on-failure\nRestartSec=5\n\n" +
		"[Install]\nWantedBy=multi-user.target\n"
}
