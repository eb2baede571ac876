package xdsgen

import (
	"net"
	"net/netip"
	"slices"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// inboundFacts holds everything that a workload's own clusters and listeners depend on.
// Workloads with equal facts share them.
type inboundFacts struct {
	Captured       bool
	Transparent    bool
	Listen         uint32 // Mesh.InboundPort
	Ports          list[inboundPort]
	TrustDomains   list[string]
	ConnectTimeout time.Duration
	TLS            snapshot.TLSLimits
	ServerTLS      snapshot.TLSLimits // of TLS by a Sidecar; zero if there is none
	KeepAlive      snapshot.KeepAlive
	// Passthrough is the mTLS mode of ports without a service. PortModes overrides it
	// for single ports.
	Passthrough snapshot.MTLSMode
	PortModes   list[entry[uint32, snapshot.MTLSMode]]
	Families    families // of the proxy's addresses
}

// inboundPort is a port on which a workload receives calls.
type inboundPort struct {
	Number   uint32 // where connections arrive
	Service  uint32 // port number of the service
	Name     string
	Space    string // namespace of the service
	Host     string
	Others   list[serviceID] // further services of the port
	Protocol mesh.Protocol
	Mode     snapshot.MTLSMode
	// TLS holds the ServerTLSSettings of a Sidecar, encoded. Empty means that mTLS by Mode
	// is the only TLS.
	TLS string
	// Bind is the address of the listener. It is empty if connections are captured.
	Bind string
	// Stats is the name of the statistics. It is empty for the name of the cluster.
	Stats string
	// Endpoint is the address of the application, such as "127.0.0.1:8080". Empty means
	// the original destination of the connection.
	Endpoint string
	// Pool holds the limits of connections to the application:
	// ConnectionPoolSettings, encoded. Empty means none.
	Pool string
}

// encodeSettings encodes settings of an object, which came from YAML.
func encodeSettings(settings proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(settings)
	if err != nil {
		panic("xdsgen: settings that do not encode: " + err.Error())
	}
	return string(b)
}

// decodeSettings decodes the result of encodeSettings.
func decodeSettings(encoded string, settings proto.Message) {
	if err := proto.Unmarshal([]byte(encoded), settings); err != nil {
		panic("xdsgen: " + err.Error())
	}
}

func (p *inboundPort) pool() *networkingv1alpha3.ConnectionPoolSettings {
	var out networkingv1alpha3.ConnectionPoolSettings
	decodeSettings(p.Pool, &out)
	return &out
}

// serverTLS returns the settings by which a Sidecar terminates TLS, or nil.
func (p *inboundPort) serverTLS() *networkingv1alpha3.ServerTLSSettings {
	if p.TLS == "" {
		return nil
	}
	var out networkingv1alpha3.ServerTLSSettings
	decodeSettings(p.TLS, &out)
	return &out
}

// inbound returns the facts of a workload. Its ports are the ingress ports of its
// Sidecar, or else the ports of the services that select it.
func inbound(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, sc scope) inboundFacts {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	f := inboundFacts{
		Captured: n.Captured, Transparent: n.Transparent, Listen: s.Mesh.InboundPort, TrustDomains: listOf(trustDomains(s.Mesh)), ConnectTimeout: s.Mesh.ConnectTimeout,
		TLS: s.Mesh.MeshTLS, KeepAlive: s.Mesh.KeepAlive, Passthrough: mtls.Default, Families: n.families(),
	}
	services := servicePorts(s, n, pod, labels)
	var ports []inboundPort
	if sc.sidecar != nil && len(sc.sidecar.Spec.GetIngress()) > 0 {
		ports = ingressPorts(sc.sidecar, n, services)
	} else if n.Captured {
		ports = services
	}
	for i := range ports {
		p := &ports[i]
		p.Mode = mtls.Port(p.Number)
		if in := ingressAt(sc.sidecar, p.Number); in.GetTls() != nil && p.Mode == snapshot.Disable {
			p.TLS, p.Protocol = encodeSettings(in.GetTls()), withoutTLS(p.Protocol)
			f.ServerTLS = s.Mesh.TLSDefaults
		}
		if pool := sidecarPool(sc.sidecar, p.Number); pool != nil {
			p.Pool = encodeSettings(pool)
		}
		if s.Mesh.InboundLocalhost && n.Captured && p.Endpoint == "" {
			p.Endpoint = net.JoinHostPort(loopback(n.families().wildcards()[0]), portString(p.Number))
		}
	}
	if f.Ports = listOf(ports); n.Captured {
		f.PortModes = sortedEntries(mtls.Ports)
	}
	return f
}

// names returns the names of the listeners that bind ports of their own.
func (f *inboundFacts) names() []string {
	var out []string
	for p := range f.Ports.All {
		if p.Bind != "" {
			out = append(out, p.Bind+"_"+portString(p.Number))
		}
	}
	return out
}

// ingressAt returns the ingress listener of a Sidecar, which may be nil, at a port, or nil.
func ingressAt(sc *snapshot.Sidecar, number uint32) *networkingv1alpha3.IstioIngressListener {
	if sc != nil {
		for _, in := range sc.Spec.GetIngress() {
			if in.GetPort().GetNumber() == number {
				return in
			}
		}
	}
	return nil
}

// withoutTLS returns the protocol of a port whose TLS the proxy terminates.
func withoutTLS(p mesh.Protocol) mesh.Protocol {
	switch p {
	case mesh.HTTPS:
		return mesh.HTTP
	case mesh.TLS:
		return mesh.TCP
	}
	return p
}

// sidecarPool returns the connection pool that a Sidecar sets for a port, or nil. The
// Sidecar may be nil.
func sidecarPool(sc *snapshot.Sidecar, number uint32) *networkingv1alpha3.ConnectionPoolSettings {
	if pool := ingressAt(sc, number).GetConnectionPool(); pool != nil || sc == nil {
		return pool
	}
	return sc.Spec.GetInboundConnectionPool()
}

// servicePorts returns the workload's ports of the services in the proxy's own cluster
// that select it. If two services have one port, the oldest gets it.
func servicePorts(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string) []inboundPort {
	taken, others := make(map[uint32]inboundPort), make(map[uint32][]serviceID)
	eachServicePort(s, n, pod, labels, func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if first, dup := taken[number]; dup {
			if id := (serviceID{svc.Name, svc.Namespace, svc.Host}); svc.Host != first.Host && !slices.Contains(others[number], id) {
				others[number] = append(others[number], id)
			}
			return
		}
		taken[number] = inboundPort{
			Number: number, Service: p.Number, Name: svc.Name, Space: svc.Namespace, Host: svc.Host, Protocol: p.Protocol,
			Stats: statName(s.Mesh.InboundStats, svc, p, "", number),
		}
		// As with Istio, rules with a workload selector are for outbound connections.
		rule := s.Rules.Get(svc.Key).For(snapshot.RuleClient{Namespace: n.Namespace})
		if pool := rule.PolicyAt(p.Number, nil).GetConnectionPool(); pool != nil {
			own := taken[number]
			own.Pool = encodeSettings(pool)
			taken[number] = own
		}
	})
	out := make([]inboundPort, 0, len(taken))
	for _, number := range sortedPorts(taken) {
		port := taken[number]
		port.Others = listOf(others[number])
		out = append(out, port)
	}
	return out
}

