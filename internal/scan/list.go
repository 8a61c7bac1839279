package scan

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"cks-etcd/internal/answers"
)

// ISOs returns what is known of every ISO, by name: as the last round found
// them, or the present one so far, with the answers of requests since. Those that
// are no Kubernetes ISOs are left out unless Config.All is set. The slice is the
// caller's own; what its elements point to is not changed by anybody.
func (s *Scanner) ISOs() []ISO {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]ISO, 0, len(s.isos))
	for _, i := range s.isos {
		if i.Kubernetes || s.config.All {
			all = append(all, i)
		}
	}
	return all
}

// answered adds an answer to what ISOs returns.
func (s *Scanner) answered(a answers.Answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.File != s.config.File {
		return // of before a Reload
	}
	i, ok := s.index[a.Key]
	if !ok || a.Key == "" {
		i, ok = s.index[a.From]
	}
	if ok {
		s.isos[i].Answer, s.isos[i].Failure, s.isos[i].Kubernetes = &a, nil, a.Kubernetes
	}
}

// publish makes what the round knows so far what ISOs returns. It is left as it
// was if the round was interrupted or does not know what is remembered.
func (r *round) publish(ctx context.Context) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Err() != nil || r.blind {
		return
	}
	isos := make([]ISO, 0, len(r.groups))
	for _, g := range merged(r.groups) {
		isos = append(isos, g.listed())
	}
	slices.SortFunc(isos, func(a, b ISO) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Template, b.Template),
			cmp.Compare(a.Copies[0].Location, b.Copies[0].Location))
	})
	index := make(map[string]int, 2*len(isos))
	for n, i := range isos {
		for _, c := range i.Copies {
			index[c.Location] = n
			if c.Key != "" {
				index[c.Key] = n
			}
		}
	}
	last := make(map[string][]*place)
	for _, g := range r.groups {
		for _, p := range g.places {
			last[p.site] = append(last[p.site], p)
		}
	}
	r.Scanner.mu.Lock()
	defer r.Scanner.mu.Unlock()
	for _, old := range r.Scanner.isos {
		// A request was answered after the round had asked what is remembered.
		if a := old.Answer; a != nil && a.Key != "" && a.File == r.config.File && a.At.After(r.sum.Started) {
			if n, ok := index[a.Key]; ok && isos[n].Answer == nil {
				isos[n].Answer, isos[n].Failure, isos[n].Kubernetes = a, nil, a.Kubernetes
			}
		}
	}
	r.Scanner.isos, r.Scanner.index, r.Scanner.last = isos, index, last
}

// merged returns the groups with copies that are not complete, and so have no
// size, beside the other copies of their template.
func merged(groups map[isoID]*group) []*group {
	sized := make(map[string]*group)
	for id, g := range groups {
		if old := sized[id.template]; id.template != "" && (old == nil || old.has() == nil) {
			sized[id.template] = g
		}
	}
	added := make(map[*group][]*place)
	var all []*group
	for id, g := range groups {
		first := g.places[0]
		if to := sized[first.template]; id.template == "" && to != nil && first.unready {
			added[to] = append(added[to], g.places...)
			continue
		}
		all = append(all, g)
	}
	for n, g := range all {
		if more := added[g]; more != nil {
			all[n] = &group{places: append(slices.Clone(g.places), more...), answer: g.has(), failed: g.failed}
		}
	}
	return all
}

// listed is what ISOs says of g.
func (g *group) listed() ISO {
	places := slices.Clone(g.places)
	slices.SortFunc(places, func(a, b *place) int { return strings.Compare(a.Location, b.Location) })
	g.mu.Lock()
	defer g.mu.Unlock()
	i := ISO{Size: -1, Answer: g.answer, Kubernetes: g.answer == nil || g.answer.Kubernetes}
	if g.answer == nil {
		i.Failure = g.failed
	}
	for _, p := range places {
		i.Copies = append(i.Copies, p.Copy)
		i.Name = cmp.Or(i.Name, p.name)
		i.Template = cmp.Or(i.Template, p.template)
		i.Account = cmp.Or(i.Account, p.account)
		i.Size = max(i.Size, p.size)
	}
	i.Name = cmp.Or(i.Name, places[0].Location)
	return i
}

// previous returns what a site had in the last round, by location.
func (s *Scanner) previous(t site) map[string]*place {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := make(map[string]*place)
	for _, p := range s.last[t.id()] {
		m[p.Location] = p
	}
	return m
}
