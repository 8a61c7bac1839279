package inventory

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"cks-etcd/internal/reason"
	"cks-etcd/internal/strictyaml"
)

// maxTokens bounds what the parser is given. It is four tokens for each of
// eight settings of MaxHosts hosts.
const maxTokens = 32 * MaxHosts

// ReadYAML reads an inventory in YAML. The path is for messages, and its
// directory is where relative paths of private keys begin.
//
//	defaults:                  # for every host; each of the keys may be left out
//	  user: cloud
//	  port: 22
//	  key: ~/.ssh/id_rsa
//	  jump: ops@bastion.example
//	hosts:                     # in no cluster
//	  - etcd9.example
//	clusters:
//	  prod:                    # --cluster prod
//	    defaults:              # before those above
//	      port: 50000
//	    hosts:
//	      - etcd[1-3].example  # as on the command line
//	      - host: 203.0.113.10:50001
//	        name: etcd4        # how it is shown
//	        user: ubuntu
//	        key: keys/etcd4
//	        host-key: ssh-ed25519 AAAA...
//	        member: etcd4      # name that the etcd member must have
//	        jump: none
//
// Every other key is an error, as are a key that is given twice, a value that
// is missing, and what no inventory needs but a hostile one may use: anchors,
// aliases, merge keys, tags, directives and a second document. JSON is read as
// well. An inventory without hosts is valid; see [Inventory.Hosts].
//
// Errors have a *strictyaml.Error in their chain wherever there is a place to name,
// so that [strictyaml.Detail] shows it.
func ReadYAML(path string, b []byte) (*Inventory, error) {
	if len(b) > maxBytes {
		return nil, reason.New(reason.Usage, "cannot read inventory %s: it is longer than %d bytes", path, maxBytes)
	}
	v, err := newDecoder(path, b).inventory()
	if err != nil {
		return nil, reason.New(reason.Usage, "%w", err)
	}
	return v, nil
}

// A decoder turns the nodes of one file into hosts.
type decoder struct {
	strictyaml.File
	count int // hosts so far
}

// newDecoder returns a decoder for the text of the file at path.
func newDecoder(path string, b []byte) *decoder {
	const share = "are not supported; use defaults for what hosts share"
	return &decoder{File: strictyaml.File{
		Path: path, Source: strings.TrimPrefix(string(b), "\ufeff"), Noun: "an inventory", MaxTokens: maxTokens, Missing: "a host is missing here",
		Refused: map[token.Type]string{
			token.AnchorType:     "anchors (&) " + share,
			token.AliasType:      "aliases (*) are not supported; quote the value if it is text, and use defaults for what hosts share",
			token.MergeKeyType:   "merge keys (<<) " + share,
			token.DirectiveType:  "directives (%) are not supported",
			token.MappingKeyType: "complex keys (?) are not supported",
		},
		Hint: func(line string) string {
			if strings.Contains(line, "[") {
				return "; quote a host that begins with a bracket"
			}
			return ""
		},
		Hide: func(err error, lines []string) ([]bool, bool) {
			key := func(line string) bool { return strings.Contains(line, privateKey) }
			return nil, errors.Is(err, errPassword) || slices.ContainsFunc(lines, key)
		},
	}}
}

// An entry is one key of a mapping and its value.
type entry struct {
	key   string
	at    *token.Token // of the key
	value ast.Node
}

// mapping returns the entries of a mapping whose keys are all in known, or
// whatever they are when known is nil. Nothing at all is an empty mapping.
func (d *decoder) mapping(n ast.Node, what string, known []string) ([]entry, error) {
	var values []*ast.MappingValueNode
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil, nil
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return nil, d.Fail(strictyaml.PlaceOf(n), "%s must be KEY: VALUE lines%s", what, keysOf(known))
	}
	seen := make(map[string]int)
	entries := make([]entry, 0, len(values))
	for _, v := range values {
		key, at, ok := strictyaml.Scalar(v.Key)
		if !ok {
			return nil, d.Fail(v.Key.GetToken(), "a key must be a word%s", keysOf(known))
		}
		if known != nil && !slices.Contains(known, key) {
			if strings.Contains(strings.ToLower(key), "pass") {
				return nil, d.Fail(at, "unknown key %.60q in %s: %w", key, what, errPassword)
			}
			return nil, d.Fail(at, "unknown key %.60q in %s%s", key, what, keysOf(known))
		}
		if line, twice := seen[key]; twice {
			return nil, d.Fail(at, "%.60q stands here again; the first is on line %d", key, line)
		}
		seen[key] = at.Position.Line
		entries = append(entries, entry{key, at, v.Value})
	}
	return entries, nil
}

