package registry

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// endpoints recomputes the endpoints of dirty services. It marks services whose own
// facts depend on a change of their endpoints.
func (b *builder) endpoints() {
	update := make(map[string]*snapshot.Endpoints)
	b.newOmitted = make(map[string]*Omitted)
	networks := b.meshNetworks()
	b.weight, b.defaultWeight = b.weights()
	for n := range b.dirty.endpoints {
		host := mesh.ServiceHost(n.name, n.namespace, b.next.Mesh.Domain)
		eps, is, omitted := b.endpointsOf(n, host, networks)
		was := b.backends[n]
		b.noteOmitted(host, omitted)
		b.endpointNetworks(was.networks, is.networks)
		if was.allTLS != is.allTLS || was.allDirectTLS != is.allDirectTLS || !slices.Equal(was.accounts, is.accounts) {
			b.dirty.services.add(n)
		}
		if b.backends[n] = is; eps == nil {
			delete(b.backends, n)
		}
		old := b.next.Endpoints.Get(host)
		if old == nil && eps == nil || old != nil && eps != nil && equalEndpoints(old, eps) {
			continue
		}
		update[host] = eps
		b.changes.Endpoints[host] = struct{}{}
		if b.selectorless(n) {
			// Only the endpoints show which pods belong to the service.
			b.changes.Namespaces[n.namespace] = struct{}{}
		}
	}
	b.next.Endpoints = b.next.Endpoints.With(update)
	b.report.omitted = b.report.omitted.With(b.newOmitted)
}

// selectorless reports whether the Service of some cluster has no selector.
func (b *builder) selectorless(n name) bool {
	for _, c := range b.clusters {
		if svc := c.services[n]; svc != nil && len(svc.Selector) == 0 {
			return true
		}
	}
	return false
}

// endpointsOf joins the endpoints of one service in all clusters. It returns nil if no
// cluster has the service.
func (b *builder) endpointsOf(n name, host string, networks networkRules) (*snapshot.Endpoints, backends, Omitted) {
	first := b.decisive(n)
	if first == nil {
		return nil, backends{}, Omitted{}
	}
	out := &snapshot.Endpoints{Host: host, ByPort: make(map[string][]snapshot.Endpoint)}
	j := endpointCollector{builder: b, service: n, networks: networks, out: out, accounts: set[string]{}}
	for _, c := range b.order {
		if svc := c.services[n]; svc != nil {
			j.collect(c, svc)
		}
	}
	is := backends{accounts: slices.Sorted(maps.Keys(j.accounts)), allTLS: len(out.ByPort) > 0, allDirectTLS: len(out.ByPort) > 0}
	if !snapshot.ClusterLocal(n.namespace, n.name) && !first.NodeLocal {
		is.networks = networksOf(out)
	}
	for _, list := range out.ByPort {
		slices.SortFunc(list, func(x, y snapshot.Endpoint) int {
			return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), x.Address.Compare(y.Address), cmp.Compare(x.Port, y.Port))
		})
		for i := range list {
			is.allTLS = is.allTLS && list[i].TLSMode
			is.allDirectTLS = is.allDirectTLS && list[i].DirectTLS
		}
	}
	return out, is, j.omitted
}

// endpointCollector collects the endpoints of a service, cluster by cluster.
type endpointCollector struct {
	*builder
	service  name
	networks networkRules

	out      *snapshot.Endpoints
	accounts set[string]
	omitted  Omitted

	cluster *clusterState
	seen    set[portAddress] // in the cluster
}

// portAddress is an address of a service port.
type portAddress struct {
	port string
	addr netip.AddrPort
}

// collect adds the endpoints that a cluster has for its Service.
func (j *endpointCollector) collect(c *clusterState, svc *snapshot.Service) {
	j.cluster, j.seen = c, set[portAddress]{}
	for _, sn := range slices.SortedFunc(maps.Keys(c.slicesOf[j.service]), func(x, y name) int { return cmp.Compare(x.name, y.name) }) {
		j.slice(c.slices[sn])
	}
	for _, w := range c.selected(svc) {
		j.entry(svc, w)
	}
}

// slice adds the endpoints of an EndpointSlice.
func (j *endpointCollector) slice(slice *snapshot.EndpointSlice) {
	for i := range slice.Endpoints {
		ep := &slice.Endpoints[i]
		if ep.Terminating {
			j.omitted.add(j.cluster.id, ep, OmittedTerminating)
			continue
		}
		pod := j.cluster.podOf(slice.Namespace, ep)
		if pod == nil && ep.Pod != "" {
			j.omitted.add(j.cluster.id, ep, OmittedNoPod) // until the pod is known
			continue
		}
		for _, addr := range ep.Addresses {
			e := j.endpoint(ep, pod, addr)
			if j.refuses(&e) {
				continue
			}
			for _, port := range slice.Ports {
				j.add(e, port.Name, port.Number, pod)
			}
		}
		if pod != nil && pod.ServiceAccount != "" {
			j.account(pod)
		}
	}
}

// refuses reports whether an endpoint in a remote cluster has the address of a local
// service, and omits it then.
func (j *endpointCollector) refuses(e *snapshot.Endpoint) bool {
	if !j.takesLocalAddress(j.cluster, e.Address, e.Network) {
		return false
	}
	j.omitted.addOne(OmittedEndpoint{j.cluster.id, e.Address, OmittedTakesLocal})
	j.cfg.Log.Warn("endpoint of a remote cluster has the address of a local service: it is not used",
		"cluster", j.cluster.id, "service", j.service.namespace+"/"+j.service.name, "address", e.Address.String())
	return true
}

