package facts

import (
	"slices"

	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// visibleRules holds lists of rules of a host, each with what its clients use, so that equal lists
// have the same pointers.
type visibleRules []struct{ all, used []*snapshot.HostRule }

// of returns the rules that clients use who get all rules of a list: those with selectors and the
// first one without. The subsets of the others complete the latter, so that no route loses its
// subset.
func (v *visibleRules) of(list []hostRule) []*snapshot.HostRule {
	all := make([]*snapshot.HostRule, len(list))
	for i, h := range list {
		all[i] = h.HostRule
	}
	n := selectors(list)
	if len(all)-n < 2 {
		return all
	}
	for _, k := range *v {
		if slices.Equal(k.all, all) {
			return k.used
		}
	}
	first := *all[n]
	first.Subsets = slices.Clone(first.Subsets)
	for _, other := range all[n+1:] {
		for _, s := range other.Subsets {
			if len(first.Subsets) < MaxHostSubsets && first.Subset(s.GetName()) == nil {
				first.Subsets = append(first.Subsets, s)
			}
		}
	}
	used := append(slices.Clone(all[:n]), &first)
	*v = append(*v, struct{ all, used []*snapshot.HostRule }{all, used})
	return used
}
