package registry

import (
	"cmp"
	"net/netip"
	"reflect"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// name is namespace and name of an object within one cluster, or of a service
// of the mesh.
type name struct{ namespace, name string }

// set is a set of keys.
type set[K comparable] map[K]struct{}

func (s set[K]) add(k K) { s[k] = struct{}{} }

// refs counts how often a key is referred to by each name.
type refs[K comparable] map[K]map[name]int

// change adds n references of v to the key.
func (r refs[K]) change(k K, v name, n int) {
	e := r[k]
	if e == nil {
		e = make(map[name]int)
		r[k] = e
	}
	if e[v] += n; e[v] <= 0 {
		delete(e, v)
	}
	if len(e) == 0 {
		delete(r, k)
	}
}

// clusterState are the objects of one cluster and the indexes over them.
type clusterState struct {
	id         mesh.ClusterID
	remote     bool // it is not the local one
	namespaces map[string]*snapshot.Namespace
	nodes      map[string]*snapshot.Node
	pods       map[name]*snapshot.Pod
	podsByIP   map[netip.Addr][]*snapshot.Pod // by namespace and name: the first counts
	services   map[name]*snapshot.Service
	slices     map[name]*snapshot.EndpointSlice
	entries    map[name]*snapshot.WorkloadEntry
	secrets    map[name]*snapshot.Secret
	gateways   map[name]*snapshot.KubeGateway
	settings   *snapshot.MeshSettings

	slicesOf refs[name]       // service → its slices
	byPod    refs[name]       // pod → services whose slices name it
	byIP     refs[netip.Addr] // address without a pod name, of remote clusters any → services
	byNode   refs[string]     // node → services with an endpoint there
	podsOn   refs[string]     // node → its pods

	entriesIn  map[string]set[name] // namespace → its entries
	entriesAt  map[netip.Addr]set[name]
	servicesIn map[string]set[name] // namespace → its services
}

// secretKey names a secret of one cluster.
type secretKey struct {
	cluster mesh.ClusterID
	name    name
}

// dirty names what a batch of events may have changed.
type dirty struct {
	services   set[name] // MeshService and endpoints
	endpoints  set[name]
	addresses  set[netip.Addr] // of services
	pods       set[snapshot.PodKey]
	entries    set[snapshot.PodKey]
	secrets    set[secretKey]
	configMaps set[name]
	namespaces set[string]
	filters    bool // EnvoyFilters
	mesh       bool // Mesh, and all services and endpoints with it
	gateways   bool
	configs    bool // GatewayConfigs
}

func newDirty() dirty {
	return dirty{
		secrets: set[secretKey]{}, configMaps: set[name]{},
		services: set[name]{}, endpoints: set[name]{}, addresses: set[netip.Addr]{},
		pods: set[snapshot.PodKey]{}, entries: set[snapshot.PodKey]{}, namespaces: set[string]{},
	}
}

// backing is what a service tells of the pods behind it.
type backing struct {
	accounts []string // SPIFFE ids, sorted
	allTLS   bool     // there are endpoints, all with the tlsMode label
	// allDirectTLS: there are endpoints, all with DirectTLS.
	allDirectTLS bool
	// networks are the known ones of the endpoints, sorted; none of a service that
	// is reached only within its own cluster or node.
	networks []mesh.NetworkID
}

// state is everything the registry's goroutine owns.
type state struct {
	cfg      Config
	clusters map[mesh.ClusterID]*clusterState
	sidecars map[name]*snapshot.Sidecar
	peerAuth map[name]*snapshot.PeerAuthentication
	gateways map[name]*snapshot.Gateway
	filters  map[name]*snapshot.EnvoyFilter
	// configMaps are those with CA certificates.
	configMaps map[name]*snapshot.ConfigMap
	claims     set[claim] // those that were told of
	double     func(lines []string)
	backing    map[name]backing
	aliases    aliases
	trust      *snapshot.TrustBundle
	standing   map[mesh.ClusterID]snapshot.Standing // those that are not zero
	said       map[saidBy]snapshot.Condition        // of WorkloadEntries
	// vips are the Services of each address. One of the local cluster is no other
	// cluster's to have. heldGateways are the addresses of gateways, used or not.
	vips map[netip.Addr][]holder
	// conflicts are those that services lose, conflictList all of them, not written
	// again once it is published.
	conflicts    map[name][]AddressConflict
	conflictList []AddressConflict
	heldGateways set[netip.Addr]
	refused      map[mesh.ClusterID]RefusedGateways // not written again once it is published
	// networks counts the services that have endpoints in each network. faults are
	// those of its gateways.
	networks    map[mesh.NetworkID]int
	faults      map[mesh.NetworkID]*gatewayFaults
	unreachable []UnreachableNetwork // not written again once it is published
	// omitted are those of services that have any, by host.
	omitted *snapshot.Table[string, Omitted]
	// named are the host names of gateways by cluster, hosts what they stand for,
	// nil before the first answer.
	named map[mesh.ClusterID]set[string]
	hosts map[string][]netip.Addr
	dirty dirty
}

func newState(cfg Config) *state {
	s := &state{
		cfg:        cfg,
		clusters:   make(map[mesh.ClusterID]*clusterState),
		sidecars:   make(map[name]*snapshot.Sidecar),
		peerAuth:   make(map[name]*snapshot.PeerAuthentication),
		gateways:   make(map[name]*snapshot.Gateway),
		filters:    make(map[name]*snapshot.EnvoyFilter),
		configMaps: make(map[name]*snapshot.ConfigMap),
		backing:    make(map[name]backing),
		aliases:    newAliases(),
		standing:   make(map[mesh.ClusterID]snapshot.Standing),
		said:       make(map[saidBy]snapshot.Condition),
		vips:       make(map[netip.Addr][]holder),
		conflicts:  make(map[name][]AddressConflict),
		networks:   make(map[mesh.NetworkID]int),
		dirty:      newDirty(),
	}
	s.dirty.mesh, s.dirty.gateways, s.dirty.configs = true, true, true
	for _, c := range cfg.Clusters {
		s.cluster(c)
	}
	return s
}

func (s *state) cluster(id mesh.ClusterID) *clusterState {
	c := s.clusters[id]
	if c == nil {
		c = &clusterState{
			id:         id,
			remote:     id != s.cfg.Local,
			namespaces: make(map[string]*snapshot.Namespace),
			nodes:      make(map[string]*snapshot.Node),
			pods:       make(map[name]*snapshot.Pod),
			podsByIP:   make(map[netip.Addr][]*snapshot.Pod),
			services:   make(map[name]*snapshot.Service),
			slices:     make(map[name]*snapshot.EndpointSlice),
			entries:    make(map[name]*snapshot.WorkloadEntry),
			secrets:    make(map[name]*snapshot.Secret),
			gateways:   make(map[name]*snapshot.KubeGateway),
			slicesOf:   make(refs[name]),
			byPod:      make(refs[name]),
			byIP:       make(refs[netip.Addr]),
			byNode:     make(refs[string]),
			podsOn:     make(refs[string]),
			entriesIn:  make(map[string]set[name]),
			entriesAt:  make(map[netip.Addr]set[name]),
			servicesIn: make(map[string]set[name]),
		}
		s.clusters[id] = c
		s.dirty.mesh = true // its network
	}
	return c
}

// ordered are the clusters in the order in which they decide: the local one,
// then by id.
func (s *state) ordered() []*clusterState {
	out := make([]*clusterState, 0, len(s.clusters))
	for _, c := range s.clusters {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *clusterState) int {
		if (a.id == s.cfg.Local) != (b.id == s.cfg.Local) {
			if a.id == s.cfg.Local {
				return -1
			}
			return 1
		}
		return cmp.Compare(a.id, b.id)
	})
	return out
}

