package xdsgen

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// routeView are the route configurations of proxies that see the same
// services under the same names: one for each HTTP port, one for each
// detected port of a service, and those of a Sidecar's own egress listeners.
type routeView struct {
	scope     scope
	namespace string // whose services have short names
	cluster   mesh.ClusterID
	captured  bool // connections are redirected to the proxy
}

func (v routeView) Type() string { return xdswire.RouteType }

func (v routeView) Reads() snapshot.Kinds { return snapshot.PortFacts | snapshot.ServiceFacts }

func (v routeView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	for number := range s.Ports.All() {
		v.port(s, number, yield)
	}
	for host := range s.Services.All() {
		v.detected(s, host, yield)
	}
	v.egress(s, yield)
}

func (v routeView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	for number := range c.Ports {
		v.port(s, number, yield)
	}
	for host := range c.Services {
		v.detected(s, host, yield)
	}
	if len(c.Services) > 0 {
		v.egress(s, yield)
	}
}

func (v routeView) facts(s *snapshot.Snapshot) routeFacts {
	return routeFacts{
		namespace: v.namespace, cluster: v.cluster,
		registryOnly: registryOnly(s.Mesh, v.scope), domain: s.Mesh.Domain,
	}
}

// port yields the configuration that all HTTP services of one port number
// share.
func (v routeView) port(s *snapshot.Snapshot, number uint32, yield func(string, Unit)) {
	id := portString(number)
	services := s.Ports.Get(number)
	if services == nil || !anyHTTP(services, v.scope) || v.scope.ownsPort(number) || reserved(number) {
		yield(id, nil)
		return
	}
	yield(id, portRoutes{routeFacts: v.facts(s), services: services, scope: v.scope})
}

// detected yields the configurations of a service's ports whose protocol is
// detected on the connection.
func (v routeView) detected(s *snapshot.Snapshot, host string, yield func(string, Unit)) {
	svc := s.Services.Get(host)
	if svc == nil || !v.scope.sees(svc) || !hasPort(svc, isDetected) {
		yield(host, nil)
		return
	}
	yield(host, detectedRoutes{routeFacts: v.facts(s), service: svc})
}

// egress yields the configurations of the Sidecar's egress listeners that
// name an HTTP port.
func (v routeView) egress(s *snapshot.Snapshot, yield func(string, Unit)) {
	for i, e := range v.scope.egress() {
		p, ok := mesh.ParseProtocol(e.GetPort().GetProtocol())
		if !ok || !p.IsHTTP() {
			continue
		}
		facts := v.facts(s)
		if !v.captured || e.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE || p == mesh.HTTPProxy {
			// Clients connect to the listener itself. To pass an unknown host
			// on to the address of the connection would be a loop.
			facts.registryOnly = true
		}
		yield("egress "+strconv.Itoa(i), egressRoutes{
			routeFacts: facts, services: s.Services, scope: v.scope, listener: i,
		})
	}
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

func anyHTTP(ps *snapshot.PortServices, sc scope) bool {
	return anyPort(ps, sc, func(p *snapshot.ServicePort) bool { return p.Protocol.IsHTTP() })
}

// anyPort reports whether the port of a visible service is so.
func anyPort(ps *snapshot.PortServices, sc scope, is func(*snapshot.ServicePort) bool) bool {
	for _, svc := range ps.Services {
		if svc.ExternalName == "" && is(svc.Port(ps.Number)) && sc.sees(svc) {
			return true
		}
	}
	return false
}

// registryOnly reports whether unknown destinations are refused: by the
// Sidecar if it says so, else by the mesh.
func registryOnly(m *snapshot.Mesh, sc scope) bool {
	if policy := sc.policy(); policy != nil {
		return policy.GetMode() == networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY
	}
	return m.RegistryOnly
}

// routeFacts is what every outbound route configuration reads.
type routeFacts struct {
	namespace    string
	cluster      mesh.ClusterID
	registryOnly bool
	domain       string
}

// portRoutes routes one port number by host name to the HTTP services there.
type portRoutes struct {
	routeFacts
	services *snapshot.PortServices
	scope    scope
}

func (u portRoutes) Type() string { return xdswire.RouteType }

func (u portRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	hosts := newVirtualHosts(enc, len(u.services.Services))
	for _, svc := range u.services.Services {
		port := svc.Port(u.services.Number)
		if svc.ExternalName != "" || !port.Protocol.IsHTTP() || !u.scope.sees(svc) {
			continue
		}
		if err := hosts.add(u.host(svc, port, byName)); err != nil {
			return nil, err
		}
	}
	return one(u.encode(baseRoutes(portString(u.services.Number)), hosts))
}

// detectedRoutes are the configurations of one service's detected ports. The
// listener is the service's own address, so every host name means it.
type detectedRoutes struct {
	routeFacts
	service *snapshot.MeshService
}

func (u detectedRoutes) Type() string { return xdswire.RouteType }

func (u detectedRoutes) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if !isDetected(port) || u.service.ExternalName != "" {
			continue
		}
		vh, err := newVirtualHost(u.service, port, []string{"*"})
		if err != nil {
			return nil, err
		}
		rc := baseRoutes(u.service.Host + ":" + portString(port.Number))
		rc.VirtualHosts = []*routev3.VirtualHost{vh}
		r, err := enc.Resource(xdswire.RouteType, rc.Name, rc)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// egressRoutes is the configuration of one egress listener of a Sidecar. With
// protocol HTTP_PROXY it routes to the services of all HTTP ports, by host
// name and port; otherwise to those of its own port.
type egressRoutes struct {
	routeFacts
	services *snapshot.Table[string, snapshot.MeshService]
	scope    scope
	listener int
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
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !u.scope.seesThrough(e.GetHosts(), svc) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if names == byName && port.Number != e.GetPort().GetNumber() || !port.Protocol.IsHTTP() && port.Protocol != mesh.Auto {
				continue
			}
			if err := hosts.add(u.host(svc, port, names)); err != nil {
				return nil, err
			}
		}
	}
	rc := baseRoutes(portString(e.GetPort().GetNumber()))
	rc.IgnorePortInHostMatching = names == byName
	return one(u.encode(rc, hosts))
}

// encode encodes a configuration with the virtual hosts, and what happens to
// unknown hosts. Its encoding is that of its parts in a row.
func (u routeFacts) encode(rc *routev3.RouteConfiguration, hosts *virtualHosts) (*xdswire.Resource, error) {
	head, err := xdswire.Marshal(rc)
	if err != nil {
		return nil, err
	}
	rest, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{catchAll(u.registryOnly)}})
	if err != nil {
		return nil, err
	}
	slices.SortFunc(hosts.list, func(a, b *virtualHost) int { return strings.Compare(a.name, b.name) })
	parts := make([][]byte, 0, len(hosts.list)+2)
	parts = append(parts, head)
	for _, vh := range hosts.list {
		parts = append(parts, vh.wire)
	}
	return hosts.enc.Raw(xdswire.RouteType, rc.GetName(), append(parts, rest)...).Keeping(hosts.list), nil
}

func baseRoutes(name string) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		ValidateClusters:               wrapperspb.Bool(false),
		MaxDirectResponseBodySizeBytes: wrapperspb.UInt32(1 << 20),
		IgnorePortInHostMatching:       true,
	}
}
