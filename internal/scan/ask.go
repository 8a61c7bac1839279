package scan

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
	"cks-etcd/internal/store"
)

// elsewhereTime is how long Known looks for an answer about copies in other
// zones. It leaves a request the time for a look of its own.
const elsewhereTime = 2 * time.Second

// Known returns what is remembered about an ISO, and false if nothing is. It asks
// for identities, and reads no content.
//
// iso is a path, a URL, the id or unique name of a template, or the name of a
// file. A path or URL names one copy. Of the others the answer about the copy in
// the zone counts, or else that about another copy of the same template. zone ""
// is any zone. Several ISOs may have files of one name: that one of them lacks
// the file counts only if all do, those that came since the last round included.
func (s *Scanner) Known(ctx context.Context, iso, zone string) (answers.Answer, bool, error) {
	c := s.settings()
	own, others := s.asked(c, iso, zone)
	here := s.remembered(ctx, c, own, iso, func(*place) bool { return true })
	if a := here.settled(); a != nil {
		return *a, true, nil
	}
	if len(others) == 0 {
		return answers.Answer{}, false, here.err
	}
	ctx, cancel := context.WithTimeout(ctx, elsewhereTime)
	defer cancel()
	there := s.remembered(ctx, c, others, iso, func(p *place) bool { return alike(p, here.places) })
	if a := there.settled(); a != nil {
		return *a, true, nil
	}
	return answers.Answer{}, false, here.err
}

// Look reads the copy of an ISO that is in the zone, and remembers the answer.
// Callers that come together have it read once. If the zone has several copies,
// the first one that can be read counts; of ISOs that only their file's name
// tells, a no counts only if all say so, those that came since the last round
// included. How often rounds have failed to read it does not matter, and a failure
// here is not counted.
//
// The error says why nobody can tell: the copy cannot be read or is not
// complete; there is none in the zone (iso-no-copy) or on any storage
// (iso-direct-download); ctx ended, but then the look goes on, for the next one
// who asks.
func (s *Scanner) Look(ctx context.Context, iso, zone string) (answers.Answer, error) {
	c := s.settings()
	own, _ := s.asked(c, iso, zone)
	var failed, unready, mute error // the first ones: looks, copies, sites
	var no *answers.Answer          // about a file of that name, which another ISO may have too
	said := make(map[string]bool)   // no, by raw
	for sites, walk := own, false; ; walk = true {
		var past []site
		for f := range arrivals(ctx, sites, func(ctx context.Context, t site) found { return s.find(ctx, t, iso, walk) }) {
			mute = cmp.Or(mute, f.err)
			if f.past {
				past = append(past, f.site)
			}
			for _, p := range f.places {
				switch {
				case p.Err != nil:
					unready = cmp.Or(unready, p.Err)
					continue
				case said[p.raw]:
					continue
				}
				switch r, _ := s.look(ctx, c, p, true); {
				case r.err != nil:
					failed = cmp.Or(failed, r.err)
				case r.answer.Value.Yes(), p.template != "":
					return r.answer, nil
				default:
					no, said[p.raw] = &r.answer, true
				}
			}
		}
		if err := cmp.Or(failed, unready, mute); err != nil {
			return answers.Answer{}, err
		}
		if no == nil || len(past) == 0 {
			break
		}
		sites = past
	}
	if no != nil {
		return *no, nil
	}
	return answers.Answer{}, s.absent(iso, zone, len(own))
}