// apply takes one event into the indexes and marks what it may change.
func (s *state) apply(e snapshot.Event) {
	c := s.cluster(e.Key.Cluster)
	n := name{e.Key.Namespace, e.Key.Name}
	switch e.Key.Kind {
	case snapshot.KindNamespace:
		ns := as[*snapshot.Namespace](e)
		if e.Key.Name == s.cfg.SystemNamespace && networkLabel(ns) != networkLabel(c.namespaces[e.Key.Name]) {
			s.dirty.mesh = true
		}
		put(c.namespaces, e.Key.Name, ns)
	case snapshot.KindNode:
		s.applyNode(c, e.Key.Name, as[*snapshot.Node](e))
	case snapshot.KindPod:
		if pod := as[*snapshot.Pod](e); differs(c.pods, n, pod) {
			s.applyPod(c, n, pod)
		}
	case snapshot.KindService:
		if svc := as[*snapshot.Service](e); differs(c.services, n, svc) {
			s.applyService(c, n, svc)
		}
	case snapshot.KindEndpointSlice:
		if slice := as[*snapshot.EndpointSlice](e); differs(c.slices, n, slice) {
			s.applySlice(c, n, slice)
		}
	case snapshot.KindWorkloadEntry:
		s.applyEntry(c, n, as[*snapshot.WorkloadEntry](e))
	case snapshot.KindSecret:
		if secret := as[*snapshot.Secret](e); differs(c.secrets, n, secret) {
			put(c.secrets, n, secret)
			s.dirty.secrets.add(secretKey{c.id, n})
		}
	case snapshot.KindKubeGateway:
		if g := as[*snapshot.KubeGateway](e); differs(c.gateways, n, g) {
			put(c.gateways, n, g)
			s.dirty.gateways = true
		}
	case snapshot.KindMeshSettings:
		settings := as[*snapshot.MeshSettings](e)
		if !equalSettings(c.settings, settings) {
			s.dirty.mesh = true
		}
		c.settings = settings
	default:
		if e.Key.Cluster == s.cfg.Local {
			s.applyConfig(n, e)
		}
	}
}

