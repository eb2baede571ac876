package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
)

// MeshContexts hold the flags that name the clusters of a command that asks several.
type MeshContexts struct {
	Names []string // CONTEXT or CLUSTER=CONTEXT; Resolve leaves the contexts
	All   bool
}

// MeshContext is a cluster to ask.
type MeshContext struct {
	Context string // of the kubeconfig; empty for the current one
	// Cluster is the name in a remote secret, or in a flag CLUSTER=CONTEXT; empty if it is not known.
	Cluster mesh.ClusterID
	// Err is the reason why there is no context.
	Err error
}

// Name returns the name of the context, or of the cluster without one.
func (m *MeshContext) Name() string { return cmp.Or(m.Context, string(m.Cluster)) }

// Bind defines the flags. what follows "Kubeconfig context of each cluster".
func (m *MeshContexts) Bind(env *Env, cmd *cobra.Command, k *KubeFlags, what string) {
	k.ContextListVar(env, cmd, &m.Names, "context", "Kubeconfig `context` of each cluster"+what+", or CLUSTER=CONTEXT; may be repeated (default the current one)")
	m.BindAll(cmd)
}

// BindAll defines --all-clusters of a command that defines --context itself.
func (m *MeshContexts) BindAll(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&m.All, "all-clusters", false, "Also ask the clusters that the remote secrets of the first cluster name, by the contexts of the kubeconfig with their API servers")
}

// First returns the first context, empty for the current one.
func (m *MeshContexts) First() string { return append(slices.Clip(m.Names), "")[0] }

// Resolve returns the clusters to ask, each once. namespace has the remote secrets.
func (m *MeshContexts) Resolve(ctx context.Context, env *Env, k *KubeFlags, namespace string) ([]MeshContext, error) {
	var out []MeshContext
	add := func(c MeshContext) {
		if !slices.ContainsFunc(out, func(o MeshContext) bool { return o.Context == c.Context && o.Cluster == c.Cluster }) {
			out = append(out, c)
		}
	}
	for i, named := range k.ClusterContexts(env, m.Names) {
		c := MeshContext{Context: named.Context}
		if named.Cluster != named.Context {
			c.Cluster = mesh.ClusterID(named.Cluster)
		}
		if i == 0 {
			m.Names = nil
		}
		m.Names = append(m.Names, c.Context)
		add(c)
	}
	if len(out) == 0 {
		add(MeshContext{})
	}
	if !m.All {
		return out, nil
	}
	first, err := kube.Load(k.Options(env, m.First()))
	if err != nil {
		return nil, err
	}
	out[0].Context = first.Context
	cluster, err := multicluster.Connect(first)
	if err != nil {
		return nil, err
	}
	remote, err := cluster.RemoteClusters(ctx, namespace)
	if err != nil {
		return nil, fmt.Errorf("--all-clusters: %w", cluster.Explain(err))
	}
	for i := range remote {
		r := &remote[i]
		if r.Err != nil {
			add(MeshContext{Cluster: r.ID, Err: r.Err})
			continue
		}
		name, err := kube.ContextOf(k.Options(env, ""), r.Server.Server, r.Server.CertificateAuthorityData)
		switch {
		case err != nil:
			return nil, err
		case name == "":
			err := fmt.Errorf("no context of the kubeconfig has the API server %s of its remote secret %s: name one with --context", r.Server.Server, r.Secret)
			add(MeshContext{Cluster: r.ID, Err: err})
		case !slices.ContainsFunc(out, func(c MeshContext) bool { return c.Context == name }):
			add(MeshContext{Context: name, Cluster: r.ID})
		}
	}
	if len(remote) == 0 {
		env.Notef("context %s: namespace %s has no remote secret, so --all-clusters asks this cluster only; to join it to other clusters: meshctl multicluster link %[1]s CONTEXT", first.Context, namespace)
	}
	return out, nil
}

// ResolveAnswering returns the clusters as Resolve does. If there are several, it gives those whose API
// server does not answer an error.
func (m *MeshContexts) ResolveAnswering(ctx context.Context, env *Env, k *KubeFlags, namespace string) ([]MeshContext, error) {
	out, err := m.Resolve(ctx, env, k, namespace)
	if err != nil || len(out) == 1 {
		return out, err
	}
	var asked sync.WaitGroup
	for i := range out {
		if c := &out[i]; c.Err == nil {
			asked.Go(func() { c.Err = k.answers(ctx, env, c.Context) })
		}
	}
	asked.Wait()
	return out, ctx.Err()
}

// answers returns an error if the API server of a context does not answer.
func (k *KubeFlags) answers(ctx context.Context, env *Env, name string) error {
	access, err := kube.Load(k.Options(env, name))
	if err != nil {
		return err
	}
	api, err := kube.NewClient(access.Config)
	if err != nil {
		return err
	}
	defer api.Close()
	_, err = api.Version(ctx)
	return err
}

// isMissing reports whether there is no access, and no flag names one.
func (m *MeshContexts) isMissing(k *KubeFlags, err error) bool {
	return errors.Is(err, kube.ErrNoAccess) && k.kubeconfig == "" && len(m.Names) == 0 && !m.All
}
