package clustercmd

import (
	"context"
	"fmt"
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
	kube    kubeFlags
	context string
	output  output.Format
}

func newRemoteSecretListCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretListOptions{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the remote secrets of a cluster",
		Long: `List the remote secrets of a cluster, one for each cluster that its control plane reads:
the Secret, the API server, the expiry of the token, and the hash with which control
planes identify the credential.`,
		Example: `  meshctl remote-secret list --context east
  meshctl remote-secret list --context east -o json`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secrets")
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster (default the current one)")
	cli.TableVar(fs, &o.output)
	return cmd
}

// listedCluster is a row of list.
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
	clusters, where, err := readClusters(ctx, env, &o.kube, o.context)
	if err != nil {
		return err
	}
	list := []listedCluster{}
	for i := range clusters {
		list = append(list, listOne(&clusters[i]))
	}
	if o.output.ForPeople() && len(list) == 0 {
		env.Notef("there are no remote secrets in %s", where)
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

// readClusters returns the clusters of the remote secrets in a context, and the place
// for messages.
func readClusters(
	ctx context.Context, env *cli.Env, k *kubeFlags, name string,
) (clusters []remotesecret.Cluster, where string, err error) {
	namespace, err := k.theNamespace()
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

// findingsTable returns findings as a table.
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
