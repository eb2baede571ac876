// Package inbound generates the listeners and clusters for connections to a workload.
package inbound

import (
	"net"
	"time"
	"unique"

	"google.golang.org/protobuf/proto"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// inboundFacts holds everything that a workload's own clusters and listeners depend on.
// Workloads with equal facts share them.
type inboundFacts struct {
	Captured       bool
	Transparent    bool
	Listen         uint32 // Mesh.InboundPort
	Ports          wire.List[inboundPort]
	TrustDomains   wire.List[string]
	ConnectTimeout time.Duration
	TLS            snapshot.TLSLimits
	ServerTLS      snapshot.TLSLimits // of TLS by a Sidecar; zero if there is none
	KeepAlive      snapshot.KeepAlive
	// Passthrough is the mTLS mode of ports without a service. PortModes overrides it
	// for single ports.
	Passthrough snapshot.MTLSMode
	PortModes   wire.List[wire.Entry[uint32, snapshot.MTLSMode]]
	Families    proxy.Families // of the proxy's addresses
}

// inboundPort is a port on which a workload receives calls.
type inboundPort struct {
	Number   uint32 // where connections arrive
	Service  uint32 // port number of the service
	Name     string
	Space    string // namespace of the service
	Host     string
	Others   wire.List[clusters.ServiceID] // further services of the port
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

// DecodeSettings decodes the result of encodeSettings.
func DecodeSettings(encoded string, settings proto.Message) {
	if err := proto.Unmarshal([]byte(encoded), settings); err != nil {
		panic("xdsgen: " + err.Error())
	}
}

func (p *inboundPort) pool() *networkingv1alpha3.ConnectionPoolSettings {
	var out networkingv1alpha3.ConnectionPoolSettings
	DecodeSettings(p.Pool, &out)
	return &out
}

// FactsOf returns the facts of a workload. Its ports are the ingress ports of its
// Sidecar, or else the ports of the services that select it.
func FactsOf(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string, sc proxy.Scope) inboundFacts {
	mtls := snapshot.WorkloadMTLS(s.Namespaces.Get(s.Mesh.RootNamespace), s.Namespaces.Get(n.Namespace), labels)
	f := inboundFacts{
		Captured: n.Captured, Transparent: n.Transparent, Listen: s.Mesh.InboundPort, TrustDomains: wire.ListOf(proxy.TrustDomains(s.Mesh)), ConnectTimeout: s.Mesh.ConnectTimeout,
		TLS: s.Mesh.MeshTLS, KeepAlive: s.Mesh.KeepAlive, Passthrough: mtls.Default, Families: n.Families(),
	}
	services := ServicePorts(s, n, pod, labels)
	var ports []inboundPort
	if sc.Sidecar != nil && len(sc.Sidecar.Spec.GetIngress()) > 0 {
		ports = ingressPorts(s.Mesh, sc.Sidecar, n, services)
	} else if n.Captured {
		ports = services
	}
	for i := range ports {
		p := &ports[i]
		p.Mode = mtls.Port(p.Number)
		if in := ingressAt(sc.Sidecar, p.Number); in.GetTls() != nil && p.Mode == snapshot.Disable {
			p.TLS, p.Protocol = wire.EncodeSettings(in.GetTls()), withoutTLS(p.Protocol)
			f.ServerTLS = s.Mesh.TLSDefaults
		}
		if pool := sidecarPool(sc.Sidecar, p.Number); pool != nil {
			p.Pool = wire.EncodeSettings(pool)
		}
		if s.Mesh.InboundLocalhost && n.Captured && p.Endpoint == "" {
			p.Endpoint = net.JoinHostPort(loopback(n.Families().Wildcards()[0]), wire.PortString(p.Number))
		}
	}
	if f.Ports = wire.ListOf(ports); n.Captured {
		f.PortModes = wire.SortedEntries(mtls.Ports)
	}
	return f
}

// Names returns the names of the listeners that bind ports of their own.
func (f *inboundFacts) Names() []string {
	var out []string
	for p := range f.Ports.All {
		if p.Bind != "" {
			out = append(out, p.Bind+"_"+wire.PortString(p.Number))
		}
	}
	return out
}

// View is the view of the own clusters or the own listeners of workloads with
// equal facts.
type View struct {
	Typ      string
	Facts    unique.Handle[inboundFacts]
	Settings telemetry.Settings // for listeners only
}

// Type implements units.View.
func (v View) Type() string { return v.Typ }

// Keys implements units.View.
func (v View) Keys() units.Keys { return units.Keys{Fixed: 1} }

// Unit implements units.View.
func (v View) Unit(*snapshot.Snapshot, units.Key) units.Unit { return inboundUnit(v) }

type inboundUnit View

func (u inboundUnit) Type() string { return u.Typ }

func (u inboundUnit) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g, w := wire.Generator{Enc: enc}, inboundWorkload{inboundFacts: u.Facts.Value(), settings: u.Settings}
	w.ports = w.Ports.Slice()
	if u.Typ == xdswire.ClusterType {
		w.clusters(&g)
	} else {
		w.listeners(&g)
	}
	return g.Resources()
}

// inboundWorkload generates a workload's own clusters and listeners.
type inboundWorkload struct {
	inboundFacts
	ports    []inboundPort      // inboundFacts.Ports
	settings telemetry.Settings // for listeners only
}
