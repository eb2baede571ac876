package facts

import (
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// namespacePolicies returns the policies of a namespace that decide about mTLS.
func (t *Tables) namespacePolicies(r *derive.Reads, ns string) (*snapshot.NamespaceFacts, bool) {
	return &snapshot.NamespaceFacts{Name: ns, Policies: t.policiesIn(r, ns, snapshot.KindPeerAuthentication)}, true
}

// mtlsPolicies returns the policies of the root namespace and of a namespace; either may
// be nil.
func (t *Tables) mtlsPolicies(r *derive.Reads, ns string) (root, own *snapshot.NamespaceFacts) {
	root, _ = t.policies.Get(r, t.rootNamespace.Get(r))
	own, _ = t.policies.Get(r, ns)
	return root, own
}

// namespaceFacts returns the policies and services of a namespace.
func (t *Tables) namespaceFacts(r *derive.Reads, ns string) (*snapshot.NamespaceFacts, bool) {
	out := &snapshot.NamespaceFacts{
		Name:         ns,
		Policies:     t.policiesIn(r, ns, slices.Collect(maps.Keys(t.policyIndex))...),
		EnvoyFilters: t.envoyFilters(r, ns),
		Services:     values(t.servicesIn.Lookup(r, ns)),
	}
	out.KeySets, out.KeptKeys = t.keySetsOf(r, out.Policies[snapshot.KindRequestAuthentication])
	out.Rules, _ = t.ruleScopes.Get(r, ns)
	out.Routes, _ = t.routeScopes.Get(r, ns)
	slices.SortFunc(out.Services, snapshot.CompareServices)
	return out, true
}

// policiesIn returns the policies of some kinds in a namespace.
func (t *Tables) policiesIn(r *derive.Reads, ns string, kinds ...snapshot.Kind) map[snapshot.Kind][]snapshot.Policy {
	var out map[snapshot.Kind][]snapshot.Policy
	for _, kind := range kinds {
		list := oldestFirst(t.policyIndex[kind].Lookup(r, ns))
		if len(list) == 0 {
			continue
		}
		if out == nil {
			out = make(map[snapshot.Kind][]snapshot.Policy)
		}
		out[kind] = list
	}
	return out
}

// equalFacts compares pointers: an object or service that did not change keeps its address.
func equalFacts(a, b *snapshot.NamespaceFacts) bool {
	return maps.EqualFunc(a.Policies, b.Policies, slices.Equal[[]snapshot.Policy]) && maps.Equal(a.KeySets, b.KeySets) && maps.Equal(a.KeptKeys, b.KeptKeys) &&
		slices.Equal(a.EnvoyFilters, b.EnvoyFilters) && slices.Equal(a.Services, b.Services) && a.Rules == b.Rules && a.Routes == b.Routes
}

func equalMeta(a, b *snapshot.Meta) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Created.Equal(b.Created) && a.Suppress == b.Suppress && maps.Equal(a.Labels, b.Labels)
}
