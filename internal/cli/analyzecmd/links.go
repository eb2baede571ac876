package analyzecmd

import (
	"context"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// addLinks adds what the remote secrets in APIs say about the clusters of the mesh, and returns why
// some remote secrets were not read.
func (o *analyzeOptions) addLinks(ctx context.Context, checks *analyze.Options, clusters []load.Cluster) []error {
	var apis []multicluster.API
	for i := range clusters {
		if c := &clusters[i]; c.Config != nil {
			apis = append(apis, multicluster.API{ID: c.ID, Config: c.Config})
		}
	}
	links, unread := multicluster.Links(ctx, apis, o.systemNamespace)
	checks.Links = func(id mesh.ClusterID) []mesh.ClusterID { return links[id] }
	for _, others := range links {
		for _, id := range others {
			if !slices.ContainsFunc(clusters, func(c load.Cluster) bool { return c.ID == id }) && !slices.Contains(checks.Unread, id) {
				checks.Unread = append(checks.Unread, id)
			}
		}
	}
	slices.Sort(checks.Unread)
	return unread
}
