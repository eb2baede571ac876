package certscmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/inspect"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/kube"
	"github.com/meshctl/meshctl/internal/mesh"
)

// clusterFlags hold the flags that name clusters by contexts of the kubeconfig.
type clusterFlags struct {
	cli.KubeFlags
	contexts  []string
	namespace string
	unread    []error // what is not read, although other things are
	// credentials is set to read the Secrets that Gateways name, too.
	credentials bool
}

func (o *clusterFlags) bind(env *cli.Env, cmd *cobra.Command) {
	o.Bind(cmd.Flags())
	o.MeshContextsVar(env, cmd, &o.contexts,
		"Kubeconfig `context`s of the clusters; CLUSTER=CONTEXT if the cluster has another name in the mesh")
	o.NamespaceVar(env, cmd, &o.namespace, "namespace", "n", mesh.DefaultSystemNamespace, "`Namespace` of the Secrets")
}

// connect returns the clients of the clusters of --context.
func (o *clusterFlags) connect(env *cli.Env) ([]*store.ClusterSecrets, error) {
	if !mesh.IsDNSLabel(o.namespace) {
		return nil, cli.Usagef("--namespace: %q is not a DNS label", o.namespace)
	}
	var out []*store.ClusterSecrets
	for _, entry := range o.ClusterContexts(env, o.contexts) {
		id, name := entry.Cluster, entry.Context
		switch {
		case id == "" || name == "":
			return nil, cli.Usagef("--context has %q: want CONTEXT or CLUSTER=CONTEXT", strings.Join(o.contexts, ","))
		case slices.ContainsFunc(out, func(c *store.ClusterSecrets) bool { return c.Context == name || string(c.ID) == id }):
			return nil, cli.Usagef("--context names %q twice", name)
		}
		access, err := kube.Load(o.Options(env, name))
		if err != nil {
			return nil, err
		}
		c, err := store.Connect(mesh.ClusterID(id), name, o.namespace, access.Config)
		if err != nil {
			return nil, err
		}
		out = append(out, c)
	}
	return out, nil
}

// writeChanges writes and describes changes of CA Secrets. dryRun stores nothing.
func writeChanges(ctx context.Context, env *cli.Env, changes []*store.SecretChange, dryRun bool) error {
	note := ""
	if dryRun {
		note = " (dry run)"
	}
	for _, c := range changes {
		if err := c.Write(ctx, dryRun); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "%s%s\n", c, note)
	}
	return nil
}

// findMesh returns findings about clusters that do not trust each other, and the contexts
// of clusters without a CA.
func (o *clusterFlags) findMesh(ctx context.Context, env *cli.Env) (findings []verify.Finding, without []string, err error) {
	clusters, err := o.connect(env)
	if err != nil {
		return nil, nil, err
	}
	var found []verify.ClusterCA
	for _, c := range clusters {
		authority, err := c.CA(ctx)
		switch {
		case err != nil && len(clusters) > 1:
			continue // documents has it
		case err != nil:
			return nil, nil, err
		case authority == nil:
			without = append(without, c.Context)
		case authority.Signer != nil:
			found = append(found, *authority)
		}
	}
	return verify.Mesh(found, env.Now()), without, nil
}

// secretPrefix is the prefix of an input that names a Secret.
const secretPrefix = "secret/"

// objects reads the named Secrets of a cluster, or without names all that the command is about.
func (o *clusterFlags) objects(ctx context.Context, c *store.ClusterSecrets, names []string) ([]byte, error) {
	if len(names) > 0 || !o.credentials {
		return c.Objects(ctx, names...)
	}
	data, unread, err := c.AllObjects(ctx)
	o.unread = append(o.unread, unread...)
	return data, err
}

// documents reads the Secrets of clusters, and returns the other inputs. It is an error if no cluster
// can be read, and keeps why some cannot.
func (o *clusterFlags) documents(ctx context.Context, env *cli.Env, inputs []string) (docs []inspect.Document, rest []string, err error) {
	clusters, err := o.connect(env)
	if err != nil {
		return nil, nil, err
	}
	var names []string
	for _, in := range inputs {
		if name, ok := strings.CutPrefix(in, secretPrefix); ok && len(clusters) > 0 {
			names = append(names, name)
			continue
		}
		rest = append(rest, in)
	}
	for _, c := range clusters {
		data, err := o.objects(ctx, c, names)
		switch {
		case err != nil && (len(clusters) == 1 || ctx.Err() != nil):
			return nil, nil, err
		case err != nil:
			o.unread = append(o.unread, err)
			continue
		}
		docs = append(docs, inspect.Document{Place: c.Context, Data: data})
	}
	if len(clusters) > 0 && len(docs) == 0 {
		return nil, nil, errors.Join(o.unread...)
	}
	return docs, rest, nil
}
