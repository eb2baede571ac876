package server

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/clusters"
	"github.com/meshctl/meshctl/internal/server/registry"
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
	// UnreachableNetworks are those whose endpoints proxies of other networks are
	// not given.
	UnreachableNetworks []registry.UnreachableNetwork `json:",omitempty"`
	// AddressConflicts are the first of the addresses that two Services have,
	// AddressConflictCount is how many there are.
	AddressConflicts     []registry.AddressConflict `json:",omitempty"`
	AddressConflictCount int                        `json:",omitempty"`
}

// maxShownConflicts is how many addresses that two Services have are shown.
const maxShownConflicts = 100

// ClusterPage is one cluster: how it is read and what it contributes.
type ClusterPage struct {
	clusters.Status
	Network  mesh.NetworkID `json:",omitempty"`
	Services int
	// Endpoints are addresses of service ports.
	Endpoints int
	// Gateways are the addresses under which other networks reach it.
	Gateways []string `json:",omitempty"`
	// RefusedGateways are the first of its addresses of gateways that are not
	// used, RefusedGatewayCount how many there are.
	RefusedGateways     []registry.RefusedGateway `json:",omitempty"`
	RefusedGatewayCount int                       `json:",omitempty"`
}

func (s *Server) clustersPage() ClustersPage {
	list, problems := s.sources.Status()
	page := ClustersPage{
		Problems: problems, Clusters: make([]ClusterPage, len(list)), UnreachableNetworks: s.registry.UnreachableNetworks(),
	}
	conflicts := s.registry.AddressConflicts()
	page.AddressConflicts, page.AddressConflictCount = conflicts[:min(len(conflicts), maxShownConflicts)], len(conflicts)
	byID := make(map[mesh.ClusterID]*ClusterPage, len(list))
	for i := range list {
		page.Clusters[i].Status = list[i]
		byID[list[i].Cluster] = &page.Clusters[i]
	}
	if snap := s.registry.Current(); snap != nil {
		contribute(snap, byID)
	}
	for id, refused := range s.registry.RefusedGateways() {
		if c := byID[id]; c != nil {
			c.RefusedGateways, c.RefusedGatewayCount = refused.First, refused.Number
		}
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

// gatewayMetrics tells how many addresses of gateways are not used.
type gatewayMetrics struct{ s *Server }

func (m gatewayMetrics) refused() *prometheus.Desc {
	return prometheus.NewDesc("meshctl_cluster_refused_gateways", "Addresses of gateways of a cluster that are not used.", []string{"cluster"}, nil)
}

// Describe implements prometheus.Collector.
func (m gatewayMetrics) Describe(to chan<- *prometheus.Desc) { to <- m.refused() }

// Collect implements prometheus.Collector.
func (m gatewayMetrics) Collect(to chan<- prometheus.Metric) {
	refused := m.s.registry.RefusedGateways()
	list, _ := m.s.sources.Status()
	for i := range list {
		number := refused[list[i].Cluster].Number
		to <- prometheus.MustNewConstMetric(m.refused(), prometheus.GaugeValue, float64(number), string(list[i].Cluster))
	}
}