// eachServicePort yields the TCP ports of the services in the proxy's own cluster that
// select the workload, with the number of the workload's port, oldest service first.
func eachServicePort(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	eachPort(s, n, pod, labels, func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if p.Protocol != mesh.UDP {
			yield(svc, p, number)
		}
	})
}

// eachPort is eachServicePort with UDP ports.
func eachPort(s *snapshot.Snapshot, n Node, pod *snapshot.Pod, labels map[string]string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	ns := s.Namespaces.Get(n.Namespace)
	if ns == nil {
		return
	}
	add := func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if number != 0 {
			yield(svc, p, number)
		}
	}
	for _, svc := range ns.Services {
		in := svc.In(n.Cluster)
		if in == nil || svc.Imported { // its own Service has the port
			continue
		}
		if len(in.Selector) == 0 {
			eachSelectorlessPort(s, svc, in, podKey(n), add)
			continue
		}
		if snapshot.Selects(in.Selector, labels) {
			for i := range in.Ports {
				add(svc, &in.Ports[i], pod.TargetPort(&in.Ports[i]))
			}
		}
	}
}

// eachSelectorlessPort yields the ports of a service without a selector whose endpoints
// name the pod.
func eachSelectorlessPort(s *snapshot.Snapshot, svc *snapshot.MeshService, in *snapshot.ClusterService, pod string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	eps := s.Endpoints.Get(svc.Key)
	if eps == nil {
		return
	}
	for i := range in.Ports {
		for _, e := range eps.ByPort[in.Ports[i].Name] {
			if e.Pod == pod {
				yield(svc, &in.Ports[i], e.Port)
			}
		}
	}
}