// as is the object of an event, nil when it is gone.
func as[O snapshot.Object](e snapshot.Event) O {
	o, _ := e.Object.(O)
	return o
}

func put[K comparable, V any](m map[K]*V, k K, v *V) {
	if v == nil {
		delete(m, k)
		return
	}
	m[k] = v
}

// differs reports whether v is news. A list that is read again has nearly all
// objects as they were, and many changes are of what no object of ours has.
func differs[K comparable, V any](m map[K]*V, k K, v *V) bool { return !reflect.DeepEqual(m[k], v) }

func networkLabel(ns *snapshot.Namespace) string {
	if ns == nil {
		return ""
	}
	return ns.Labels[mesh.LabelNetwork]
}

func equalSettings(a, b *snapshot.MeshSettings) bool {
	if a == nil || b == nil {
		return a == b
	}
	return proto.Equal(a.Mesh, b.Mesh) && proto.Equal(a.Networks, b.Networks)
}

// applyNode marks the services with endpoints on a node whose locality changed.
func (s *state) applyNode(c *clusterState, id string, node *snapshot.Node) {
	old := c.nodes[id]
	put(c.nodes, id, node)
	if (old == nil) == (node == nil) && (old == nil || old.Locality == node.Locality) {
		return
	}
	s.touchAll(c.byNode[id])
	for pod := range c.podsOn[id] {
		s.touchAll(c.byPod[pod])
		for _, ip := range c.pods[pod].IPs {
			s.touchAll(c.byIP[ip])
		}
	}
}

func (s *state) touchAll(services map[name]int) {
	for n := range services {
		s.dirty.endpoints.add(n)
	}
}

func (s *state) applyPod(c *clusterState, n name, pod *snapshot.Pod) {
	if old := c.pods[n]; old != nil {
		c.podsOn.change(old.Node, n, -1)
		for _, ip := range old.IPs {
			c.leave(ip, old)
			s.touchAll(c.byIP[ip])
		}
	}
	put(c.pods, n, pod)
	if pod != nil {
		c.podsOn.change(pod.Node, n, 1)
	}
	if pod != nil && !pod.HostNetwork {
		for _, ip := range pod.IPs {
			c.enter(ip, pod)
			s.touchAll(c.byIP[ip])
		}
	}
	s.touchAll(c.byPod[n])
	s.dirty.pods.add(snapshot.PodKey{Cluster: c.id, Namespace: n.namespace, Name: n.name})
}

