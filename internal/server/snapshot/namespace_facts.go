package snapshot

// NamespaceFacts holds the policies of a namespace of the local cluster and the
// services of that namespace in all clusters, both oldest first.
type NamespaceFacts struct {
	Name string
	// Policies holds the objects of PolicyKinds.
	Policies map[Kind][]Policy
	// KeySets holds the fetched key sets of RequestAuthentications, each a JWKS.
	KeySets map[KeySource]string
	// KeptKeys holds the earlier keys of rules whose key sets are not fetched yet.
	KeptKeys map[KeptKeys]string
	// EnvoyFilters are sorted by priority, then oldest first.
	EnvoyFilters []*EnvoyFilter
	Services     []*MeshService
	// Rules is nil if the DestinationRules of most namespaces apply to this one, too.
	Rules *RuleScope
	// Routes is nil if the VirtualServices of most namespaces apply to this one, too.
	Routes *RouteScope
}
