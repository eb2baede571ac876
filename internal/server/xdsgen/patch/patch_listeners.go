package patch

import (
	"slices"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Listener applies the patches to a listener, from the outside to the inside, as Istio does.
// It reports whether the listener remains.
func (p *patcher) Listener(l *listenerv3.Listener) bool {
	var merges []*snapshot.Patch
	for patch := range p.Of(networkingv1alpha3.EnvoyFilter_LISTENER, anyOperation) {
		if !listenerMatches(patch, l) {
			continue
		}
		if patch.Spec.GetPatch().GetOperation() == networkingv1alpha3.EnvoyFilter_Patch_REMOVE {
			return false
		}
		merges = append(merges, patch)
	}
	name := l.GetName()
	p.tryAll(merges, l, func(patch *snapshot.Patch) error { return mergeValue(patch, l) })
	l.Name = name // the resource has it
	listenerFilters := items[*listenerv3.ListenerFilter]{
		here:  func(patch *snapshot.Patch) bool { return listenerMatches(patch, l) },
		named: func(patch *snapshot.Patch) bool { return patch.Spec.GetMatch().GetListener().GetListenerFilter() != "" },
		is: func(patch *snapshot.Patch, f *listenerv3.ListenerFilter) bool {
			name := patch.Spec.GetMatch().GetListener().GetListenerFilter()
			return name == "" || name == f.GetName()
		},
		end: func(list []*listenerv3.ListenerFilter) int { return len(list) },
	}
	l.ListenerFilters = patchFilters(p, networkingv1alpha3.EnvoyFilter_LISTENER_FILTER, l.GetListenerFilters(), listenerFilters)
	p.chains(l)
	return len(l.GetFilterChains()) > 0 || l.GetDefaultFilterChain() != nil || l.GetUdpListenerConfig() != nil
}

// patchFilters applies the patches for a list of filters. Patches that change the list go before
// patches that merge into filters.
func patchFilters[M proto.Message](p *patcher, at applyTo, list []M, of items[M]) []M {
	return patchItems(p, p.Of(at, isMerge), patchItems(p, p.Of(at, isNoMerge), list, of), of)
}

// chains applies the patches to the filter chains of a listener and their filters.
func (p *patcher) chains(l *listenerv3.Listener) {
	const at = networkingv1alpha3.EnvoyFilter_FILTER_CHAIN
	one := func(chains []*listenerv3.FilterChain) []*listenerv3.FilterChain {
		chains = patchItems(p, p.Of(at, isNoInsertion), chains, items[*listenerv3.FilterChain]{
			here: func(patch *snapshot.Patch) bool { return listenerMatches(patch, l) },
			is:   func(patch *snapshot.Patch, c *listenerv3.FilterChain) bool { return chainMatches(patch, l, c) },
		})
		for _, c := range chains {
			p.chainFilters(l, c)
		}
		return chains
	}
	l.FilterChains = one(l.GetFilterChains())
	if c := l.GetDefaultFilterChain(); c != nil {
		if l.DefaultFilterChain = nil; len(one([]*listenerv3.FilterChain{c})) > 0 {
			l.DefaultFilterChain = c
		}
	}
	l.FilterChains = patchItems(p, p.Of(at, isInsertion), l.GetFilterChains(), items[*listenerv3.FilterChain]{
		here:  func(patch *snapshot.Patch) bool { return listenerMatches(patch, l) },
		named: func(*snapshot.Patch) bool { return false },
		is:    func(*snapshot.Patch, *listenerv3.FilterChain) bool { return true },
		end:   func(list []*listenerv3.FilterChain) int { return len(list) },
	})
}

// chainFilters applies the patches to the filters of a chain and the HTTP filters in them.
func (p *patcher) chainFilters(l *listenerv3.Listener, c *listenerv3.FilterChain) {
	here := func(patch *snapshot.Patch) bool { return listenerMatches(patch, l) && chainMatches(patch, l, c) }
	networkFilters := items[*listenerv3.Filter]{
		here:  here,
		named: func(patch *snapshot.Patch) bool { return networkFilterOf(patch) != "" },
		is: func(patch *snapshot.Patch, f *listenerv3.Filter) bool {
			return networkFilterOf(patch) == "" || networkFilterOf(patch) == f.GetName()
		},
		end: func(list []*listenerv3.Filter) int {
			// The last filter takes the connection.
			if n := len(list); n > 0 && (list[n-1].GetName() == filters.FilterHCM || list[n-1].GetName() == filters.FilterTCP) {
				return n - 1
			}
			return len(list)
		},
	}
	c.Filters = patchFilters(p, networkingv1alpha3.EnvoyFilter_NETWORK_FILTER, c.GetFilters(), networkFilters)
	for _, f := range c.GetFilters() {
		if f.GetName() == filters.FilterHCM && f.GetTypedConfig() != nil {
			p.connectionManager(f, here)
		}
	}
}

// connectionManager applies the patches to the routes and HTTP filters of an HTTP connection
// manager.
func (p *patcher) connectionManager(f *listenerv3.Filter, here func(*snapshot.Patch) bool) {
	h := new(hcmv3.HttpConnectionManager)
	if err := f.GetTypedConfig().UnmarshalTo(h); err != nil {
		return // a patch gave it another type
	}
	before := p.changed
	p.changed = false
	if rc := h.GetRouteConfig(); rc != nil {
		p.routeConfiguration(rc, nil)
	}
	httpFilters := items[*hcmv3.HttpFilter]{
		here:  here,
		named: func(patch *snapshot.Patch) bool { return httpFilterOf(patch) != "" },
		is: func(patch *snapshot.Patch, f *hcmv3.HttpFilter) bool {
			return httpFilterOf(patch) == "" || httpFilterOf(patch) == f.GetName()
		},
		end: func(list []*hcmv3.HttpFilter) int { return len(list) - 1 }, // before the router
	}
	h.HttpFilters = patchFilters(p, networkingv1alpha3.EnvoyFilter_HTTP_FILTER, h.GetHttpFilters(), httpFilters)
	if p.changed {
		if a, err := xdswire.Any(h); err == nil {
			f.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: a}
		}
	}
	p.changed = p.changed || before
}

