// Package xdsgen generates Envoy resources from facts: it chooses the views of a proxy. It is pure, as
// all packages below it: the same facts give the same bytes, and no function waits or does I/O.
package xdsgen

import (
	"unique"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/filters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/gateways"
	"github.com/meshctl/meshctl/internal/server/xdsgen/inbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/nametable"
	"github.com/meshctl/meshctl/internal/server/xdsgen/outbound"
	"github.com/meshctl/meshctl/internal/server/xdsgen/patch"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxyless"
	"github.com/meshctl/meshctl/internal/server/xdsgen/rbac"
	"github.com/meshctl/meshctl/internal/server/xdsgen/routes"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Assign returns the views of a proxy. Proxies that need the same resources get equal
// views.
func Assign(s *snapshot.Snapshot, n proxy.Node) units.Assignment {
	pod, labels := proxy.PodOf(s, n)
	eds := endpoints.ViewOf(s, n, pod, labels)
	if n.Proxyless {
		return proxyless.AssignProxyless(s, n, pod, labels, eds)
	}
	if n.ID.Type == mesh.Router {
		return assignRouter(s, n, pod, labels, eds)
	}
	sc := proxy.Scope{Namespace: n.Namespace, Sidecar: proxy.ChooseSidecar(s, n.Namespace, labels)}
	clusterScope := sc
	if !s.Private && len(sc.Egress()) == 0 {
		clusterScope = proxy.Scope{} // sees everything, as every other such proxy
	}
	listeners := clusterScope
	if sc.Policy() != nil {
		listeners = sc
	}
	routeScope := sc
	ns := s.Namespaces.Get(n.Namespace)
	if (ns == nil || len(ns.Services) == 0 && (ns.Rules == nil || !ns.Rules.Hashes)) && !s.Private && len(sc.Egress()) == 0 && sc.Policy() == nil {
		routeScope = proxy.Scope{} // no service has a short name or other retries for this namespace
	}
	httpClient, streamClient := routes.RouteClients(s, n.Namespace, labels)
	authorizations := rbac.ChooseAuthorizations(s, n, labels, sc)
	chosen := patch.ChooseFilters(s, n, labels, authorizations)
	client, server := telemetry.SettingsOf(s, n, labels, sc, authorizations)
	own := inbound.FactsOf(s, n, pod, labels, sc)
	proxyPort := outbound.HTTPProxyPort(s, n, sc)
	chosen.LeaveOut(own.Names())
	facts := unique.Make(own)
	out := chosen.Apply(units.Assignment{
		xdswire.ClusterType:   clusters.View{Scope: clusterScope, Client: eds.Client, Families: resolvedFamilies(s, n), Place: resolverPlace(s, eds)}.Views(s, inbound.View{Typ: xdswire.ClusterType, Facts: facts}),
		xdswire.EndpointType:  eds.Views(s, proxy.NodeOf(pod)),
		xdswire.NameTableType: {Shared: nametable.Of(eds, clusterScope)},
		xdswire.ListenerType: {
			Shared: outbound.View{
				Scope: listeners, Cluster: n.Cluster, Network: eds.Network, Captured: n.Captured, Families: n.Families(),
				Allocated: s.Allocated && n.ResolvesNames,
				Timeouts:  filters.TimeoutRulesOf(s, eds.Client), Tunnels: filters.TunnelsOf(s, eds.Client), Settings: client, Client: streamClient, HTTPProxy: proxyPort,
			},
			Own: inbound.View{Typ: xdswire.ListenerType, Facts: facts, Settings: server},
		},
		xdswire.ExtensionType:   chosen.Extensions,
		xdswire.ProxyConfigType: {Shared: units.TrustView{}},
		xdswire.BootstrapType:   chosen.Bootstrap,
		xdswire.RouteType:       {Shared: routes.View{Scope: routeScope, Namespace: routeScope.Namespace, Cluster: n.Cluster, Captured: n.Captured, HTTPProxy: proxyPort != 0, Client: httpClient}},
	})
	if n.DiscoversHosts {
		return discoverHosts(out, n)
	}
	return out
}

// resolvedFamilies returns the IP versions to which the proxy resolves names of endpoints. If
// there are none, it returns 0, so that proxies share the view.
func resolvedFamilies(s *snapshot.Snapshot, n proxy.Node) proxy.Families {
	if s.DNS {
		return n.Families()
	}
	return 0
}

// resolverPlace returns the place of a proxy that resolves names of endpoints. If there are
// none, it returns a zero place, so that proxies share the view.
func resolverPlace(s *snapshot.Snapshot, eds endpoints.View) endpoints.Place {
	if s.DNS {
		return eds.Place
	}
	return endpoints.Place{}
}

func assignRouter(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string, eds endpoints.View) units.Assignment {
	sc := proxy.Scope{}
	if s.Private {
		sc.Namespace = n.Namespace
	}
	facts, routeFacts := gateways.GatewayFactsOf(s, n, pod, labels)
	authorizations := rbac.ChooseAuthorizations(s, n, labels, sc)
	chosen := patch.ChooseFilters(s, n, labels, authorizations)
	settings, _ := telemetry.SettingsOf(s, n, labels, sc, authorizations)
	listeners := gateways.View{
		Scope: sc, Client: eds.Client, Namespace: n.Namespace, Facts: facts, Settings: settings,
		Limits: tlsconfig.TLSLimits{Mesh: s.Mesh.MeshTLS, Others: s.Mesh.TLSDefaults}, Topology: s.Mesh.Topology,
		Timeouts: filters.TimeoutRulesOf(s, eds.Client), Tunnels: filters.TunnelsOf(s, eds.Client),
	}
	if n.Topology != nil {
		listeners.Topology = *n.Topology
	}
	var routeViews units.Views
	if !routeFacts.Empty() {
		v := gateways.RouteView{Facts: routeFacts, Namespace: n.Namespace}
		if s.RouteClients != nil {
			v.Client = snapshot.RouteClientOf(n.Namespace, labels, false, s.RouteClients.Gateways)
		}
		routeViews.Shared = v
	}
	return chosen.Apply(units.Assignment{
		xdswire.ClusterType:     clusters.View{Scope: sc, Client: eds.Client, Router: true, Passthrough: eds.Passthrough, Families: resolvedFamilies(s, n), Place: resolverPlace(s, eds)}.Views(s, nil),
		xdswire.EndpointType:    eds.Views(s, proxy.NodeOf(pod)),
		xdswire.NameTableType:   {Shared: nametable.Of(eds, sc)},
		xdswire.ListenerType:    {Shared: listeners},
		xdswire.ExtensionType:   chosen.Extensions,
		xdswire.ProxyConfigType: {Shared: units.TrustView{}},
		xdswire.BootstrapType:   chosen.Bootstrap,
		xdswire.RouteType:       routeViews,
	})
}

// AssignReads returns the facts that Assign reads for a single proxy: the key of its
// pod and its namespace. The views of the proxy depend on changes of these facts and on
// changes that Concerned reports.
func AssignReads(n proxy.Node) (pod, namespace string) { return proxy.PodKey(n), n.Namespace }

// Concerned returns a function that reports whether changes of facts that many proxies
// read may change the views of a proxy. It returns nil if they change the views of none.
func Concerned(s *snapshot.Snapshot, c *snapshot.Changes) func(proxy.Node) bool {
	_, root := c.Namespaces[s.Mesh.RootNamespace]
	switch {
	case c.Everywhere || c.Mesh || c.Traits || root || filters.ChangesTunnels(s, c):
		return func(proxy.Node) bool { return true }
	case c.GatewayConfigs || len(c.Networks) > 0:
		return func(n proxy.Node) bool {
			_, network := c.Networks[n.Cluster]
			return network || c.GatewayConfigs && n.ID.Type == mesh.Router
		}
	}
	return nil
}

// Fallback returns the resource for a name that no view has, so that Envoy does not
// wait: an assignment without endpoints, or a route configuration without hosts. It
// returns nil for other types.
func Fallback(typeURL, name string, enc *xdswire.Encoder) (*xdswire.Resource, error) {
	switch typeURL {
	case xdswire.EndpointType:
		return enc.Resource(typeURL, name, &endpointv3.ClusterLoadAssignment{ClusterName: name})
	case xdswire.RouteType:
		return enc.Resource(typeURL, name, &routev3.RouteConfiguration{Name: name, ValidateClusters: wire.No})
	}
	return nil, nil
}

// RulesOf returns a function that returns the DestinationRules of a service for a proxy,
// merged, or nil.
func RulesOf(s *snapshot.Snapshot, n proxy.Node) func(*snapshot.MeshService) *snapshot.HostRule {
	_, labels := proxy.PodOf(s, n)
	client := snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels)
	return func(svc *snapshot.MeshService) *snapshot.HostRule { return s.Rules.Get(svc.Key).For(client) }
}

// NetworkOf returns the network of a proxy.
func NetworkOf(s *snapshot.Snapshot, n proxy.Node) mesh.NetworkID {
	_, labels := proxy.PodOf(s, n)
	return proxy.NetworkOf(s, n, labels)
}
