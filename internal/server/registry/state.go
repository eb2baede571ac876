package registry

import (
	"cmp"
	"net/netip"
	"slices"

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
	balancing  map[mesh.ClusterID]snapshot.Balancing // those that are not zero
	said       map[saidBy]snapshot.Condition         // of WorkloadEntries
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
		balancing:  make(map[mesh.ClusterID]snapshot.Balancing),
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
