package clusters

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry/facts"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// SyncInfo is one cluster of /debug/clusterz, in the fields that istioctl
// remote-clusters reads.
type SyncInfo struct {
	ID         mesh.ClusterID `json:"id"`
	SecretName string         `json:"secretName"`
	SyncStatus string         `json:"syncStatus"`
}

// SyncInfos returns the page /debug/clusterz.
func (m *Manager) SyncInfos() []SyncInfo {
	list, _ := m.Status()
	out := make([]SyncInfo, 0, len(list))
	for _, c := range list {
		info := SyncInfo{ID: c.Cluster, SyncStatus: string(c.State)}
		if !c.Own {
			info.SecretName = c.Origin
		}
		if c.State == Lost { // Istio has no word for it
			info.SyncStatus = string(Synced)
		}
		out = append(out, info)
	}
	return out
}

// Page is /debug/clusters: all clusters as one control plane reads them.
type Page struct {
	Clusters []PageCluster
	Problems []Problem `json:",omitempty"`
	// UnreachableNetworks are networks whose endpoints proxies of other networks do
	// not get.
	UnreachableNetworks []facts.UnreachableNetwork `json:",omitempty"`
	// AddressConflicts are the first addresses that two Services share,
	// AddressConflictCount counts all of them.
	AddressConflicts     []facts.AddressConflict `json:",omitempty"`
	AddressConflictCount int                     `json:",omitempty"`
	// HostConflicts are the first hosts that several objects define, HostConflictCount
	// counts all of them.
	HostConflicts     []facts.HostConflict `json:",omitempty"`
	HostConflictCount int                  `json:",omitempty"`
}

// maxShownConflicts bounds AddressConflicts and HostConflicts.
const maxShownConflicts = 100

// PageCluster is the status of one cluster and its contribution to the mesh.
type PageCluster struct {
	Status
	Network  mesh.NetworkID `json:",omitempty"`
	Services int
	// Endpoints counts addresses of service ports.
	Endpoints int
	// Gateways are the addresses through which other networks reach the cluster.
	Gateways []string `json:",omitempty"`
	// RefusedGateways are the first gateway addresses of the cluster that are not
	// used, RefusedGatewayCount counts all of them.
	RefusedGateways     []facts.RefusedGateway `json:",omitempty"`
	RefusedGatewayCount int                    `json:",omitempty"`
}

// Page returns the page /debug/clusters.
func (m *Manager) Page() Page {
	list, problems := m.Status()
	r := m.cfg.Registry
	page := Page{Problems: problems, Clusters: make([]PageCluster, len(list)), UnreachableNetworks: r.UnreachableNetworks()}
	conflicts := r.AddressConflicts()
	page.AddressConflicts, page.AddressConflictCount = conflicts[:min(len(conflicts), maxShownConflicts)], len(conflicts)
	hosts := r.HostConflicts()
	page.HostConflicts, page.HostConflictCount = hosts[:min(len(hosts), maxShownConflicts)], len(hosts)
	byID := make(map[mesh.ClusterID]*PageCluster, len(list))
	for i := range list {
		page.Clusters[i].Status = list[i]
		byID[list[i].Cluster] = &page.Clusters[i]
	}
	if snap := r.Current(); snap != nil {
		contribute(snap, byID)
	}
	for id, refused := range r.RefusedGateways() {
		if c := byID[id]; c != nil {
			c.RefusedGateways, c.RefusedGatewayCount = refused.First, refused.Number
		}
	}
	return page
}

// contribute counts what each cluster adds to the snapshot.
func contribute(snap *snapshot.Snapshot, pages map[mesh.ClusterID]*PageCluster) {
	for id, page := range pages {
		page.Network = snap.NetworkOf(id)
	}
	for _, svc := range snap.Services.All() {
		runsControlPlane := snapshot.IsControlPlane(svc.Namespace, svc.Name, snap.Mesh.RootNamespace)
		for i := range svc.Clusters {
			page := pages[svc.Clusters[i].Cluster]
			if page == nil {
				continue
			}
			if page.Services++; runsControlPlane && !page.Own && len(svc.Clusters[i].Selector) > 0 {
				page.withoutCredentials()
			}
		}
	}
	for _, eps := range snap.Endpoints.All() {
		for _, list := range eps.ByPort {
			for i := range list {
				if page := pages[list[i].Cluster]; page != nil {
					page.Endpoints++
				}
			}
		}
	}
	for _, network := range slices.Sorted(maps.Keys(snap.Gateways.ByNetwork)) {
		for _, g := range snap.Gateways.ByNetwork[network] {
			if page := pages[g.Cluster]; page != nil {
				page.Gateways = append(page.Gateways, netip.AddrPortFrom(g.Address, uint16(g.Port)).String())
			}
		}
	}
}
