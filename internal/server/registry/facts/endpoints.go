package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// hostEndpoints holds the endpoints of a host in all clusters.
type hostEndpoints struct {
	*snapshot.Endpoints
	Backends backends
	Omitted  Omitted
	// pods holds the addresses of the pods of a headless Service, which are in its namespace.
	pods []netip.Addr
}

func (h *hostEndpoints) equal(other *hostEndpoints) bool {
	return h.Backends.equal(other.Backends) && h.Omitted.equal(other.Omitted) && slices.Equal(h.pods, other.pods) && EqualEndpoints(h.Endpoints, other.Endpoints)
}

// backends summarizes the endpoints of a host.
type backends struct {
	accounts []string // SPIFFE ids, sorted
	allTLS   bool     // there are endpoints, all with TLSMode
	// allDirectTLS reports whether there are endpoints, all with DirectTLS.
	allDirectTLS bool
	// plainPorts holds the names of ports with an endpoint on which a PeerAuthentication
	// disables mTLS, sorted.
	plainPorts []string
	// networks holds the known networks of the endpoints, sorted. It is empty for a
	// service that is reached only within its cluster or node.
	networks []mesh.NetworkID
	// Selectorless reports whether the Service of some cluster has no selector, so that
	// only the endpoints show which pods belong to it.
	Selectorless bool
}

func (b backends) equal(other backends) bool {
	return b.allTLS == other.allTLS && b.allDirectTLS == other.allDirectTLS && b.Selectorless == other.Selectorless &&
		slices.Equal(b.accounts, other.accounts) && slices.Equal(b.plainPorts, other.plainPorts) && slices.Equal(b.networks, other.networks)
}

// join collects the endpoints of one host, cluster by cluster.
type join struct {
	*Tables
	r         *derive.Reads
	service   string                   // namespace/name, for logs
	root, own *snapshot.NamespaceFacts // policies

	out      *hostEndpoints
	accounts Set[string]

	cluster mesh.ClusterID
	domains []string // trust domains of the cluster's pods
	share   share
	seen    Set[portAddress] // in the cluster
	// expected is the number of endpoints that usually come for a port.
	expected int
}

// portAddress is an address of a service port.
type portAddress struct {
	port   string
	addr   netip.AddrPort
	target string
}

// Set is a set of keys.
type Set[K comparable] map[K]struct{}

// Add adds an element.
func (s Set[K]) Add(k K) { s[k] = struct{}{} }

// Has reports whether an element is in the set.
func (s Set[K]) Has(k K) bool {
	_, ok := s[k]
	return ok
}

// join joins the endpoints of the service with a key in all clusters.
func (t *Tables) join(r *derive.Reads, key string) (*hostEndpoints, bool) {
	d, host, _, ok := t.define(r, key)
	if !ok {
		return nil, false
	}
	meta := d.meta()
	j := &join{
		Tables: t, r: r, service: meta.Namespace + "/" + meta.Name, accounts: Set[string]{},
		out: &hostEndpoints{Endpoints: &snapshot.Endpoints{Service: key, ByPort: make(map[string][]snapshot.Endpoint)}},
	}
	j.root, j.own = t.mtlsPolicies(r, meta.Namespace)
	b := &j.out.Backends
	for _, svc := range d.services {
		b.Selectorless = b.Selectorless || len(svc.Selector) == 0
		j.collect(svc)
	}
	local := d.entry == nil && (t.isClusterLocal(r, host) || d.services[0].NodeLocal)
	if d.entry != nil {
		j.enter(d.entry.Cluster)
		d.eachEntry(func(e *snapshot.ServiceEntry, names []string) { j.collectEntry(host, e, names) })
	}
	byPort := j.out.ByPort
	b.accounts, b.allTLS, b.allDirectTLS = slices.Sorted(maps.Keys(j.accounts)), len(byPort) > 0, len(byPort) > 0
	j.out.Networks = networksOf(byPort)
	if !local {
		b.networks = j.out.Networks
	}
	for port, list := range byPort {
		slices.SortFunc(list, func(x, y snapshot.Endpoint) int {
			return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), x.Address.Compare(y.Address), cmp.Compare(x.Target, y.Target),
				cmp.Compare(x.Port, y.Port), cmp.Compare(x.Network, y.Network))
		})
		for i := range list {
			b.allTLS = b.allTLS && list[i].TLSMode
			b.allDirectTLS = b.allDirectTLS && list[i].DirectTLS
		}
		if slices.ContainsFunc(list, func(e snapshot.Endpoint) bool { return e.TLSMode && !e.MTLS }) {
			b.plainPorts = append(b.plainPorts, port)
		}
	}
	slices.Sort(b.plainPorts)
	return j.out, true
}

