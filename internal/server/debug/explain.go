package debug

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// ExplainedProxy is the proxy of an explanation.
type ExplainedProxy struct {
	Proxy   string         `json:"proxy"`
	Cluster mesh.ClusterID `json:"cluster,omitzero"`
	Network mesh.NetworkID `json:"network,omitzero"`
}

// Explained returns the proxy.
func (p *ExplainedProxy) Explained() *ExplainedProxy { return p }

// Explanation explains which endpoints of a service a proxy has, and why.
type Explanation struct {
	ExplainedProxy

	Service string `json:"service"` // its host
	// Missing explains why the proxy has nothing of the service.
	Missing string          `json:"missing,omitzero"`
	Ports   []ExplainedPort `json:"ports,omitzero"`
	Omitted Omissions       `json:"omitted,omitzero"`
	// Conflicts are addresses of the service that the proxy uses for another service.
	Conflicts []facts.AddressConflict `json:"conflicts,omitzero"`
	// Lost are routes of the proxy to subsets of the service without endpoints.
	Lost []ExplainedRoute `json:"lost,omitzero"`
	// Clusters are the clusters of the mesh.
	Clusters []ExplainedCluster `json:"clusters"`
}

// ExplainedRoute explains why requests on the routes of a VirtualService to a subset fail.
type ExplainedRoute struct {
	VirtualService string `json:"virtualService"` // namespace/name
	Subset         string `json:"subset"`
	Why            string `json:"why"`
}

// ExplainedPort explains how the proxy reaches the endpoints of one port.
type ExplainedPort struct {
	Port      uint32              `json:"port"`
	Name      string              `json:"name,omitzero"`
	Endpoints []ExplainedEndpoint `json:"endpoints"`
}

// ExplainedEndpoint explains how the proxy reaches one endpoint.
type ExplainedEndpoint struct {
	Address  string         `json:"address"` // ip:port
	Cluster  mesh.ClusterID `json:"cluster"`
	Network  mesh.NetworkID `json:"network,omitzero"`
	Locality string         `json:"locality,omitzero"`
	Pod      string         `json:"pod,omitzero"`
	Healthy  bool           `json:"healthy"`
	MTLS     bool           `json:"mtls"`
	Demoted  bool           `json:"demoted,omitzero"`
	// Gateways are the gateways on the way, ip:port; none means directly.
	Gateways []string `json:"gateways,omitzero"`
	// Obstacle is the reason why the proxy does not get the endpoint, Why its text.
	Obstacle endpoints.Obstacle `json:"obstacle,omitzero"`
	Why      string             `json:"why,omitzero"`
	// Passthrough is the reason why a gateway does not forward connections from other
	// networks to the endpoint by server name. It is empty if the gateway does, and for
	// sidecars.
	Passthrough endpoints.Obstacle `json:"passthrough,omitzero"`
}

// Omissions are endpoints that no proxy gets.
type Omissions struct {
	Number int                     `json:"number"`
	First  []facts.OmittedEndpoint `json:"first"`
}

// ExplainedCluster is a cluster of the mesh.
type ExplainedCluster struct {
	Cluster mesh.ClusterID `json:"cluster"`
	Network mesh.NetworkID `json:"network,omitzero"`
	// Service reports whether the cluster has a Service of the same name and namespace.
	Service bool `json:"service"`
}

// explainz explains how ?proxyID= reaches the endpoints of ?service=.
func (p *Pages) explainz(_ context.Context, q Query) (any, error) {
	service := q.Get("service")
	if service == "" {
		return nil, &Error{http.StatusBadRequest, "name a service, as ?service=name.namespace"}
	}
	return explainNewest(p, q, func(s *snapshot.Snapshot, n proxy.Node) *Explanation { return p.explain(s, n, service) })
}

