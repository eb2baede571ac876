package installcmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// readTimeout bounds the time to read the objects of the cluster.
const readTimeout = 30 * time.Second

// checkConfiguration returns the warnings and errors of analyze in and between clusters.
func (o *checkOptions) checkConfiguration(ctx context.Context, env *cli.Env, clusters []*checkedCluster, several bool) ([]apply.Finding, error) {
	ctx, stop := context.WithTimeout(ctx, readTimeout)
	defer stop()
	config := load.Config{SystemNamespace: o.values.namespace, Now: env.Now, Analysis: true}
	contexts := map[mesh.ClusterID]string{}
	var apis []multicluster.API
	for _, c := range clusters {
		config.Clusters = append(config.Clusters, load.Cluster{ID: c.id, Config: c.access.Config})
		contexts[c.id] = c.access.Context
		apis = append(apis, multicluster.API{ID: c.id, Config: c.access.Config})
	}
	m, err := load.Read(ctx, config)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("not all clusters were read within %s", readTimeout)
	} else if err != nil {
		return nil, err
	}
	links, unread := multicluster.Links(ctx, apis, o.values.namespace)
	checks := analyze.Options{
		Now: env.Now(), SecretsRead: func(string) bool { return false },
		Whole: func(mesh.ClusterID) bool { return true },
		Flags: func(id mesh.ClusterID) string { return o.kube.CommandFlags(contexts[id]) },
		Links: func(id mesh.ClusterID) []mesh.ClusterID { return links[id] },
	}
	if len(clusters) == 1 {
		checks.Unread = links[clusters[0].id]
	}
	views, err := m.Views(ctx)
	if err != nil {
		return nil, err
	}
	for _, text := range append(m.Unread, unread...) {
		env.Notef("not read: %s", text)
	}
	var out []apply.Finding
	for _, r := range analyze.Reports(analyze.Sort(append(analyze.OfAPIs(m.APIs), analyze.CheckClusters(views, checks)...))) {
		if !r.Level.AtLeast(analyze.Warning) {
			continue
		}
		f := apply.Finding{
			Level: apply.Level(r.Level), Object: cmp.Or(r.Origin, "the mesh"),
			Fault: strings.TrimSpace(string(r.Code) + " " + r.Text()), Hint: cmp.Or(r.Fix, analyze.KindOf(r.Code).Fix),
		}
		if several {
			f.Cluster = contexts[r.Cluster]
		}
		out = append(out, f)
	}
	return out, nil
}
