package inventory

import (
	"errors"
	"io"
	"os"
	"slices"
	"strings"

	"cks-etcd/internal/reason"
)

// An Inventory is a file of hosts in groups; see [ReadYAML] for its form.
type Inventory struct {
	path   string
	groups []group // in the order of the file; the first has no name
}

// A group is the hosts of one cluster, defaults filled in.
type group struct {
	name  string
	hosts []Host
}

// ReadFile reads the inventory at path, at most 1 MiB of it.
func ReadFile(path string) (*Inventory, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot read inventory: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, reason.New(reason.Usage, "cannot read inventory: %w", err)
	}
	return ReadYAML(path, b)
}

// Clusters returns the names of the groups in the order of the file.
func (v *Inventory) Clusters() []string {
	var names []string
	for _, g := range v.groups {
		if g.name != "" {
			names = append(names, g.name)
		}
	}
	return names
}

// Hosts returns the hosts of one cluster, or all of the inventory for "", in
// the order of the file. The slice is the caller's own. A cluster that the
// inventory does not have is an error that names those it has; none at all is
// reason.NoNodes.
func (v *Inventory) Hosts(cluster string) ([]Host, error) {
	if cluster == "" {
		var all []Host
		for _, g := range v.groups {
			all = append(all, g.hosts...)
		}
		if len(all) == 0 {
			return nil, reason.New(reason.NoNodes, "inventory %s has no hosts", v.path)
		}
		return all, nil
	}
	for _, g := range v.groups {
		if g.name != cluster {
			continue
		}
		if len(g.hosts) == 0 {
			return nil, reason.New(reason.NoNodes, "cluster %s of inventory %s has no hosts", cluster, v.path)
		}
		return slices.Clone(g.hosts), nil
	}
	err := errors.New("it has no clusters")
	if names := v.Clusters(); len(names) > 0 {
		err = errors.New("it has " + strings.Join(names, ", "))
	}
	return nil, reason.New(reason.Usage, "no cluster %q in inventory %s: %w", cluster, v.path, err)
}
