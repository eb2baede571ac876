package facts

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// clusterNetwork returns the network of a cluster: the label of its system namespace, else
// the network of the configuration, else the one to which meshNetworks assigns the cluster.
// It may be empty.
func (t *Tables) clusterNetwork(r *derive.Reads, id mesh.ClusterID) (mesh.NetworkID, bool) {
	if ns, ok := t.namespaces.Get(r, ObjectKey{id, "", t.Cfg.SystemNamespace}); ok && ns.Labels[mesh.LabelNetwork] != "" {
		return mesh.NetworkID(ns.Labels[mesh.LabelNetwork]), true
	}
	return cmp.Or(t.Cfg.Network[id], t.networkRules.Get(r).registry[id]), true
}

// networkOf returns the network of an endpoint: the pod's label, else the network of its
// cluster, else the one to which meshNetworks assigns its address. It returns "" if there is
// none.
func (t *Tables) networkOf(r *derive.Reads, c mesh.ClusterID, pod *snapshot.Pod, addr netip.Addr) mesh.NetworkID {
	if pod != nil && pod.Labels[mesh.LabelNetwork] != "" {
		return mesh.NetworkID(pod.Labels[mesh.LabelNetwork])
	}
	if n, _ := t.Networks.Get(r, c); n != "" {
		return n
	}
	return snapshot.NetworkAt(t.networkRules.Get(r).ranges, addr)
}

// networkRules holds the rules of meshNetworks that assign endpoints to networks.
type networkRules struct {
	registry map[mesh.ClusterID]mesh.NetworkID
	ranges   []snapshot.NetworkRange
}

// meshNetworks returns the rules in the local cluster's settings. If two networks
// claim a cluster or a range, the first by name gets it.
func (t *Tables) meshNetworks(r *derive.Reads) networkRules {
	out := networkRules{registry: make(map[mesh.ClusterID]mesh.NetworkID)}
	settings := t.networkSettings(r)
	for _, network := range slices.Sorted(maps.Keys(settings)) {
		for _, e := range settings[network].GetEndpoints() {
			id := mesh.NetworkID(network)
			if c := mesh.ClusterID(e.GetFromRegistry()); c != "" {
				if _, taken := out.registry[c]; !taken {
					out.registry[c] = id
				}
			}
			if p, err := netip.ParsePrefix(e.GetFromCidr()); err == nil {
				out.ranges = append(out.ranges, snapshot.NetworkRange{Prefix: p.Masked(), Network: id})
			}
		}
	}
	slices.SortStableFunc(out.ranges, func(a, b snapshot.NetworkRange) int { return cmp.Compare(b.Prefix.Bits(), a.Prefix.Bits()) })
	return out
}

func (t *Tables) networkSettings(r *derive.Reads) map[string]*meshv1alpha1.Network {
	if s := t.MeshSettings.Get(r); s != nil {
		return s.Networks.GetNetworks()
	}
	return nil
}

func (r networkRules) equal(other networkRules) bool {
	return maps.Equal(r.registry, other.registry) && slices.Equal(r.ranges, other.ranges)
}
