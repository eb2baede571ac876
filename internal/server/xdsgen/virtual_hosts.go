package xdsgen

import (
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

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
