package xdsgen

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"
)

// eachAuthorization calls yield for each filter of a type and place.
func eachAuthorization(s listenerSettings, network, early bool, yield func(*authorizationFilter)) {
	for f := range s.authorization.All {
		if f.Network == network && f.Early == early {
			yield(&f)
		}
	}
}

// httpAuthorization returns the HTTP filters of authorizations.
func httpAuthorization(s listenerSettings, early bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	eachAuthorization(s, false, early, func(f *authorizationFilter) {
		out = append(out, &hcmv3.HttpFilter{Name: f.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: f.discovery()}})
	})
	return out
}

// networkAuthorization returns the network filters of authorizations. Chains of HTTP do not
// have them.
func networkAuthorization(s listenerSettings, early bool) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	eachAuthorization(s, true, early, func(f *authorizationFilter) {
		out = append(out, &listenerv3.Filter{Name: f.Name, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: f.discovery()}})
	})
	return out
}

// securityFilters returns the HTTP filters of plugins, tokens and authorizations at a port, in
// the order of Istio.
func (g *generator) securityFilters(s listenerSettings, port uint32) []*hcmv3.HttpFilter {
	return slices.Concat(
		httpAuthorization(s, true),
		g.httpPlugins(s, port, false),
		httpAuthorization(s, false),
		g.httpPlugins(s, port, true),
	)
}

// addNetworkFilters adds the network filters of plugins and authorizations at a port to filter
// chains. Authorizations of HTTP are in the connection manager.
func (g *generator) addNetworkFilters(s listenerSettings, port uint32, chains ...*listenerv3.FilterChain) {
	if s.plugins.Empty() && s.authorization.Empty() {
		return
	}
	early, late := networkAuthorization(s, true), networkAuthorization(s, false)
	before, after := g.networkPlugins(s, port, false), g.networkPlugins(s, port, true)
	for _, c := range chains {
		if filters := c.GetFilters(); filters[len(filters)-1].GetName() == filterHCM {
			c.Filters = slices.Concat(before, after, filters)
		} else {
			c.Filters = slices.Concat(early, before, late, after, filters)
		}
	}
}

// eachPlugin calls yield for each plugin of a type at a port: for those that come before
// AuthorizationPolicies, or for those behind them.
func eachPlugin(s listenerSettings, port uint32, network, behind bool, yield func(*pluginFilter)) {
	for p := range s.plugins.All {
		if p.Network == network && p.Phase > extensionsv1alpha1.PluginPhase_AUTHZ == behind && (p.Ports.Empty() || slices.Contains(p.Ports.Slice(), port)) {
			yield(&p)
		}
	}
}

// httpPlugins returns the HTTP filters of plugins at a port.
func (g *generator) httpPlugins(s listenerSettings, port uint32, behind bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	eachPlugin(s, port, false, behind, func(p *pluginFilter) {
		out = append(out, &hcmv3.HttpFilter{Name: p.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: p.discovery(g)}})
	})
	return out
}

// networkPlugins returns the network filters of plugins at a port.
func (g *generator) networkPlugins(s listenerSettings, port uint32, behind bool) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	eachPlugin(s, port, true, behind, func(p *pluginFilter) {
		out = append(out, &listenerv3.Filter{Name: p.Name, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: p.discovery(g)}})
	})
	return out
}

// clientListener adds an outbound listener, or one of a gateway, for connections to a port.
func (g *generator) clientListener(l *listenerv3.Listener, s listenerSettings, port uint32) {
	g.addNetworkFilters(s, port, l.GetFilterChains()...)
	if rest := l.GetDefaultFilterChain(); rest != nil {
		g.addNetworkFilters(s, port, rest)
	}
	g.listener(l)
}
