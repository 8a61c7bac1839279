package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cks-etcd/internal/admit"
	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
)

// Limits of a request.
const (
	maxBody  = 16 << 10 // bytes; the longest useful one has some 5 KiB
	maxName  = 255      // bytes of a version or zone
	maxISO   = 4096     // bytes of a path or URL
	maxNodes = 10000    // etcd nodes; CloudStack takes far fewer
	// maxAsking bounds the requests that wait for a decision at once. Looks at
	// one ISO are one look, so this many means that the storage does not answer.
	maxAsking = 256
)

// A question is what is asked of /api/v1/admit.
type question struct {
	admit.Request
	wait time.Duration
	has  map[string]bool
}

// A verdict is the answer of /api/v1/admit.
type verdict struct {
	Schema       int           `json:"schema_version"`
	Allow        bool          `json:"allow"`
	Checked      bool          `json:"checked"`      // the decision rests on what is on the ISO
	Value        inspect.Value `json:"value"`        // "" when nothing was asked
	SupportsEtcd *bool         `json:"supportsetcd"` // null: nobody knows
	Code         reason.Code   `json:"code"`
	Cause        reason.Code   `json:"cause,omitempty"` // why nobody could tell
	Message      string        `json:"message"`
	Hint         string        `json:"hint,omitempty"`
	EtcdVersion  string        `json:"etcd_version,omitempty"`
	Arch         string        `json:"arch,omitempty"`
	From         string        `json:"from,omitempty"` // the copy that was read
	At           *time.Time    `json:"checked_at"`     // null: not checked
	Seconds      float64       `json:"seconds"`        // the decision took
}

// Verdict returns a decision in the form of /api/v1/admit, for encoding/json.
func Verdict(d admit.Decision) any { return verdictOf(d) }

func verdictOf(d admit.Decision) verdict {
	v := verdict{
		Schema: Schema, Allow: d.Allow, Checked: d.Checked, Value: d.Value, SupportsEtcd: supports(d.Value),
		Code: d.Code, Cause: d.Cause, Message: d.Message, Hint: d.Hint, Seconds: d.Took.Seconds(),
	}
	if a := d.Answer; a != nil {
		v.EtcdVersion, v.Arch, v.From = a.Version, a.Arch, a.From
		at := a.At.UTC()
		v.At = &at
	}
	return v
}

// admit decides about a request for a cluster. A refusal is an answer like
// another: its status is 200, and only what could not be understood has one
// of 400.
func (s *server) admit(w http.ResponseWriter, r *http.Request) {
	q := question{has: make(map[string]bool)}
	var err error
	if r.Method == http.MethodPost {
		if r.URL.RawQuery != "" {
			err = errors.New("a POST has its question in the body, not in the query")
		} else {
			err = s.readBody(w, r, &q)
		}
	} else {
		err = q.readQuery(r.URL.RawQuery)
	}
	if err == nil {
		err = q.check()
	}
	if err != nil {
		status := http.StatusBadRequest
		if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
			status = http.StatusRequestEntityTooLarge
		}
		s.fail(w, status, reason.New(reason.Usage, "%w", err))
		return
	}
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	default:
		w.Header().Set("Retry-After", "1")
		s.fail(w, http.StatusServiceUnavailable, reason.New(reason.SourceStalled, "%d requests wait for a decision already", maxAsking).
			WithHint("ask again; the storage does not answer in time"))
		return
	}
	now := s.daemon.current.Load()
	wait := now.AdmitWait
	if q.has["wait"] {
		wait = q.wait
	}
	d := admit.Decide(r.Context(), q.Request, asker{now.scanner, &now.Config, s.metrics}, wait)
	s.metrics.decision(d)
	s.log.Info("asked about a cluster", "allow", d.Allow, "checked", d.Checked, "code", d.Code, "etcd_nodes", q.EtcdNodes,
		"iso", reason.Line(source.Redact(q.ISO)), "version", q.Version, "zone", q.Zone, "took", d.Took.Round(time.Millisecond))
	s.reply(w, http.StatusOK, verdictOf(d))
}

