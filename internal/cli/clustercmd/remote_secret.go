package clustercmd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

// NewRemoteSecret returns the command remote-secret.
func NewRemoteSecret(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "remote-secret",
		Short: "List, check, rotate and delete remote secrets",
		Long: `Manage the Secrets with which control planes read other clusters. Create them with
meshctl create-remote-secret.`,
		Example: `  meshctl remote-secret list --context east
  meshctl remote-secret check west.yaml`,
	}
	cmd.AddCommand(newRemoteSecretListCmd(env), newRemoteSecretCheckCmd(env), newRemoteSecretRotateCmd(env), newRemoteSecretDeleteCmd(env))
	return cmd
}

type remoteSecretListOptions struct {
	kube     kubeFlags
	contexts cli.MeshContexts
	output   output.Format
}

func newRemoteSecretListCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the remote secrets of clusters",
		Long: `List the remote secrets of clusters, one for each cluster that their control planes read:
the Secret, the API server, the expiry of the token, and the hash with which control
planes identify the credential.`,
		Example: `  meshctl remote-secret list --context east
  meshctl remote-secret list --context east,west -o json
  meshctl remote-secret list --all-clusters`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secrets")
	o.contexts.Bind(env, cmd, &o.kube.KubeFlags, "")
	cli.TableVar(fs, &o.output)
	return cmd
}

// listedCluster is a row of list.
type listedCluster struct {
	// Context is the context of the cluster with the secret, if several are asked.
	Context    string         `json:"context,omitzero"`
	Cluster    mesh.ClusterID `json:"cluster"`
	Secret     string         `json:"secret"`
	Server     string         `json:"server,omitzero"`
	TokenEnds  *time.Time     `json:"tokenEnds,omitzero"`
	Renewed    bool           `json:"renewed"`
	Credential string         `json:"credential,omitzero"`
	Error      string         `json:"error,omitzero"`
}

func (o *remoteSecretListOptions) run(ctx context.Context, env *cli.Env) error {
	asked, unread, err := readClusters(ctx, env, &o.kube, &o.contexts)
	if err != nil {
		return err
	}
	list := []listedCluster{}
	for _, a := range asked {
		for i := range a.clusters {
			l := listOne(&a.clusters[i])
			l.Context = a.context
			list = append(list, l)
		}
	}
	if o.output.ForPeople() && len(list) == 0 {
		env.Notef("there are no remote secrets in %s", placesOf(asked))
		return cli.Incomplete(unread...)
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
	addContexts(table, list, func(l listedCluster) string { return l.Context })
	if err := cli.WriteResult(env, o.output, list, table); err != nil {
		return err
	}
	return cli.Incomplete(unread...)
}

// addContexts adds a first column with the contexts of rows, if there are any.
func addContexts[R any](t *output.Table, rows []R, of func(R) string) {
	if !slices.ContainsFunc(rows, func(r R) bool { return of(r) != "" }) {
		return
	}
	t.Header = slices.Insert(t.Header, 0, "CONTEXT")
	for i := range t.Rows {
		t.Rows[i] = slices.Insert(t.Rows[i], 0, of(rows[i]))
	}
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

// secretsOf is the clusters of the remote secrets in a cluster, or of files.
type secretsOf struct {
	context  string // if several are asked
	place    string // for messages
	clusters []remotesecret.Cluster
}

// readClusters returns the clusters of the remote secrets in each context. If there are several, unread
// has the reasons why some were not read.
func readClusters(ctx context.Context, env *cli.Env, k *kubeFlags, of *cli.MeshContexts) (out []secretsOf, unread []error, err error) {
	namespace, err := k.theNamespace()
	if err != nil {
		return nil, nil, err
	}
	contexts, err := of.ResolveAnswering(ctx, env, &k.KubeFlags, namespace)
	if err != nil {
		return nil, nil, err
	}
	several := len(contexts) > 1
	for i := range contexts {
		c := &contexts[i]
		read, err := readClustersOf(ctx, env, k, namespace, c)
		switch {
		case err != nil && !several:
			return nil, nil, err
		case err != nil:
			unread = append(unread, fmt.Errorf("the remote secrets of %s: %w", c.Name(), err))
			continue
		case several:
			read.context = c.Name()
		}
		out = append(out, read)
	}
	if len(out) == 0 {
		return nil, nil, errors.Join(unread...)
	}
	return out, unread, nil
}

func readClustersOf(ctx context.Context, env *cli.Env, k *kubeFlags, namespace string, c *cli.MeshContext) (out secretsOf, err error) {
	if c.Err != nil {
		return out, c.Err
	}
	cluster, err := k.Connect(env, c.Context)
	if err != nil {
		return out, err
	}
	out.place = fmt.Sprintf("namespace %s of %s", namespace, cluster.Name)
	out.clusters, err = cluster.RemoteClusters(ctx, namespace)
	return out, err
}

// placesOf names the places that were read.
func placesOf(asked []secretsOf) string {
	names := make([]string, len(asked))
	for i := range asked {
		names[i] = asked[i].place
	}
	return strings.Join(names, ", ")
}

// findingsTable returns findings as a table.
func findingsTable(findings []foundIn) *output.Table {
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
	addContexts(table, findings, func(f foundIn) string { return f.Context })
	return table
}
