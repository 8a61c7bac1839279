package watch

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"cks-etcd/internal/scan"
	"cks-etcd/internal/strictyaml"
)

// Bounds of a configuration, far above what anybody writes.
const (
	maxConfigBytes = 1 << 20
	maxTokens      = 1 << 18
)

// A decoder reads the nodes of one file. Every fault has its place.
type decoder struct {
	strictyaml.File
	urls map[scan.URL]int // lines of the URLs so far, by URL and zone
}

// newDecoder returns a decoder for the text of the file at path.
func newDecoder(path string, b []byte) *decoder {
	return &decoder{
		File: strictyaml.File{
			Path: path, Source: strings.TrimPrefix(string(b), "\ufeff"), Noun: "a configuration", MaxTokens: maxTokens, Missing: "a value is missing here",
			Hide: func(_ error, lines []string) ([]bool, bool) { return secretLines(lines), false },
		},
		urls: make(map[scan.URL]int),
	}
}

// A value is what stands behind a key or in a list.
type value struct {
	key  string       // names it in messages
	at   *token.Token // of the key, or of the value in a list
	node ast.Node
}

// A field is one key of a mapping and what reads its value.
type field struct {
	key  string
	read func(value) error
}

// mapping reads the keys of a mapping. A key that is in no field, or that
// stands there twice, is an error. Nothing at all is an empty mapping only at
// the top: everywhere else it is a value that was forgotten.
func (d *decoder) mapping(v value, what string, fields ...field) error {
	var values []*ast.MappingValueNode
	switch n := v.node.(type) {
	case nil, *ast.NullNode:
		if v.at == nil {
			return nil
		}
		return d.Fail(v.at, "%q has no value", v.key)
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return d.Fail(strictyaml.PlaceOf(n), "%s must be KEY: VALUE lines; the keys are %s", what, keysOf(fields))
	}
	seen := make(map[string]int)
	for _, e := range values {
		key, at, ok := strictyaml.Scalar(e.Key)
		if !ok {
			return d.Fail(e.Key.GetToken(), "a key must be a word; the keys are %s", keysOf(fields))
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			return d.Fail(at, "unknown key %.60q in %s; the keys are %s", key, what, keysOf(fields))
		}
		if line, twice := seen[key]; twice {
			return d.Fail(at, "%.60q stands here again; the first is on line %d", key, line)
		}
		seen[key] = at.Position.Line
		if err := fields[i].read(value{key, at, e.Value}); err != nil {
			return err
		}
	}
	return nil
}

func keysOf(fields []field) string {
	var keys []string
	for _, f := range fields {
		keys = append(keys, f.key)
	}
	return strings.Join(keys, ", ")
}

// list reads the values of a list of at most limit.
func (d *decoder) list(v value, limit int, each func(value) error) error {
	if v.node == nil || v.node.Type() == ast.NullType {
		return d.Fail(v.at, "%q has no value", v.key)
	}
	n, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return d.Fail(strictyaml.PlaceOf(v.node), "%q must be a list", v.key)
	}
	for i, item := range n.Values {
		if item == nil || item.Type() == ast.NullType {
			return d.Fail(n.GetToken(), "a value is missing in %q", v.key)
		}
		at := strictyaml.PlaceOf(item)
		if i == limit {
			return d.Fail(at, "%q has more than %d values", v.key, limit)
		}
		if err := each(value{v.key, at, item}); err != nil {
			return err
		}
	}
	return nil
}

// maxText is the longest value in bytes: PATH_MAX of Linux, and more than any
// server takes as a URL.
const maxText = 4096

// scalar returns the value as text: one, printable, and not empty.
func (d *decoder) scalar(v value) (string, *token.Token, error) {
	s, at, ok := strictyaml.Scalar(v.node)
	switch {
	case !ok && (v.node == nil || v.node.Type() == ast.NullType), ok && s == "":
		return "", nil, d.Fail(v.at, "%q has no value", v.key)
	case !ok:
		return "", nil, d.Fail(strictyaml.PlaceOf(v.node), "%q must be a single value", v.key)
	case len(s) > maxText:
		return "", nil, d.Fail(at, "%q is longer than %d bytes", v.key, maxText)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return "", nil, d.Fail(at, "%q has characters in it that cannot be printed", v.key)
		}
	}
	return s, at, nil
}

// text reads a value into s through the checks, each of which may change it.
func (d *decoder) text(s *string, checks ...func(string) (string, error)) func(value) error {
	return func(v value) error {
		t, at, err := d.scalar(v)
		if err != nil {
			return err
		}
		for _, check := range checks {
			if t, err = check(t); err != nil {
				return d.Fail(at, "cannot use %s: %w", v.key, err)
			}
		}
		*s = t
		return nil
	}
}

func (d *decoder) flag(b *bool) func(value) error {
	return func(v value) error {
		n, ok := v.node.(*ast.BoolNode)
		if !ok {
			_, at, err := d.scalar(v)
			if err != nil {
				return err
			}
			return d.Fail(at, "%q must be true or false", v.key)
		}
		*b = n.Value
		return nil
	}
}

func (d *decoder) number(n *int, low, high int) func(value) error {
	return func(v value) error {
		s, at, err := d.scalar(v)
		if err != nil {
			return err
		}
		_, isNumber := v.node.(*ast.IntegerNode)
		i, err := strconv.Atoi(s)
		if !isNumber || err != nil {
			return d.Fail(at, "%q must be a number", v.key)
		}
		if i < low || i > high {
			return d.Fail(at, "%q must be from %d to %d", v.key, low, high)
		}
		*n = i
		return nil
	}
}

func (d *decoder) duration(t *time.Duration, low, high time.Duration) func(value) error {
	return func(v value) error {
		s, at, err := d.scalar(v)
		if err != nil {
			return err
		}
		parsed, err := time.ParseDuration(s)
		if err != nil {
			return d.Fail(at, "%q must be a duration with its unit, as in 90s, 5m or 1h30m", v.key)
		}
		if parsed < low || parsed > high {
			return d.Fail(at, "%q must be from %s to %s", v.key, brief(low), brief(high))
		}
		*t = parsed
		return nil
	}
}

// brief writes a duration without its zero parts: 5m, not 5m0s.
func brief(t time.Duration) string {
	s := t.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}