// add adds an endpoint for a port, unless the cluster has it already. The number of the
// port decides about mTLS. The pod may be nil.
func (j *endpointCollector) add(e snapshot.Endpoint, port string, number uint32, pod *snapshot.Pod) {
	at := portAddress{port, netip.AddrPortFrom(e.Address, uint16(number))}
	if _, dup := j.seen[at]; dup {
		return
	}
	j.seen.add(at)
	e.Port = number
	if e.TLSMode {
		root := j.next.Namespaces.Get(j.next.Mesh.RootNamespace)
		policy := snapshot.WorkloadMTLS(root, j.next.Namespaces.Get(j.service.namespace), pod.Labels)
		mode := policy.Port(number)
		e.MTLS = mode != snapshot.Disable
		e.DirectTLS = mode == snapshot.Strict || e.MTLS && pod.Proxyless
	}
	j.out.ByPort[port] = append(j.out.ByPort[port], e)
}

// account adds the SPIFFE ids of the pod, one for each trust domain.
func (j *endpointCollector) account(pod *snapshot.Pod) {
	id := mesh.Identity{TrustDomain: j.trustDomainOf(j.cluster), Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
	j.accounts.add(id.String())
	for _, alias := range j.next.Mesh.Aliases {
		id.TrustDomain = alias
		j.accounts.add(id.String())
	}
}

// podOf returns the pod that an endpoint names or, if it names none, the pod with its
// address. It returns nil if there is none.
func (c *clusterState) podOf(namespace string, ep *snapshot.SliceEndpoint) *snapshot.Pod {
	if ep.Pod != "" {
		return c.pods[name{namespace, ep.Pod}]
	}
	for _, a := range ep.Addresses {
		if pods := c.podsByIP[a]; len(pods) > 0 {
			return pods[0]
		}
	}
	return nil
}

// endpoint returns the fields that do not differ by port. The pod may be nil.
func (j *endpointCollector) endpoint(ep *snapshot.SliceEndpoint, pod *snapshot.Pod, addr netip.Addr) snapshot.Endpoint {
	c := j.cluster
	e := snapshot.Endpoint{
		Address: addr, Cluster: c.id,
		Network:  j.networkOf(c, pod, addr, j.networks),
		Locality: c.localityOf(ep, pod),
		Hostname: ep.Hostname,
		Drained:  j.balancing[c.id].Drained, Demoted: j.balancing[c.id].Demoted, Weight: j.defaultWeight,
	}
	if w, ok := j.weight[c.id]; ok {
		e.Weight = w
	}
	if !ep.Ready {
		e.Health = snapshot.Unhealthy
	}
	e.Node = ep.Node
	if pod != nil {
		e.Node = cmp.Or(pod.Node, ep.Node)
		e.Labels = pod.Labels
		e.TLSMode = pod.Labels[mesh.LabelTLSMode] == mesh.TLSModeIstio
		e.Workload = workload(c.id, pod)
		e.Pod = snapshot.PodKey{Cluster: c.id, Namespace: pod.Namespace, Name: pod.Name}.String()
	}
	return e
}

// workload returns the Workload of an endpoint. Istio's form leaves the revision
// "latest" out.
func workload(c mesh.ClusterID, pod *snapshot.Pod) string {
	canonical := cmp.Or(pod.Labels[mesh.LabelCanonicalName], pod.Labels["app.kubernetes.io/name"], pod.Labels["app"], pod.Workload)
	revision := cmp.Or(pod.Labels[mesh.LabelCanonicalRevision], pod.Labels["app.kubernetes.io/version"], pod.Labels["version"])
	if revision == "latest" {
		revision = ""
	}
	return strings.Join([]string{pod.Workload, pod.Namespace, canonical, revision, string(c)}, ";")
}

// localityOf returns the locality of the pod's label, else of the node, else the zone of
// the EndpointSlice.
func (c *clusterState) localityOf(ep *snapshot.SliceEndpoint, pod *snapshot.Pod) mesh.Locality {
	node := ep.Node
	if pod != nil {
		if l := pod.Labels[mesh.LabelLocality]; l != "" {
			return mesh.ParseLocality(strings.ReplaceAll(l, ".", "/"))
		}
		node = cmp.Or(pod.Node, node)
	}
	if n := c.nodes[node]; n != nil {
		return n.Locality
	}
	return mesh.Locality{Zone: ep.Zone}
}

func equalEndpoints(x, y *snapshot.Endpoints) bool {
	return maps.EqualFunc(x.ByPort, y.ByPort, func(l, r []snapshot.Endpoint) bool {
		return slices.EqualFunc(l, r, equalEndpoint)
	})
}

func equalEndpoint(x, y snapshot.Endpoint) bool {
	return x.Address == y.Address && x.Port == y.Port && x.Cluster == y.Cluster && x.Network == y.Network &&
		x.Locality == y.Locality && x.Health == y.Health && x.MTLS == y.MTLS && x.TLSMode == y.TLSMode && x.DirectTLS == y.DirectTLS &&
		x.Workload == y.Workload && x.Pod == y.Pod && x.Node == y.Node && x.Hostname == y.Hostname &&
		x.Drained == y.Drained && x.Demoted == y.Demoted && x.Weight == y.Weight && maps.Equal(x.Labels, y.Labels)
}
