package xdsgen

import (
	"cmp"
	"strings"
	"unique"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Assign returns the views of a proxy. Proxies that need the same resources get equal
// views.
func Assign(s *snapshot.Snapshot, n Node) Assignment {
	pod, labels := podOf(s, n)
	eds := endpointViewOf(s, n, pod, labels)
	if n.Proxyless {
		return assignProxyless(s, n, pod, labels, eds)
	}
	if n.ID.Type == mesh.Router {
		return assignRouter(s, n, pod, labels, eds)
	}
	sc := scope{namespace: n.Namespace, sidecar: chooseSidecar(s, n.Namespace, labels)}
	clusters := sc
	if !s.Private && len(sc.egress()) == 0 {
		clusters = scope{} // sees everything, as every other such proxy
	}
	listeners := clusters
	if sc.policy() != nil {
		listeners = sc
	}
	routes := sc
	ns := s.Namespaces.Get(n.Namespace)
	if (ns == nil || len(ns.Services) == 0 && (ns.Rules == nil || !ns.Rules.Hashes)) && !s.Private && len(sc.egress()) == 0 && sc.policy() == nil {
		routes = scope{} // no service has a short name or other retries for this namespace
	}
	httpClient, streamClient := routeClients(s, n.Namespace, labels)
	authorizations := chooseAuthorizations(s, n, labels, sc)
	filters := chooseFilters(s, n, labels, authorizations)
	client, server := listenerSettingsOf(s, n, labels, sc, authorizations)
	own := inbound(s, n, pod, labels, sc)
	proxyPort := httpProxyPort(s, n, sc)
	filters.leaveOut(own.names())
	facts := unique.Make(own)
	out := filters.apply(Assignment{
		xdswire.ClusterType:   clusterView{scope: clusters, client: eds.client, families: resolvedFamilies(s, n), place: resolverPlace(s, eds)}.views(s, inboundView{typ: xdswire.ClusterType, facts: facts}),
		xdswire.EndpointType:  eds.views(s, nodeOf(pod)),
		xdswire.NameTableType: {Shared: eds.names(clusters)},
		xdswire.ListenerType: {
			Shared: listenerView{
				scope: listeners, cluster: n.Cluster, network: eds.network, captured: n.Captured, families: n.families(),
				allocated: s.Allocated && n.ResolvesNames,
				timeouts:  timeoutRulesOf(s, eds.client), tunnels: tunnelsOf(s, eds.client), settings: client, client: streamClient, httpProxy: proxyPort,
			},
			Own: inboundView{typ: xdswire.ListenerType, facts: facts, settings: server},
		},
		xdswire.ExtensionType:   filters.extensions,
		xdswire.ProxyConfigType: {Shared: trustView{}},
		xdswire.BootstrapType:   filters.bootstrap,
		xdswire.RouteType:       {Shared: routeView{scope: routes, namespace: routes.namespace, cluster: n.Cluster, captured: n.Captured, httpProxy: proxyPort != 0, client: httpClient}},
	})
	if n.DiscoversHosts {
		return discoverHosts(out, n)
	}
	return out
}

// resolvedFamilies returns the IP versions to which the proxy resolves names of endpoints. If
// there are none, it returns 0, so that proxies share the view.
func resolvedFamilies(s *snapshot.Snapshot, n Node) families {
	if s.DNS {
		return n.families()
	}
	return 0
}

// resolverPlace returns the place of a proxy that resolves names of endpoints. If there are
// none, it returns a zero place, so that proxies share the view.
func resolverPlace(s *snapshot.Snapshot, eds endpointView) place {
	if s.DNS {
		return eds.place
	}
	return place{}
}

// endpointViewOf returns the endpoint view of a proxy whose workload has these labels.
func endpointViewOf(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) endpointView {
	v := endpointView{
		router: n.ID.Type == mesh.Router, proxyless: n.Proxyless, cluster: n.Cluster, network: networkOf(s, n, labels),
		view: joinNetworks(n.View), families: n.families(), client: snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels),
		place: clientPlace(s, n, pod, labels),
	}
	if s.Private {
		v.scope.namespace = n.Namespace
	}
	v.passthrough = v.router && passesByName(s, labels)
	return v
}