// explainNewest explains the newest stream of ?proxyID= in each cluster, because a proxy name
// may exist in several clusters. proxyID is the whole name of a proxy or stream.
func explainNewest[E any](p *Pages, q Query, explain func(*snapshot.Snapshot, proxy.Node) E) ([]E, error) {
	s, err := p.snapshot()
	if err != nil {
		return nil, err
	}
	name := q.Get("proxyID")
	if name == "" {
		return nil, &Error{http.StatusBadRequest, noProxyID}
	}
	newest := map[mesh.ClusterID]*history.Proxy{}
	all := p.visible(q.Rights)
	for i := range all {
		x := &all[i]
		if x.ID != name && x.Node.ID.ProxyID() != name {
			continue
		}
		if was := newest[x.Node.Cluster]; was == nil || x.Connected.After(was.Connected) {
			newest[x.Node.Cluster] = x
		}
	}
	if len(newest) == 0 {
		return nil, &Error{http.StatusNotFound, NotConnected}
	}
	out := []E{}
	for _, id := range slices.Sorted(maps.Keys(newest)) {
		out = append(out, explain(s, newest[id].Node))
	}
	return out, nil
}

func explainedProxy(s *snapshot.Snapshot, n proxy.Node) ExplainedProxy {
	return ExplainedProxy{n.ID.ProxyID(), n.Cluster, xdsgen.NetworkOf(s, n)}
}

func (p *Pages) explain(s *snapshot.Snapshot, n proxy.Node, service string) *Explanation {
	out := &Explanation{ExplainedProxy: explainedProxy(s, n), Service: service, Clusters: []ExplainedCluster{}}
	svc := serviceNamed(s, service, n.Namespace)
	for id, network := range s.Networks.All() {
		out.Clusters = append(out.Clusters, ExplainedCluster{id, *network, svc != nil && svc.In(id) != nil})
	}
	if svc == nil {
		out.Missing = "no cluster has such a service" + nearService(s, service, n.Namespace)
		return out
	}
	out.Service = svc.Host
	if p.cfg.Conflicts != nil {
		for _, c := range p.cfg.Conflicts() {
			if c.Unused == svc.Host && slices.Contains(c.Clusters, n.Cluster) {
				out.Conflicts = append(out.Conflicts, c)
			}
		}
	}
	var omitted facts.Omitted
	if p.cfg.Omitted != nil {
		omitted = p.cfg.Omitted(svc.Key)
	}
	var ports []endpoints.PortReach
	ports, out.Missing = endpoints.ReachOf(s, n, svc)
	for _, port := range ports {
		shown := ExplainedPort{Port: port.Port.Number, Name: port.Port.Name, Endpoints: []ExplainedEndpoint{}}
		for _, r := range port.Endpoints {
			e := endpointOf(r)
			if cause := p.causeOf(e.Network); cause != "" && r.Obstacle == endpoints.ObstacleNoGateway {
				e.Why += ": " + cause
			}
			shown.Endpoints = append(shown.Endpoints, e)
		}
		out.Ports = append(out.Ports, shown)
	}
	for _, r := range xdsgen.LostRoutes(s, n, svc) {
		why := "no DestinationRule for " + svc.Host + " that applies to the proxy defines it"
		if r.Labels != nil {
			why = "no endpoint has its labels " + string(snapshot.SelectorOf(r.Labels))
		}
		out.Lost = append(out.Lost, ExplainedRoute{r.Namespace + "/" + r.Name, r.Subset, why + "; " + versions(s, svc)})
	}
	omitted = omitted.With(unnamed(s, svc))
	out.Omitted = Omissions{omitted.Number, omitted.First}
	return out
}

// versions lists the versions of the endpoints of a service, with their clusters.
func versions(s *snapshot.Snapshot, svc *snapshot.MeshService) string {
	in := map[string][]string{}
	for _, list := range s.Endpoints.Get(svc.Key).ByPort {
		for i := range list {
			e := &list[i]
			version := "endpoints without the label version"
			if v, ok := e.Label("version"); ok {
				version = "version=" + v
			}
			if !slices.Contains(in[version], string(e.Cluster)) {
				in[version] = append(in[version], string(e.Cluster))
			}
		}
	}
	var out []string
	for _, version := range slices.Sorted(maps.Keys(in)) {
		slices.Sort(in[version])
		out = append(out, version+" in "+strings.Join(in[version], ", "))
	}
	return "there are " + strings.Join(out, "; ")
}

