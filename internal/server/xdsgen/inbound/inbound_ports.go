package inbound

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/clusters"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// ServicePorts returns the workload's ports of the services in the proxy's own cluster
// that select it, without ports of the proxy itself. If two services have one port, the oldest
// gets it.
func ServicePorts(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) []inboundPort {
	taken, others := make(map[uint32]inboundPort), make(map[uint32][]clusters.ServiceID)
	EachServicePort(s, n, pod, labels, func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if !proxy.Accepts(s.Mesh, n, number) {
			return
		}
		if first, dup := taken[number]; dup {
			if id := (clusters.ServiceID{Name: svc.Name, Space: svc.Namespace, Host: svc.Host}); svc.Host != first.Host && !slices.Contains(others[number], id) {
				others[number] = append(others[number], id)
			}
			return
		}
		taken[number] = inboundPort{
			Number: number, Service: p.Number, Name: svc.Name, Space: svc.Namespace, Host: svc.Host, Protocol: p.Protocol,
			Stats: wire.StatName(s.Mesh.InboundStats, svc, p, "", number),
		}
		// As with Istio, rules with a workload selector are for outbound connections.
		rule := s.Rules.Get(svc.Key).For(snapshot.RuleClient{Namespace: n.Namespace})
		if pool := rule.PolicyAt(p.Number, nil).GetConnectionPool(); pool != nil {
			own := taken[number]
			own.Pool = wire.EncodeSettings(pool)
			taken[number] = own
		}
	})
	out := make([]inboundPort, 0, len(taken))
	for _, number := range wire.SortedPorts(taken) {
		port := taken[number]
		port.Others = wire.ListOf(others[number])
		out = append(out, port)
	}
	return out
}

// EachServicePort yields the TCP ports of the services in the proxy's own cluster that
// select the workload, with the number of the workload's port, oldest service first.
func EachServicePort(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
	EachPort(s, n, pod, labels, func(svc *snapshot.MeshService, p *snapshot.ServicePort, number uint32) {
		if p.Protocol != mesh.UDP {
			yield(svc, p, number)
		}
	})
}

// EachPort is eachServicePort with UDP ports.
func EachPort(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string, yield func(*snapshot.MeshService, *snapshot.ServicePort, uint32)) {
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
			eachSelectorlessPort(s, svc, in, proxy.PodKey(n), add)
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

// Target is a port of a service with the workload's port behind it.
type Target struct {
	Service *snapshot.MeshService
	Port    snapshot.ServicePort
	Number  uint32 // port of the workload
}

// Targets returns the ports of a proxy's workload that services of its own cluster
// target.
func Targets(s *snapshot.Snapshot, n proxy.Node) []Target {
	pod, labels := proxy.PodOf(s, n)
	var out []Target
	for _, p := range ServicePorts(s, n, pod, labels) {
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
