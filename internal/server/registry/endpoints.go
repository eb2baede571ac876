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

// endpoints rebuilds the endpoints of the dirty services. A service whose
// accounts changed with them becomes dirty itself.
func (b *builder) endpoints() {
	update := make(map[string]*snapshot.Endpoints)
	b.omitting = make(map[string]*Omitted)
	order := b.ordered()
	networks := b.meshNetworks()
	b.weight, b.usualWeight = b.weights()
	for n := range b.dirty.endpoints {
		host := mesh.ServiceHost(n.name, n.namespace, b.next.Mesh.Domain)
		eps, behind, omitted := b.endpointsOf(n, host, order, networks)
		b.omit(host, omitted)
		b.endpointNetworks(b.backing[n].networks, behind.networks)
		if was := b.backing[n]; was.allTLS != behind.allTLS || was.allDirectTLS != behind.allDirectTLS || !slices.Equal(was.accounts, behind.accounts) {
			b.dirty.services.add(n)
		}
		if b.backing[n] = behind; eps == nil {
			delete(b.backing, n)
		}
		old := b.next.Endpoints.Get(host)
		if old == nil && eps == nil || old != nil && eps != nil && equalEndpoints(old, eps) {
			continue
		}
		update[host] = eps
		b.changes.Endpoints[host] = struct{}{}
		if b.selectorless(n) {
			// Which pods it is for is decided by the endpoints alone.
			b.changes.Namespaces[n.namespace] = struct{}{}
		}
	}
	b.next.Endpoints = b.next.Endpoints.With(update)
	b.omitted = b.omitted.With(b.omitting)
}

// selectorless reports whether some cluster has the service without a
// selector.
func (b *builder) selectorless(n name) bool {
	for _, c := range b.clusters {
		if svc := c.services[n]; svc != nil && len(svc.Selector) == 0 {
			return true
		}
	}
	return false
}

// endpointsOf joins the endpoints of one service, nil when no cluster has the
// service, what is behind it, and what is left out.
func (b *builder) endpointsOf(n name, host string, order []*clusterState, networks networkRules) (*snapshot.Endpoints, backing, Omitted) {
	var first *snapshot.Service // of the cluster that decides
	var omitted Omitted
	out := &snapshot.Endpoints{Host: host, ByPort: make(map[string][]snapshot.Endpoint)}
	accounts := set[string]{}
	for _, c := range order {
		if c.services[n] == nil {
			continue
		}
		first = cmp.Or(first, c.services[n])
		omitted.join(b.clusterEndpoints(out, accounts, c, n, networks))
	}
	if first == nil {
		return nil, backing{}, Omitted{}
	}
	behind := backing{accounts: slices.Sorted(maps.Keys(accounts)), allTLS: len(out.ByPort) > 0, allDirectTLS: len(out.ByPort) > 0}
	if !snapshot.ClusterLocal(n.namespace, n.name) && !first.NodeLocal {
		behind.networks = networksOf(out)
	}
	for _, list := range out.ByPort {
		slices.SortFunc(list, func(x, y snapshot.Endpoint) int {
			return cmp.Or(cmp.Compare(x.Cluster, y.Cluster), x.Address.Compare(y.Address), cmp.Compare(x.Port, y.Port))
		})
		for i := range list {
			behind.allTLS = behind.allTLS && list[i].TLSMode
			behind.allDirectTLS = behind.allDirectTLS && list[i].DirectTLS
		}
	}
	return out, behind, omitted
}

// clusterEndpoints adds the endpoints that one cluster has for the service, and
// returns those that are left out.
func (b *builder) clusterEndpoints(
	out *snapshot.Endpoints, accounts set[string], c *clusterState, n name, networks networkRules,
) Omitted {
	j := joining{b, out, accounts, c, n, networks, set[spot]{}, Omitted{}}
	for _, sn := range slices.SortedFunc(maps.Keys(c.slicesOf[n]), func(x, y name) int { return cmp.Compare(x.name, y.name) }) {
		j.slice(c.slices[sn])
	}
	svc := c.services[n]
	for _, w := range c.selected(svc) {
		j.entry(svc, w)
	}
	return j.omitted
}

