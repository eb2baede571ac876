package xdsgen

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// inboundFacts is everything that a workload's own clusters and listeners
// read. Workloads with equal facts share them.
type inboundFacts struct {
	Captured       bool
	Targets        []target
	TrustDomains   []string
	ConnectTimeout time.Duration
	KeyExchanges   curves `json:",omitempty"`
	// Passthrough is the mTLS mode of ports that no service names, Ports the
	// overrides for single ports.
	Passthrough snapshot.MTLSMode
	Ports       map[uint32]snapshot.MTLSMode
	Families    families // of the proxy's addresses

	// Of listeners; not encoded.
	filters  []snapshot.HTTPFilter
	settings snapshot.ListenerSettings
}

// target is one port on which a workload is called.
type target struct {
	Port     uint32 // where connections arrive
	Service  uint32 // the service's port number
	Name     string
	Space    string // the service's namespace
	Host     string
	Protocol mesh.Protocol
	Mode     snapshot.MTLSMode
	// Bind is the address to listen at; empty with captured connections.
	Bind string
	// Endpoint is where the application listens, "127.0.0.1:8080"; empty
	// means the address that the connection was made to.
	Endpoint string
}

// inbound gathers the facts of one workload: the ports that its Sidecar's
// ingress declares, else those of the services that select it.
func inbound(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, sc scope) inboundFacts {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	f := inboundFacts{
		Captured: n.Captured, TrustDomains: trustDomains(s.Mesh), ConnectTimeout: s.Mesh.ConnectTimeout,
		KeyExchanges: curvesOf(s.Mesh), Passthrough: mtls.Default, Families: n.families(),
	}
	services := serviceTargets(s, n, pod, labels)
	if sc.sidecar != nil && len(sc.sidecar.Spec.GetIngress()) > 0 {
		f.Targets = ingressTargets(sc.sidecar, n, services)
	} else if n.Captured {
		f.Targets = services
	}
	for i := range f.Targets {
		f.Targets[i].Mode = mtls.Port(f.Targets[i].Port)
	}
	if n.Captured {
		f.Ports = mtls.Ports
	}
	return f
}

// serviceTargets are the ports of the services of the proxy's own cluster
// that select the workload; of two services on one port the oldest wins.
func serviceTargets(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) []target {
	taken := make(map[uint32]target)
	eachTarget(s, n, pod, labels, func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if _, dup := taken[number]; dup {
			return
		}
		taken[number] = target{
			Port: number, Service: p.Number, Name: svc.Name, Space: svc.Namespace, Host: svc.Host, Protocol: p.Protocol,
		}
	})
	out := make([]target, 0, len(taken))
	for _, number := range sortedPorts(taken) {
		out = append(out, taken[number])
	}
	return out
}

// eachTarget yields the ports of the services of the proxy's own cluster that
// select the workload, with the number of the workload's port, oldest service
// first. Ports of UDP and those whose name the workload does not have are left out.
func eachTarget(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	ns := s.Namespaces.Get(n.Namespace)
	if ns == nil {
		return
	}
	add := func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if number != 0 && p.Protocol != mesh.UDP {
			yield(svc, p, number)
		}
	}
	for _, svc := range ns.Services {
		in := svc.In(n.Cluster)
		if in == nil {
			continue
		}
		if len(in.Selector) == 0 {
			selectorless(s, svc, in, podKey(n), add)
			continue
		}
		if snapshot.Selects(in.Selector, labels) {
			for i := range in.Ports {
				add(svc, &in.Ports[i], pod.TargetPort(&in.Ports[i]))
			}
		}
	}
}

// selectorless adds the ports of a service without a selector whose slices
// name the pod.
func selectorless(s *snapshot.Snapshot, svc *snapshot.MeshService, in *snapshot.ClusterService, pod string, add func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	eps := s.Endpoints.Get(svc.Host)
	if eps == nil {
		return
	}
	for i := range in.Ports {
		for _, e := range eps.ByPort[in.Ports[i].Name] {
			if e.Pod == pod {
				add(svc, &in.Ports[i], e.Port)
			}
		}
	}
}

// ingressTargets are the ports that a Sidecar declares. The service of the
// same port, if there is one, gives its name to routes and metadata.
func ingressTargets(sc *snapshot.Sidecar, n Node, services []target) []target {
	var out []target
	for _, in := range sc.Spec.GetIngress() {
		protocol, _ := mesh.ParseProtocol(in.GetPort().GetProtocol())
		t := target{Port: in.GetPort().GetNumber(), Service: in.GetPort().GetNumber(), Protocol: protocol, Name: sc.Name, Space: sc.Namespace}
		if i := slices.IndexFunc(services, func(s target) bool { return s.Port == t.Port }); i >= 0 {
			s := services[i]
			t.Service, t.Name, t.Space, t.Host = s.Service, s.Name, s.Space, s.Host
		}
		t.Endpoint = in.GetDefaultEndpoint()
		if ap, err := netip.ParseAddrPort(t.Endpoint); err == nil && ap.Addr().IsUnspecified() {
			// Istio's way to name the address of the instance.
			t.Endpoint = netip.AddrPortFrom(n.ID.IP, ap.Port()).String()
		}
		if !n.Captured {
			if t.Bind = in.GetBind(); t.Bind == "" {
				t.Bind = n.ID.IP.String()
			}
		}
		out = append(out, t)
	}
	return out
}

