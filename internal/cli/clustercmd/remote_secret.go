package clustercmd

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

func NewRemoteSecret(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remote-secret",
		Short: "List, judge, replace and delete remote secrets",
		Long: `Look after the Secrets by which control planes read other clusters. They are made
by meshctl create-remote-secret.`,
		Example: `  meshctl remote-secret list --context east
  meshctl remote-secret check west.yaml`,
	}
	cmd.AddCommand(newRemoteSecretListCmd(env), newRemoteSecretCheckCmd(env), newRemoteSecretRotateCmd(env), newRemoteSecretDeleteCmd(env))
	return cmd
}

type remoteSecretListOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	context   string
	output    output.Format
}

func newRemoteSecretListCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the remote secrets of a cluster",
		Long: `List the clusters that the control plane of this cluster is told to read: each
with its Secret, its API server, the end of its token, and the hash by which
control planes name the credential.`,
		Example: `  meshctl remote-secret list --context east
  meshctl remote-secret list --context east -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.Bind(fs)
	o.namespace.Bind(fs, "Namespace of the secrets")
	fs.StringVar(&o.context, "context", "", "Kubeconfig `context` of the cluster (default the current one)")
	cli.TableVar(fs, &o.output)
	o.kube.ContextFlags(env, cmd, "context")
	return cmd
}

// listedCluster is one cluster of a remote secret, as list shows it.
type listedCluster struct {
	Cluster    mesh.ClusterID `json:"cluster"`
	Secret     string         `json:"secret"`
	Server     string         `json:"server,omitzero"`
	TokenEnds  *time.Time     `json:"tokenEnds,omitzero"`
	Renewed    bool           `json:"renewed"`
	Credential string         `json:"credential,omitzero"`
	Error      string         `json:"error,omitzero"`
}

func (o *remoteSecretListOptions) run(ctx context.Context, env *cli.Env) error {
	clusters, where, err := readClusters(ctx, env, &o.kube, o.context, &o.namespace)
	if err != nil {
		return err
	}
	list := []listedCluster{}
	for i := range clusters {
		list = append(list, listOne(&clusters[i]))
	}
	if o.output.ForPeople() && len(list) == 0 {
		fmt.Fprintf(env.Stderr, "there are no remote secrets in %s\n", where)
		return nil
	}
	table := &output.Table{Header: []string{"CLUSTER", "SECRET", "SERVER", "TOKEN ENDS", "CREDENTIAL"}}
	for _, l := range list {
		ends := "never"
		switch {
		case l.Error != "":
			l.Server, ends = l.Error, "-"
		case l.TokenEnds != nil && l.Renewed:
			ends = l.TokenEnds.Format(time.RFC3339) + ", renewed"
		case l.TokenEnds != nil:
			ends = l.TokenEnds.Format(time.RFC3339)
		}
		table.Rows = append(table.Rows, []string{string(l.Cluster), l.Secret, l.Server, ends, l.Credential})
	}
	return cli.WriteResult(env, o.output, list, table)
}

func listOne(c *remotesecret.Cluster) listedCluster {
	l := listedCluster{Cluster: c.ID, Secret: c.Secret}
	if c.Err != nil {
		l.Error = c.Err.Error()
		return l
	}
	l.Server, l.Renewed, l.Credential = c.Server.Server, c.Renewed, c.CredentialHash()
	if _, end := c.Life(); !end.IsZero() {
		end = end.UTC()
		l.TokenEnds = &end
	}
	return l
}

// readClusters returns the clusters of the remote secrets of a context, and where
// it looked for them.
func readClusters(
	ctx context.Context, env *cli.Env, k *cli.KubeFlags, name string, n *cli.NamespaceFlags,
) (clusters []remotesecret.Cluster, where string, err error) {
	namespace, err := n.Value()
	if err != nil {
		return nil, "", err
	}
	cluster, err := k.Connect(env, name)
	if err != nil {
		return nil, "", err
	}
	clusters, err = cluster.RemoteClusters(ctx, namespace)
	return clusters, fmt.Sprintf("namespace %s of %s", namespace, cluster.Name), err
}

type remoteSecretDeleteOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	contexts  []string
	from      string
	revokeIn  string
	account   string
	cluster   mesh.ClusterID
}

func newRemoteSecretDeleteCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretDeleteOptions{}
	cmd := &cobra.Command{
		Use:   "delete CLUSTER",
		Short: "Delete the remote secret of a cluster",
		Long: `Delete the remote secret of a cluster in those that read it. Their control planes
