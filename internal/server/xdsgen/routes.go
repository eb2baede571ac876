package xdsgen

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/durationpb"
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

// proxyDomains are the names of a service as a client of an HTTP proxy says
// them: with the port, which may be left out for port 80.
func proxyDomains(domains []string, number uint32) []string {
	var out []string
	port := ":" + portString(number)
	for _, d := range domains {
		if number == 80 {
			out = append(out, d)
		}
		out = append(out, d+port)
	}
	return out
}

// hostNames says how clients name a service.
type hostNames bool

const (
	byName        hostNames = false
	byNameAndPort hostNames = true // clients of an HTTP proxy
)

// hostKey is what the virtual host of a service's port reads.
type hostKey struct {
	service *snapshot.MeshService
	port    *snapshot.ServicePort
	near    bool   // the client is of the service's namespace
	client  string // its namespace, for a service with aliases
	in      *snapshot.ClusterService
	names   hostNames
}

func (u routeFacts) host(svc *snapshot.MeshService, port *snapshot.ServicePort, names hostNames) hostKey {
	k := hostKey{service: svc, port: port, near: svc.Namespace == u.namespace, in: svc.For(u.cluster), names: names}
	if len(svc.Aliases) > 0 {
		k.client = u.namespace
	}
	return k
}

// namesOf are the full and the short names of a service.
func namesOf(host, name, namespace string, near bool) []string {
	if near {
		return []string{host, host + ".", name, name + "." + namespace + ".svc", name + "." + namespace}
	}
	return []string{host, host + ".", name + "." + namespace, name + "." + namespace + ".svc"}
}

// domains are the names by which the proxy may call the service, each once:
// the full name, the short ones, its addresses in the proxy's cluster, and the
// names of its aliases.
func (k hostKey) domains() []string {
	svc := k.service
	out := namesOf(svc.Host, svc.Name, svc.Namespace, k.near)
	if svc.Headless {
		for _, d := range out {
			out = append(out, "*."+d)
		}
	}
	for _, ip := range addressesIn(k.in) {
		if strings.Contains(ip, ":") {
			ip = "[" + ip + "]" // as a Host header has it
		}
		out = append(out, ip)
	}
	for i := range svc.Aliases {
		if a := &svc.Aliases[i]; a.VisibleTo(k.client) {
			out = append(out, namesOf(a.Host, a.Name, a.Namespace, a.Namespace == k.client)...)
		}
	}
	if k.names == byNameAndPort {
		out = proxyDomains(out, k.port.Number)
	}
	seen := make(map[string]struct{}, len(out))
	return slices.DeleteFunc(out, func(d string) bool {
		before := len(seen)
		seen[strings.ToLower(d)] = struct{}{}
		return len(seen) == before
	})
}

// addresses are the cluster IPs of a service as a cluster knows it.
func addresses(svc *snapshot.MeshService, c mesh.ClusterID) []string {
	return addressesIn(svc.For(c))
}

func addressesIn(in *snapshot.ClusterService) []string {
	if in == nil {
		return nil
	}
	out := make([]string, len(in.VIPs))
	for i, ip := range in.VIPs {
		out[i] = ip.String()
	}
	return out
}

// virtualHost is an encoded virtual host. Route configurations share it: of a
// change in one service each encodes only that one's anew.
type virtualHost struct {
	name    string
	domains []string
	lower   []string // domains, as Envoy compares them
	wire    []byte   // as a field of a RouteConfiguration
}

// virtualHosts collects virtual hosts; a domain that two claim stays with the
// first.
type virtualHosts struct {
	enc   *xdswire.Encoder
	list  []*virtualHost
	taken map[string]struct{}
}

// newVirtualHosts expects at most that many services.
func newVirtualHosts(enc *xdswire.Encoder, services int) *virtualHosts {
	const domains = 5 // of most services
	return &virtualHosts{enc: enc, taken: make(map[string]struct{}, domains*services)}
}

func (h *virtualHosts) add(k hostKey) error {
	vh, err := xdswire.Shared(h.enc, k, func() (*virtualHost, error) { return k.encode(k.domains()) })
	if err != nil {
		return err
	}
	if slices.ContainsFunc(vh.lower, h.has) {
		free := slices.DeleteFunc(slices.Clone(vh.domains), func(d string) bool { return h.has(strings.ToLower(d)) })
		if len(free) == 0 {
			return nil
		}
		if vh, err = k.encode(free); err != nil {
			return err
		}
	}
	for _, d := range vh.lower {
		h.taken[d] = struct{}{}
	}
	h.list = append(h.list, vh)
	return nil
}