// ingressPorts returns the ports that a Sidecar declares. A service with the same port
// gives its name to routes and metadata.
func ingressPorts(sc *snapshot.Sidecar, n Node, services []inboundPort) []inboundPort {
	var out []inboundPort
	for _, in := range sc.Spec.GetIngress() {
		protocol, _ := mesh.ParseProtocol(in.GetPort().GetProtocol())
		p := inboundPort{Number: in.GetPort().GetNumber(), Service: in.GetPort().GetNumber(), Protocol: protocol, Name: sc.Name, Space: sc.Namespace}
		if i := slices.IndexFunc(services, func(s inboundPort) bool { return s.Number == p.Number }); i >= 0 {
			s := services[i]
			p.Service, p.Name, p.Space, p.Host, p.Pool, p.Stats = s.Service, s.Name, s.Space, s.Host, s.Pool, s.Stats
		}
		p.Endpoint = in.GetDefaultEndpoint()
		if ap, err := netip.ParseAddrPort(p.Endpoint); err == nil && ap.Addr().IsUnspecified() {
			// In Istio an unspecified address stands for the address of the pod.
			p.Endpoint = netip.AddrPortFrom(n.ID.IP, ap.Port()).String()
		}
		if !n.Captured || in.GetCaptureMode() == networkingv1alpha3.CaptureMode_NONE {
			if p.Bind = in.GetBind(); p.Bind == "" {
				p.Bind = n.ID.IP.String()
			}
		}
		out = append(out, p)
	}
	return out
}

// inboundView is the view of the own clusters or the own listeners of workloads with
// equal facts.
type inboundView struct {
	typ      string
	facts    unique.Handle[inboundFacts]
	settings listenerSettings // for listeners only
}

func (v inboundView) Type() string { return v.typ }

func (v inboundView) Keys() Keys { return Keys{Fixed: 1} }

func (v inboundView) Unit(*snapshot.Snapshot, Key) Unit { return inboundUnit(v) }

type inboundUnit inboundView

func (u inboundUnit) Type() string { return u.typ }

func (u inboundUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g, w := generator{enc: enc}, inboundWorkload{inboundFacts: u.facts.Value(), settings: u.settings}
	w.ports = w.Ports.Slice()
	if u.typ == xdswire.ClusterType {
		w.clusters(&g)
	} else {
		w.listeners(&g)
	}
	return g.resources()
}

// inboundWorkload generates a workload's own clusters and listeners.
type inboundWorkload struct {
	inboundFacts
	ports    []inboundPort    // inboundFacts.Ports
	settings listenerSettings // for listeners only
}

// Target is a port of a service with the workload's port behind it.
type Target struct {
	Service *snapshot.MeshService
	Port    snapshot.ServicePort
	Number  uint32 // port of the workload
}

// Targets returns the ports of a proxy's workload that services of its own cluster
// target.
func Targets(s *snapshot.Snapshot, n Node) []Target {
	pod, labels := podOf(s, n)
	var out []Target
	for _, p := range servicePorts(s, n, pod, labels) {
		svc := s.Services.Get(p.Host)
		if svc == nil {
			continue
		}
		port := snapshot.ServicePort{Number: p.Service, Protocol: p.Protocol}
		if known := svc.Port(p.Service); known != nil {
			port = *known
		}
		out = append(out, Target{Service: svc, Port: port, Number: p.Number})
	}
	return out
}