// keysOf ends a message with the keys there are.
func keysOf(known []string) string {
	if known == nil {
		return ""
	}
	return "; the keys are " + strings.Join(known, ", ")
}

// text returns the value of e, which must be a scalar that is not empty.
func (d *decoder) text(e entry) (string, *token.Token, error) {
	s, at, ok := strictyaml.Scalar(e.value)
	switch {
	case ok && s != "":
		for _, r := range s {
			// A host key may be folded over lines.
			if !unicode.IsPrint(r) && (r != '\n' || e.key != "host-key") || r == unicode.ReplacementChar {
				return "", nil, d.Fail(at, "%q has characters in it that cannot be printed", e.key)
			}
		}
		return s, at, nil
	case ok, e.value == nil, e.value.Type() == ast.NullType:
		return "", nil, d.Fail(e.at, "%q has no value", e.key)
	case e.key == "host":
		return "", nil, d.Fail(strictyaml.PlaceOf(e.value), "%q must be one host; quote a value that begins with a bracket", e.key)
	}
	return "", nil, d.Fail(strictyaml.PlaceOf(e.value), "%q must be a single value", e.key)
}

func (d *decoder) inventory() (*Inventory, error) {
	top, err := d.Parse()
	if err != nil {
		return nil, err
	}
	entries, err := d.mapping(top, "the inventory", []string{"defaults", "hosts", "clusters"})
	if err != nil {
		return nil, err
	}
	var defaults Host
	if e, ok := find(entries, "defaults"); ok {
		if defaults, err = d.defaults(e.value); err != nil {
			return nil, err
		}
	}
	v := &Inventory{path: d.Path, groups: []group{{}}}
	if e, ok := find(entries, "hosts"); ok {
		if v.groups[0].hosts, err = d.hosts(e.value, defaults); err != nil {
			return nil, err
		}
	}
	e, _ := find(entries, "clusters")
	clusters, err := d.mapping(e.value, "clusters", nil)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		g, err := d.cluster(c, defaults)
		if err != nil {
			return nil, err
		}
		v.groups = append(v.groups, g)
	}
	return v, nil
}

// find returns the entry with that key.
func find(entries []entry, key string) (entry, bool) {
	for _, e := range entries {
		if e.key == key {
			return e, true
		}
	}
	return entry{}, false
}

func (d *decoder) cluster(c entry, defaults Host) (group, error) {
	if err := checkName(c.key, "name of a cluster"); err != nil {
		return group{}, d.Fail(c.at, "cannot use cluster %.60q: %w", c.key, err)
	}
	entries, err := d.mapping(c.value, "cluster "+c.key, []string{"defaults", "hosts"})
	if err != nil {
		return group{}, err
	}
	if e, ok := find(entries, "defaults"); ok {
		own, err := d.defaults(e.value)
		if err != nil {
			return group{}, err
		}
		defaults = own.WithDefaults(defaults)
	}
	defaults.Group = c.key
	e, _ := find(entries, "hosts")
	hosts, err := d.hosts(e.value, defaults)
	return group{c.key, hosts}, err
}

func (d *decoder) defaults(n ast.Node) (Host, error) {
	entries, err := d.mapping(n, "defaults", []string{"user", "port", "key", "jump"})
	if err != nil {
		return Host{}, err
	}
	var h Host
	for _, e := range entries {
		if err := d.setting(&h, e); err != nil {
			return Host{}, err
		}
	}
	return h, nil
}

// hosts reads a list of hosts, or a single node set.
func (d *decoder) hosts(n ast.Node, defaults Host) ([]Host, error) {
	items := []ast.Node{n}
	switch n := n.(type) {
	case nil, *ast.NullNode:
		return nil, nil
	case *ast.SequenceNode:
		items = n.Values
	case *ast.MappingNode, *ast.MappingValueNode:
		return nil, d.Fail(strictyaml.PlaceOf(n), "hosts must be a list: begin each host with \"- \"")
	}
	var hosts []Host
	names := make(map[string]int) // given ones, and where
	for _, item := range items {
		more, err := d.host(item, names)
		if err != nil {
			return nil, err
		}
		if d.count += len(more); d.count > MaxHosts {
			return nil, d.Fail(strictyaml.PlaceOf(item), "%w", errTooMany)
		}
		for _, h := range more {
			h.Group = defaults.Group
			hosts = append(hosts, h.WithDefaults(defaults))
		}
	}
	return hosts, nil
}

