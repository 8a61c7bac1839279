package sshnode

import (
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"cks-etcd/internal/sshnode/sshtest"
)

// Two checks of many nodes side by side cost one handshake a node, and every
// new host key is kept.
func TestManyNodes(t *testing.T) {
	const nodes = 100
	dir, _ := home(t)
	d := dialer(t, Options{Home: dir, ConnectTimeout: time.Minute, CommandTimeout: time.Minute})
	all := make([]*Node, nodes)
	for i := range all {
		all[i] = d.Node(at(t, serve(t, sshtest.Config{Command: well}).Addr()))
	}
	for range 2 {
		var wg sync.WaitGroup
		for _, n := range all {
			wg.Go(func() {
				if _, err := n.Probe(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	}
	for _, n := range all {
		if got := n.Stats(); got.Dials != 1 || got.Handshakes != 1 || got.Commands != 2 {
			t.Errorf("%s cost %+v", n.Host().Name, got)
		}
	}
	if got := strings.Count(read(t, filepath.Join(dir, "own_known_hosts")), "\n"); got != nodes {
		t.Errorf("%d keys are kept, want %d", got, nodes)
	}
	for _, n := range all { // before the servers, each of which counts goroutines
		n.Close()
	}
}
