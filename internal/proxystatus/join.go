package proxystatus

import (
	"cmp"
	"slices"
)

// Join returns the reports with one row for each proxy of a replica instead of one for
// each stream, as an Envoy, its agent, and clients without ADS open several. It does
// not join streams that ask for the same type, such as those before and after a
// reconnect. The stream with most types gives the row its name.
func Join(reports []Report) []Report {
	type key struct{ name, cluster, identity string }
	out := make([]Report, len(reports))
	for i, r := range reports {
		streams := slices.Clone(r.Proxies)
		slices.SortStableFunc(streams, func(a, b Proxy) int { return cmp.Compare(len(b.Types), len(a.Types)) })
		r.Proxies = make([]Proxy, 0, len(streams))
		entries := make(map[key][]int, len(streams)) // indexes in r.Proxies
		for _, s := range streams {
			k := key{s.Name, s.Cluster, s.Identity}
			at := slices.IndexFunc(entries[k], func(j int) bool { return r.Proxies[j].disjoint(&s) })
			if at < 0 {
				entries[k] = append(entries[k], len(r.Proxies))
				r.Proxies = append(r.Proxies, s)
				continue
			}
			p := &r.Proxies[entries[k][at]]
			p.Types = slices.Concat(p.Types, s.Types)
			p.Roots = slices.Compact(slices.Sorted(slices.Values(slices.Concat(p.Roots, s.Roots))))
			p.Version, p.Envoy = cmp.Or(p.Version, s.Version), cmp.Or(p.Envoy, s.Envoy)
		}
		r.Sort()
		out[i] = r
	}
	return out
}

// disjoint reports whether two streams have no type in common.
func (p *Proxy) disjoint(other *Proxy) bool {
	return !slices.ContainsFunc(p.Types, func(t Type) bool {
		return slices.ContainsFunc(other.Types, func(o Type) bool { return o.URL == t.URL })
	})
}
