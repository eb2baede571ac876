package snapshot

// EnvoyFilter is what an EnvoyFilter object asks for, as far as it is
// supported. What is for Envoy is checked and encoded already.
type EnvoyFilter struct {
	Meta
	// Selector holds the labels of the proxies that it is for; without any
	// it is for all of its namespace.
	Selector map[string]string
	// Priority orders the objects of one namespace, lowest first.
	Priority   int32
	Extensions []Extension
	Filters    []HTTPFilter
}

// Key implements Object.
func (o *EnvoyFilter) Key() Key { return o.key(KindEnvoyFilter) }

// Extension is the configuration of a filter, which proxies ask for by name.
type Extension struct {
	Name string
	// Body is an envoy.config.core.v3.TypedExtensionConfig.
	Body []byte
}

// HTTPFilter is a filter to insert into HTTP connection managers.
type HTTPFilter struct {
	Context Context
	// Port is that of the listener, or with captured connections that they
	// were made to; 0 is any.
	Port   uint32
	Insert Insertion
	// Near is the name of the filter that Insert refers to; without a filter
	// of that name nothing is inserted.
	Near string
	// Body is an envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter.
	Body []byte
}

// Context says whose connections are meant.
type Context uint8

// Contexts. Gateways have no HTTP connection managers yet.
const (
	AnyContext Context = iota
	InboundContext
	OutboundContext
)

// Insertion is a place in the list of HTTP filters. The last filter, the
// router, stays the last.
type Insertion uint8

// Places.
const (
	InsertFirst Insertion = iota
	InsertLast
	InsertBefore // Near
	InsertAfter  // Near
)

// EnvoyFiltersFor are the EnvoyFilters for a workload with those labels, in
// the order in which they apply: those of the root namespace first. Either
// namespace may be nil.
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
