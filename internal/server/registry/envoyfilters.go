package registry

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// envoyFilters returns the EnvoyFilters of a namespace in the order in which they
// apply.
func (t *tables) envoyFilters(r *derive.Reads, ns string) []*snapshot.EnvoyFilter {
	return inOrder(values(t.filtersIn.Lookup(r, ns)))
}

func inOrder(list []*snapshot.EnvoyFilter) []*snapshot.EnvoyFilter {
	slices.SortFunc(list, func(x, y *snapshot.EnvoyFilter) int {
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	return list
}

// duplicateExtension is an extension of two EnvoyFilters that may select the same
// proxy. Such a proxy gets the extension of the first one.
type duplicateExtension struct {
	extension     string
	first, second snapshot.Key
	firstAt       snapshot.Place
	secondAt      snapshot.Place
}

func (d duplicateExtension) String() string {
	return d.second.String() + ": " + d.text()
}

func (d duplicateExtension) text() string {
	return fmt.Sprintf("proxies that %s also selects get extension %q from there", d.first, d.extension)
}

// DuplicateExtensions describes, sorted, the extensions of EnvoyFilters that some
// proxies get from another EnvoyFilter.
func (r *Registry) DuplicateExtensions() []string { return r.report.Load().duplicates }

// findDuplicateExtensions finds the extensions of EnvoyFilters that some proxies get from
// another EnvoyFilter.
func (t *tables) findDuplicateExtensions(r *derive.Reads) []duplicateExtension {
	byNamespace := make(map[string][]*snapshot.EnvoyFilter)
	for k, f := range t.allFilters.Lookup(r, struct{}{}) {
		byNamespace[k.namespace] = append(byNamespace[k.namespace], f)
	}
	root := t.rootNamespace.Get(r)
	var out []duplicateExtension
	for _, ns := range slices.Sorted(maps.Keys(byNamespace)) {
		list := inOrder(byNamespace[ns])
		if ns != root {
			list = slices.Concat(inOrder(byNamespace[root]), list)
			slices.SortStableFunc(list, func(x, y *snapshot.EnvoyFilter) int { return cmp.Compare(x.Priority, y.Priority) })
		}
		for i, second := range list {
			for _, first := range list[:i] {
				if (first.Namespace == ns || second.Namespace == ns) && mayOverlap(first, second) {
					out = appendDuplicates(out, first, second)
				}
			}
		}
	}
	return out
}

// appendDuplicates appends the extensions that both EnvoyFilters have.
func appendDuplicates(out []duplicateExtension, first, second *snapshot.EnvoyFilter) []duplicateExtension {
	for _, e := range second.Extensions {
		if slices.ContainsFunc(first.Extensions, func(other snapshot.Extension) bool { return other.Name == e.Name }) {
			out = append(out, duplicateExtension{e.Name, first.Key(), second.Key(), first.Place, second.Place})
		}
	}
	return slices.Compact(out)
}

// describeDuplicates returns a line for each duplicate extension, sorted, and logs those
// that were not there before.
func (s *state) describeDuplicates(before, now []duplicateExtension) []string {
	lines := make([]string, 0, len(now))
	for _, d := range now {
		lines = append(lines, d.String())
		if !slices.Contains(before, d) {
			s.cfg.Log.Warn("an extension is configured twice, the first counts for proxies that both select", "extension", d.extension,
				"first", d.first.String(), "first_at", d.firstAt.String(), "second", d.second.String(), "second_at", d.secondAt.String())
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}

// mayOverlap reports whether both objects may select a proxy.
func mayOverlap(a, b *snapshot.EnvoyFilter) bool {
	if a.Gateways != nil && b.Gateways != nil {
		return slices.ContainsFunc(a.Gateways, func(name string) bool { return slices.Contains(b.Gateways, name) })
	}
	for k, v := range a.Selector {
		if w, ok := b.Selector[k]; ok && w != v {
			return false
		}
	}
	return true
}