// joining gathers what one cluster has for a service.
type joining struct {
	*builder
	out      *snapshot.Endpoints
	accounts set[string]
	cluster  *clusterState
	service  name
	networks networkRules
	seen     set[spot]
	omitted  Omitted
}

// spot is where one port of a service is served.
type spot struct {
	port string
	addr netip.AddrPort
}

func (j *joining) slice(slice *snapshot.EndpointSlice) {
	for i := range slice.Endpoints {
		ep := &slice.Endpoints[i]
		if ep.Terminating {
			j.omitted.add(j.cluster.id, ep, OmittedTerminating)
			continue
		}
		pod := j.cluster.podOf(slice.Namespace, ep)
		if pod == nil && ep.Pod != "" {
			j.omitted.add(j.cluster.id, ep, OmittedNoPod)
			continue // comes back when its pod is known
		}
		for _, addr := range ep.Addresses {
			e := j.endpoint(ep, pod, addr)
			if j.isHostile(&e) {
				continue
			}
			for _, port := range slice.Ports {
				j.add(e, port.Name, port.Number, pod)
			}
		}
		if pod != nil && pod.ServiceAccount != "" {
			j.account(j.accounts, j.cluster, pod)
		}
	}
}

// isHostile reports whether an endpoint is one that the cluster may not have.
func (j *joining) isHostile(e *snapshot.Endpoint) bool {
	if !j.takesLocal(j.cluster, e.Address, e.Network) {
		return false
	}
	j.omitted.addOne(OmittedEndpoint{j.cluster.id, e.Address, OmittedTakesLocal})
	j.cfg.Log.Warn("endpoint of another cluster has the address of a service of this one: it is not used",
		"cluster", j.cluster.id, "service", j.service.namespace+"/"+j.service.name, "address", e.Address.String())
	return true
}

// add enters the endpoint of a port, whose number decides about mTLS. The pod may
// be nil.
func (j *joining) add(e snapshot.Endpoint, port string, number uint32, pod *snapshot.Pod) {
	at := spot{port, netip.AddrPortFrom(e.Address, uint16(number))}
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

// account adds the SPIFFE ids of the pod: its own and those of the aliases.
func (b *builder) account(accounts set[string], c *clusterState, pod *snapshot.Pod) {
	id := mesh.Identity{TrustDomain: b.trustDomainOf(c), Namespace: pod.Namespace, ServiceAccount: pod.ServiceAccount}
	accounts.add(id.String())
	for _, alias := range b.next.Mesh.Aliases {
		id.TrustDomain = alias
		accounts.add(id.String())
	}
}

// podOf finds the pod behind an endpoint: the one it names, else the one with
// its address.
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

// endpoint is what all ports of an endpoint have in common. The pod may be nil.
func (j *joining) endpoint(ep *snapshot.SliceEndpoint, pod *snapshot.Pod, addr netip.Addr) snapshot.Endpoint {
	c := j.cluster
	e := snapshot.Endpoint{
		Address: addr, Cluster: c.id,
		Network:  j.networkOf(c, pod, addr, j.networks),
		Locality: c.localityOf(ep, pod),
		Hostname: ep.Hostname,
		Drained:  j.balancing[c.id].Drained, Demoted: j.balancing[c.id].Demoted, Weight: j.usualWeight,
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

// workload renders Istio's endpoint metadata; revision "latest" is written
// empty there.
func workload(c mesh.ClusterID, pod *snapshot.Pod) string {
	canonical := cmp.Or(pod.Labels[mesh.LabelCanonicalName], pod.Labels["app.kubernetes.io/name"], pod.Labels["app"], pod.Workload)
	revision := cmp.Or(pod.Labels[mesh.LabelCanonicalRevision], pod.Labels["app.kubernetes.io/version"], pod.Labels["version"])
	if revision == "latest" {
		revision = ""
	}
	return strings.Join([]string{pod.Workload, pod.Namespace, canonical, revision, string(c)}, ";")
}

// localityOf is the pod's own label, else the node's labels, else the zone
// that the slice names.
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
