package xdsgen

import (
	"slices"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// routeView is the view of the route configurations of proxies that see the same services
// under the same names: one for each HTTP port, one for each port of a service with
// protocol detection, and one for each egress listener of a Sidecar with an HTTP port.
type routeView struct {
	scope     scope
	namespace string // whose services have short names
	cluster   mesh.ClusterID
	captured  bool // connections are redirected to the proxy
	httpProxy bool // the proxies have an HTTP proxy port
	client    snapshot.RouteClient
}

func (v routeView) Type() string { return xdswire.RouteType }

func (v routeView) Keys() Keys {
	k := Keys{
		Fixed: len(v.scope.egress()), FixedFacts: snapshot.ServiceFacts | snapshot.RouteFacts | snapshot.MeshFacts,
		ServiceFacts: snapshot.ServiceFacts | snapshot.RouteFacts | snapshot.MeshFacts,
		PortFacts:    snapshot.PortFacts | snapshot.RouteFacts | snapshot.MeshFacts, scope: v.scope,
	}
	if v.httpProxy {
		k.Fixed++
		k.FixedFacts |= snapshot.PortFacts
	}
	return k
}

func (v routeView) Unit(s *snapshot.Snapshot, k Key) Unit {
	switch {
	case k.Kind == FixedKey && int(k.Number) == len(v.scope.egress()):
		return v.httpProxyRoutes(s)
	case k.Kind == FixedKey:
		return v.egress(s, int(k.Number))
	case k.Kind == PortKey:
		return v.port(s, k.Number)
	}
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v routeView) facts(s *snapshot.Snapshot) routeFacts {
	return routeFacts{
		namespace: v.namespace, cluster: v.cluster,
		unknown: unknownCluster(s.Mesh, v.scope), retries: s.Mesh.Retries,
	}
}

// port returns the configuration of a port number, which all HTTP services share.
func (v routeView) port(s *snapshot.Snapshot, number uint32) Unit {
	sc, ok := v.scope.atPort(number)
	if !ok || v.scope.ownsPort(number) || reserved(s.Mesh, number) {
		return nil
	}
	services := sc.at(s, number)
	if !services.any(routedByPort) {
		return nil
	}
	out := v.routesAt(s, sc, services)
	if e := v.scope.anyPort(); isBound(e) && bindsPort(e, v.captured) {
		out.routeFacts = out.ofProxy()
	}
	return out
}

// routesAt returns the routes to the services of a port that a scope sees.
func (v routeView) routesAt(s *snapshot.Snapshot, sc scope, services portServices) portRoutes {
	number := services.number
	out := portRoutes{routeFacts: v.facts(s), services: services}
	if !sc.importsAll() {
		out.own = listOf(v.importedRoutes(s, number, services.all, sc))
		return out
	}
	own := v.ownRoutes(s, number)
	out.own, out.commonRoutes = listOf(own), s.PortRoutes.Get(number)
	if len(sc.egress()) == 0 {
		out.services, out.common = portServices{number: number, few: v.different(s, services.of, own)}, services.of
	}
	return out
}

// different returns the services of a port that have a virtual host of their own for the
// clients of the view: services that not all clients see, and services of the namespace,
// which have short names there, or whose routes differ.
func (v routeView) different(s *snapshot.Snapshot, all *snapshot.PortServices, own []routedHost) list[*snapshot.MeshService] {
	var services []*snapshot.MeshService
	for _, svc := range all.Different {
		if svc.ExternalName == "" && v.scope.sees(svc) {
			services = append(services, svc)
		}
	}
	for svc := range servicesIn(s, []string{v.namespace}) {
		if svc.ExternalName == "" && !svc.DiffersByClient() && svc.Port(all.Number) != nil && isNear(svc, v.namespace) {
			services = append(services, svc)
		}
	}
	for _, h := range own {
		svc := s.Services.Get(h.host)
		if svc != nil && svc.ExternalName == "" && !svc.DiffersByClient() && svc.Port(all.Number) != nil && !slices.Contains(services, svc) {
			services = append(services, svc)
		}
	}
	return listServices(services)
}

// serviceUnit returns the configurations of a service's ports with protocol detection.
func (v routeView) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) Unit {
	if svc == nil || !v.scope.sees(svc) || !hasPort(svc, isDetected) {
		return nil
	}
	seen := v.scope.portsOf(svc)
	return detectedRoutes{
		routeFacts: v.facts(s), service: svc, ports: listOf(seen), routed: listOf(routedPorts(s, svc, v.scope, v.client, isDetected)),
	}
}

