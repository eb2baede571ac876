package registry

import (
	"maps"
	"net/netip"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// networkOf returns the network of an endpoint: the pod's label, else the network of
// its cluster, else the one that meshNetworks assigns. It returns "" if there is none.
func (b *builder) networkOf(c *clusterState, pod *snapshot.Pod, addr netip.Addr, rules networkRules) mesh.NetworkID {
	if pod != nil && pod.Labels[mesh.LabelNetwork] != "" {
		return mesh.NetworkID(pod.Labels[mesh.LabelNetwork])
	}
	if n := b.next.Mesh.Networks[c.id]; n != "" {
		return n
	}
	if n, ok := rules.registry[c.id]; ok {
		return n
	}
	for _, r := range rules.cidrs {
		if r.prefix.Contains(addr) {
			return r.network
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
func (b *builder) meshNetworks() networkRules {
	out := networkRules{registry: make(map[mesh.ClusterID]mesh.NetworkID)}
	settings := b.networkSettings()
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

func (b *builder) networkSettings() map[string]*meshv1alpha1.Network {
	if s := b.local.settings; s != nil {
		return s.Networks.GetNetworks()
	}
	return nil
}
