package xdsgen

import (
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
	for _, svc := range ps.Services {
		if svc.ExternalName == "" && svc.Port(ps.Number).Protocol.IsHTTP() && sc.sees(svc) {
			return true
		}
	}
	return false
}

// registryOnly reports whether unknown destinations are refused: by the
// Sidecar if it says so, else by the mesh.
func registryOnly(m *snapshot.Mesh, sc scope) bool {
	if sc.sidecar != nil && sc.sidecar.Spec.GetOutboundTrafficPolicy() != nil {
		return sc.sidecar.Spec.GetOutboundTrafficPolicy().GetMode() == networkingv1alpha3.OutboundTrafficPolicy_REGISTRY_ONLY
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
	hosts := newVirtualHosts()
	for _, svc := range u.services.Services {
		port := svc.Port(u.services.Number)
		if svc.ExternalName != "" || !port.Protocol.IsHTTP() || !u.scope.sees(svc) {
			continue
		}
		if err := hosts.add(svc, port, u.domains(svc)); err != nil {
			return nil, err
		}
	}
	rc := u.config(portString(u.services.Number), hosts)
	return one(enc.Resource(xdswire.RouteType, rc.Name, rc))
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
		hosts := newVirtualHosts()
		if err := hosts.add(u.service, port, []string{"*"}); err != nil {
			return nil, err
		}
		rc := baseRoutes(u.service.Host+":"+portString(port.Number), hosts.list)
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
	hosts := newVirtualHosts()
	for _, svc := range u.services.All() {
		if svc.ExternalName != "" || !u.scope.seesThrough(e.GetHosts(), svc) {
			continue
		}
		for i := range svc.Ports {
			port := &svc.Ports[i]
			domains := u.domains(svc)
			if protocol == mesh.HTTPProxy {
				domains = proxyDomains(domains, port.Number)
			} else if port.Number != e.GetPort().GetNumber() {
				continue
			}
			if !port.Protocol.IsHTTP() && port.Protocol != mesh.Auto {
				continue
			}
			if err := hosts.add(svc, port, domains); err != nil {
				return nil, err
			}
		}
	}
	rc := u.config(portString(e.GetPort().GetNumber()), hosts)
	rc.IgnorePortInHostMatching = protocol != mesh.HTTPProxy
	return one(enc.Resource(xdswire.RouteType, rc.Name, rc))
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

// domains are the names by which a proxy of the namespace may call a service:
// the full name, the short ones, and its addresses in the proxy's cluster.
func (u routeFacts) domains(svc *snapshot.MeshService) []string {
	short := []string{svc.Name + "." + svc.Namespace, svc.Name + "." + svc.Namespace + ".svc"}
	if svc.Namespace == u.namespace {
		short = []string{svc.Name, svc.Name + "." + svc.Namespace + ".svc", svc.Name + "." + svc.Namespace}
	}
	out := append([]string{svc.Host, svc.Host + "."}, short...)
	if svc.Headless {
		for _, d := range out {
			out = append(out, "*."+d)
		}
	}
	for _, ip := range addresses(svc, u.cluster) {
		if strings.Contains(ip, ":") {
			ip = "[" + ip + "]" // as a Host header has it
		}
		out = append(out, ip)
	}
	return out
}

// addresses are the cluster IPs of a service as a cluster knows it; a cluster
// without the service uses those of the first that has it.
func addresses(svc *snapshot.MeshService, c mesh.ClusterID) []string {
	in := svc.In(c)
	if in == nil && len(svc.Clusters) > 0 {
		in = &svc.Clusters[0]
	}
	if in == nil {
		return nil
	}
	out := make([]string, len(in.VIPs))
	for i, ip := range in.VIPs {
		out[i] = ip.String()
	}
	return out
}

// virtualHosts collects virtual hosts; a domain that two claim stays with the
// first.
type virtualHosts struct {
	list  []*routev3.VirtualHost
	taken map[string]struct{}
}

func newVirtualHosts() *virtualHosts { return &virtualHosts{taken: make(map[string]struct{})} }

func (h *virtualHosts) add(svc *snapshot.MeshService, port *snapshot.ServicePort, domains []string) error {
	var free []string
	for _, d := range domains {
		key := strings.ToLower(d)
		if _, dup := h.taken[key]; !dup {
			h.taken[key] = struct{}{}
			free = append(free, d)
		}
	}
	if len(free) == 0 {
		return nil
	}
	number := portString(port.Number)
	route, err := serviceRoute(svc.Host, number, port)
	if err != nil {
		return err
	}
	vh := &routev3.VirtualHost{
		Name:                       svc.Host + ":" + number,
		Domains:                    free,
		Routes:                     []*routev3.Route{route},
		IncludeRequestAttemptCount: true,
	}
	if port.Protocol.IsHTTP2() {
		if vh.TypedPerFilterConfig, err = http2ALPN(); err != nil {
			return err
		}
	}
	h.list = append(h.list, vh)
	return nil
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

// config completes a configuration with what happens to unknown hosts.
func (u routeFacts) config(name string, hosts *virtualHosts) *routev3.RouteConfiguration {
	rc := baseRoutes(name, hosts.list)
	sortVirtualHosts(rc.VirtualHosts)
	rc.VirtualHosts = append(rc.VirtualHosts, catchAll(u.registryOnly))
	return rc
}

func baseRoutes(name string, hosts []*routev3.VirtualHost) *routev3.RouteConfiguration {
	return &routev3.RouteConfiguration{
		Name:                           name,
		VirtualHosts:                   hosts,
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
