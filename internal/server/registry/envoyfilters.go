package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// envoyFilters are the EnvoyFilters of a namespace in the order in which they
// apply.
func (b *builder) envoyFilters(ns string) []*snapshot.EnvoyFilter {
	var out []*snapshot.EnvoyFilter
	for n, f := range b.filters {
		if n.namespace == ns {
			out = append(out, f)
		}
	}
	slices.SortFunc(out, func(x, y *snapshot.EnvoyFilter) int {
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// claim is the name of an extension that an EnvoyFilter does not get, because
// another that comes before it has it.
type claim struct {
	extension string
	winner    snapshot.Key
	loser     snapshot.Key
}

func (c claim) String() string {
	return fmt.Sprintf("%s: extension %q is that of %s for proxies that both select", c.loser, c.extension, c.winner)
}

// DuplicateExtensions tells, sorted, of the extensions that an EnvoyFilter does not
// give the proxies that another one gives an extension of that name.
func (r *Registry) DuplicateExtensions() []string {
	if lines := r.double.Load(); lines != nil {
		return *lines
	}
	return nil
}

// tellClaims says once of each extension that two EnvoyFilters which may
// select one proxy both give it: the first in their order counts.
func (b *builder) tellClaims() {
	now := set[claim]{}
	root := b.next.Namespaces.Get(b.next.Mesh.RootNamespace)
	for _, ns := range b.next.Namespaces.All() {
		list := slices.Clone(ns.EnvoyFilters)
		if root != nil && ns != root && len(list) > 0 {
			list = slices.Concat(root.EnvoyFilters, list)
		}
		for i, loser := range list {
			for _, winner := range list[:i] {
				if loser.Namespace == ns.Name && mayOverlap(winner.Selector, loser.Selector) {
					b.tellClaim(now, winner, loser)
				}
			}
		}
	}
	b.claims = now
	lines := make([]string, 0, len(now))
	for c := range now {
		lines = append(lines, c.String())
	}
	slices.Sort(lines)
	b.double(lines)
}

func (b *builder) tellClaim(now set[claim], winner, loser *snapshot.EnvoyFilter) {
	for _, e := range loser.Extensions {
		has := func(w snapshot.Extension) bool { return w.Name == e.Name }
		c := claim{e.Name, winner.Key(), loser.Key()}
		if !slices.ContainsFunc(winner.Extensions, has) {
			continue
		}
		if _, told := b.claims[c]; !told {
			b.cfg.Log.Warn("an extension is configured twice, the first counts for proxies that both select", "extension", e.Name,
				"first", c.winner.String(), "first_at", winner.Place.String(), "second", c.loser.String(), "second_at", loser.Place.String())
		}
		now.add(c)
	}
}

// mayOverlap reports whether a proxy may have the labels of both selectors.
func mayOverlap(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; ok && w != v {
			return false
		}
	}
	return true
}
