package facts

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
func (t *Tables) envoyFilters(r *derive.Reads, ns string) []*snapshot.EnvoyFilter {
	return inOrder(values(t.filtersIn.Lookup(r, ns)))
}

func inOrder(list []*snapshot.EnvoyFilter) []*snapshot.EnvoyFilter {
	slices.SortFunc(list, func(x, y *snapshot.EnvoyFilter) int {
		return cmp.Or(cmp.Compare(x.Priority, y.Priority), x.Created.Compare(y.Created), cmp.Compare(x.Name, y.Name))
	})
	return list
}

// DuplicateExtension is an extension of two EnvoyFilters that may select the same
// proxy. Such a proxy gets the extension of the first one.
type DuplicateExtension struct {
	Extension     string
	First, Second snapshot.Key
	FirstAt       snapshot.Place
	SecondAt      snapshot.Place
}

func (d DuplicateExtension) String() string {
	return d.Second.String() + ": " + d.Text()
}

// Text describes the fault, without its object.
func (d DuplicateExtension) Text() string {
	return fmt.Sprintf("proxies that %s also selects get extension %q from there", d.First, d.Extension)
}

// maxComparedFilters bounds the EnvoyFilters with one extension that others are compared with.
const maxComparedFilters = 10

// findDuplicateExtensions finds the extensions of EnvoyFilters that some proxies get from
// another EnvoyFilter.
func (t *Tables) findDuplicateExtensions(r *derive.Reads) []DuplicateExtension {
	byNamespace := make(map[string][]*snapshot.EnvoyFilter)
	for k, f := range t.allFilters.Lookup(r, struct{}{}) {
		byNamespace[k.Namespace] = append(byNamespace[k.Namespace], f)
	}
	root := t.rootNamespace.Get(r)
	var out []DuplicateExtension
	for _, ns := range slices.Sorted(maps.Keys(byNamespace)) {
		list := inOrder(byNamespace[ns])
		if ns != root {
			list = slices.Concat(inOrder(byNamespace[root]), list)
			slices.SortStableFunc(list, func(x, y *snapshot.EnvoyFilter) int { return cmp.Compare(x.Priority, y.Priority) })
		}
		earlier := make(map[string][]*snapshot.EnvoyFilter) // by extension
		for _, second := range list {
			for _, e := range second.Extensions {
				for _, first := range earlier[e.Name] {
					if first != second && (first.Namespace == ns || second.Namespace == ns) && mayOverlap(first, second) {
						out = append(out, DuplicateExtension{e.Name, first.Key(), second.Key(), first.Place, second.Place})
					}
				}
				if len(earlier[e.Name]) < maxComparedFilters {
					earlier[e.Name] = append(earlier[e.Name], second)
				}
			}
		}
	}
	return out
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
