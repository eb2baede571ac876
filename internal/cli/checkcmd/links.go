package checkcmd

import (
	"context"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// addLinks adds what the remote secrets in APIs say about the clusters of the mesh.
func (o *analyzeOptions) addLinks(ctx context.Context, checks *analyze.Options, clusters []load.Cluster, m *load.Mesh) {
	var apis []multicluster.API
	for i := range clusters {
		if c := &clusters[i]; c.Config != nil {
			apis = append(apis, multicluster.API{ID: c.ID, Config: c.Config})
		}
	}
	links, unread := multicluster.Links(ctx, apis, o.systemNamespace)
	m.Unread = append(m.Unread, unread...)
	checks.Links = func(id mesh.ClusterID) []mesh.ClusterID { return links[id] }
	if len(clusters) == 1 {
		checks.Unread = links[clusters[0].ID]
	}
}