// enter starts with the endpoints of a cluster.
func (j *join) enter(c mesh.ClusterID) {
	j.cluster, j.seen = c, Set[portAddress]{}
	j.domains, _ = j.trustDomains.Get(j.r, c)
	j.share, _ = j.shares.Get(j.r, c)
}

// collect adds the endpoints that a cluster has for its Service.
func (j *join) collect(svc *snapshot.Service) {
	c := svc.Cluster
	j.enter(c)
	for _, slice := range j.slicesOf.Lookup(j.r, ObjectKey{c, svc.Namespace, svc.Name}) {
		j.slice(slice, svc.Headless)
	}
	for _, w := range j.selected(j.r, svc) {
		j.entry(svc.Ports, portNames(svc.Ports), snapshot.ByEndpoints, w, svc.Headless)
	}
}

// slice adds the endpoints of an EndpointSlice of a Service, which may be headless.
func (j *join) slice(slice *snapshot.EndpointSlice, headless bool) {
	j.expected = len(slice.Endpoints)
	for i := range slice.Endpoints {
		ep := &slice.Endpoints[i]
		if ep.Terminating && !ep.Ready { // with publishNotReadyAddresses it is ready until it ends
			j.out.Omitted.add(j.cluster, ep, OmittedTerminating)
			continue
		}
		pod := j.podOf(slice.Namespace, ep)
		if pod == nil && ep.Pod != "" {
			j.out.Omitted.add(j.cluster, ep, OmittedNoPod) // until the pod is known
			continue
		}
		for _, addr := range ep.Addresses {
			e := j.endpoint(ep, pod, addr)
			if j.refuses(&e) {
				continue
			}
			e.Foreign = headless && j.isForeign(&e, pod, slice.Namespace)
			if headless && pod != nil && pod.Namespace == slice.Namespace && slices.Contains(pod.IPs, addr) {
				j.out.pods = append(j.out.pods, addr)
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
func (j *join) refuses(e *snapshot.Endpoint) bool {
	if !j.takesLocalAddress(j.r, j.cluster, e.Address, e.Network) {
		return false
	}
	j.out.Omitted.addOne(OmittedEndpoint{j.cluster, e.Address, OmittedTakesLocal})
	j.Cfg.Log.Warn("endpoint of a remote cluster has the address of a local service: it is not used",
		"cluster", j.cluster, "service", j.service, "address", e.Address.String())
	return true
}

// isForeign reports whether an endpoint has the address of a pod of another namespace, or of a pod of the
// local cluster for another cluster that shares its network. pod is the one of the endpoint, or nil.
func (j *join) isForeign(e *snapshot.Endpoint, pod *snapshot.Pod, namespace string) bool {
	if local, _ := j.Networks.Get(j.r, j.Cfg.Local); j.cluster != j.Cfg.Local && (e.Network == local || e.Network == "" || local == "") && j.podIn(j.r, j.Cfg.Local, e.Address) != nil {
		return true
	}
	if pod == nil || !slices.Contains(pod.IPs, e.Address) {
		pod = j.podAt(e.Address)
	}
	return pod != nil && pod.Namespace != namespace
}

// add adds an endpoint for a port, unless the cluster has it already. The number of the
// port decides about mTLS. The pod may be nil.
func (j *join) add(e snapshot.Endpoint, port string, number uint32, pod *snapshot.Pod) {
	if at := (portAddress{port, netip.AddrPortFrom(e.Address, uint16(number)), e.Target}); e.Address.IsValid() || e.Target != "" {
		if _, dup := j.seen[at]; dup {
			return
		}
		j.seen.Add(at)
	}
	e.Port = number
	if e.TLSMode {
		mode := snapshot.WorkloadMTLS(j.root, j.own, pod.Labels).Port(number)
		e.MTLS = mode != snapshot.Disable
		e.DirectTLS = mode == snapshot.Strict || e.MTLS && pod.Proxyless
	}
	list := j.out.ByPort[port]
	if list == nil {
		list = make([]snapshot.Endpoint, 0, j.expected)
	}
	j.out.ByPort[port] = append(list, e)
}

// account adds the SPIFFE ids of the pod, one for each trust domain.
func (j *join) account(pod *snapshot.Pod) {
	for _, domain := range j.domains {
		id := mesh.Identity{TrustDomain: domain, Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
		j.accounts.Add(id.String())
	}
}

// podOf returns the pod that an endpoint names or, if it names none, the pod with its
// address. It returns nil if there is none.
func (j *join) podOf(namespace string, ep *snapshot.SliceEndpoint) *snapshot.Pod {
	if ep.Pod != "" {
		pod, _ := j.Pods.Get(j.r, ObjectKey{j.cluster, namespace, ep.Pod})
		return pod
	}
	for _, a := range ep.Addresses {
		if pod := j.podAt(a); pod != nil {
			return pod
		}
	}
	return nil
}

// podAt returns the pod of the cluster with an address, or nil.
func (j *join) podAt(a netip.Addr) *snapshot.Pod { return j.podIn(j.r, j.cluster, a) }

// podIn returns the pod with an address in a cluster, or nil. In a cluster without pods, it records one
// read for all addresses.
func (t *Tables) podIn(r *derive.Reads, c mesh.ClusterID, a netip.Addr) *snapshot.Pod {
	if _, ok := t.withPods.Get(r, c); !ok {
		return nil
	}
	for _, pod := range t.podsAt.Lookup(r, clusterAddress{c, a}) {
		return pod
	}
	return nil
}

// clusterAddress is an address in a cluster.
type clusterAddress struct {
	cluster mesh.ClusterID
	address netip.Addr
}

// podAddresses indexes a pod by its addresses. Two pods may have one address for a moment,
// while one replaces the other; pods of the network of their node share its address.
func podAddresses(into []clusterAddress, k ObjectKey, p *snapshot.Pod) []clusterAddress {
	if p.HostNetwork {
		return into
	}
	for _, ip := range p.IPs {
		into = append(into, clusterAddress{k.Cluster, ip})
	}
	return into
}

// endpoint returns the fields that do not differ by port. The pod may be nil.
func (j *join) endpoint(ep *snapshot.SliceEndpoint, pod *snapshot.Pod, addr netip.Addr) snapshot.Endpoint {
	e := snapshot.Endpoint{
		Address: addr, Cluster: j.cluster,
		Network:  j.networkOf(j.r, j.cluster, pod, addr),
		Locality: j.localityOf(ep, pod),
		Hostname: ep.Hostname,
		Drained:  j.share.drained, Demoted: j.share.demoted, Weight: j.share.weight,
	}
	if !ep.Ready {
		e.Health = snapshot.Unhealthy
	}
	e.Node = ep.Node
	if pod != nil {
		e.Node = cmp.Or(pod.Node, ep.Node)
		e.Labels = pod.Labels
		e.TLSMode = pod.Labels[mesh.LabelTLSMode] == mesh.TLSModeIstio
		e.Workload = workload(j.cluster, pod)
		e.Pod = snapshot.PodKey{Cluster: j.cluster, Namespace: pod.Namespace, Name: pod.Name}.String()
	}
	return e
}

// workload returns the Workload of an endpoint. Istio's form leaves the revision
// "latest" out.
func workload(c mesh.ClusterID, pod *snapshot.Pod) string {
	revision := mesh.CanonicalRevision(pod.Labels)
	if revision == "latest" {
		revision = ""
	}
	return strings.Join([]string{pod.Workload, pod.Namespace, mesh.CanonicalName(pod.Labels, pod.Workload), revision, string(c)}, ";")
}

// localityOf returns the locality of the pod's labels, else of the node, else the zone of
// the EndpointSlice.
func (j *join) localityOf(ep *snapshot.SliceEndpoint, pod *snapshot.Pod) mesh.Locality {
	node := ep.Node
	if pod != nil {
		if l, ok := mesh.LocalityOfLabels(pod.Labels); ok {
			return l
		}
		node = cmp.Or(pod.Node, node)
	}
	if n, ok := j.Nodes.Get(j.r, ObjectKey{Cluster: j.cluster, Name: node}); ok {
		return n.Locality
	}
	return mesh.Locality{Zone: ep.Zone}
}

// EqualEndpoints reports whether the endpoints of a service are the same.
func EqualEndpoints(x, y *snapshot.Endpoints) bool {
	return maps.EqualFunc(x.ByPort, y.ByPort, func(l, r []snapshot.Endpoint) bool {
		return slices.EqualFunc(l, r, EqualEndpoint)
	})
}

// EqualEndpoint reports whether two endpoints are the same.
func EqualEndpoint(x, y snapshot.Endpoint) bool {
	return x.Address == y.Address && x.Target == y.Target && x.Port == y.Port && x.Cluster == y.Cluster && x.Network == y.Network &&
		x.Locality == y.Locality && x.Health == y.Health && x.MTLS == y.MTLS && x.TLSMode == y.TLSMode && x.DirectTLS == y.DirectTLS &&
		x.Workload == y.Workload && x.Pod == y.Pod && x.Node == y.Node && x.Hostname == y.Hostname && x.Foreign == y.Foreign &&
		x.Drained == y.Drained && x.Demoted == y.Demoted && x.Weight == y.Weight && maps.Equal(x.Labels, y.Labels)
}
