package watch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"cks-etcd/internal/scan"
)

// Limits of the text of a configuration. They are far above what anybody
// writes, and keep the parser, whose time grows with the square of some of
// them, from being kept busy by a file that is something else.
const (
	maxConfigBytes = 1 << 20
	maxTokens      = 1 << 18
	maxFlowDepth   = 16
	maxIndent      = 200
	maxBlank       = 100 // blank lines in a row
)

// A decoder reads the nodes of one file. Every fault has its place.
type decoder struct {
	path   string
	source string
	urls   map[scan.URL]int // lines of the URLs so far, by URL and zone
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

// fail returns an error at the place of t.
func (d *decoder) fail(t *token.Token, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if t == nil || t.Position == nil {
		return fmt.Errorf("cannot read configuration %s: %w", d.path, err)
	}
	return &FileError{Path: d.path, Line: t.Position.Line, Column: t.Position.Column, Err: err, source: d.source}
}

// placeOf returns the token at which n begins: a mapping's own is the colon
// after its first key.
func placeOf(n ast.Node) *token.Token {
	switch n := n.(type) {
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return n.Values[0].Key.GetToken()
		}
	case *ast.MappingValueNode:
		return n.Key.GetToken()
	}
	return n.GetToken()
}

// parse returns the top node of the file, nil when it is empty.
func (d *decoder) parse() (top ast.Node, err error) {
	// The parser is a large program of others. A fault in it must not take down
	// a daemon that is told to read its configuration again.
	defer func() {
		if r := recover(); r != nil {
			top, err = nil, fmt.Errorf("cannot read configuration %s: the YAML parser failed: %v", d.path, r)
		}
	}()
	if err := d.checkText(); err != nil {
		return nil, err
	}
	tokens := lexer.Tokenize(d.source)
	if err := d.checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) {
			return nil, d.fail(e.GetToken(), "%s", e.GetMessage())
		}
		return nil, fmt.Errorf("cannot read configuration %s: %w", d.path, err)
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if top != nil {
			return nil, d.fail(placeOf(doc.Body), "a second document begins here; a configuration is one")
		}
		top = doc.Body
	}
	return top, nil
}

// checkText refuses what would make the parser recurse, or a terminal misbehave.
func (d *decoder) checkText() error {
	n, blank := 0, 0
	for line := range strings.SplitSeq(d.source, "\n") {
		n++
		at := &token.Token{Position: &token.Position{Line: n, Column: 1}}
		line = strings.TrimSuffix(line, "\r")
		for column, r := range []rune(line) {
			if r == unicode.ReplacementChar || unicode.IsControl(r) && r != '\t' {
				at.Position.Column = column + 1
				return d.fail(at, "a control character or a byte that is not UTF-8")
			}
		}
		if blank++; strings.Trim(line, " \t") != "" {
			blank = 0
		}
		if blank > maxBlank {
			return d.fail(at, "more than %d blank lines in a row", maxBlank)
		}
		if indent := len(line) - len(strings.TrimLeft(line, " -?:\t")); indent > maxIndent {
			return d.fail(at, "the line is indented by more than %d characters", maxIndent)
		}
	}
	return nil
}

