// Package routes generates route configurations and virtual hosts from Services and VirtualServices.
package routes

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the route configurations of proxies that see the same services
// under the same names: one for each HTTP port, one for each port of a service with
// protocol detection, and one for each egress listener of a Sidecar with an HTTP port.
type View struct {
	Scope     proxy.Scope
	Namespace string // whose services have short names
	Cluster   mesh.ClusterID
	Captured  bool // connections are redirected to the proxy
	HTTPProxy bool // the proxies have an HTTP proxy port
	Client    snapshot.RouteClient
}

// Type implements units.View.
func (v View) Type() string { return xdswire.RouteType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	k := units.Keys{
		Fixed: len(v.Scope.Egress()), FixedFacts: snapshot.ServiceFacts | snapshot.RouteFacts | snapshot.MeshFacts,
		ServiceFacts: snapshot.ServiceFacts | snapshot.RouteFacts | snapshot.MeshFacts,
		PortFacts:    snapshot.PortFacts | snapshot.RouteFacts | snapshot.MeshFacts, Scope: v.Scope,
	}
	if v.HTTPProxy {
		k.Fixed++
		k.FixedFacts |= snapshot.PortFacts
	}
	return k
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	switch {
	case k.Kind == units.FixedKey && int(k.Number) == len(v.Scope.Egress()):
		return v.httpProxyRoutes(s)
	case k.Kind == units.FixedKey:
		return v.Egress(s, int(k.Number))
	case k.Kind == units.PortKey:
		return v.Port(s, k.Number)
	}
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v View) facts(s *snapshot.Snapshot) routeFacts {
	return routeFacts{
		namespace: v.Namespace, cluster: v.Cluster,
		Unknown: UnknownCluster(s.Mesh, v.Scope), retries: s.Mesh.Retries,
	}
}

// Port returns the configuration of a port number, which all HTTP services share.
func (v View) Port(s *snapshot.Snapshot, number uint32) units.Unit {
	sc, ok := v.Scope.AtPort(number)
	if !ok || v.Scope.OwnsPort(number) || proxy.Reserved(s.Mesh, number) {
		return nil
	}
	services := sc.At(s, number)
	if !services.Any(RoutedByPort) {
		return nil
	}
	out := v.routesAt(s, sc, services)
	if e := v.Scope.AnyPort(); proxy.IsBound(e) && proxy.BindsPort(e, v.Captured) {
		out.routeFacts = out.ofProxy()
	}
	return out
}

// routesAt returns the routes to the services of a port that a scope sees.
func (v View) routesAt(s *snapshot.Snapshot, sc proxy.Scope, services proxy.PortServices) PortRoutes {
	number := services.Number
	out := PortRoutes{routeFacts: v.facts(s), Services: services}
	if !sc.ImportsAll() {
		out.own = wire.ListOf(v.importedRoutes(s, number, services.All, sc))
		return out
	}
	own := v.ownRoutes(s, number)
	out.own, out.commonRoutes = wire.ListOf(own), s.PortRoutes.Get(number)
	if len(sc.Egress()) == 0 {
		out.Services, out.common = proxy.PortServices{Number: number, Few: v.different(s, services.Of, own)}, services.Of
	}
	return out
}

// different returns the services of a port that have a virtual host of their own for the
// clients of the view: services that not all clients see, and services of the namespace,
// which have short names there, or whose routes differ.
func (v View) different(s *snapshot.Snapshot, all *snapshot.PortServices, own []RoutedHost) wire.List[*snapshot.MeshService] {
	var services []*snapshot.MeshService
	for _, svc := range all.Different {
		if svc.ExternalName == "" && v.Scope.Sees(svc) {
			services = append(services, svc)
		}
	}
	for svc := range proxy.ServicesIn(s, []string{v.Namespace}) {
		if svc.ExternalName == "" && !svc.DiffersByClient() && svc.Port(all.Number) != nil && IsNear(svc, v.Namespace) {
			services = append(services, svc)
		}
	}
	for _, h := range own {
		svc := s.Services.Get(h.host)
		if svc != nil && svc.ExternalName == "" && !svc.DiffersByClient() && svc.Port(all.Number) != nil && !slices.Contains(services, svc) {
			services = append(services, svc)
		}
	}
	return proxy.ListServices(services)
}

// serviceUnit returns the configurations of a service's ports with protocol detection.
func (v View) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) units.Unit {
	if svc == nil || !v.Scope.Sees(svc) || !hasPort(svc, isDetected) {
		return nil
	}
	seen := v.Scope.PortsOf(svc)
	return DetectedRoutes{
		routeFacts: v.facts(s), Service: svc, ports: wire.ListOf(seen), routed: wire.ListOf(RoutedPorts(s, svc, v.Scope, v.Client, isDetected)),
	}
}

