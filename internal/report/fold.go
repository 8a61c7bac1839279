package report

import (
	"net"
	"strings"
	"unicode"
	"unicode/utf8"

	"cks-etcd/internal/reason"
)

// self stands for a node's own name in a message that several nodes share.
const self = "<node>"

// Folds puts nodes that are not well for the same reason together, in the order
// of their first node. Messages that differ only in the name of their own node
// are the same.
func Folds(nodes []NodeResult, fold func(names []string) string) []Fold {
	type key struct {
		state   string
		code    reason.Code
		message string
		hint    string
	}
	folds := []Fold{}
	at := map[key]int{}
	for _, n := range nodes {
		if n.ok() {
			continue
		}
		message := withoutName(n.Message, n.Node)
		k := key{n.State, n.Code, message, n.Hint}
		i, ok := at[k]
		if !ok {
			i = len(folds)
			at[k] = i
			folds = append(folds, Fold{State: n.State, Code: n.Code, Message: n.Message, Hint: n.Hint})
		} else {
			folds[i].Message = message
		}
		folds[i].Nodes = append(folds[i].Nodes, n.Node)
	}
	for i := range folds {
		folds[i].Set = nodeSet(folds[i].Nodes, fold)
	}
	return folds
}

// nodeSet names nodes, as a list when there is no fold.
func nodeSet(names []string, fold func(names []string) string) string {
	if fold == nil || len(names) == 1 {
		return strings.Join(names, ",")
	}
	return fold(names)
}

// withoutName puts self in place of the node's name and of its host in message.
// A name that may be any word ("etcd") stays: it may mean something else.
func withoutName(message, name string) string {
	names := []string{name}
	if host, _, err := net.SplitHostPort(name); err == nil {
		names = append(names, host)
	}
	for _, n := range names {
		if strings.ContainsAny(n, ".:0123456789") {
			message = replaceWord(message, n, self)
		}
	}
	return message
}

// replaceWord replaces old where it is not part of a longer word.
func replaceWord(s, old, with string) string {
	inWord := func(r rune) bool { return r == '_' || r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r) }
	var b strings.Builder
	for rest := s; ; {
		i := strings.Index(rest, old)
		if i < 0 {
			b.WriteString(rest)
			return b.String()
		}
		before, _ := utf8.DecodeLastRuneInString(s[:len(s)-len(rest)+i])
		after, _ := utf8.DecodeRuneInString(rest[i+len(old):])
		b.WriteString(rest[:i])
		if inWord(before) || inWord(after) {
			b.WriteString(old)
		} else {
			b.WriteString(with)
		}
		rest = rest[i+len(old):]
	}
}

// Reasons returns one line a reason, "etcd[1-3].example: etcd archive missing:
// ...", then what stopped the run and what is wrong with the cluster. It is for
// error messages and annotations; r is complete.
func Reasons(r Report) []string {
	var out []string
	for _, f := range r.Folded {
		out = append(out, f.Set+": "+because(f.Message, f.Code))
	}
	if h := r.Health; h != nil && h.Code != reason.Ready {
		out = append(out, "cluster: "+because(h.Message, h.Code))
	}
	if r.Problem != nil {
		out = append(out, because(r.Problem.Message, r.Problem.Code))
	}
	return out
}

// because never leaves a reason out: without a message the code has words.
func because(message string, c reason.Code) string {
	if message != "" {
		return message
	}
	return reason.Lookup(c).Title
}