// enter takes the pod among those with the address. While a pod is replaced by
// one of its address, both may be there.
func (c *clusterState) enter(ip netip.Addr, pod *snapshot.Pod) {
	list := c.podsByIP[ip]
	i, _ := slices.BinarySearchFunc(list, pod, func(a, b *snapshot.Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	c.podsByIP[ip] = slices.Insert(list, i, pod)
}

func (c *clusterState) leave(ip netip.Addr, pod *snapshot.Pod) {
	list := slices.DeleteFunc(c.podsByIP[ip], func(p *snapshot.Pod) bool { return p == pod })
	if len(list) == 0 {
		delete(c.podsByIP, ip)
		return
	}
	c.podsByIP[ip] = list
}

func (s *state) applyService(c *clusterState, n name, svc *snapshot.Service) {
	for _, o := range []*snapshot.Service{c.services[n], svc} {
		if o != nil && (o.Labels[mesh.LabelNetwork] != "" || s.namedGateway(n)) {
			s.dirty.gateways = true
		}
	}
	s.release(c, n, c.services[n])
	s.hold(c, n, svc)
	put(c.services, n, svc)
	for _, other := range s.clusters { // where the service may get or lose addresses
		if same := other.services[n]; same != nil {
			for _, vip := range same.VIPs {
				s.dirty.addresses.add(vip)
			}
		}
	}
	within(c.servicesIn, n.namespace, n, svc != nil)
	s.dirty.services.add(n)
	s.dirty.endpoints.add(n)
}

func (s *state) applySlice(c *clusterState, n name, slice *snapshot.EndpointSlice) {
	if old := c.slices[n]; old != nil {
		c.index(n, old, -1)
		s.dirty.endpoints.add(serviceOf(old))
	}
	put(c.slices, n, slice)
	if slice != nil {
		c.index(n, slice, 1)
		s.dirty.endpoints.add(serviceOf(slice))
	}
}

func serviceOf(e *snapshot.EndpointSlice) name { return name{e.Namespace, e.Service} }

// index enters a slice into the reverse indexes (by is 1) or takes it out
// (by is -1).
func (c *clusterState) index(n name, e *snapshot.EndpointSlice, by int) {
	svc := serviceOf(e)
	c.slicesOf.change(svc, n, by)
	for _, ep := range e.Endpoints {
		if ep.Pod != "" {
			c.byPod.change(name{e.Namespace, ep.Pod}, svc, by)
		}
		if ep.Pod == "" || c.remote {
			for _, a := range ep.Addresses {
				c.byIP.change(a, svc, by)
			}
		}
		if ep.Node != "" {
			c.byNode.change(ep.Node, svc, by)
		}
	}
}

func (s *state) applyConfig(n name, e snapshot.Event) {
	switch e.Key.Kind {
	case snapshot.KindSidecar:
		put(s.sidecars, n, as[*snapshot.Sidecar](e))
		s.dirty.namespaces.add(n.namespace)
	case snapshot.KindPeerAuthentication:
		put(s.peerAuth, n, as[*snapshot.PeerAuthentication](e))
		s.dirty.namespaces.add(n.namespace)
	case snapshot.KindEnvoyFilter:
		put(s.filters, n, as[*snapshot.EnvoyFilter](e))
		s.dirty.namespaces.add(n.namespace)
		s.dirty.filters = true
	case snapshot.KindConfigMap:
		put(s.configMaps, n, as[*snapshot.ConfigMap](e))
		s.dirty.configMaps.add(n)
	case snapshot.KindGateway:
		put(s.gateways, n, as[*snapshot.Gateway](e))
		s.dirty.configs = true
	}
}