// causeOf returns why other networks cannot reach a network, empty if they can.
func (p *Pages) causeOf(n mesh.NetworkID) string {
	if p.cfg.Unreachable == nil {
		return ""
	}
	for _, u := range p.cfg.Unreachable() {
		if u.Network == n {
			return u.Cause
		}
	}
	return ""
}

// unnamed returns the endpoints of ports that the service does not have.
func unnamed(s *snapshot.Snapshot, svc *snapshot.MeshService) []facts.OmittedEndpoint {
	endpoints := s.Endpoints.Get(svc.Key)
	if endpoints == nil {
		return nil
	}
	var out []facts.OmittedEndpoint
	for _, name := range slices.Sorted(maps.Keys(endpoints.ByPort)) {
		if slices.ContainsFunc(svc.Ports, func(p snapshot.ServicePort) bool { return p.Name == name }) {
			continue
		}
		for _, e := range endpoints.ByPort[name] {
			out = append(out, facts.OmittedEndpoint{
				Cluster: e.Cluster, Address: e.Address, Reason: fmt.Sprintf("it is of port %q, and the service has no port of that name", name),
			})
		}
	}
	return out
}

func endpointOf(r endpoints.Reach) ExplainedEndpoint {
	e := r.Endpoint
	out := ExplainedEndpoint{
		Address: cmp.Or(e.Target, netip.AddrPortFrom(e.Address, uint16(e.Port)).String()), Cluster: e.Cluster, Network: e.Network,
		Locality: e.Locality.String(), Pod: e.Pod, Healthy: e.Health == snapshot.Healthy, MTLS: e.MTLS, Demoted: e.Demoted,
		Obstacle: r.Obstacle, Why: r.Obstacle.String(), Passthrough: r.Passthrough,
	}
	for _, g := range r.Gateways {
		out.Gateways = append(out.Gateways, netip.AddrPortFrom(g.Address, uint16(g.Port)).String())
	}
	return out
}

// serviceNamed returns the service of a host, of name.namespace with or without .svc,
// or of a name in the namespace. It returns nil if there is none.
func serviceNamed(s *snapshot.Snapshot, named, namespace string) *snapshot.MeshService {
	host := strings.TrimSuffix(named, ".")
	if svc := s.Services.Get(host); svc != nil {
		return seenBy(s, svc, namespace)
	}
	words := strings.Split(host, ".")
	switch {
	case len(words) == 1:
		words = append(words, namespace)
	case len(words) > 3 || len(words) == 3 && words[2] != "svc":
		return nil
	}
	return s.Services.Get(mesh.ServiceHost(words[0], words[1], s.Mesh.Domain))
}

// seenBy returns the service that a namespace sees of all services of a host, or the first
// one.
func seenBy(s *snapshot.Snapshot, first *snapshot.MeshService, namespace string) *snapshot.MeshService {
	if first.VisibleTo(namespace) {
		return first
	}
	for i := range first.Rivals {
		if other := s.Services.Get(first.Host + "/" + first.Rivals[i].Namespace); other != nil && other.VisibleTo(namespace) {
			return other
		}
	}
	return first
}

// nearService suggests a similar name, if there is one.
func nearService(s *snapshot.Snapshot, named, namespace string) string {
	if !strings.Contains(named, ".") {
		named += "." + namespace
	}
	var known []string
	for _, svc := range s.Services.All() {
		known = append(known, svc.Name+"."+svc.Namespace)
	}
	if near := output.NearestWord(named, known); near != "" {
		return ", did you mean " + near + "?"
	}
	return ""
}
