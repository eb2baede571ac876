package snapshot

// EnvoyFilter holds the supported parts of an EnvoyFilter object. Its Envoy
// configuration is validated and encoded.
type EnvoyFilter struct {
	Meta
	// Selector selects proxies of the namespace by their labels. If it is empty, it
	// selects all of them.
	Selector map[string]string
	// Priority orders the objects of one namespace, the lowest first.
	Priority   int32
	Extensions []Extension
	Filters    []HTTPFilter
}

// Key implements Object.
func (o *EnvoyFilter) Key() Key { return o.key(KindEnvoyFilter) }

// Extension is the configuration of a filter. Proxies request it by name (ECDS).
type Extension struct {
	Name string
	// Body is an encoded envoy.config.core.v3.TypedExtensionConfig.
	Body []byte
}

// HTTPFilter is a filter to insert into HTTP connection managers.
type HTTPFilter struct {
	Context Context
	// Port is the port of the listener or, if connections are captured, their
	// original destination port. Zero matches all ports.
	Port   uint32
	Insert Insertion
	// Near is the name of the filter that Insert refers to. A list without that
	// filter stays as it is.
	Near string
	// Body is an encoded HttpFilter of envoy.extensions.filters.network.http_connection_manager.v3.
	Body []byte
}

// Context is the direction of the connections to which a filter applies.
type Context uint8

// The values of Context. The connections of gateways are neither inbound nor outbound.
const (
	AnyContext Context = iota
	InboundContext
	OutboundContext
	GatewayContext
)

// Insertion is a position in the list of HTTP filters. The router remains the last
// filter of the list.
type Insertion uint8

// The values of Insertion.
const (
	InsertFirst Insertion = iota
	InsertLast
	InsertBefore // Near
	InsertAfter  // Near
)

// EnvoyFiltersFor returns the EnvoyFilters that select a workload with these labels,
// in the order in which they apply: first the root namespace's, then its own
// namespace's. Either namespace may be nil.
func EnvoyFiltersFor(root, ns *NamespaceFacts, labels map[string]string) []*EnvoyFilter {
	var out []*EnvoyFilter
	add := func(facts *NamespaceFacts) {
		for _, f := range facts.EnvoyFilters {
			if Selects(f.Selector, labels) {
				out = append(out, f)
			}
		}
	}
	if root != nil {
		add(root)
	}
	if ns != nil && ns != root {
		add(ns)
	}
	return out
}