func networkFilterOf(patch *snapshot.Patch) string {
	return patch.Spec.GetMatch().GetListener().GetFilterChain().GetFilter().GetName()
}

func httpFilterOf(patch *snapshot.Patch) string {
	return patch.Spec.GetMatch().GetListener().GetFilterChain().GetFilter().GetSubFilter().GetName()
}

// takesAnyPort reports whether a listener takes connections to any port. A match by port then
// means a filter chain.
func takesAnyPort(l *listenerv3.Listener) bool {
	return l.GetName() == "virtualInbound" || l.GetName() == "virtualOutbound"
}

// listenerMatches reports whether a listener has what a patch names.
func listenerMatches(patch *snapshot.Patch, l *listenerv3.Listener) bool {
	m := patch.Spec.GetMatch().GetListener()
	if m.GetName() != "" && m.GetName() != l.GetName() {
		return false
	}
	if takesAnyPort(l) && patch.Spec.GetApplyTo() != networkingv1alpha3.EnvoyFilter_LISTENER {
		return true
	}
	return m.GetPortNumber() == 0 || m.GetPortNumber() == l.GetAddress().GetSocketAddress().GetPortValue()
}

// chainMatches reports whether a filter chain of a matching listener has what a patch names.
func chainMatches(patch *snapshot.Patch, l *listenerv3.Listener, c *listenerv3.FilterChain) bool {
	m, has := patch.Spec.GetMatch().GetListener(), c.GetFilterChainMatch()
	if number := m.GetPortNumber(); takesAnyPort(l) && number != 0 && number != has.GetDestinationPort().GetValue() {
		return false
	}
	want := m.GetFilterChain()
	switch {
	case want.GetName() != "" && want.GetName() != c.GetName(),
		want.GetSni() != "" && !slices.Contains(has.GetServerNames(), want.GetSni()),
		want.GetTransportProtocol() != "" && want.GetTransportProtocol() != has.GetTransportProtocol(),
		want.GetDestinationPort() != 0 && want.GetDestinationPort() != has.GetDestinationPort().GetValue():
		return false
	}
	if want.GetApplicationProtocols() == "" {
		return true
	}
	for protocol := range strings.SplitSeq(want.GetApplicationProtocols(), ",") {
		if !slices.Contains(has.GetApplicationProtocols(), strings.TrimSpace(protocol)) {
			return false
		}
	}
	return true
}
