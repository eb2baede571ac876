package facts

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
)

// isLocalVIP reports whether a Service of the local cluster has the address.
func (t *Tables) isLocalVIP(r *derive.Reads, addr netip.Addr) bool {
	for k := range t.servicesAt.Lookup(r, addr) {
		if k.Cluster == t.Cfg.Local {
			return true
		}
	}
	return false
}

// takesLocalAddress reports whether an endpoint of a remote cluster has the cluster IP
// of a local Service, and proxies would call it directly: the calls would reach the
// local Service. Proxies of an unknown network also call a network without gateways
// directly.
func (t *Tables) takesLocalAddress(r *derive.Reads, c mesh.ClusterID, addr netip.Addr, network mesh.NetworkID) bool {
	if c == t.Cfg.Local || !t.isLocalVIP(r, addr) {
		return false
	}
	local, _ := t.Networks.Get(r, t.Cfg.Local)
	return network == local || len(t.MeshGateways.Get(r).For(network, c)) == 0
}
