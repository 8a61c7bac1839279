// Package cloudinittest renders the user data of etcd nodes as CloudStack's management server does, so that tests see
// what a node would get.
package cloudinittest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Values are what the management server knows when it renders the user data of one etcd node.
type Values struct {
	WaitTime   int64  // cloud.kubernetes.control.node.install.attempt.wait.duration, in seconds
	Reattempts int64  // cloud.kubernetes.control.node.install.reattempt.count
	PublicKey  string // ssh.publickey, the management server's own
	KeyPair    string // the public key of the cluster's key pair; "" when it has none
	EjectISO   bool   // VMware
	Members    []Member
	Index      int // of the node in Members
}

// Member is an etcd node.
type Member struct{ Name, IP string }

// Defaults returns the values of a cluster with CloudStack's default settings.
func Defaults(publicKey string, members ...Member) Values {
	return Values{WaitTime: 15, Reattempts: 100, PublicKey: publicKey, Members: members}
}

// Render fills a template in: the placeholders one after the other, in CloudStack's order, each wherever it stands. A
// value that holds a later placeholder is therefore rendered too.
func Render(template string, v Values) string {
	keys := `- "` + v.PublicKey + `"`
	if v.KeyPair != "" {
		keys += "\n      - \"" + v.KeyPair + `"` // the indentation is CloudStack's
	}
	peers := make([]string, len(v.Members))
	for i, m := range v.Members {
		peers[i] = fmt.Sprintf("%s=http://%s:2380", m.Name, m.IP)
	}
	for _, p := range [][2]string{
		{"k8s.install.wait.time", strconv.FormatInt(v.WaitTime, 10)},
		{"k8s.install.reattempts.count", strconv.FormatInt(v.Reattempts, 10)},
		{"k8s.ssh.pub.key", keys},
		{"k8s.eject.iso", strconv.FormatBool(v.EjectISO)},
		{"etcd.node_name", v.Members[v.Index].Name},
		{"etcd.node_ip", v.Members[v.Index].IP},
		{"etcd.initial_cluster_nodes", strings.Join(peers, ",")},
	} {
		template = strings.ReplaceAll(template, "{{ "+p[0]+" }}", p[1])
	}
	return template
}

// Placeholders are those that CloudStack fills in.
var Placeholders = []string{"k8s.install.wait.time", "k8s.install.reattempts.count", "k8s.ssh.pub.key", "k8s.eject.iso",
	"etcd.node_name", "etcd.node_ip", "etcd.initial_cluster_nodes"}

// NodeName returns the name of the etcd node with that index (1 is the first) of a cluster, created at a time in
// milliseconds since 1970.
func NodeName(cluster, uuid string, index int, millis int64) string {
	return fmt.Sprintf("%s-%d-%x", namePrefix(cluster, uuid), index, millis)
}

var (
	dnsLabel  = regexp.MustCompile(`^[A-Za-z]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?$`)
	notInName = regexp.MustCompile(`[^a-zA-Z0-9-]`)
)

// maxPrefix is the length to which CloudStack cuts "<cluster>-etcd": a long name loses the "-etcd".
const maxPrefix = 40

func namePrefix(cluster, uuid string) string {
	prefix := cluster
	if !dnsLabel.MatchString(prefix) {
		if prefix = notInName.ReplaceAllString(prefix, ""); prefix == "" {
			prefix = uuid
		}
	}
	prefix += "-etcd"
	return prefix[:min(len(prefix), maxPrefix)]
}

// templatePath is the template's path from a package directory below internal, where its tests run.
var templatePath = filepath.Join("..", "..", "packaging", "cloud-init", "etcd-node.yml")

// Template returns the text of packaging/cloud-init/etcd-node.yml.
func Template() (string, error) {
	b, err := os.ReadFile(templatePath)
	return string(b), err
}
