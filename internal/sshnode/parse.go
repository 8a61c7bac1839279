package sshnode

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// A section is what one part of the probe wrote.
type section struct {
	body   []byte
	status int // exit status
}

// An answer is a parsed frame.
type answer struct {
	values   map[string]string
	sections map[string]section
}

// errNoFrame says that the probe's answer does not begin.
var errNoFrame = errors.New("no answer of the probe")

// framed says whether b holds the end of a frame.
func framed(b []byte) bool {
	i := bytes.Index(b, []byte("\n"+frameEnd))
	if i < 0 {
		return false
	}
	rest := b[i+1+len(frameEnd):]
	return bytes.HasPrefix(rest, []byte("\n")) || bytes.HasPrefix(rest, []byte("\r\n"))
}

// parse reads the frame out of a command's output. What is before and behind
// it is skipped; within it everything must be as probeCommand writes it.
func parse(b []byte) (answer, error) {
	a := answer{values: make(map[string]string), sections: make(map[string]section)}
	const (
		before = iota
		inside
		content
	)
	state, name := before, ""
	var body []byte
	line := 0
	for raw := range bytes.Lines(b) {
		line++
		ended := bytes.HasSuffix(raw, []byte("\n"))
		l := bytes.TrimSuffix(raw, []byte("\n"))
		if state == before {
			// A prompt or other noise without a line break may come right before.
			if ended && bytes.HasSuffix(bytes.TrimSuffix(l, []byte("\r")), []byte(frameBegin)) {
				state = inside
			}
			continue
		}
		if !ended {
			break
		}
		if state == content {
			switch {
			case bytes.HasPrefix(l, []byte("=")):
				body = append(append(body, l[1:]...), '\n')
				continue
			case string(l) == ">"+name:
				s, err := newSection(body)
				if err != nil {
					return a, fmt.Errorf("section %s: %w", name, err)
				}
				a.sections[name] = s
				state = inside
				continue
			}
			return a, fmt.Errorf("line %d of the answer does not belong to section %s: %q", line, name, firstLine(l))
		}
		text := string(l)
		switch {
		case text == frameEnd:
			return a, nil
		case strings.HasPrefix(text, "<"):
			name = text[1:]
			if _, twice := a.sections[name]; twice || !isSection(name) {
				return a, fmt.Errorf("line %d of the answer begins an unknown or repeated section: %q", line, firstLine(l))
			}
			state, body = content, nil
		case strings.HasPrefix(text, "+"):
			key, value, ok := strings.Cut(text[1:], " ")
			if _, twice := a.values[key]; twice || !ok || !isValue(key) {
				return a, fmt.Errorf("line %d of the answer is an unknown or repeated value: %q", line, firstLine(l))
			}
			a.values[key] = value
		default:
			return a, fmt.Errorf("line %d of the answer is not the probe's: %q", line, firstLine(l))
		}
	}
	if state == before {
		return a, errNoFrame
	}
	return a, errors.New("the answer of the probe is cut off")
}

// isSection says whether probeCommand writes a section of that name.
func isSection(s string) bool {
	switch s {
	case "marker", "state", "unit", "ci-status", "ci-result":
		return true
	}
	return false
}

// isValue says whether probeCommand writes a value of that name.
func isValue(s string) bool {
	switch s {
	case "boot", "host", "clock", "cloud-init":
		return true
	}
	return false
}

// newSection takes the exit status and the line break that were added off body.
func newSection(body []byte) (section, error) {
	body, ok := bytes.CutSuffix(body, []byte("\n"))
	i := bytes.LastIndexByte(body, '\n')
	if !ok || i < 0 {
		return section{}, errors.New("no exit status")
	}
	status, err := strconv.ParseUint(string(body[i+1:]), 10, 8)
	if err != nil {
		return section{}, fmt.Errorf("exit status %q", firstLine(body[i+1:]))
	}
	return section{body: body[:i], status: int(status)}, nil
}