// routedPorts returns the routes to the ports of a service that are of a kind.
func routedPorts(s *snapshot.Snapshot, svc *snapshot.MeshService, sc scope, client snapshot.RouteClient, is func(*snapshot.ServicePort) bool) []routedHost {
	h := s.Routes.Get(svc.Host)
	if h == nil {
		return nil
	}
	var out []routedHost
	for i := range svc.Ports {
		if !is(&svc.Ports[i]) {
			continue
		}
		list := h.HTTP.For(client.Namespace)
		if at, _ := sc.atPort(svc.Ports[i].Number); len(at.egress()) > 0 {
			list = slices.DeleteFunc(slices.Clone(list), func(vs *snapshot.VirtualService) bool {
				return !at.importsFor(h.Host, vs)
			})
		}
		out = append(out, routesOf(h, list, client, svc.Ports[i].Number))
	}
	return out
}

// egress returns the configuration of an egress listener of the Sidecar with an HTTP port.
func (v routeView) egress(s *snapshot.Snapshot, i int) Unit {
	e := v.scope.egress()[i]
	p, ok := mesh.ParseProtocol(e.GetPort().GetProtocol())
	if !ok || !p.IsHTTP() {
		return nil
	}
	facts := v.facts(s)
	if bindsPort(e, v.captured) || p == mesh.HTTPProxy {
		facts = facts.ofProxy()
	}
	out := egressRoutes{routeFacts: facts, services: s.Services, scope: v.scope, listener: i}
	var routed []routedHost
	sc := v.scope.through(i)
	visible := func(yield func(*snapshot.MeshService) bool) {
		for _, svc := range s.Services.All() {
			if sc.sees(svc) && !yield(svc) {
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
	out.routed = listOf(routed)
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

// routedByPort reports whether requests to a port of a service are routed by host: it has
// HTTP, or the protocol is detected and the service may have any address.
func routedByPort(svc *snapshot.MeshService, p *snapshot.ServicePort) bool {
	return p.Protocol.IsHTTP() || p.Protocol == mesh.Auto && svc.HasAnyAddress(p.Number)
}

// routeFacts holds the facts of all outbound route configurations.
type routeFacts struct {
	namespace string
	cluster   mesh.ClusterID
	unknown   string // cluster of unknown hosts
	retries   snapshot.RetryPolicy
}

// portRoutes generates the configuration that routes a port by host to HTTP services.
type portRoutes struct {
	routeFacts
	services portServices
	// common, which may be nil, holds further services, which have the same virtual hosts
	// for all clients.
	common *snapshot.PortServices
	// own holds the hosts whose routes differ from commonRoutes, which may be nil.
	own          list[routedHost]
	commonRoutes *snapshot.PortRoutes
}

func (u portRoutes) Type() string { return xdswire.RouteType }

func (u portRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	hosts := newVirtualHosts(enc, u.services.size())
	if u.common != nil {
		key := u.commonHosts()
		base, err := xdswire.Shared(enc, key, func() (*virtualHosts, error) { return key.make(enc) })
		if err != nil {
			return nil, err
		}
		hosts = newVirtualHosts(enc, u.services.size()).on(base)
	}
	if err := u.add(hosts, byName); err != nil {
		return nil, err
	}
	return one(u.encode(baseRoutes(portString(u.services.number)), hosts))
}

// commonHosts returns the virtual hosts of the port that are the same for all clients.
func (u portRoutes) commonHosts() commonHosts {
	return commonHosts{u.common, u.commonRoutes, routeFacts{cluster: u.cluster, retries: u.retries}}
}

// add adds the virtual hosts of the port, without the common ones.
func (u portRoutes) add(hosts *virtualHosts, names hostNames) error {
	routed := routedHosts{number: u.services.number, own: byHost(u.own), common: u.commonRoutes}
	unserved := slices.Collect(u.own.All)
	if u.common == nil {
		unserved = append(unserved, routed.unserved()...)
	}
	if err := hosts.addUnserved(u.routeFacts, unserved, names); err != nil {
		return err
	}
	return hosts.addPort(u.routeFacts, routed, u.services.all, names)
}

// detectedRoutes generates the configurations of a service's ports with protocol
// detection. Their listeners have the service's address, so all hosts mean the service.
type detectedRoutes struct {
	routeFacts
	service *snapshot.MeshService
	ports   list[uint32]     // that the proxy sees
	routed  list[routedHost] // by port
}

func (u detectedRoutes) Type() string { return xdswire.RouteType }

func (u detectedRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	routed := make(map[uint32]routedHost)
	for h := range u.routed.All {
		routed[h.number] = h
	}
	var clients hostClients
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if !isDetected(port) || u.service.ExternalName != "" || !slices.Contains(u.ports.Slice(), port.Number) {
			continue
		}
		rc := baseRoutes(u.service.Host + ":" + portString(port.Number))
		k := u.host(&clients, u.service, port, byName, routed[port.Number])
		rc.VirtualHosts = []*routev3.VirtualHost{g.virtualHost(&k, []string{"*"})}
		g.add(xdswire.RouteType, rc.Name, rc)
	}
	return g.resources()
}

// egressRoutes generates the configuration of an egress listener of a Sidecar. With
// protocol HTTP_PROXY it routes by host and port to all HTTP ports of services, else by
// host to its own port.
type egressRoutes struct {
	routeFacts
	services *snapshot.Table[string, snapshot.MeshService]
	scope    scope
	listener int
	routed   list[routedHost]
}

func (u egressRoutes) Type() string { return xdswire.RouteType }

func (u egressRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	e := u.scope.egress()[u.listener]
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
	routed := make(map[hostPort]routedHost)
	for h := range u.routed.All {
		routed[hostPort{h.host, h.number}] = h
	}
	if err := hosts.addUnserved(u.routeFacts, slices.Collect(u.routed.All), names); err != nil {
		return nil, err
	}
	sc := u.scope.through(u.listener)
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !sc.sees(svc) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if names == byName && port.Number != e.GetPort().GetNumber() || !port.Protocol.IsHTTP() && port.Protocol != mesh.Auto {
				continue
			}
			if err := hosts.add(u.host(&hosts.clients, svc, port, names, routed[hostPort{svc.Host, port.Number}])); err != nil {
				return nil, err
			}
		}
	}
	rc := baseRoutes(egressRoutesName(e))
	rc.IgnorePortInHostMatching = names == byName
	return one(u.encode(rc, hosts))
}

// egressRoutesName returns the name of the route configuration of an egress listener: its
// Unix socket or its port.
func egressRoutesName(e *networkingv1alpha3.IstioEgressListener) string {
	if isUnixListener(e) {
		return e.GetBind()
	}
	return portString(e.GetPort().GetNumber())
}

// encode encodes a configuration with its virtual hosts and catchAll. The encoding of a
// message is the concatenation of its encoded parts.
func (u routeFacts) encode(rc *routev3.RouteConfiguration, hosts *virtualHosts) (*xdswire.Resource, error) {
	head, err := xdswire.Marshal(rc)
	if err != nil {
		return nil, err
	}
	rest, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{catchAll(u.unknown)}})
	if err != nil {
		return nil, err
	}
	return hosts.enc.Parted(xdswire.RouteType, rc.GetName(), head, hosts.list(), rest).Keeping(hosts.base), nil
}

func baseRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               no,
		MaxDirectResponseBodySizeBytes: maxBody,
		IgnorePortInHostMatching:       true,
	}
}
