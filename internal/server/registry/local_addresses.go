package registry

import (
	"net/netip"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
)

// isLocalVIP reports whether a Service of the local cluster has the address.
func (t *tables) isLocalVIP(r *derive.Reads, addr netip.Addr) bool {
	for k := range t.servicesAt.Lookup(r, addr) {
		if k.cluster == t.cfg.Local {
			return true
		}
	}
	return false
}

// takesLocalAddress reports whether an endpoint of a remote cluster has the cluster IP
// of a local Service, and proxies would call it directly: the calls would reach the
// local Service. Proxies of an unknown network also call a network without gateways
// directly.
func (t *tables) takesLocalAddress(r *derive.Reads, c mesh.ClusterID, addr netip.Addr, network mesh.NetworkID) bool {
	if c == t.cfg.Local || !t.isLocalVIP(r, addr) {
		return false
	}
	local, _ := t.networks.Get(r, t.cfg.Local)
	return network == local || len(t.meshGateways.Get(r).For(network, c)) == 0
}
