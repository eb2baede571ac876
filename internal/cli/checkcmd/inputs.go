package checkcmd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
)

// clusters returns the sources of the clusters.
func (o *analyzeOptions) clusters(env *cli.Env) ([]load.Cluster, error) {
	own := load.Cluster{SecretNamespaces: o.secretNamespaces}
	o.flags = make(map[mesh.ClusterID]string)
	contexts := o.contexts
	if len(o.paths) == 0 && len(contexts) == 0 {
		contexts = []string{""}
	}
	var out []load.Cluster
	for _, named := range o.ClusterContexts(env, contexts) {
		c := own
		access, err := kube.Load(o.Options(env, named.Context))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && len(o.contexts) == 0:
			return nil, fmt.Errorf("%w, or name files and directories to check", err)
		case err != nil:
			return nil, err
		}
		c.Config, c.ID = access.Config, mesh.ClusterID(cmp.Or(named.Cluster, access.Context))
		o.flags[c.ID] = o.CommandFlags(named.Context)
		out = append(out, c)
	}
	if len(out) == 0 {
		out = append(out, load.Cluster{ID: mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes"))})
	}
	if id := mesh.ClusterID(o.clusterID); id != "" {
		out[0].ID, o.flags[id] = id, o.flags[out[0].ID]
	}
	var err error
	if out[0].Dirs, out[0].Files, err = cli.ReadPaths(env, o.paths); err != nil {
		return nil, err
	}
	for _, text := range o.remoteDirs {
		id, dir, ok := strings.Cut(text, "=")
		if !ok || id == "" || dir == "" {
			return nil, cli.Usagef("--remote-dir: %q is not CLUSTER=DIR", text)
		}
		out = append(out, load.Cluster{ID: mesh.ClusterID(id), Dirs: []string{dir}})
	}
	for i, c := range out {
		if slices.ContainsFunc(out[:i], func(other load.Cluster) bool { return other.ID == c.ID }) {
			return nil, cli.Usagef("two clusters have the name %q: name one of them with CLUSTER=", c.ID)
		}
	}
	return out, nil
}
