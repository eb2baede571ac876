package registry

import (
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// keys returns the keys of all objects of a cluster that count.
func (s *state) keys(id mesh.ClusterID) []snapshot.Key {
	c := s.clusters[id]
	if c == nil {
		return nil
	}
	var out []snapshot.Key
	for n := range c.namespaces {
		out = append(out, snapshot.Key{Kind: snapshot.KindNamespace, Cluster: id, Name: n})
	}
	for n := range c.nodes {
		out = append(out, snapshot.Key{Kind: snapshot.KindNode, Cluster: id, Name: n})
	}
	out = appendKeys(out, snapshot.KindPod, id, c.pods)
	out = appendKeys(out, snapshot.KindService, id, c.services)
	out = appendKeys(out, snapshot.KindEndpointSlice, id, c.slices)
	out = appendKeys(out, snapshot.KindWorkloadEntry, id, c.entries)
	out = appendKeys(out, snapshot.KindSecret, id, c.secrets)
	out = appendKeys(out, snapshot.KindKubeGateway, id, c.gateways)
	if c.settings != nil {
		out = append(out, c.settings.Key())
	}
	if id == s.cfg.Local {
		out = appendKeys(out, snapshot.KindSidecar, id, s.sidecars)
		out = appendKeys(out, snapshot.KindPeerAuthentication, id, s.peerAuth)
		out = appendKeys(out, snapshot.KindEnvoyFilter, id, s.filters)
		out = appendKeys(out, snapshot.KindGateway, id, s.gateways)
		out = appendKeys(out, snapshot.KindConfigMap, id, s.configMaps)
	}
	return out
}

func appendKeys[V any](out []snapshot.Key, kind snapshot.Kind, id mesh.ClusterID, objects map[name]*V) []snapshot.Key {
	for n := range objects {
		out = append(out, snapshot.Key{Kind: kind, Cluster: id, Namespace: n.namespace, Name: n.name})
	}
	return out
}

// remove removes a cluster and its objects.
func (s *state) remove(id mesh.ClusterID) {
	if s.clusters[id] == nil {
		return
	}
	for _, k := range s.keys(id) {
		s.apply(snapshot.Event{Key: k})
	}
	delete(s.clusters, id)
	s.dirty.mesh = true // its network
}

// setBalancing sets the Balancing of a cluster and reports whether it changed. Weights
// are relative to other clusters, so it marks all endpoints.
func (s *state) setBalancing(id mesh.ClusterID, balancing snapshot.Balancing) bool {
	if s.balancing[id] == balancing {
		return false
	}
	s.balancing[id] = balancing
	if balancing == (snapshot.Balancing{}) {
		delete(s.balancing, id)
	}
	for _, c := range s.clusters {
		for n := range c.services {
			s.dirty.endpoints.add(n)
		}
	}
	return true
}

// defaultWeight is the weight of endpoints in percent in a cluster without a weight.
const defaultWeight = 100

// weights returns the weights of endpoints, divided by their greatest common divisor.
// others is the weight in the clusters that are not in the map; 0 means 1.
func (s *state) weights() (of map[mesh.ClusterID]uint32, others uint32) {
	divisor := uint32(defaultWeight)
	for _, balancing := range s.balancing {
		if balancing.Weight != 0 {
			divisor = gcd(divisor, balancing.Weight)
		}
	}
	if divisor != defaultWeight {
		others = defaultWeight / divisor
	}
	of = make(map[mesh.ClusterID]uint32)
	for id, balancing := range s.balancing {
		if balancing.Weight != 0 && balancing.Weight != defaultWeight {
			of[id] = balancing.Weight / divisor
		}
	}
	return of, others
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
