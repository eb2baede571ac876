package registry

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// namespacePolicies returns the policies of a namespace that decide about mTLS.
func (t *tables) namespacePolicies(r *derive.Reads, ns string) (*snapshot.NamespaceFacts, bool) {
	return &snapshot.NamespaceFacts{Name: ns, PeerAuth: oldestFirst(t.peerAuthIn.Lookup(r, ns))}, true
}

// mtlsPolicies returns the policies of the root namespace and of a namespace; either may
// be nil.
func (t *tables) mtlsPolicies(r *derive.Reads, ns string) (root, own *snapshot.NamespaceFacts) {
	root, _ = t.policies.Get(r, t.rootNamespace.Get(r))
	own, _ = t.policies.Get(r, ns)
	return root, own
}

// namespaceFacts returns the policies and services of a namespace.
func (t *tables) namespaceFacts(r *derive.Reads, ns string) (*snapshot.NamespaceFacts, bool) {
	out := &snapshot.NamespaceFacts{
		Name:         ns,
		Sidecars:     oldestFirst(t.sidecarsIn.Lookup(r, ns)),
		PeerAuth:     oldestFirst(t.peerAuthIn.Lookup(r, ns)),
		EnvoyFilters: t.envoyFilters(r, ns),
		Services:     values(t.servicesIn.Lookup(r, ns)),
	}
	out.Rules, _ = t.ruleScopes.Get(r, ns)
	slices.SortFunc(out.Services, snapshot.CompareServices)
	return out, true
}

// equalFacts compares pointers: an object or service that did not change keeps its address.
func equalFacts(a, b *snapshot.NamespaceFacts) bool {
	return slices.Equal(a.Sidecars, b.Sidecars) && slices.Equal(a.PeerAuth, b.PeerAuth) &&
		slices.Equal(a.EnvoyFilters, b.EnvoyFilters) && slices.Equal(a.Services, b.Services) && a.Rules == b.Rules
}

func equalMeta(a, b *snapshot.Meta) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.Created.Equal(b.Created) && maps.Equal(a.Labels, b.Labels)
}

// oldestFirst sorts objects by creation time, namespace and name.
func oldestFirst[S snapshot.Spec](all iter.Seq2[objectKey, *snapshot.Config[S]]) []*snapshot.Config[S] {
	out := values(all)
	slices.SortFunc(out, func(x, y *snapshot.Config[S]) int {
		return cmp.Or(x.Created.Compare(y.Created), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}
