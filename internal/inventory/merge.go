package inventory

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// Merge makes one list of several, in their order, in which each host stands
// once: hosts with the same login name, address, port and jump hosts are
// folded into the first of them, which takes over what it leaves open (a
// pinned host key is never lost that way). Each fold is a warning of one line,
// and so is a setting in which folded hosts differ: that of the first stays.
//
// What is left open is not guessed: etcd1 and etcd1:22 are two hosts, since
// ssh_config may say another port. Fill in defaults first.
//
// Names are distinct in the result. Different hosts of one name, say the etcd1
// of two groups, are shown with their group, or their address.
func Merge(lists ...[]Host) (hosts []Host, warnings []string) {
	at := make(map[identity]int)
	for _, list := range lists {
		for _, h := range list {
			id := h.identity()
			i, ok := at[id]
			if !ok {
				at[id] = len(hosts)
				hosts = append(hosts, h)
				continue
			}
			warnings = append(warnings, foldHost(&hosts[i], h)...)
		}
	}
	distinguish(hosts)
	return hosts, warnings
}

// identity is what makes two entries one host. Jump hosts are part of it: a
// private address behind two of them is two machines.
type identity struct {
	user, addr string
	port       int
	jump       string
}

func (h Host) identity() identity {
	addr := strings.ToLower(h.Addr)
	if ip, err := netip.ParseAddr(h.Addr); err == nil {
		addr = ip.Unmap().String()
	}
	return identity{h.User, addr, h.Port, h.Jump}
}

// foldHost adds to h what it leaves open and again says.
func foldHost(h *Host, again Host) (warnings []string) {
	both := h.Name
	if again.Name != h.Name {
		both = h.Name + " and " + again.Name
	}
	if h.Group != again.Group {
		both += fmt.Sprintf(" (%s and %s)", groupName(h.Group), groupName(again.Group))
	}
	warnings = append(warnings, "host named twice, counted once: "+both)
	for _, f := range []struct {
		key   string
		to    *string
		value string
	}{
		{"key", &h.KeyFile, again.KeyFile},
		{"host-key", &h.HostKey, again.HostKey},
		{"member", &h.Member, again.Member},
	} {
		switch {
		case *f.to == "":
			*f.to = f.value
		case f.value != "" && f.value != *f.to:
			warnings = append(warnings, fmt.Sprintf("%s of %s differs: %q is used, %q is not", f.key, h.Name, *f.to, f.value))
		}
	}
	return warnings
}

func groupName(group string) string {
	if group == "" {
		return "no cluster"
	}
	return "cluster " + group
}

// distinguish gives hosts of the same name longer ones, until all differ.
func distinguish(hosts []Host) {
	level := make([]int, len(hosts))
	names := make([]string, len(hosts))
	for i, h := range hosts {
		names[i] = h.Name
	}
	for {
		count := make(map[string]int)
		for _, name := range names {
			count[name]++
		}
		changed := false
		for i, h := range hosts {
			if count[names[i]] > 1 && level[i] < maxLevel {
				level[i]++
				names[i] = h.longName(level[i])
				changed = true
			}
		}
		if !changed {
			break
		}
	}
	for i := range hosts {
		hosts[i].Name = names[i]
	}
}

// maxLevel is the level at which longName says all of a host's identity.
const maxLevel = 3

// longName returns h's name with its group (1), with its address (2), or with
// its address and the way to it (3) instead.
func (h Host) longName(level int) string {
	id := h.identity()
	addr := id.addr
	if h.Port != 0 {
		addr = net.JoinHostPort(id.addr, strconv.Itoa(h.Port))
	}
	switch {
	case level == 1 && h.Group != "":
		return h.Group + "/" + h.Name
	case level < maxLevel:
		return addr
	}
	if h.User != "" {
		addr = h.User + "@" + addr
	}
	if h.Jump != "" {
		addr += " via " + h.Jump
	}
	return addr
}
