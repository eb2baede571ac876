package registry

import (
	"maps"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// clusterNetwork returns the network of a cluster: the label of its system namespace, else
// the network of the configuration, which may be empty.
func (t *tables) clusterNetwork(r *derive.Reads, id mesh.ClusterID) (mesh.NetworkID, bool) {
	if ns, ok := t.namespaces.Get(r, objectKey{id, "", t.cfg.SystemNamespace}); ok && ns.Labels[mesh.LabelNetwork] != "" {
		return mesh.NetworkID(ns.Labels[mesh.LabelNetwork]), true
	}
	return t.cfg.Network[id], true
}

// networkOf returns the network of an endpoint: the pod's label, else the network of
// its cluster, else the one that meshNetworks assigns. It returns "" if there is none.
func (t *tables) networkOf(r *derive.Reads, c mesh.ClusterID, pod *snapshot.Pod, addr netip.Addr) mesh.NetworkID {
	if pod != nil && pod.Labels[mesh.LabelNetwork] != "" {
		return mesh.NetworkID(pod.Labels[mesh.LabelNetwork])
	}
	if n, _ := t.networks.Get(r, c); n != "" {
		return n
	}
	rules := t.networkRules.Get(r)
	if n, ok := rules.registry[c]; ok {
		return n
	}
	for _, rule := range rules.cidrs {
		if rule.prefix.Contains(addr) {
			return rule.network
		}
	}
	return ""
}

// networkRules holds the rules of meshNetworks that assign endpoints to networks.
type networkRules struct {
	registry map[mesh.ClusterID]mesh.NetworkID
	cidrs    []cidrRule
}

type cidrRule struct {
	prefix  netip.Prefix
	network mesh.NetworkID
}

// meshNetworks returns the rules in the local cluster's settings. If two networks
// claim a cluster, the first by name gets it.
func (t *tables) meshNetworks(r *derive.Reads) networkRules {
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
				out.cidrs = append(out.cidrs, cidrRule{p.Masked(), id})
			}
		}
	}
	return out
}

func (t *tables) networkSettings(r *derive.Reads) map[string]*meshv1alpha1.Network {
	if s := t.meshSettings.Get(r); s != nil {
		return s.Networks.GetNetworks()
	}
	return nil
}

func (r networkRules) equal(other networkRules) bool {
	return maps.Equal(r.registry, other.registry) && slices.Equal(r.cidrs, other.cidrs)
}
