package scan

import (
	"context"
	"errors"
	"iter"
	"net/url"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"sync"

	"cks-etcd/internal/answers"
	"cks-etcd/internal/reason"
	"cks-etcd/internal/source"
	"cks-etcd/internal/store"
)

// A place is a copy of an ISO as its store lists it.
type place struct {
	Copy
	raw      string // Location as it is opened, with credentials; "" not to be opened
	name     string
	template string
	account  string
	size     int64  // -1 unknown
	direct   bool   // its properties say that hosts download it directly
	site     string // id of its site

	// What a round has found of it.
	unready bool             // its store does not have all of it
	gone    bool             // it was there, and its store cannot be listed now
	lost    error            // why it has no identity now; Key is that of the last round
	answer  *answers.Answer  // remembered about Key
	failed  *answers.Failure // remembered about failureKey
}

// failureKey is what failures of p are remembered by: the location, while there
// is no identity.
func (p *place) failureKey() string {
	if p.Key != "" {
		return p.Key
	}
	return "at:" + p.Location
}

// An isoID tells which copies are of one ISO.
type isoID struct {
	template, name string
	size           int64
	location       string // of what has no template, or no size: it is its own ISO
}

func (p *place) iso() isoID {
	if p.template != "" && p.size >= 0 {
		return isoID{template: p.template, name: p.name, size: p.size}
	}
	return isoID{location: p.Location}
}

// matches reports whether people may mean p by iso: the id or unique name of the
// template, or the name of the file, with or without ".iso".
func (p *place) matches(iso string) bool {
	if iso == p.template || iso == p.name || iso == p.Location {
		return true
	}
	base := filepath.Base(p.Location)
	return iso == base || iso == strings.TrimSuffix(base, filepath.Ext(base))
}

// A site is what is asked for ISOs on its own: a store, or the URLs of one server.
type site struct {
	name  string
	zone  string // of a store
	root  string // of a store; "" for a server
	urls  []URL
	exact *place // the one ISO that was named by its location
}

// id tells a site from all others of a configuration.
func (t site) id() string {
	if t.root != "" {
		return t.root + "\x00" + t.zone
	}
	return "\x00" + t.name
}

// sites are those of a configuration that serve a zone for which keep is true.
func (c Config) sites(keep func(zone string) bool) []site {
	var all []site
	for _, st := range c.Stores {
		t := site{name: st.Name, zone: st.Zone, root: st.Path}
		if t.name == "" {
			t.name = st.Path
		}
		if keep(st.Zone) {
			all = append(all, t)
		}
	}
	servers := make(map[string]int)
	for _, u := range c.URLs {
		if !keep(u.Zone) {
			continue
		}
		host := server(u.URL)
		i, ok := servers[host]
		if !ok {
			i = len(all)
			servers[host] = i
			all = append(all, site{name: host})
		}
		all[i].urls = append(all[i].urls, u)
	}
	return all
}

// anyZone keeps all zones.
func anyZone(string) bool { return true }

// server is the host of a URL, with its port.
func server(raw string) string {
	if u, err := url.Parse(raw); err == nil && u.Host != "" {
		return u.Host
	}
	return source.Redact(raw)
}

// serves reports whether what is of zone has serves the zone asked for.
func serves(has, asked string) bool { return has == "" || asked == "" || has == asked }

// foreign tells the names of storage that is no directory here: those of object
// stores, of RBD pools, and of the mounts CloudStack makes by itself.
var foreign = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*:`)

// usable returns why a store cannot be walked whatever is there.
func (t site) usable() error {
	if t.root != "" && foreign.MatchString(t.root) && !filepath.IsAbs(t.root) {
		return reason.New(reason.SourceUnsupported, "%s: it is no directory of this machine", source.Redact(t.root))
	}
	return nil
}

// list returns every ISO of the site, and calls step after each. What was found
// before an error is returned with it.
func (s *Scanner) list(ctx context.Context, t site, step func()) (all []*place, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.crash(v, debug.Stack(), "listing "+t.name)
		}
	}()
	switch {
	case t.exact != nil:
		p := *t.exact
		return []*place{&p}, nil
	case t.root == "":
		for _, u := range t.urls {
			all = append(all, t.remote(u))
		}
		return all, nil
	}
	if err := t.usable(); err != nil {
		return nil, err
	}
	err = s.stores.Walk(ctx, t.root, func(c store.Copy) error {
		all = append(all, t.place(c))
		step()
		return ctx.Err()
	})
	if err != nil && ctx.Err() != nil {
		err = reason.Ended(ctx, "listing %s", t.root)
	}
	if err != nil {
		err = withCode(err, reason.SourceUnreachable, "%s", t.root)
	}
	return all, err
}

// place is a copy that a store has listed.
func (t site) place(c store.Copy) *place {
	p := &place{
		Copy: Copy{Location: c.Path, Zone: t.zone, Store: t.name, Err: c.Err},
		site: t.id(), raw: c.Path, name: c.Name, template: c.Template, account: c.Account, size: c.Size,
		direct: strings.EqualFold(c.Properties["directdownload"], "true"),
	}
	if p.Location == "" {
		p.Location = c.Dir
	}
	if c.Path == "" && p.Err == nil {
		p.Err = reason.New(reason.ISOIncomplete, "%s: there is no ISO", p.Location)
	}
	if p.direct && p.Err != nil {
		p.Err = reason.New(reason.DirectDownload, "%s is on no secondary storage", p.title())
	}
	return p
}

// remote is an ISO at a URL.
func (t site) remote(u URL) *place {
	return &place{
		Copy: Copy{Location: source.Redact(u.URL), Zone: u.Zone, Store: t.name},
		site: t.id(), raw: u.URL, name: u.title(), template: u.Template, size: -1,
	}
}

// title is the name of the ISO for people.
func (p *place) title() string {
	if p.name != "" {
		return p.name
	}
	return p.Location
}

// identify asks for the identity of p and notes it.
func (s *Scanner) identify(ctx context.Context, p *place) (i source.Identity, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = s.crash(v, debug.Stack(), "looking for "+p.Location)
		}
		if err != nil && ctx.Err() != nil && !coded(err) {
			err = reason.Ended(ctx, "looking for %s", p.Location)
		}
	}()
	i, err = s.images.Identify(ctx, p.raw)
	if err != nil {
		return i, err
	}
	p.Key = i.Key()
	if p.size < 0 {
		p.size = i.Size
	}
	return i, nil
}

// arrivals asks all sites at once and yields what they say as it comes. When the
// caller has heard enough, the others' context ends, and they are waited for.
func arrivals[T any](ctx context.Context, sites []site, ask func(context.Context, site) T) iter.Seq[T] {
	return func(yield func(T) bool) {
		ctx, cancel := context.WithCancelCause(ctx)
		var work sync.WaitGroup
		defer work.Wait()
		defer cancel(errEnough)
		c := make(chan T, len(sites))
		for _, t := range sites {
			work.Go(func() { c <- ask(ctx, t) })
		}
		for range sites {
			if !yield(<-c) {
				return
			}
		}
	}
}

// errEnough ends searches whose result is not needed any more.
var errEnough = errors.New("another one has answered")