take its endpoints away at once.

With --from, which names the cluster itself as it does for rotate, the tokens of the
cluster's reader end, too, for everybody who has one, also in clusters that --to does
not name: the Secrets that meshctl made for
them are deleted in the cluster itself. Token Secrets of the reader that others
made are listed and stay. This also works when the remote secret is gone, as after
meshctl multicluster unlink.

Without --from whoever kept a copy of the secret can go on reading the cluster.`,
		Example: `  meshctl remote-secret delete west --to east
  meshctl remote-secret delete west --to east,north --from west`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 || !mesh.ClusterID(args[0]).Valid() {
				return cli.Usagef("name one cluster")
			}
			o.cluster = mesh.ClusterID(args[0])
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.kube.Bind(fs)
	o.namespace.Bind(fs, "Namespace of the secret")
	fs.StringSliceVar(&o.contexts, "to", nil, "Kubeconfig `context`s of the clusters that have the secret (default the current one)")
	fs.StringVar(&o.from, "from", "", "Kubeconfig `context` of the cluster itself, in which to end the tokens; needs --to")
	fs.StringVar(&o.revokeIn, "revoke-in", "", "Another name of --from, which does not need --to")
	fs.StringVar(&o.account, "service-account", "",
		"With --from, service account of the reader (default that of the secret's token, else "+readerAccount+")")
	o.kube.ContextFlags(env, cmd, "to", "from", "revoke-in")
	cmd.ValidArgsFunction = cli.CompleteNames(env, o.clusters)
	return cmd
}

// clusters returns the clusters that have a remote secret in the first context.
func (o *remoteSecretDeleteOptions) clusters(ctx context.Context, env *cli.Env) ([]string, error) {
	found, _, err := readClusters(ctx, env, &o.kube, append(o.contexts, "")[0], &o.namespace)
	var out []string
	for i := range found {
		out = append(out, string(found[i].ID))
	}
	return out, err
}

func (o *remoteSecretDeleteOptions) run(ctx context.Context, env *cli.Env) error {
	namespace, err := o.namespace.Value()
	switch {
	case err != nil:
		return err
	// --from once named the clusters that have the secret.
	case o.from != "" && (o.revokeIn != "" || len(o.contexts) == 0):
		return cli.Usagef("--from %s names the cluster itself, in which to end the tokens: name the clusters that have the secret with --to", o.from)
	case o.account != "" && o.revokeIn == "" && o.from == "":
		return cli.Usagef("--service-account is for --from")
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
		readers = &multicluster.Readers{From: own, Namespace: namespace, Say: sayTo(env)}
		if o.account != "" {
			readers.Add(o.account)
		}
	}
	deleted := 0
	for _, name := range o.contexts {
		n, err := o.deleteIn(ctx, env, name, namespace, readers)
		if err != nil {
			return err
		}
		deleted += n
	}
	if readers != nil {
		if deleted == 0 {
			readers.Add(readerAccount)
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
		return fmt.Errorf("cluster %s has no remote secret there, and its reader no token that meshctl made", o.cluster)
	}
	return fmt.Errorf("cluster %s has no remote secret there", o.cluster)
}

// deleteIn deletes the secret in a context, and notes whose token it had.
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
		sayTo(env)("%s has no secret %s/%s", cluster.Name, namespace, remotesecret.Name(o.cluster))
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

// sayTo prints what a function has to say, a line each.
func sayTo(env *cli.Env) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(env.Stderr, format+"\n", args...) }
}

// findingsTable lays findings out for people.
func findingsTable(findings []remotesecret.Finding) *output.Table {
	table := &output.Table{Header: []string{"CLUSTER", "SEVERITY", "CODE", "FIELD", "REASON", "FIX"}}
	for _, f := range findings {
		field := f.Field
		if f.Line > 0 {
			field += ":" + strconv.Itoa(f.Line)
		}
		reason := f.Reason
		if f.Allowed {
			reason = "allowed: " + reason
		}
		if f.Cluster == "" {
			reason = strings.TrimSpace(f.Place + ": " + reason)
		}
		table.Rows = append(table.Rows, []string{string(f.Cluster), string(f.Severity), string(f.Code), field, reason, f.Fix})
	}
	return table
}
