package registry

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// envoyFilters returns the EnvoyFilters of a namespace in the order in which they
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

// duplicateExtension is an extension of two EnvoyFilters that may select the same
// proxy. Such a proxy gets the extension of the first one.
type duplicateExtension struct {
	extension     string
	first, second snapshot.Key
}

func (d duplicateExtension) String() string {
	return fmt.Sprintf("%s: proxies that %s also selects get extension %q from there", d.second, d.first, d.extension)
}

// DuplicateExtensions describes, sorted, the extensions of EnvoyFilters that some
// proxies get from another EnvoyFilter.
func (r *Registry) DuplicateExtensions() []string { return r.report.Load().duplicates }

// findDuplicateExtensions finds the duplicate extensions and logs new ones.
func (b *builder) findDuplicateExtensions() {
	now := set[duplicateExtension]{}
	root := b.next.Namespaces.Get(b.next.Mesh.RootNamespace)
	for _, ns := range b.next.Namespaces.All() {
		list := slices.Clone(ns.EnvoyFilters)
		if root != nil && ns != root && len(list) > 0 {
			list = slices.Concat(root.EnvoyFilters, list)
		}
		for i, second := range list {
			for _, first := range list[:i] {
				if second.Namespace == ns.Name && mayOverlap(first.Selector, second.Selector) {
					b.compareExtensions(now, first, second)
				}
			}
		}
	}
	b.duplicates = now
	lines := make([]string, 0, len(now))
	for d := range now {
		lines = append(lines, d.String())
	}
	slices.Sort(lines)
	b.report.duplicates = lines
}

// compareExtensions adds the extensions that both EnvoyFilters have.
func (b *builder) compareExtensions(now set[duplicateExtension], first, second *snapshot.EnvoyFilter) {
	for _, e := range second.Extensions {
		if !slices.ContainsFunc(first.Extensions, func(other snapshot.Extension) bool { return other.Name == e.Name }) {
			continue
		}
		d := duplicateExtension{e.Name, first.Key(), second.Key()}
		if _, known := b.duplicates[d]; !known {
			b.cfg.Log.Warn("an extension is configured twice, the first counts for proxies that both select", "extension", e.Name,
				"first", d.first.String(), "first_at", first.Place.String(), "second", d.second.String(), "second_at", second.Place.String())
		}
		now.add(d)
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