// checkTokens refuses what a configuration has no use for.
func (d *decoder) checkTokens(tokens token.Tokens) error {
	if len(tokens) > maxTokens {
		return fmt.Errorf("cannot read configuration %s: it has more than %d words and signs", d.path, maxTokens)
	}
	refused := map[token.Type]string{
		token.AnchorType:     "anchors (&)",
		token.AliasType:      "aliases (*)",
		token.MergeKeyType:   "merge keys (<<)",
		token.TagType:        "tags (!)",
		token.DirectiveType:  "directives (%)",
		token.MappingKeyType: "complex keys (?)",
	}
	depth := 0
	var last *token.Token // that is not a comment
	for _, t := range tokens {
		switch t.Type {
		case token.CommentType:
			continue
		case token.SequenceEntryType:
			// The parser's time for many of them in a row grows with their square.
			if last != nil && last.Type == token.SequenceEntryType {
				return d.fail(last, "a value is missing here")
			}
		case token.DocumentHeaderType:
			if last != nil {
				return d.fail(t, "a second document begins here; a configuration is one")
			}
		case token.SequenceStartType, token.MappingStartType:
			if depth++; depth > maxFlowDepth {
				return d.fail(t, "brackets are nested deeper than %d", maxFlowDepth)
			}
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		if what, ok := refused[t.Type]; ok {
			return d.fail(t, "%s are not supported; quote the value if it is text", what)
		}
		last = t
	}
	return nil
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
		return d.fail(v.at, "%q has no value", v.key)
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	default:
		return d.fail(placeOf(n), "%s must be KEY: VALUE lines; the keys are %s", what, keysOf(fields))
	}
	seen := make(map[string]int)
	for _, e := range values {
		key, at, ok := scalar(e.Key)
		if !ok {
			return d.fail(e.Key.GetToken(), "a key must be a word; the keys are %s", keysOf(fields))
		}
		i := slices.IndexFunc(fields, func(f field) bool { return f.key == key })
		if i < 0 {
			return d.fail(at, "unknown key %.60q in %s; the keys are %s", key, what, keysOf(fields))
		}
		if line, twice := seen[key]; twice {
			return d.fail(at, "%.60q stands here again; the first is on line %d", key, line)
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
		return d.fail(v.at, "%q has no value", v.key)
	}
	n, ok := v.node.(*ast.SequenceNode)
	if !ok {
		return d.fail(placeOf(v.node), "%q must be a list", v.key)
	}
	for i, item := range n.Values {
		if item == nil || item.Type() == ast.NullType {
			return d.fail(n.GetToken(), "a value is missing in %q", v.key)
		}
		at := placeOf(item)
		if i == limit {
			return d.fail(at, "%q has more than %d values", v.key, limit)
		}
		if err := each(value{v.key, at, item}); err != nil {
			return err
		}
	}
	return nil
}

// scalar returns the text of n as it stands in the file, unquoted: a zone may
// be called 1 or no.
func scalar(n ast.Node) (text string, at *token.Token, ok bool) {
	switch n := n.(type) {
	case *ast.LiteralNode:
		if n.Value == nil {
			return "", n.GetToken(), false
		}
		return strings.TrimSpace(n.Value.Value), n.GetToken(), true
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		t := n.GetToken()
		return t.Value, t, true
	}
	return "", nil, false
}

// maxText is the longest value in bytes: PATH_MAX of Linux, and more than any
// server takes as a URL.
const maxText = 4096

// scalar returns the value as text: one, printable, and not empty.
func (d *decoder) scalar(v value) (string, *token.Token, error) {
	s, at, ok := scalar(v.node)
	switch {
	case !ok && (v.node == nil || v.node.Type() == ast.NullType), ok && s == "":
		return "", nil, d.fail(v.at, "%q has no value", v.key)
	case !ok:
		return "", nil, d.fail(placeOf(v.node), "%q must be a single value", v.key)
	case len(s) > maxText:
		return "", nil, d.fail(at, "%q is longer than %d bytes", v.key, maxText)
	}
	for _, r := range s {
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return "", nil, d.fail(at, "%q has characters in it that cannot be printed", v.key)
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
				return d.fail(at, "cannot use %s: %w", v.key, err)
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
			return d.fail(at, "%q must be true or false", v.key)
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
			return d.fail(at, "%q must be a number", v.key)
		}
		if i < low || i > high {
			return d.fail(at, "%q must be from %d to %d", v.key, low, high)
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
			return d.fail(at, "%q must be a duration with its unit, as in 90s, 5m or 1h30m", v.key)
		}
		if parsed < low || parsed > high {
			return d.fail(at, "%q must be from %s to %s", v.key, brief(low), brief(high))
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