// RoutedPorts returns the routes to the ports of a service that are of a kind.
func RoutedPorts(s *snapshot.Snapshot, svc *snapshot.MeshService, sc proxy.Scope, client snapshot.RouteClient, is func(*snapshot.ServicePort) bool) []RoutedHost {
	h := s.Routes.Get(svc.Host)
	if h == nil {
		return nil
	}
	var out []RoutedHost
	for i := range svc.Ports {
		if !is(&svc.Ports[i]) {
			continue
		}
		list := h.HTTP.For(client.Namespace)
		if at, _ := sc.AtPort(svc.Ports[i].Number); len(at.Egress()) > 0 {
			list = slices.DeleteFunc(slices.Clone(list), func(vs *snapshot.VirtualService) bool {
				return !at.ImportsFor(h.Host, vs)
			})
		}
		out = append(out, routesOf(h, list, client, svc.Ports[i].Number))
	}
	return out
}

// Egress returns the configuration of an egress listener of the Sidecar with an HTTP port.
func (v View) Egress(s *snapshot.Snapshot, i int) units.Unit {
	e := v.Scope.Egress()[i]
	p, ok := mesh.ParseProtocol(e.GetPort().GetProtocol())
	if !ok || !p.IsHTTP() {
		return nil
	}
	facts := v.facts(s)
	if proxy.BindsPort(e, v.Captured) || p == mesh.HTTPProxy {
		facts = facts.ofProxy()
	}
	out := EgressRoutes{routeFacts: facts, services: s.Services, scope: v.Scope, listener: i}
	var routed []RoutedHost
	sc := v.Scope.Through(i)
	visible := func(yield func(*snapshot.MeshService) bool) {
		for _, svc := range s.Services.All() {
			if sc.Sees(svc) && !yield(svc) {
				return
			}
		}
	}
	numbers := []uint32{e.GetPort().GetNumber()}
	if p == mesh.HTTPProxy {
		numbers = nil
		for _, h := range s.Routes.All() {
			numbers = append(numbers, h.Ports...)
		}
		slices.Sort(numbers)
		numbers = slices.Compact(numbers)
	}
	for _, number := range numbers {
		routed = append(routed, v.importedRoutes(s, number, visible, sc)...)
	}
	out.routed = wire.ListOf(routed)
	return out
}

func isDetected(p *snapshot.ServicePort) bool { return p.Protocol == mesh.Auto }

func hasPort(svc *snapshot.MeshService, is func(*snapshot.ServicePort) bool) bool {
	for i := range svc.Ports {
		if is(&svc.Ports[i]) {
			return true
		}
	}
	return false
}

// RoutedByPort reports whether requests to a port of a service are routed by host: it has
// HTTP, or the protocol is detected and the service may have any address.
func RoutedByPort(svc *snapshot.MeshService, p *snapshot.ServicePort) bool {
	return p.Protocol.IsHTTP() || p.Protocol == mesh.Auto && svc.HasAnyAddress(p.Number)
}

// routeFacts holds the facts of all outbound route configurations.
type routeFacts struct {
	namespace string
	cluster   mesh.ClusterID
	Unknown   string // cluster of unknown hosts
	retries   snapshot.RetryPolicy
}

// PortRoutes generates the configuration that routes a port by host to HTTP services.
type PortRoutes struct {
	routeFacts
	Services proxy.PortServices
	// common, which may be nil, holds further services, which have the same virtual hosts
	// for all clients.
	common *snapshot.PortServices
	// own holds the hosts whose routes differ from commonRoutes, which may be nil.
	own          wire.List[RoutedHost]
	commonRoutes *snapshot.PortRoutes
}

// Type implements units.Unit.
func (u PortRoutes) Type() string { return xdswire.RouteType }

// Generate implements units.Unit.
func (u PortRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	hosts := newVirtualHosts(enc, u.Services.Size())
	if u.common != nil {
		key := u.commonHosts()
		base, err := xdswire.Shared(enc, key, func() (*virtualHosts, error) { return key.make(enc) })
		if err != nil {
			return nil, err
		}
		hosts = newVirtualHosts(enc, u.Services.Size()).on(base)
	}
	if err := u.Add(hosts, byName); err != nil {
		return nil, err
	}
	return wire.One(u.encode(BaseRoutes(wire.PortString(u.Services.Number)), hosts))
}

// commonHosts returns the virtual hosts of the port that are the same for all clients.
func (u PortRoutes) commonHosts() commonHosts {
	return commonHosts{u.common, u.commonRoutes, routeFacts{cluster: u.cluster, retries: u.retries}}
}

