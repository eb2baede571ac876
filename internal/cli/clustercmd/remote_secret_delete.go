package clustercmd

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
	"github.com/meshctl/meshctl/internal/remotesecret/create"
)

type remoteSecretDeleteOptions struct {
	kube     kubeFlags
	contexts []string
	from     string
	revokeIn string
	account  string
	cluster  mesh.ClusterID
}

func newRemoteSecretDeleteCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretDeleteOptions{}
	cmd := &cobra.Command{
		Use:   "delete CLUSTER",
		Short: "Delete the remote secret of a cluster",
		Long: `Delete the remote secret of a cluster in the clusters that read it. The control planes
of these clusters remove the endpoints of the cluster at once.

--revoke-in names the context of the cluster itself. With it, the command also revokes
all tokens of the cluster's reader, including tokens for clusters that --to does not
name: it deletes the token Secrets that meshctl created in the cluster. Other token
Secrets are kept and listed. This also works when the remote secret is gone, as after
meshctl multicluster unlink.

Without --revoke-in a copy of the secret still gives access to the cluster.`,
		Example: `  meshctl remote-secret delete west --to east
  meshctl remote-secret delete west --to east,north --revoke-in west`,
		Args: cobra.ArbitraryArgs, // checked below
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !mesh.ClusterID(args[0]).Valid() {
				return cli.Usagef("name one cluster")
			}
			o.cluster = mesh.ClusterID(args[0])
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secret")
	o.kube.ContextListVar(env, cmd, &o.contexts, "to", "Kubeconfig `context`s of the clusters that have the secret (default the current one)")
	o.kube.ContextVar(env, cmd, &o.revokeIn, "revoke-in", "Kubeconfig `context` of the cluster itself, to revoke its tokens")
	o.kube.ContextVar(env, cmd, &o.from, "from", "Alias of --revoke-in that needs --to")
	_ = fs.MarkHidden("from") // the flag is there
	fs.StringVar(&o.account, "service-account", "",
		"With --revoke-in, service `account` of the reader (default the account of the token, else "+create.Reader+")")
	cmd.ValidArgsFunction = cli.CompleteNames(env, o.clusters)
	return cmd
}

// clusters returns the clusters that have a remote secret in the first context.
func (o *remoteSecretDeleteOptions) clusters(ctx context.Context, env *cli.Env) ([]string, error) {
	namespace, err := o.kube.theNamespace()
	if err != nil {
		return nil, err
	}
	found, err := readClustersOf(ctx, env, &o.kube, namespace, &cli.MeshContext{Context: append(o.kube.Contexts(env, o.contexts), "")[0]})
	var out []string
	for i := range found.clusters {
		out = append(out, string(found.clusters[i].ID))
	}
	return out, err
}

func (o *remoteSecretDeleteOptions) run(ctx context.Context, env *cli.Env) error {
	namespace, err := o.kube.theNamespace()
	switch {
	case err != nil:
		return err
	// --from once named the clusters that have the secret.
	case o.from != "" && (o.revokeIn != "" || len(o.contexts) == 0):
		return cli.Usagef("--from %s names the cluster itself, to revoke its tokens: name the clusters that have the secret with --to", o.from)
	case o.account != "" && o.revokeIn == "" && o.from == "":
		return cli.Usagef("--service-account is for --revoke-in")
	case o.account != "" && !mesh.IsDNSName(o.account):
		return cli.Usagef("--service-account: %q is not a DNS name", o.account)
	}
	if len(o.contexts) == 0 {
		o.contexts = []string{""}
	}
	var readers *multicluster.Readers
	if itself := cmp.Or(o.from, o.revokeIn); itself != "" {
		own, err := o.kube.Connect(env, itself)
		if err != nil {
			return err
		}
		readers = &multicluster.Readers{From: own, Namespace: namespace, Say: env.Notef}
		if o.account != "" {
			readers.Add(o.account)
		}
	}
	deleted := 0
	for _, name := range o.kube.Contexts(env, o.contexts) {
		n, err := o.deleteIn(ctx, env, name, namespace, readers)
		if err != nil {
			return err
		}
		deleted += n
	}
	if readers != nil {
		if deleted == 0 {
			readers.Add(create.Reader)
		}
		ended, working, err := readers.End(ctx)
		if err != nil {
			return err
		}
		if len(working) > 0 {
			return cli.Findingsf("%s", output.EscapeLines(working))
		}
		deleted += ended
	}
	switch {
	case deleted > 0:
		return nil
	case readers != nil:
		return fmt.Errorf("cluster %s has no remote secret there, and its reader has no token that meshctl created", o.cluster)
	}
	return fmt.Errorf("cluster %s has no remote secret there", o.cluster)
}

// deleteIn deletes the secret in a context and adds the account of its token to readers.
func (o *remoteSecretDeleteOptions) deleteIn(ctx context.Context, env *cli.Env, context, namespace string, readers *multicluster.Readers) (int, error) {
	cluster, err := o.kube.Connect(env, context)
	if err != nil {
		return 0, err
	}
	secret, err := cluster.Secret(ctx, namespace, remotesecret.Name(o.cluster))
	if err != nil {
		return 0, err
	}
	if secret == nil {
		env.Notef("%s has no secret %s/%s", cluster.Name, namespace, remotesecret.Name(o.cluster))
	} else if readers != nil {
		if err := readers.AddSecret(secret, o.cluster); err != nil {
			return 0, err // the secret is the only trace of the token
		}
	}
	if _, err := cluster.DeleteRemote(ctx, namespace, o.cluster); err != nil || secret == nil {
		return 0, err
	}
	fmt.Fprintf(env.Stdout, "deleted secret %s/%s in %s\n", namespace, secret.Name, cluster.Name)
	return 1, nil
}