// readBody reads a question from a JSON object. Unlike encoding/json on its
// own it takes each key once, as it is spelled.
func (s *server) readBody(w http.ResponseWriter, r *http.Request, q *question) error {
	rc := http.NewResponseController(w)
	began := time.Now()
	if err := rc.SetReadDeadline(began.Add(bodyTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("cannot read the body: %w", err)
	}
	b, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return fmt.Errorf("cannot read the body: %w", err)
	}
	// The connection is watched for its end while the decision is awaited.
	if err := rc.SetReadDeadline(began.Add(readTime)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return fmt.Errorf("cannot read the body: %w", err)
	}
	if !utf8.Valid(b) {
		return errors.New("the body is not UTF-8")
	}
	return q.readJSON(b)
}

func (q *question) readJSON(b []byte) error {
	dec := json.NewDecoder(strings.NewReader(string(b)))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return errors.New("the body must be a JSON object")
	}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return fmt.Errorf("the body is not JSON: %w", err)
		}
		key, _ := t.(string)
		var v any
		switch key {
		case "etcd_nodes":
			v = &q.EtcdNodes
		case "iso":
			v = &q.ISO
		case "version":
			v = &q.Version
		case "zone":
			v = &q.Zone
		case "wait":
			v = new(string)
		}
		if err := q.take(key); err != nil {
			return err
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return fmt.Errorf("the body is not JSON: %w", err)
		}
		if string(raw) == "null" || json.Unmarshal(raw, v) != nil {
			kind := "a string"
			if key == "etcd_nodes" {
				kind = "a whole number"
			}
			return fmt.Errorf("%s must be %s", key, kind)
		}
		if s, ok := v.(*string); ok && key == "wait" {
			if err := q.setWait(*s); err != nil {
				return err
			}
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("the body is not JSON: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body goes on after its JSON object")
	}
	return nil
}

func (q *question) readQuery(raw string) error {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return err
	}
	for _, key := range slices.Sorted(maps.Keys(query)) {
		for _, s := range query[key] {
			if err := q.take(key); err != nil {
				return err
			}
			switch key {
			case "etcd_nodes":
				if q.EtcdNodes, err = strconv.Atoi(s); err != nil {
					return errors.New("etcd_nodes must be a whole number")
				}
			case "iso":
				q.ISO = s
			case "version":
				q.Version = s
			case "zone":
				q.Zone = s
			case "wait":
				if err := q.setWait(s); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

var questionKeys = []string{"etcd_nodes", "iso", "version", "zone", "wait"}

// take notes that a key was given.
func (q *question) take(key string) error {
	if !slices.Contains(questionKeys, key) {
		return fmt.Errorf("unknown key %q; the keys are %s", clip(key), strings.Join(questionKeys, ", "))
	}
	if q.has[key] {
		return fmt.Errorf("%s is given twice", key)
	}
	q.has[key] = true
	return nil
}

func (q *question) setWait(s string) error {
	wait, err := time.ParseDuration(s)
	if err != nil {
		return errors.New("wait must be a duration with its unit, as in 5s")
	}
	if wait < minWait || wait > maxWait {
		return fmt.Errorf("wait must be from %s to %s", brief(minWait), brief(maxWait))
	}
	q.wait = wait
	return nil
}

// check refuses what nobody can mean. The words are bounded and printable,
// since they come back in messages and in the log.
func (q *question) check() error {
	switch {
	case !q.has["etcd_nodes"]:
		return errors.New("etcd_nodes is missing: the number of etcd nodes of the cluster, 0 for none")
	case q.EtcdNodes < 0 || q.EtcdNodes > maxNodes:
		return fmt.Errorf("etcd_nodes must be from 0 to %d", maxNodes)
	case q.EtcdNodes > 0 && q.ISO == "":
		return errors.New("iso is missing: a path, a URL, or the id or unique name of the template")
	}
	for _, word := range []struct {
		name, value string
		most        int
	}{{"iso", q.ISO, maxISO}, {"version", q.Version, maxName}, {"zone", q.Zone, maxName}} {
		if len(word.value) > word.most {
			return fmt.Errorf("%s is longer than %d bytes", word.name, word.most)
		}
		bad := func(r rune) bool { return r == utf8.RuneError || !unicode.IsPrint(r) }
		if strings.ContainsFunc(word.value, bad) {
			return fmt.Errorf("%s has characters in it that cannot be printed", word.name)
		}
	}
	return nil
}

// clip shortens what came with a request for a message.
func clip(s string) string {
	const most = 60
	if len(s) > most {
		return strings.ToValidUTF8(s[:most], "") + "..."
	}
	return s
}
