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
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/load"
)

// readTimeout bounds the time to read the objects of the cluster.
const readTimeout = 30 * time.Second

// checkConfiguration returns the warnings and errors of analyze in the cluster.
func (o *checkOptions) checkConfiguration(ctx context.Context, env *cli.Env, access *kube.Access) ([]apply.Finding, error) {
	ctx, stop := context.WithTimeout(ctx, readTimeout)
	defer stop()
	id := mesh.ClusterID(cmp.Or(access.Context, "Kubernetes"))
	m, err := load.Read(ctx, load.Config{
		Clusters: []load.Cluster{{ID: id, Config: access.Config}}, SystemNamespace: o.values.namespace, Now: env.Now, Analysis: true,
	})
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("the cluster was not read within %s", readTimeout)
	} else if err != nil {
		return nil, err
	}
	others, err := multicluster.OtherClusters(ctx, access.Config, id, o.values.namespace)
	if err != nil {
		m.Unread = append(m.Unread, err.Error())
	}
	for _, text := range m.Unread {
		env.Notef("not read: %s", text)
	}
	found := analyze.Sort(append(analyze.OfAPIs(m.APIs), analyze.Check(m.Contents, analyze.Options{
		Now: env.Now(), SecretsRead: func(string) bool { return false },
		Whole:  func(mesh.ClusterID) bool { return true },
		Flags:  func(mesh.ClusterID) string { return o.cluster.CommandFlags(o.cluster.context) },
		Unread: others,
	})...))
	var out []apply.Finding
	for _, r := range analyze.Reports(found) {
		if !r.Level.AtLeast(analyze.Warning) {
			continue
		}
		hint := cmp.Or(r.Fix, analyze.KindOf(r.Code).Fix)
		out = append(out, apply.Finding{Level: apply.Level(r.Level), Object: cmp.Or(r.Origin, "the mesh"), Fault: strings.TrimSpace(string(r.Code) + " " + r.Text()), Hint: hint})
	}
	return out, nil
}
