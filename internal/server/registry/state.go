package registry

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// name holds the namespace and name of an object of a known cluster, or of a service
// of the mesh.
type name struct{ namespace, name string }

// set is a set of keys.
type set[K comparable] map[K]struct{}

func (s set[K]) add(k K) { s[k] = struct{}{} }

// refs counts the references from names to keys.
type refs[K comparable] map[K]map[name]int

// change adds n references from v to the key.
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

// clusterState holds the objects of one cluster and their indexes.
type clusterState struct {
	id         mesh.ClusterID
	remote     bool // not the local cluster
	namespaces map[string]*snapshot.Namespace
	nodes      map[string]*snapshot.Node
	pods       map[name]*snapshot.Pod
	podsByIP   map[netip.Addr][]*snapshot.Pod // sorted by namespace and name; the first pod counts
	services   map[name]*snapshot.Service
	slices     map[name]*snapshot.EndpointSlice
	entries    map[name]*snapshot.WorkloadEntry
	secrets    map[name]*snapshot.Secret
	gateways   map[name]*snapshot.KubeGateway
	settings   *snapshot.MeshSettings

	slicesOf refs[name]       // service → its EndpointSlices
	byPod    refs[name]       // pod → services with endpoints that name it
	byIP     refs[netip.Addr] // address → services with an endpoint there; in the local cluster only endpoints without a pod name
	byNode   refs[string]     // node → services with endpoints that name it
	podsOn   refs[string]     // node → its pods

	entriesIn  map[string]set[name]     // namespace → its WorkloadEntries
	entriesAt  map[netip.Addr]set[name] // address → its WorkloadEntries
	servicesIn map[string]set[name]     // namespace → its services
}

// secretKey names a Secret of one cluster.
type secretKey struct {
	cluster mesh.ClusterID
	name    name
}

// dirty names the facts that must be recomputed.
type dirty struct {
	services   set[name]
	endpoints  set[name]
	addresses  set[netip.Addr] // cluster IPs; their services become dirty
	pods       set[snapshot.PodKey]
	entries    set[snapshot.PodKey]
	secrets    set[secretKey]
	configMaps set[name]
	namespaces set[string]
	filters    bool // duplicate extensions of EnvoyFilters
	mesh       bool // Mesh, and with it all services and endpoints
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

// backends summarizes the endpoints of a service.
type backends struct {
	accounts []string // SPIFFE ids, sorted
	allTLS   bool     // there are endpoints, all with TLSMode
	// allDirectTLS reports whether there are endpoints, all with DirectTLS.
	allDirectTLS bool
	// networks holds the known networks of the endpoints, sorted. It is empty for a
	// service that is reached only within its cluster or node.
	networks []mesh.NetworkID
}

// state holds all data of the registry's goroutine.
type state struct {
	cfg        Config
	clusters   map[mesh.ClusterID]*clusterState
	sidecars   map[name]*snapshot.Sidecar
	peerAuth   map[name]*snapshot.PeerAuthentication
	gateways   map[name]*snapshot.Gateway
	filters    map[name]*snapshot.EnvoyFilter
	configMaps map[name]*snapshot.ConfigMap // with CA certificates

	duplicates set[duplicateExtension]
	backends   map[name]backends
	aliases    aliases
	trust      *snapshot.TrustBundle
	balancing  map[mesh.ClusterID]snapshot.Balancing // without zero values
	health     map[healthReporter]snapshot.Condition
	// vips holds the Services that have each cluster IP.
	vips map[netip.Addr][]vipOwner
	// conflicts holds the conflicts that each service loses.
	conflicts map[name][]AddressConflict
	// gatewayIPs holds the addresses of gateways, including unused ones.
	gatewayIPs set[netip.Addr]
	// networks counts the services with endpoints in each network.
	networks map[mesh.NetworkID]int
	// faults holds the faults of the gateways of each network.
	faults map[mesh.NetworkID]*gatewayFaults
	// named holds the host names of gateways by cluster.
	named map[mesh.ClusterID]set[string]
	// hosts holds the addresses of host names; it is nil before the first answer.
	hosts  map[string][]netip.Addr
	report report
	dirty  dirty
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
		backends:   make(map[name]backends),
		aliases:    newAliases(),
		balancing:  make(map[mesh.ClusterID]snapshot.Balancing),
		health:     make(map[healthReporter]snapshot.Condition),
		vips:       make(map[netip.Addr][]vipOwner),
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

// cluster returns the state of a cluster, and adds the cluster if it is new.
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

// ordered returns the clusters in the order of precedence: the local one, then by id.
func (s *state) ordered() []*clusterState {
	out := make([]*clusterState, 0, len(s.clusters))
	for _, c := range s.clusters {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b *clusterState) int {
		switch {
		case a.remote == b.remote:
			return cmp.Compare(a.id, b.id)
		case b.remote:
			return -1
		}
		return 1
	})
	return out
}