// inboundView are the clusters or the listeners of one kind of workload.
type inboundView struct {
	typ      string
	facts    string                    // inboundFacts, encoded
	filters  string                    // []snapshot.HTTPFilter, encoded; of listeners only
	settings snapshot.ListenerSettings // of listeners only
}

func (v inboundView) Type() string { return v.typ }

// Reads says that other facts make another view.
func (v inboundView) Reads() snapshot.Kinds { return 0 }

func (v inboundView) Units(_ *snapshot.Snapshot, yield func(string, Unit)) {
	yield("inbound", inboundUnit(v))
}

// Touched yields nothing.
func (v inboundView) Touched(*snapshot.Snapshot, *snapshot.Changes, func(string, Unit)) {}

type inboundUnit inboundView

func (u inboundUnit) Type() string { return u.typ }

func (u inboundUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var f inboundFacts
	if err := json.Unmarshal([]byte(u.facts), &f); err != nil {
		return nil, fmt.Errorf("decode inbound facts: %w", err)
	}
	if u.typ == xdswire.ClusterType {
		return f.clusters(enc)
	}
	f.filters, f.settings = decodeFilters(u.filters), u.settings
	return f.listeners(enc)
}

func (t *target) cluster() string {
	return mesh.ClusterName{Direction: mesh.Inbound, Port: t.Port}.String()
}

func (f *inboundFacts) clusters(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	var out []*xdswire.Resource
	for i := range f.Targets {
		c, err := f.cluster(&f.Targets[i])
		if err != nil {
			return nil, err
		}
		r, err := enc.Resource(xdswire.ClusterType, c.Name, c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	if !f.Captured {
		return out, nil
	}
	c, err := passthroughCluster(mesh.InboundPassthroughCluster, f.ConnectTimeout)
	if err != nil {
		return nil, err
	}
	c.UpstreamBindConfig = f.loopbackSource()
	r, err := enc.Resource(xdswire.ClusterType, c.Name, c)
	return append(out, r), err
}

func (f *inboundFacts) cluster(t *target) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:            t.cluster(),
		AltStatName:     t.cluster() + ";",
		ConnectTimeout:  durationpb.New(f.ConnectTimeout),
		CircuitBreakers: unlimited(),
		CommonLbConfig:  &clusterv3.Cluster_CommonLbConfig{},
		Metadata:        serviceMetadata(t.Name, t.Space, t.Host),
	}
	switch {
	case t.Protocol.IsHTTP2():
		if err := setProtocolOptions(c, explicitHTTP2()); err != nil {
			return nil, err
		}
	case t.Protocol == mesh.Auto:
		if err := setProtocolOptions(c, downstreamProtocol(0)); err != nil {
			return nil, err
		}
	}
	addr, fixed, err := t.address()
	if err != nil {
		return nil, err
	}
	if !fixed {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		c.UpstreamBindConfig = f.loopbackSource()
		c.CleanupInterval = durationpb.New(never)
		return c, nil
	}
	c.ClusterDiscoveryType = discovery(clusterv3.Cluster_STATIC)
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.Name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addr}},
		}}}},
	}
	return c, nil
}

// never is the longest time that Envoy accepts. The addresses of the pod
// itself are few: they need not be forgotten.
const never = 9223372035 * time.Second

// address is where the application listens, if the Sidecar fixes it or
// connections are not captured.
func (t *target) address() (*corev3.Address, bool, error) {
	if t.Endpoint == "" {
		if t.Bind == "" {
			return nil, false, nil
		}
		return address(loopback(t.Bind), t.Port), true, nil
	}
	if path, ok := strings.CutPrefix(t.Endpoint, "unix://"); ok {
		return pipe(path), true, nil
	}
	ap, err := netip.ParseAddrPort(t.Endpoint)
	if err != nil {
		return nil, false, fmt.Errorf("sidecar ingress of port %d: defaultEndpoint %q is not an address and port", t.Port, t.Endpoint)
	}
	return address(ap.Addr().String(), uint32(ap.Port())), true, nil
}

func loopback(like string) string {
	if strings.Contains(like, ":") {
		return "::1"
	}
	return "127.0.0.1"
}

// loopbackSource lets the redirection tell connections of the proxy to its
// application from those that must be captured.
func (f *inboundFacts) loopbackSource() *corev3.BindConfig {
	source := func(ip string) *corev3.SocketAddress {
		return &corev3.SocketAddress{Address: ip, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 0}}
	}
	switch f.Families {
	case v6:
		return &corev3.BindConfig{SourceAddress: source("::6")}
	case v4 | v6:
		return &corev3.BindConfig{
			SourceAddress:        source("127.0.0.6"),
			ExtraSourceAddresses: []*corev3.ExtraSourceAddress{{Address: source("::6")}},
		}
	}
	return &corev3.BindConfig{SourceAddress: source("127.0.0.6")}
}

func portString(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
