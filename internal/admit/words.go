package admit

import (
	"unicode/utf8"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
)

// maxName is how much of a name that came with a request goes into a message, in
// bytes: all that matters of a refusal fits one line beside two of them.
const maxName = 200

// allow is the decision by an answer that is yes.
func (q Request) allow(a answers.Answer) Decision {
	with := "etcd"
	if a.Version != "" {
		with = "etcd " + clip(a.Version)
	}
	return Decision{
		Allow: true, Checked: true, Value: a.Value, Code: reason.Included, Answer: &a,
		Message: reason.Line(q.subject() + " has " + with + ": " + file(a) + " is on ISO " + q.iso(a)),
	}
}

// refuse is the decision by an answer that is no.
func (q Request) refuse(a answers.Answer) Decision {
	code := a.Code
	if !reason.Known(code) || reason.Lookup(code).Exit != reason.ExitNo {
		// The answer was written by somebody with other codes. It is a no still.
		code = reason.ArchiveMissing
		if file(a) != inspect.EtcdArchive {
			code = reason.FileMissing
		}
	}
	m := q.subject() + " cannot have etcd nodes: "
	if a.Value == inspect.Broken {
		m += file(a) + " on ISO " + q.iso(a) + " cannot be used"
		if a.Message != "" {
			m += ": " + a.Message
		}
	} else {
		m += file(a) + " is not on ISO " + q.iso(a)
	}
	return Decision{
		Checked: true, Value: a.Value, Code: code, Answer: &a,
		Message: reason.Line(m), Hint: reason.Lookup(code).Hint,
	}
}

// unchecked is the decision if nobody could tell.
func (q Request) unchecked(why error) Decision {
	e := reason.New(reason.AdmitUnchecked, "whether %s can have etcd nodes is not known: %w", q.subject(), why)
	return Decision{
		Allow: true, Value: inspect.Unknown, Code: reason.AdmitUnchecked, Cause: reason.Of(why),
		Message: e.Error(), Hint: reason.HintOf(why),
	}
}

// subject is what the request is about, in words.
func (q Request) subject() string {
	if q.Version == "" {
		return "this Kubernetes version"
	}
	return "Kubernetes version " + clip(q.Version)
}

// iso is the name of the ISO as people know it.
func (q Request) iso(a answers.Answer) string {
	if a.Name != "" {
		return clip(a.Name)
	}
	return clip(q.ISO)
}

// file is what was looked for.
func file(a answers.Answer) string {
	if a.File == "" {
		return inspect.EtcdArchive
	}
	return clip(a.File)
}

// clip is the beginning of a name that is too long for a message.
func clip(s string) string {
	if len(s) <= maxName {
		return s
	}
	cut := maxName
	for cut > maxName-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "..."
}
