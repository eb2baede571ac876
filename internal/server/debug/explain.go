package debug

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/nearest"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/connected"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
)

// Explanation is why a proxy has these endpoints of a service and no others.
type Explanation struct {
	Proxy   string         `json:"proxy"`
	Cluster mesh.ClusterID `json:"cluster,omitzero"`
	Network mesh.NetworkID `json:"network,omitzero"`
	Service string         `json:"service"` // its host
	// Missing says why the proxy has nothing of the service.
	Missing string          `json:"missing,omitzero"`
	Ports   []ExplainedPort `json:"ports,omitzero"`
	Omitted Omissions       `json:"omitted,omitzero"`
	// Clusters are those that the control plane knows.
	Clusters []ExplainedCluster `json:"clusters"`
}

// ExplainedPort is how the endpoints of one port are reached.
type ExplainedPort struct {
	Port      uint32              `json:"port"`
	Name      string              `json:"name,omitzero"`
	Endpoints []ExplainedEndpoint `json:"endpoints"`
}

// ExplainedEndpoint is how one endpoint is reached.
type ExplainedEndpoint struct {
	Address  string         `json:"address"` // ip:port
	Cluster  mesh.ClusterID `json:"cluster"`
	Network  mesh.NetworkID `json:"network,omitzero"`
	Locality string         `json:"locality,omitzero"`
	Pod      string         `json:"pod,omitzero"`
	Healthy  bool           `json:"healthy"`
	MTLS     bool           `json:"mtls"`
	Demoted  bool           `json:"demoted,omitzero"`
	// Gateways are those that it is reached through, ip:port; none is directly.
	Gateways []string `json:"gateways,omitzero"`
	// Obstacle is why the proxy is not given it, in a word and in words.
	Obstacle xdsgen.Obstacle `json:"obstacle,omitzero"`
	Why      string          `json:"why,omitzero"`
}

// Omissions are endpoints that no proxy is given.
type Omissions struct {
	Number int                        `json:"number"`
	First  []registry.OmittedEndpoint `json:"first"`
}

// ExplainedCluster is a cluster that the control plane knows.
type ExplainedCluster struct {
	Cluster mesh.ClusterID `json:"cluster"`
	Network mesh.NetworkID `json:"network,omitzero"`
	// Service says that the cluster has the service, in the same namespace and by
	// the same name.
	Service bool `json:"service"`
}

// explainz tells how ?proxyID= reaches the endpoints of ?service=.
func (p *Pages) explainz(_ context.Context, q Query) (any, error) {
	s, err := p.snapshot()
	if err != nil {
		return nil, err
	}
	x, err := p.proxy(q)
	if err != nil {
		return nil, err
	}
	svc, err := serviceNamed(s, q.Get("service"), x.Node.Namespace)
	if err != nil {
		return nil, err
	}
	return p.explain(s, x, svc), nil
}

func (p *Pages) explain(s *snapshot.Snapshot, x *connected.Proxy, svc *snapshot.MeshService) *Explanation {
	n := x.Node
	out := &Explanation{
		Proxy: n.ID.ProxyID(), Cluster: n.Cluster, Network: xdsgen.NetworkOf(s, n), Service: svc.Host, Clusters: []ExplainedCluster{},
	}
	for id, network := range s.Mesh.Networks {
		out.Clusters = append(out.Clusters, ExplainedCluster{id, network, svc.In(id) != nil})
	}
	slices.SortFunc(out.Clusters, func(a, b ExplainedCluster) int { return strings.Compare(string(a.Cluster), string(b.Cluster)) })
	if p.cfg.Omitted != nil {
		omitted := p.cfg.Omitted(svc.Host)
		out.Omitted = Omissions{omitted.Number, omitted.First}
	}
	var ports []xdsgen.PortReach
	ports, out.Missing = xdsgen.ReachOf(s, n, svc)
	for _, port := range ports {
		shown := ExplainedPort{Port: port.Port.Number, Name: port.Port.Name, Endpoints: []ExplainedEndpoint{}}
		for _, r := range port.Endpoints {
			shown.Endpoints = append(shown.Endpoints, endpointOf(r))
		}
		out.Ports = append(out.Ports, shown)
	}
	return out
}

func endpointOf(r xdsgen.Reach) ExplainedEndpoint {
	e := r.Endpoint
	out := ExplainedEndpoint{
		Address: netip.AddrPortFrom(e.Address, uint16(e.Port)).String(), Cluster: e.Cluster, Network: e.Network,
		Locality: e.Locality.String(), Pod: e.Pod, Healthy: e.Health == snapshot.Healthy, MTLS: e.MTLS, Demoted: e.Demoted,
		Obstacle: r.Obstacle, Why: r.Obstacle.String(),
	}
	for _, g := range r.Gateways {
		out.Gateways = append(out.Gateways, netip.AddrPortFrom(g.Address, uint16(g.Port)).String())
	}
	return out
}

// serviceNamed finds a service by its host, as name.namespace, or by a name of the
// namespace.
func serviceNamed(s *snapshot.Snapshot, named, namespace string) (*snapshot.MeshService, error) {
	if named == "" {
		return nil, &Error{http.StatusBadRequest, "name a service, as ?service=name.namespace"}
	}
	host := strings.TrimSuffix(named, ".")
	name, rest, dotted := strings.Cut(host, ".")
	of, _, _ := strings.Cut(rest, ".") // name.namespace.svc means the same
	if !dotted {
		of = namespace
	}
	for _, h := range []string{host, mesh.ServiceHost(name, of, s.Mesh.Domain)} {
		if svc := s.Services.Get(h); svc != nil {
			return svc, nil
		}
	}
	text := fmt.Sprintf("no cluster has service %.100q of namespace %.100q", name, of)
	var known []string
	for _, svc := range s.Services.All() {
		known = append(known, svc.Name+"."+svc.Namespace)
	}
	if near := nearest.Word(name+"."+of, known); near != "" {
		text += ", did you mean " + near + "?"
	}
	return nil, NotFound("%s", text)
}