// Add adds the virtual hosts of the port, without the common ones.
func (u PortRoutes) Add(hosts *virtualHosts, names hostNames) error {
	routed := routedHosts{number: u.Services.Number, own: byHost(u.own), common: u.commonRoutes}
	unserved := slices.Collect(u.own.All)
	if u.common == nil {
		unserved = append(unserved, routed.unserved()...)
	}
	if err := hosts.addUnserved(u.routeFacts, unserved, names); err != nil {
		return err
	}
	return hosts.addPort(u.routeFacts, routed, u.Services.All, names)
}

// DetectedRoutes generates the configurations of a service's ports with protocol
// detection. Their listeners have the service's address, so all hosts mean the service.
type DetectedRoutes struct {
	routeFacts
	Service *snapshot.MeshService
	ports   wire.List[uint32]     // that the proxy sees
	routed  wire.List[RoutedHost] // by port
}

// Type implements units.Unit.
func (u DetectedRoutes) Type() string { return xdswire.RouteType }

// Generate implements units.Unit.
func (u DetectedRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	routed := make(map[uint32]RoutedHost)
	for h := range u.routed.All {
		routed[h.Number] = h
	}
	var clients hostClients
	for i := range u.Service.Ports {
		port := &u.Service.Ports[i]
		if !isDetected(port) || u.Service.ExternalName != "" || !slices.Contains(u.ports.Slice(), port.Number) {
			continue
		}
		rc := BaseRoutes(u.Service.Host + ":" + wire.PortString(port.Number))
		k := u.host(&clients, u.Service, port, byName, routed[port.Number])
		rc.VirtualHosts = []*routev3.VirtualHost{encodeVirtualHost(&g, &k, []string{"*"})}
		g.Add(xdswire.RouteType, rc.Name, rc)
	}
	return g.Resources()
}

// EgressRoutes generates the configuration of an egress listener of a Sidecar. With
// protocol HTTP_PROXY it routes by host and port to all HTTP ports of services, else by
// host to its own port.
type EgressRoutes struct {
	routeFacts
	services *snapshot.Table[string, snapshot.MeshService]
	scope    proxy.Scope
	listener int
	routed   wire.List[RoutedHost]
}

// Type implements units.Unit.
func (u EgressRoutes) Type() string { return xdswire.RouteType }

// Generate implements units.Unit.
func (u EgressRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	e := u.scope.Egress()[u.listener]
	protocol, _ := mesh.ParseProtocol(e.GetPort().GetProtocol())
	names := byName
	if protocol == mesh.HTTPProxy {
		names = byNameAndPort
	}
	hosts := newVirtualHosts(enc, u.services.Len())
	type hostPort struct {
		host   string
		number uint32
	}
	routed := make(map[hostPort]RoutedHost)
	for h := range u.routed.All {
		routed[hostPort{h.host, h.Number}] = h
	}
	if err := hosts.addUnserved(u.routeFacts, slices.Collect(u.routed.All), names); err != nil {
		return nil, err
	}
	sc := u.scope.Through(u.listener)
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !sc.Sees(svc) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if names == byName && port.Number != e.GetPort().GetNumber() || !port.Protocol.IsHTTP() && port.Protocol != mesh.Auto {
				continue
			}
			if err := hosts.Add(u.host(&hosts.clients, svc, port, names, routed[hostPort{svc.Host, port.Number}])); err != nil {
				return nil, err
			}
		}
	}
	rc := BaseRoutes(EgressRoutesName(e))
	rc.IgnorePortInHostMatching = names == byName
	return wire.One(u.encode(rc, hosts))
}

// EgressRoutesName returns the name of the route configuration of an egress listener: its
// Unix socket or its port.
func EgressRoutesName(e *networkingv1alpha3.IstioEgressListener) string {
	if proxy.IsUnixListener(e) {
		return e.GetBind()
	}
	return wire.PortString(e.GetPort().GetNumber())
}

// encode encodes a configuration with its virtual hosts and catchAll. The encoding of a
// message is the concatenation of its encoded parts.
func (u routeFacts) encode(rc *routev3.RouteConfiguration, hosts *virtualHosts) (*xdswire.Resource, error) {
	head, err := xdswire.Marshal(rc)
	if err != nil {
		return nil, err
	}
	rest, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{catchAll(u.Unknown)}})
	if err != nil {
		return nil, err
	}
	return hosts.enc.Parted(xdswire.RouteType, rc.GetName(), head, hosts.List(), rest).Keeping(hosts.base), nil
}

// BaseRoutes returns a route configuration without virtual hosts.
func BaseRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wire.No,
		MaxDirectResponseBodySizeBytes: wire.MaxBody,
		IgnorePortInHostMatching:       true,
	}
}
