package filters

import (
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	extensionsv1alpha1 "istio.io/api/extensions/v1alpha1"

	"github.com/meshctl/meshctl/internal/server/xdsgen/plugins"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// eachAuthorization calls yield for each filter of a type and place.
func eachAuthorization(s telemetry.Settings, network, early bool, yield func(*rbac.AuthorizationFilter)) {
	for f := range s.Authorization.All {
		if f.Network == network && f.Early == early {
			yield(&f)
		}
	}
}

// httpAuthorization returns the HTTP filters of authorizations.
func httpAuthorization(s telemetry.Settings, early bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	eachAuthorization(s, false, early, func(f *rbac.AuthorizationFilter) {
		out = append(out, &hcmv3.HttpFilter{Name: f.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: f.Discovery()}})
	})
	return out
}

// networkAuthorization returns the network filters of authorizations. Chains of HTTP do not
// have them.
func networkAuthorization(s telemetry.Settings, early bool) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	eachAuthorization(s, true, early, func(f *rbac.AuthorizationFilter) {
		out = append(out, &listenerv3.Filter{Name: f.Name, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: f.Discovery()}})
	})
	return out
}

// securityFilters returns the HTTP filters of plugins, tokens and authorizations at a port, in
// the order of Istio.
func securityFilters(g *wire.Generator, s telemetry.Settings, port uint32) []*hcmv3.HttpFilter {
	return slices.Concat(
		httpAuthorization(s, true),
		httpPlugins(g, s, port, false),
		httpAuthorization(s, false),
		httpPlugins(g, s, port, true),
	)
}

// AddNetworkFilters adds the network filters of plugins and authorizations at a port to filter
// chains. Authorizations of HTTP are in the connection manager.
func AddNetworkFilters(g *wire.Generator, s telemetry.Settings, port uint32, chains ...*listenerv3.FilterChain) {
	if s.Plugins.Empty() && s.Authorization.Empty() {
		return
	}
	early, late := networkAuthorization(s, true), networkAuthorization(s, false)
	before, after := networkPlugins(g, s, port, false), networkPlugins(g, s, port, true)
	for _, c := range chains {
		if filters := c.GetFilters(); filters[len(filters)-1].GetName() == FilterHCM {
			c.Filters = slices.Concat(before, after, filters)
		} else {
			c.Filters = slices.Concat(early, before, late, after, filters)
		}
	}
}

// eachPlugin calls yield for each plugin of a type at a port: for those that come before
// AuthorizationPolicies, or for those behind them.
func eachPlugin(s telemetry.Settings, port uint32, network, behind bool, yield func(*plugins.PluginFilter)) {
	for p := range s.Plugins.All {
		if p.Network == network && p.Phase > extensionsv1alpha1.PluginPhase_AUTHZ == behind && (p.Ports.Empty() || slices.Contains(p.Ports.Slice(), port)) {
			yield(&p)
		}
	}
}

// httpPlugins returns the HTTP filters of plugins at a port.
func httpPlugins(g *wire.Generator, s telemetry.Settings, port uint32, behind bool) []*hcmv3.HttpFilter {
	var out []*hcmv3.HttpFilter
	eachPlugin(s, port, false, behind, func(p *plugins.PluginFilter) {
		out = append(out, &hcmv3.HttpFilter{Name: p.Name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: p.Discovery(g)}})
	})
	return out
}

// networkPlugins returns the network filters of plugins at a port.
func networkPlugins(g *wire.Generator, s telemetry.Settings, port uint32, behind bool) []*listenerv3.Filter {
	var out []*listenerv3.Filter
	eachPlugin(s, port, true, behind, func(p *plugins.PluginFilter) {
		out = append(out, &listenerv3.Filter{Name: p.Name, ConfigType: &listenerv3.Filter_ConfigDiscovery{ConfigDiscovery: p.Discovery(g)}})
	})
	return out
}

// ClientListener adds an outbound listener, or one of a gateway, for connections to a port.
func ClientListener(g *wire.Generator, l *listenerv3.Listener, s telemetry.Settings, port uint32) {
	AddNetworkFilters(g, s, port, l.GetFilterChains()...)
	if rest := l.GetDefaultFilterChain(); rest != nil {
		AddNetworkFilters(g, s, port, rest)
	}
	g.Listener(l)
}
