package watch

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/inspect"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/scan"
)

// Schema is the version of all JSON that the daemon answers with. Fields may be
// added to it; the version is raised when one changes its meaning or goes away.
const Schema = 1

// failure is the answer to a request that has no other.
type failure struct {
	Schema int `json:"schema_version"`
	Error  struct {
		Code    reason.Code `json:"code"`
		Message string      `json:"message"`
		Hint    string      `json:"hint,omitempty"`
	} `json:"error"`
}

func (s *server) fail(w http.ResponseWriter, status int, err error) {
	f := failure{Schema: Schema}
	f.Error.Code, f.Error.Message = reason.Of(err), reason.Line(err.Error())
	if h := reason.HintOf(err); h != reason.Lookup(reason.Usage).Hint { // which is about a command line
		f.Error.Hint = h
	}
	s.reply(w, status, f)
}

// reply writes v as JSON, all of it or a failure.
func (s *server) reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		s.log.Debug("cannot write the answer", "err", err)
	}
}

// An isoList is the answer of /api/v1/isos.
type isoList struct {
	Schema int       `json:"schema_version"`
	Round  *roundOut `json:"round"` // null before the first one is done
	ISOs   []isoOut  `json:"isos"`
}

// A roundOut is the last round.
type roundOut struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Errors  []string  `json:"errors"` // stores that could not be read
}

// An isoOut is one ISO with all its copies.
type isoOut struct {
	Name         string        `json:"name"`
	Template     string        `json:"template,omitempty"`
	Account      string        `json:"account,omitempty"`
	Size         int64         `json:"size"` // bytes; -1 unknown
	SupportsEtcd *bool         `json:"supportsetcd"`
	Value        inspect.Value `json:"value"`
	Code         reason.Code   `json:"code,omitempty"`
	Message      string        `json:"message,omitempty"`
	Hint         string        `json:"hint,omitempty"`
	Version      string        `json:"version,omitempty"` // of etcd
	Arch         string        `json:"arch,omitempty"`
	Checked      *time.Time    `json:"checked"` // null: not yet
	From         string        `json:"from,omitempty"`
	Notes        []string      `json:"notes"`
	Failures     int           `json:"failures"`   // looks in the background that failed
	LeftAlone    bool          `json:"left_alone"` // there were so many that it is not tried again until it changes
	Copies       []copyOut     `json:"copies"`
}

// A copyOut is one copy of an ISO.
type copyOut struct {
	Location string `json:"location"`
	Zone     string `json:"zone,omitempty"`
	Store    string `json:"store,omitempty"`
	Error    string `json:"error,omitempty"` // why it is not complete
}

// valueOf is the answer about an ISO, Unknown as long as there is none.
func valueOf(i scan.ISO) inspect.Value {
	if i.Answer == nil {
		return inspect.Unknown
	}
	return i.Answer.Value
}

// supports is the value of supportsetcd: null while nobody knows.
func supports(v inspect.Value) *bool {
	yes := v.Yes()
	if !yes && !v.No() {
		return nil
	}
	return &yes
}

// leftAlone reports whether the background has given up on an ISO.
func leftAlone(i scan.ISO, limit int) bool {
	return i.Answer == nil && i.Failure != nil && i.Failure.Count >= limit
}

func isoOf(i scan.ISO, limit int) isoOut {
	v := valueOf(i)
	out := isoOut{
		Name: i.Name, Template: i.Template, Account: i.Account, Size: i.Size,
		SupportsEtcd: supports(v), Value: v, Notes: []string{}, Copies: []copyOut{},
		LeftAlone: leftAlone(i, limit),
	}
	if a := i.Answer; a != nil {
		out.Code, out.Message, out.Version, out.Arch, out.From = a.Code, a.Message, a.Version, a.Arch, a.From
		out.Notes = append(out.Notes, a.Notes...)
		at := a.At.UTC()
		out.Checked = &at
	} else if f := i.Failure; f != nil {
		out.Code, out.Message, out.Failures, out.From = f.Code, f.Message, f.Count, f.From
	}
	for _, c := range i.Copies {
		o := copyOut{Location: c.Location, Zone: c.Zone, Store: c.Store}
		if c.Err != nil {
			o.Error = reason.Line(c.Err.Error())
			if out.Code == "" {
				out.Code, out.Message = reason.Of(c.Err), o.Error
			}
		}
		out.Copies = append(out.Copies, o)
	}
	if out.Code != "" && out.Code != reason.Included {
		out.Hint = reason.Lookup(out.Code).Hint
	}
	return out
}

// isos lists what is known of all ISOs.
func (s *server) isos(w http.ResponseWriter, r *http.Request) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err == nil {
		err = onlyKeys(q, "zone", "state")
	}
	states := q["state"]
	for _, state := range states {
		if known := []inspect.Value{inspect.Included, inspect.Missing, inspect.Broken, inspect.Unknown}; err == nil && !slices.Contains(known, inspect.Value(state)) {
			err = errors.New("state is included, missing, broken or unknown")
		}
	}
	if err != nil {
		s.fail(w, http.StatusBadRequest, reason.New(reason.Usage, "%w", err))
		return
	}
	now := s.daemon.current.Load()
	list := isoList{Schema: Schema, ISOs: []isoOut{}, Round: s.daemon.rounds.last()}
	for _, i := range now.list() {
		// A store without a zone serves all of them.
		inZone := func(c scan.Copy) bool { return c.Zone == "" || slices.Contains(q["zone"], c.Zone) }
		if q.Has("zone") && !slices.ContainsFunc(i.Copies, inZone) {
			continue
		}
		if len(states) > 0 && !slices.Contains(states, string(valueOf(i))) {
			continue
		}
		list.ISOs = append(list.ISOs, isoOf(i, now.FailureLimit))
	}
	slices.SortStableFunc(list.ISOs, func(a, b isoOut) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Template, b.Template))
	})
	s.reply(w, http.StatusOK, list)
}

// onlyKeys refuses keys of a query that are unknown or, but for those of lists,
// given twice: what is not understood must not look as if it had been.
func onlyKeys(q url.Values, known ...string) error {
	for key := range q {
		if !slices.Contains(known, key) {
			return fmt.Errorf("unknown key %q; the keys are %s", clip(key), strings.Join(known, ", "))
		}
	}
	return nil
}
