package server

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// clusterInfo is one cluster of /debug/clusterz, which has the fields that
// istioctl remote-clusters reads.
type clusterInfo struct {
	ID         mesh.ClusterID `json:"id"`
	SecretName string         `json:"secretName"`
	SyncStatus string         `json:"syncStatus"`
}

func (s *Server) clusterz() []clusterInfo {
	list, _ := s.sources.Status()
	out := make([]clusterInfo, 0, len(list))
	for _, c := range list {
		info := clusterInfo{ID: c.Cluster, SyncStatus: string(c.State)}
		if !c.Own {
			info.SecretName = c.Origin
		}
		if c.State == clusters.Lost { // Istio has no word for it
			info.SyncStatus = string(clusters.Synced)
		}
		out = append(out, info)
	}
	return out
}

// ClustersPage is /debug/clusters: all clusters as this control plane has them.
type ClustersPage struct {
	Clusters []ClusterPage
	Problems []clusters.Problem `json:",omitempty"`
}

// ClusterPage is one cluster: how it is read and what it contributes.
type ClusterPage struct {
	clusters.Status
	Network  mesh.NetworkID `json:",omitempty"`
	Services int
	// Endpoints are addresses of service ports.
	Endpoints int
	// Gateways are the addresses under which other networks reach it.
	Gateways []string `json:",omitempty"`
}

func (s *Server) clustersPage() ClustersPage {
	list, problems := s.sources.Status()
	page := ClustersPage{Problems: problems, Clusters: make([]ClusterPage, len(list))}
	byID := make(map[mesh.ClusterID]*ClusterPage, len(list))
	for i := range list {
		page.Clusters[i].Status = list[i]
		byID[list[i].Cluster] = &page.Clusters[i]
	}
	if snap := s.registry.Current(); snap != nil {
		contribute(snap, byID)
	}
	return page
}

// contribute counts what each cluster gives to the mesh.
func contribute(snap *snapshot.Snapshot, pages map[mesh.ClusterID]*ClusterPage) {
	for id, page := range pages {
		page.Network = snap.Mesh.Networks[id]
	}
	for _, svc := range snap.Services.All() {
		for i := range svc.Clusters {
			if page := pages[svc.Clusters[i].Cluster]; page != nil {
				page.Services++
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
