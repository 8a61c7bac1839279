// Package strictyaml reads YAML files that people write for this project's
// programs, and says where in them a fault is.
//
// It stands between such a file and a large parser. What a settings file has no use
// for, but a hostile one may use, is refused: anchors, aliases, merge keys, tags,
// directives, complex keys, a second document, control characters, and amounts
// that keep the parser busy, whose time grows with the square of some of them.
package strictyaml

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of the text of a file. They are far above what anybody writes. Within
// brackets depth is counted, without them every level needs one more column.
const (
	maxFlowDepth = 16
	maxIndent    = 200
	maxBlank     = 100 // blank lines in a row
)

// A File is one file that is read.
type File struct {
	Path   string // for messages
	Source string // the text, without a byte order mark
	Noun   string // what it is: "an inventory"

	MaxTokens int                   // words and signs it may have
	Missing   string                // message for two list entries in one place: "a host is missing here"
	Refused   map[token.Type]string // messages for what is refused, in place of the usual ones
	Hint      func(line string) string
	// Hide tells which lines Detail must not show because they may hold a secret, or
	// that it must show none. nil: all may be seen.
	Hide func(err error, lines []string) (some []bool, all bool)
}

// refused is what is refused, and how it is called.
var refused = map[token.Type]string{
	token.AnchorType:     "anchors (&)",
	token.AliasType:      "aliases (*)",
	token.MergeKeyType:   "merge keys (<<)",
	token.TagType:        "tags (!)",
	token.DirectiveType:  "directives (%)",
	token.MappingKeyType: "complex keys (?)",
}

// Fail returns an error at the place of t: an *Error, if there is one.
func (f *File) Fail(t *token.Token, format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	if t == nil || t.Position == nil {
		return fmt.Errorf("%s: %w", f.unreadable(), err)
	}
	return &Error{Path: f.Path, Line: t.Position.Line, Column: t.Position.Column, Err: err, file: f}
}

// unreadable begins a message without a place.
func (f *File) unreadable() string {
	_, noun, _ := strings.Cut(f.Noun, " ")
	return fmt.Sprintf("cannot read %s %s", noun, f.Path)
}

// Parse returns the top node of the file, nil when it is empty.
func (f *File) Parse(options ...parser.Option) (top ast.Node, err error) {
	// The parser is a large program of others. A fault in it must not look like one
	// of ours, and must not take down a run that more than this file is part of.
	defer func() {
		if r := recover(); r != nil {
			top, err = nil, fmt.Errorf("%s: the YAML parser failed: %v", f.unreadable(), r)
		}
	}()
	if err := f.checkText(); err != nil {
		return nil, err
	}
	tokens := lexer.Tokenize(f.Source)
	if err := f.checkTokens(tokens); err != nil {
		return nil, err
	}
	file, err := parser.Parse(tokens, 0, options...)
	if err != nil {
		var e yaml.Error
		if errors.As(err, &e) {
			hint := ""
			if at := e.GetToken(); f.Hint != nil && at != nil {
				hint = f.Hint(f.line(at.Position))
			}
			return nil, f.Fail(e.GetToken(), "%s%s", e.GetMessage(), hint)
		}
		return nil, fmt.Errorf("%s: %w", f.unreadable(), err)
	}
	for _, doc := range file.Docs {
		if doc.Body == nil || doc.Body.Type() == ast.CommentType {
			continue
		}
		if top != nil { // after "..."
			return nil, f.Fail(PlaceOf(doc.Body), "a second document begins here; %s is one", f.Noun)
		}
		top = doc.Body
	}
	return top, nil
}

// line returns the text of the line at p, "" where there is none.
func (f *File) line(p *token.Position) string {
	n := 0
	for line := range strings.SplitSeq(f.Source, "\n") {
		if n++; p != nil && n == p.Line {
			return line
		}
	}
	return ""
}

// checkText refuses what would make the parser recurse, or a terminal misbehave.
func (f *File) checkText() error {
	n, blank := 0, 0
	for line := range strings.SplitSeq(f.Source, "\n") {
		n++
		at := &token.Token{Position: &token.Position{Line: n, Column: 1}}
		line = strings.TrimSuffix(line, "\r")
		for column, r := range []rune(line) {
			if r == unicode.ReplacementChar || unicode.IsControl(r) && r != '\t' {
				at.Position.Column = column + 1
				return f.Fail(at, "a control character or a byte that is not UTF-8")
			}
		}
		if blank++; strings.Trim(line, " \t") != "" {
			blank = 0
		}
		if blank > maxBlank {
			return f.Fail(at, "more than %d blank lines in a row", maxBlank)
		}
		if indent := len(line) - len(strings.TrimLeft(line, " -?:\t")); indent > maxIndent {
			return f.Fail(at, "the line is indented by more than %d characters", maxIndent)
		}
	}
	return nil
}

// checkTokens refuses what a settings file has no use for.
func (f *File) checkTokens(tokens token.Tokens) error {
	if len(tokens) > f.MaxTokens {
		return fmt.Errorf("%s: it has more than %d words and signs", f.unreadable(), f.MaxTokens)
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
				return f.Fail(last, "%s", f.Missing)
			}
		case token.DocumentHeaderType:
			if last != nil {
				return f.Fail(t, "a second document begins here; %s is one", f.Noun)
			}
		case token.SequenceStartType, token.MappingStartType:
			if depth++; depth > maxFlowDepth {
				return f.Fail(t, "brackets are nested deeper than %d", maxFlowDepth)
			}
		case token.SequenceEndType, token.MappingEndType:
			depth--
		}
		if what, ok := refused[t.Type]; ok {
			message := what + " are not supported; quote the value if it is text"
			if own, ok := f.Refused[t.Type]; ok {
				message = own
			}
			return f.Fail(t, "%s", message)
		}
		last = t
	}
	return nil
}

// PlaceOf returns the token at which n begins: a mapping's own is the colon
// after its first key.
func PlaceOf(n ast.Node) *token.Token {
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

// Scalar returns the text of n as it stands in the file, unquoted: a name may
// be 1 or no. ok is false for what is not one value.
func Scalar(n ast.Node) (text string, at *token.Token, ok bool) {
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
