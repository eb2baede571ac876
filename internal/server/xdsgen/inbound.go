package xdsgen

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

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

// Target is a port of a service, on which a workload is called.
type Target struct {
	Service *snapshot.MeshService
	Port    snapshot.ServicePort
	Number  uint32 // of the workload's port
}

// Targets are those of a proxy, by the services of its own cluster.
func Targets(s *snapshot.Snapshot, n Node) []Target {
	pod, labels := podOf(s, n)
	var out []Target
	for _, t := range serviceTargets(s, n, pod, labels) {
		svc := s.Services.Get(t.Host)
		if svc == nil {
			continue
		}
		port := snapshot.ServicePort{Number: t.Service, Protocol: t.Protocol}
		if p := svc.Port(t.Service); p != nil {
			port = *p
		}
		out = append(out, Target{Service: svc, Port: port, Number: t.Port})
	}
	return out
}