// host reads one item of a list of hosts.
func (d *decoder) host(n ast.Node, names map[string]int) ([]Host, error) {
	if s, at, ok := strictyaml.Scalar(n); ok {
		return d.parseHosts(s, at)
	}
	switch n.(type) {
	case nil:
		return nil, d.Fail(nil, "a host is missing")
	case *ast.NullNode:
		return nil, d.Fail(n.GetToken(), "a host is missing here")
	case *ast.SequenceNode:
		return nil, d.Fail(n.GetToken(), "a host that begins with a bracket must be quoted")
	}
	entries, err := d.mapping(n, "a host", []string{"host", "name", "user", "port", "key", "host-key", "member", "jump"})
	if err != nil {
		return nil, err
	}
	e, ok := find(entries, "host")
	if !ok {
		return nil, d.Fail(strictyaml.PlaceOf(n), "a host needs the key \"host\": its name or address")
	}
	s, at, err := d.text(e)
	if err != nil {
		return nil, err
	}
	hosts, err := d.parseHosts(s, at)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		single := e.key == "name" || e.key == "host-key" || e.key == "member"
		switch {
		case single && len(hosts) > 1:
			return nil, d.Fail(e.at, "%q belongs to one host, and this entry names %d", e.key, len(hosts))
		case e.key == "user" && hosts[0].User != "", e.key == "port" && hosts[0].Port != 0:
			return nil, d.Fail(e.at, "%q is given twice: it is also part of \"host\"", e.key)
		}
	}
	for _, e := range entries {
		for i := range hosts {
			if err := d.setting(&hosts[i], e); err != nil {
				return nil, err
			}
		}
		switch e.key {
		case "port":
			// Ports are what tells nodes behind one address apart, so they are shown.
			for i, h := range hosts {
				if _, named := find(entries, "name"); !named {
					hosts[i].Name = withPort(h)
				}
			}
		case "name":
			if line, twice := names[hosts[0].Name]; twice {
				return nil, d.Fail(e.at, "name %q stands here again; the first is on line %d", hosts[0].Name, line)
			}
			names[hosts[0].Name] = e.at.Position.Line
		}
	}
	return hosts, nil
}

// withPort returns the name of h, which has no port, with the one of h.
func withPort(h Host) string {
	name := h.Name
	if h.Addr == name && strings.Contains(name, ":") {
		name = "[" + name + "]"
	} else if user, addr, ok := cutLast(name, "@"); ok && strings.Contains(addr, ":") && addr[0] != '[' {
		name = user + "@[" + addr + "]"
	}
	return fmt.Sprintf("%s:%d", name, h.Port)
}

func (d *decoder) parseHosts(s string, at *token.Token) ([]Host, error) {
	hosts, err := parseHosts(s)
	if err != nil {
		return nil, d.Fail(at, "%w", err)
	}
	return hosts, nil
}

// setting reads the value of one key of a host or of defaults into h.
func (d *decoder) setting(h *Host, e entry) error {
	s, at, err := d.text(e)
	if err != nil {
		return err
	}
	switch e.key {
	case "host": // is read already
	case "name":
		h.Name = s
		err = checkName(s, "name")
	case "user":
		h.User = s
		if !loginName().MatchString(s) {
			err = fmt.Errorf("%q is not a login name", s)
		}
	case "port":
		h.Port, err = parsePort(s)
	case "key":
		h.KeyFile, err = d.keyFile(s)
	case "host-key":
		h.HostKey, err = parseHostKey(s)
	case "member":
		h.Member = s
	case "jump":
		h.Jump = s
		err = checkJump(s)
	}
	if err != nil {
		return d.Fail(at, "cannot use %s: %w", e.key, err)
	}
	return nil
}

// keyFile returns the path of a private key. Those that do not begin at the
// root, at home or with a sign of ssh_config begin where the inventory is.
func (d *decoder) keyFile(s string) (string, error) {
	if strings.Contains(s, privateKey) {
		return "", errPrivateKey
	}
	if len(s) > 4096 { // PATH_MAX
		return "", errors.New("the path is too long")
	}
	if filepath.IsAbs(s) || s[0] == '~' || s[0] == '%' {
		return s, nil
	}
	return filepath.Join(filepath.Dir(d.Path), s), nil
}