func (h *virtualHosts) has(domain string) bool {
	_, ok := h.taken[domain]
	return ok
}

func (k hostKey) encode(domains []string) (*virtualHost, error) {
	m, err := newVirtualHost(k.service, k.port, domains)
	if err != nil {
		return nil, err
	}
	wire, err := xdswire.Marshal(&routev3.RouteConfiguration{VirtualHosts: []*routev3.VirtualHost{m}})
	lower := make([]string, len(domains))
	for i, d := range domains {
		lower[i] = strings.ToLower(d)
	}
	return &virtualHost{name: m.GetName(), domains: domains, lower: lower, wire: wire}, err
}

func newVirtualHost(svc *snapshot.MeshService, port *snapshot.ServicePort, domains []string) (*routev3.VirtualHost, error) {
	number := portString(port.Number)
	route, err := serviceRoute(svc.Host, number, port)
	if err != nil {
		return nil, err
	}
	vh := &routev3.VirtualHost{
		Name:                       svc.Host + ":" + number,
		Domains:                    domains,
		Routes:                     []*routev3.Route{route},
		IncludeRequestAttemptCount: true,
	}
	if port.Protocol.IsHTTP2() {
		vh.TypedPerFilterConfig, err = http2ALPN()
	}
	return vh, err
}

func serviceRoute(host, number string, port *snapshot.ServicePort) (*routev3.Route, error) {
	previous, err := xdswire.Any(&previoushostsv3.PreviousHostsPredicate{})
	if err != nil {
		return nil, err
	}
	return &routev3.Route{
		Name:      "default",
		Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
		Decorator: &routev3.Decorator{Operation: host + ":" + number + "/*"},
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{
				Cluster: mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: host}.String(),
			},
			Timeout:        durationpb.New(0),
			MaxGrpcTimeout: durationpb.New(0), //nolint:staticcheck // Istio's routes carry it and every Envoy reads it
			RetryPolicy: &routev3.RetryPolicy{
				RetryOn:                       "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes",
				NumRetries:                    wrapperspb.UInt32(2),
				HostSelectionRetryMaxAttempts: 5,
				RetryHostPredicate: []*routev3.RetryPolicy_RetryHostPredicate{{
					Name:       "envoy.retry_host_predicates.previous_hosts",
					ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: previous},
				}},
			},
		}},
	}, nil
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

// catchAll passes requests for unknown hosts on, or refuses them.
func catchAll(registryOnly bool) *routev3.VirtualHost {
	match := &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}
	if registryOnly {
		return &routev3.VirtualHost{Name: "block_all", Domains: []string{"*"}, IncludeRequestAttemptCount: true, Routes: []*routev3.Route{{
			Name: "block_all", Match: match,
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 502}},
		}}}
	}
	return &routev3.VirtualHost{Name: "allow_any", Domains: []string{"*"}, IncludeRequestAttemptCount: true, Routes: []*routev3.Route{{
		Name: "allow_any", Match: match,
		Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: mesh.PassthroughCluster},
			Timeout:          durationpb.New(0),
			MaxGrpcTimeout:   durationpb.New(0), //nolint:staticcheck // see serviceRoute
		}},
	}}}
}

// inboundRoutes is the inline configuration of an inbound HTTP chain.
func inboundRoutes(cluster, vhost, operation string, grpc bool) *routev3.RouteConfiguration {
	action := &routev3.RouteAction{
		ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster},
		Timeout:          durationpb.New(0),
		MaxStreamDuration: &routev3.RouteAction_MaxStreamDuration{
			MaxStreamDuration:    durationpb.New(0),
			GrpcTimeoutHeaderMax: durationpb.New(0),
		},
	}
	if !grpc {
		action.RetryPolicy = &routev3.RetryPolicy{RetryOn: "reset-before-request", NumRetries: wrapperspb.UInt32(2)}
	}
	return &routev3.RouteConfiguration{
		Name:             cluster,
		ValidateClusters: wrapperspb.Bool(false),
		VirtualHosts: []*routev3.VirtualHost{{
			Name: vhost, Domains: []string{"*"},
			Routes: []*routev3.Route{{
				Name:      "default",
				Match:     &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
				Decorator: &routev3.Decorator{Operation: operation},
				Action:    &routev3.Route_Route{Route: action},
			}},
		}},
	}
}

// one is the result of a generator that makes a single resource.
func one(r *xdswire.Resource, err error) ([]*xdswire.Resource, error) {
	if err != nil {
		return nil, err
	}
	return []*xdswire.Resource{r}, nil
}
