package checkcmd

import (
	"context"
	"fmt"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// addLinks adds what the remote secrets in APIs say about the clusters of the mesh.
func (o *analyzeOptions) addLinks(ctx context.Context, checks *analyze.Options, clusters []load.Cluster, m *load.Mesh) {
	links := map[mesh.ClusterID][]mesh.ClusterID{}
	for i := range clusters {
		c := &clusters[i]
		if c.Config == nil {
			continue
		}
		others, err := multicluster.OtherClusters(ctx, c.Config, c.ID, o.systemNamespace)
		if err != nil {
			m.Unread = append(m.Unread, fmt.Sprintf("cluster %s: %v", c.ID, err))
			continue
		}
		links[c.ID] = append([]mesh.ClusterID{}, others...)
	}
	checks.Links = func(id mesh.ClusterID) []mesh.ClusterID { return links[id] }
	if len(clusters) == 1 {
		checks.Unread = links[clusters[0].ID]
	}
}
