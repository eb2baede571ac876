package xdsgen

import (
	"net"
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
		ports = ingressPorts(s.Mesh, sc.sidecar, n, services)
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
