package analyzecmd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/load"
)

// clusters returns the sources of the clusters, and why some are not read.
func (o *analyzeOptions) clusters(ctx context.Context, env *cli.Env) (out []load.Cluster, unread []error, err error) {
	o.flags = make(map[mesh.ClusterID]string)
	if len(o.paths) == 0 || o.useKube || len(o.contexts.Names) > 0 || o.contexts.All {
		if out, unread, err = o.apis(ctx, env); err != nil {
			return nil, nil, err
		}
	}
	if len(out) == 0 {
		out = append(out, load.Cluster{ID: mesh.ClusterID(cmp.Or(env.Getenv("CLUSTER_ID"), "Kubernetes")), SecretNamespaces: o.secretNamespaces})
	}
	if id := mesh.ClusterID(o.clusterID); id != "" {
		out[0].ID, o.flags[id] = id, o.flags[out[0].ID]
	}
	if out[0].Dirs, out[0].Files, err = cli.ReadPaths(env, o.paths); err != nil {
		return nil, nil, err
	}
	for _, text := range o.remoteDirs {
		id, dir, ok := strings.Cut(text, "=")
		if !ok || id == "" || dir == "" {
			return nil, nil, cli.Usagef("--remote-dir: %q is not CLUSTER=DIR", text)
		}
		out = append(out, load.Cluster{ID: mesh.ClusterID(id), Dirs: []string{dir}})
	}
	for i, c := range out {
		if slices.ContainsFunc(out[:i], func(other load.Cluster) bool { return other.ID == c.ID }) {
			return nil, nil, cli.Usagef("two clusters have the name %q: name one of them with CLUSTER=", c.ID)
		}
	}
	return out, unread, nil
}

// apis returns the APIs of the contexts, and why some have none.
func (o *analyzeOptions) apis(ctx context.Context, env *cli.Env) (out []load.Cluster, unread []error, err error) {
	named := len(o.contexts.Names) > 0
	contexts, err := o.contexts.ResolveAnswering(ctx, env, &o.KubeFlags, o.systemNamespace)
	switch {
	case errors.Is(err, kube.ErrNoAccess) && !named:
		return nil, nil, fmt.Errorf("%w, or name files and directories to check", err)
	case err != nil:
		return nil, nil, err
	}
	for i := range contexts {
		c := &contexts[i]
		if c.Err != nil {
			err := fmt.Errorf("cluster %s: %w", c.Name(), c.Err)
			if i == 0 && len(o.paths) > 0 {
				return nil, nil, err // which has the files
			}
			unread = append(unread, err)
			continue
		}
		access, err := kube.Load(o.Options(env, c.Context))
		switch {
		case errors.Is(err, kube.ErrNoAccess) && !named:
			return nil, nil, fmt.Errorf("%w, or name files and directories to check", err)
		case err != nil:
			return nil, nil, err
		}
		id := cmp.Or(c.Cluster, mesh.ClusterID(access.Context))
		o.flags[id] = o.CommandFlags(c.Context)
		out = append(out, load.Cluster{ID: id, Config: access.Config, SecretNamespaces: o.secretNamespaces})
	}
	if len(out) == 0 {
		return nil, nil, errors.Join(unread...)
	}
	return out, unread, nil
}