// absent words that no copy was found.
func (s *Scanner) absent(iso, zone string, sites int) error {
	in := ""
	if zone != "" {
		in = " of zone " + zone
	}
	if sites == 0 {
		return reason.New(reason.NoCopy, "no store%s is configured", in)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var zones []string
	for _, places := range s.last {
		for _, p := range places {
			if p.matches(iso) && !slices.Contains(zones, p.Zone) {
				zones = append(zones, p.Zone)
			}
		}
	}
	if len(zones) > 0 {
		slices.Sort(zones)
		return reason.New(reason.NoCopy, "%s is on no store%s; it is in zone %s", iso, in, strings.Join(zones, ", "))
	}
	return reason.New(reason.NoCopy, "%s is on no store%s; an ISO that hosts download directly never is", iso, in)
}

// asked returns the sites that may have the copies of iso in the zone, and those
// that may have other ones.
func (s *Scanner) asked(c Config, iso, zone string) (own, others []site) {
	if strings.ContainsAny(iso, "/:") {
		return []site{{name: "", exact: s.exact(c, iso, zone)}}, nil
	}
	own = c.sites(func(z string) bool { return serves(z, zone) })
	others = c.sites(func(z string) bool { return !serves(z, zone) })
	return own, others
}

// exact is the copy at a location.
func (s *Scanner) exact(c Config, iso, zone string) *place {
	for _, u := range c.URLs {
		if u.URL == iso || source.Redact(u.URL) == iso {
			p := site{name: server(u.URL)}.remote(u)
			return p
		}
	}
	p := &place{Copy: Copy{Location: source.Redact(iso), Zone: zone}, raw: iso, size: -1}
	if source.IsURL(iso) {
		p.Store, p.name = server(iso), URL{URL: iso}.title()
		return p
	}
	if foreign.MatchString(iso) {
		p.Err = reason.New(reason.SourceUnsupported, "%s", p.Location)
		return p
	}
	if abs, err := filepath.Abs(iso); err == nil {
		p.raw, p.Location = abs, abs
	}
	p.name = filepath.Base(p.raw)
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, ok := s.index[p.Location]; ok {
		p.name, p.template, p.account = s.isos[i].Name, s.isos[i].Template, s.isos[i].Account
	}
	return p
}

// found is what one site, or several, have of an ISO.
type found struct {
	site   site // if it is one
	places []*place
	past   bool            // some are those of the last round, and files of that name may have come since
	answer *answers.Answer // remembered about one of them
	no     *answers.Answer // remembered about a file of that name, which another ISO may have too
	open   bool            // nothing is remembered about another one
	err    error           // why it cannot tell, or not all
}

// settled returns the answer that counts, nil if there is none.
func (f *found) settled() *answers.Answer {
	if f.answer == nil && !f.open && f.err == nil {
		return f.no
	}
	return f.answer
}

// remembered returns the first answer that the sites know of, or else all they
// have. Only copies for which same is true count.
func (s *Scanner) remembered(ctx context.Context, c Config, sites []site, iso string, same func(*place) bool) (all found) {
	for f := range arrivals(ctx, sites, func(ctx context.Context, t site) found {
		f := s.recallFound(ctx, c, s.find(ctx, t, iso, false), same)
		if f.past && f.answer == nil && f.settled() != nil {
			f = s.recallFound(ctx, c, s.find(ctx, t, iso, true), same)
		}
		return f
	}) {
		if f.answer != nil {
			return f
		}
		all.places = append(all.places, f.places...)
		all.err = cmp.Or(all.err, f.err)
		all.no, all.open = cmp.Or(all.no, f.no), all.open || f.open
	}
	return all
}

// recallFound adds to f what is remembered about its places.
func (s *Scanner) recallFound(ctx context.Context, c Config, f found, same func(*place) bool) found {
	for _, p := range f.places {
		switch {
		case !same(p):
			continue
		case p.Err != nil:
			f.open = true
			continue
		}
		a, ok, err := s.recall(ctx, c, p)
		switch {
		case !ok:
			f.open, f.err = true, cmp.Or(f.err, err)
		case a.Value.Yes(), p.template != "":
			f.answer = &a
			return f
		default:
			f.no = &a
		}
	}
	return f
}

// alike reports whether p is a copy of the same ISO as the complete ones of like.
// Where there are none, only a template tells.
func alike(p *place, like []*place) bool {
	complete := false
	for _, o := range like {
		if o.Err != nil {
			continue
		}
		if complete = true; o.iso() == p.iso() {
			return true
		}
	}
	return !complete && p.template != ""
}

// errFound ends a walk.
var errFound = errors.New("found")

// find returns the copies of iso at a site, as they are now. Files that only their
// name tells are those that the last round has found, if it has found some, unless
// walk has all of the site looked through.
func (s *Scanner) find(ctx context.Context, t site, iso string, walk bool) (f found) {
	f.site = t
	defer func() {
		if v := recover(); v != nil {
			f.err = s.crash(v, debug.Stack(), "looking for "+iso)
		}
		if f.err != nil {
			if ctx.Err() != nil && !coded(f.err) {
				f.err = reason.Ended(ctx, "looking for %s", iso)
			}
			f.err = withCode(f.err, reason.SourceUnreachable, "%s", t.name)
		}
	}()
	if t.root == "" {
		all, err := s.list(ctx, t, func() {})
		for _, p := range all {
			if t.exact != nil || p.matches(iso) {
				f.places = append(f.places, p)
			}
		}
		f.err = err
		return f
	}
	if f.err = t.usable(); f.err != nil {
		return f
	}
	// A template has its own directory. To look there costs a few calls, and to
	// walk through a store tens of thousands.
	var beside []*place
	ids := template(iso)
	for _, p := range s.previous(t) {
		switch {
		case !p.matches(iso):
		case p.template != "":
			if !slices.Contains(ids, p.template) {
				ids = append(ids, p.template)
			}
		case p.raw != "":
			beside = append(beside, p)
		}
	}
	for _, id := range ids {
		copies, err := s.stores.Template(ctx, t.root, id)
		f.err = cmp.Or(f.err, err)
		for _, c := range copies {
			// While there are no properties, the name is not known.
			if p := t.place(c); p.matches(iso) || p.Err != nil {
				f.places = append(f.places, p)
			}
		}
	}
	if !walk {
		for _, p := range beside {
			now := place{Copy: p.Copy, raw: p.raw, name: p.name, size: p.size, site: p.site}
			now.Err = nil
			f.places, f.past = append(f.places, &now), true
		}
	}
	if len(f.places) > 0 || f.err != nil || !walk && slices.Contains(ids, iso) {
		return f
	}
	f.err = s.stores.Walk(ctx, t.root, func(c store.Copy) error {
		if p := t.place(c); p.matches(iso) {
			f.places = append(f.places, p)
			if p.template != "" {
				return errFound
			}
		}
		return ctx.Err()
	})
	if errors.Is(f.err, errFound) {
		f.err = nil
	}
	return f
}

// template returns the id of the template that iso names: it is one, or a unique
// name as CloudStack makes it, "<template id>-<account id>-<uuid>".
func template(iso string) []string {
	id, _, _ := strings.Cut(iso, "-")
	if id == "" || strings.Trim(id, "0123456789") != "" {
		return nil
	}
	return []string{id}
}
