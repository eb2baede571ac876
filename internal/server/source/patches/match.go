package patches

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source/fields"
)

// maxVersionPattern bounds the bytes of a regular expression, as Istio does.
const maxVersionPattern = 1024

// Match checks the match of a patch. A condition that is not supported makes the patch
// ineffective: without the condition, it would apply to more proxies or resources than
// intended.
func Match(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch, target Target) (snapshot.ProxyMatch, *fields.Error) {
	m := p.GetMatch()
	pattern := m.GetProxy().GetProxyVersion()
	if len(pattern) > maxVersionPattern {
		return snapshot.ProxyMatch{}, fields.Faultf("match.proxy.proxyVersion", "has %d bytes, at most %d are accepted", len(pattern), maxVersionPattern)
	}
	proxy, err := snapshot.NewProxyMatch(pattern, m.GetProxy().GetMetadata())
	if err != nil {
		return proxy, fields.Faultf("match.proxy.proxyVersion", "%w", err)
	}
	if m.GetContext() == networkingv1alpha3.EnvoyFilter_WAYPOINT {
		return proxy, fields.Faultf("match.context", "there are no waypoints")
	}
	object := m.ProtoReflect().WhichOneof(m.ProtoReflect().Descriptor().Oneofs().ByName("object_types"))
	if object != nil && p.GetApplyTo() == networkingv1alpha3.EnvoyFilter_BOOTSTRAP {
		return proxy, fields.Faultf("match."+object.JSONName(), "cannot match a BOOTSTRAP: use proxy or context")
	}
	if object != nil && object.Name() != target.match && p.GetApplyTo() != networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG {
		return proxy, fields.Faultf("match."+object.JSONName(), "cannot match a %s: use %s", p.GetApplyTo(), object.ContainingMessage().Fields().ByName(target.match).JSONName())
	}
	l := m.GetListener()
	for field, number := range map[string]uint32{
		"listener.portNumber": l.GetPortNumber(), "listener.filterChain.destinationPort": l.GetFilterChain().GetDestinationPort(),
		"routeConfiguration.portNumber": m.GetRouteConfiguration().GetPortNumber(), "cluster.portNumber": m.GetCluster().GetPortNumber(),
	} {
		if number != 0 && !fields.IsPort(number) {
			return proxy, fields.Faultf("match."+field, "%d is not a port: want 1 to 65535", number)
		}
	}
	if l.GetPortName() != "" {
		return proxy, fields.Faultf("match.listener.portName", "is not supported: use portNumber")
	}
	return proxy, checkFilterMatch(p)
}

// checkFilterMatch checks which filter a patch of filters names.
func checkFilterMatch(p *networkingv1alpha3.EnvoyFilter_EnvoyConfigObjectPatch) *fields.Error {
	const filter = "match.listener.filterChain.filter"
	l := p.GetMatch().GetListener()
	near, inner := l.GetFilterChain().GetFilter(), l.GetFilterChain().GetFilter().GetSubFilter()
	place, named := "", true
	switch p.GetApplyTo() {
	case networkingv1alpha3.EnvoyFilter_LISTENER_FILTER:
		place, named = "match.listener.listenerFilter", l.GetListenerFilter() != ""
	case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
		place, named = filter+".name", near != nil
	case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
		place, named = filter+".subFilter.name", inner != nil
		if near != nil && near.GetName() != hcmFilter {
			return fields.Faultf(filter+".name", "%q has no HTTP filters: use %s", near.GetName(), hcmFilter)
		}
	}
	operation := p.GetPatch().GetOperation()
	switch {
	case inner != nil && inner.GetName() == "":
		return fields.Faultf(filter+".subFilter.name", "is missing")
	case near != nil && near.GetName() == "":
		return fields.Faultf(filter+".name", "is missing")
	case !named && (operation == networkingv1alpha3.EnvoyFilter_Patch_REMOVE || operation == networkingv1alpha3.EnvoyFilter_Patch_REPLACE):
		return fields.Faultf(place, "is missing, which %s needs", operation)
	case inner.GetName() == routerFilter && operation == networkingv1alpha3.EnvoyFilter_Patch_REMOVE:
		return fields.Faultf("patch.operation", "would remove the router, without which Envoy refuses the listener")
	}
	return nil
}

// The HTTP filter that ends every list of HTTP filters, its message, and the network filter
// that contains HTTP filters.
const (
	routerFilter  = "envoy.filters.http.router"
	routerMessage = "envoy.extensions.filters.http.router.v3.Router"
	hcmFilter     = "envoy.filters.network.http_connection_manager"
)

// Target describes a place to which patches apply.
type Target struct {
	Message    protoreflect.FullName // of the value
	Operations string
	// match is the field of a match that the place supports.
	match protoreflect.Name
}

const (
	listenerMatch = "listener"
	routeMatch    = "route_configuration"
	allOperations = "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE REPLACE INSERT_BEFORE INSERT_AFTER INSERT_FIRST"
)

// Targets holds the places to which patches apply.
func Targets() map[networkingv1alpha3.EnvoyFilter_ApplyTo]Target {
	return map[networkingv1alpha3.EnvoyFilter_ApplyTo]Target{
		networkingv1alpha3.EnvoyFilter_LISTENER: {
			"envoy.config.listener.v3.Listener", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_LISTENER_FILTER: {"envoy.config.listener.v3.ListenerFilter", allOperations, listenerMatch},
		networkingv1alpha3.EnvoyFilter_FILTER_CHAIN: {
			"envoy.config.listener.v3.FilterChain", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_NETWORK_FILTER: {"envoy.config.listener.v3.Filter", allOperations, listenerMatch},
		networkingv1alpha3.EnvoyFilter_HTTP_FILTER: {
			"envoy.extensions.filters.network.http_connection_manager.v3.HttpFilter", allOperations, listenerMatch,
		},
		networkingv1alpha3.EnvoyFilter_ROUTE_CONFIGURATION: {
			"envoy.config.route.v3.RouteConfiguration", "MERGE MERGE_AND_REPLACE_LIST", routeMatch,
		},
		networkingv1alpha3.EnvoyFilter_VIRTUAL_HOST: {
			"envoy.config.route.v3.VirtualHost", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE REPLACE", routeMatch,
		},
		networkingv1alpha3.EnvoyFilter_HTTP_ROUTE: {"envoy.config.route.v3.Route", allOperations, routeMatch},
		networkingv1alpha3.EnvoyFilter_CLUSTER: {
			"envoy.config.cluster.v3.Cluster", "MERGE MERGE_AND_REPLACE_LIST ADD REMOVE", "cluster",
		},
		networkingv1alpha3.EnvoyFilter_BOOTSTRAP:        {"envoy.config.bootstrap.v3.Bootstrap", "MERGE", ""},
		networkingv1alpha3.EnvoyFilter_EXTENSION_CONFIG: {"envoy.config.core.v3.TypedExtensionConfig", "ADD", ""},
	}
}