func assignRouter(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, eds endpointView) Assignment {
	sc := scope{}
	if s.Private {
		sc.namespace = n.Namespace
	}
	facts, routeFacts := gatewayFactsOf(s, n, pod, labels)
	authorizations := chooseAuthorizations(s, n, labels, sc)
	filters := chooseFilters(s, n, labels, authorizations)
	settings, _ := listenerSettingsOf(s, n, labels, sc, authorizations)
	listeners := gatewayView{
		scope: sc, client: eds.client, namespace: n.Namespace, facts: facts, settings: settings,
		limits: tlsLimits{s.Mesh.MeshTLS, s.Mesh.TLSDefaults}, topology: s.Mesh.Topology,
		timeouts: timeoutRulesOf(s, eds.client), tunnels: tunnelsOf(s, eds.client),
	}
	if n.Topology != nil {
		listeners.topology = *n.Topology
	}
	var routes Views
	if !routeFacts.Empty() {
		v := gatewayRouteView{facts: routeFacts, namespace: n.Namespace}
		if s.RouteClients != nil {
			v.client = snapshot.RouteClientOf(n.Namespace, labels, false, s.RouteClients.Gateways)
		}
		routes.Shared = v
	}
	return filters.apply(Assignment{
		xdswire.ClusterType:     clusterView{scope: sc, client: eds.client, router: true, passthrough: eds.passthrough, families: resolvedFamilies(s, n), place: resolverPlace(s, eds)}.views(s, nil),
		xdswire.EndpointType:    eds.views(s, nodeOf(pod)),
		xdswire.NameTableType:   {Shared: eds.names(sc)},
		xdswire.ListenerType:    {Shared: listeners},
		xdswire.ExtensionType:   filters.extensions,
		xdswire.ProxyConfigType: {Shared: trustView{}},
		xdswire.BootstrapType:   filters.bootstrap,
		xdswire.RouteType:       routes,
	})
}

// AssignReads returns the facts that Assign reads for a single proxy: the key of its
// pod and its namespace. The views of the proxy depend on changes of these facts and on
// changes that Concerned reports.
func AssignReads(n Node) (pod, namespace string) { return podKey(n), n.Namespace }

// Concerned returns a function that reports whether changes of facts that many proxies
// read may change the views of a proxy. It returns nil if they change the views of none.
func Concerned(s *snapshot.Snapshot, c *snapshot.Changes) func(Node) bool {
	_, root := c.Namespaces[s.Mesh.RootNamespace]
	switch {
	case c.Everywhere || c.Mesh || c.Traits || root || changesTunnels(s, c):
		return func(Node) bool { return true }
	case c.GatewayConfigs || len(c.Networks) > 0:
		return func(n Node) bool {
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
		return enc.Resource(typeURL, name, &routev3.RouteConfiguration{Name: name, ValidateClusters: no})
	}
	return nil, nil
}

// podOf returns the pod of a proxy, or nil, and the labels of the workload. If no pod
// is known, it returns the labels of the node.
func podOf(s *snapshot.Snapshot, n Node) (*snapshot.Pod, map[string]string) {
	if pod := s.Pods.Get(podKey(n)); pod != nil {
		return pod, pod.Labels
	}
	return nil, n.Labels
}

// nodeOf returns the Kubernetes node of a proxy's pod, or "".
func nodeOf(pod *snapshot.Pod) string {
	if pod == nil {
		return ""
	}
	return pod.Node
}

func podKey(n Node) string {
	if n.WorkloadEntry != "" {
		return snapshot.WorkloadEntryKey(n.Cluster, n.Namespace, n.WorkloadEntry)
	}
	return snapshot.PodKey{Cluster: n.Cluster, Namespace: n.Namespace, Name: n.ID.Name}.String()
}

// networkOf returns the network in a proxy's node metadata, else in its label, else the
// network of its cluster, else the one to which meshNetworks assigns its address.
func networkOf(s *snapshot.Snapshot, n Node, labels map[string]string) mesh.NetworkID {
	if n.Network != "" {
		return n.Network
	}
	if l := labels[mesh.LabelNetwork]; l != "" {
		return mesh.NetworkID(l)
	}
	return cmp.Or(s.NetworkOf(n.Cluster), snapshot.NetworkAt(s.Mesh.NetworkRanges, n.ID.IP))
}

func joinNetworks(list []mesh.NetworkID) string {
	parts := make([]string, len(list))
	for i, n := range list {
		parts[i] = string(n)
	}
	return strings.Join(parts, ",")
}

// trustDomains returns the trust domains that the mesh accepts, its own first.
func trustDomains(m *snapshot.Mesh) []string {
	return append([]string{m.TrustDomain}, m.Aliases...)
}

// RulesOf returns a function that returns the DestinationRules of a service for a proxy,
// merged, or nil.
func RulesOf(s *snapshot.Snapshot, n Node) func(*snapshot.MeshService) *snapshot.HostRule {
	_, labels := podOf(s, n)
	client := snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels)
	return func(svc *snapshot.MeshService) *snapshot.HostRule { return s.Rules.Get(svc.Key).For(client) }
}

// NetworkOf returns the network of a proxy.
func NetworkOf(s *snapshot.Snapshot, n Node) mesh.NetworkID {
	_, labels := podOf(s, n)
	return networkOf(s, n, labels)
}
