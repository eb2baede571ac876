package clustercmd

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

type remoteSecretCheckOptions struct {
	kube    kubeFlags
	context string
	allow   []string
	inPod   bool
	output  output.Format
	files   []string
}

func newRemoteSecretCheckCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check remote secrets as the control plane does",
		Long: `Check remote secrets before or after you apply them, with the code of the control
plane. Files hold Secrets or kubeconfigs in YAML or JSON, - is standard input. Without
files the command checks the remote secrets of a cluster, and tries each credential: it
asks the API server whether the credential may read services, pods, endpoint slices and
the Secrets of gateways. The command runs no plugins, reads no other files and, for
files, connects to no server.

  refused   the control plane does not use the kubeconfig
  broken    the control plane uses it, but the API server rejects it
  warning   may be harmless

The exit code is 3 when something is refused or broken, and 4 when nothing is but a
credential could not be tried from here.`,
		Example: `  meshctl remote-secret check west.yaml
  meshctl create-remote-secret --context west --name west | meshctl remote-secret check -
  meshctl remote-secret check --context east`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = args
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secrets")
	o.kube.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster, without files (default the current one)")
	fs.StringSliceVar(&o.allow, "insecure-remote", nil, "Setting that the control plane accepts because of its own flag --insecure-remote, as `CLUSTER=SETTING`; may be repeated")
	cli.MarkWeakening(fs, "insecure-remote")
	fs.BoolVar(&o.inPod, "in-pod", false, "Check for a control plane in a pod, which cannot use loopback addresses")
	cli.TableVar(fs, &o.output)
	return cmd
}

func (o *remoteSecretCheckOptions) run(ctx context.Context, env *cli.Env) error {
	allow, err := remotesecret.ParseAllow(o.allow)
	if err != nil {
		return cli.Usagef("--insecure-remote: %w", err)
	}
	clusters, where, err := o.read(ctx, env)
	if err != nil {
		return err
	}
	findings := []remotesecret.Finding{}
	for i := range clusters {
		findings = append(findings, remotesecret.Check(&clusters[i], remotesecret.Options{Now: env.Now(), InPod: o.inPod, Allow: allow})...)
	}
	findings = append(findings, remotesecret.Repeated(clusters)...)
	var tried []remotesecret.Finding
	var untried []error
	if len(o.files) == 0 {
		tried, untried = multicluster.TryCredentials(ctx, clusters, remotesecret.Options{Now: env.Now(), InPod: o.inPod, Allow: allow}, findings)
	}
	findings = append(findings, tried...)
	if !o.output.ForPeople() || len(findings) > 0 {
		err = cli.WriteResult(env, o.output, findings, findingsTable(findings))
	}
	if err != nil {
		return err
	}
	bad := 0
	for _, f := range findings {
		if f.Severity != remotesecret.Warning {
			bad++
		}
	}
	if bad > 0 {
		env.NotRead(untried...)
		return cli.Findingsf("%s found in %s", output.Plural(bad, "problem"), output.Plural(len(clusters), "cluster"))
	}
	switch {
	case len(clusters) == 0:
		env.Notef("there are no remote secrets in %s", where)
	case len(o.files) > 0:
		env.Notef("%s can be used: looked at %s; credentials in files are not tried", countClusters(clusters), where)
	case len(untried) == 0:
		env.Notef("%s can be used: looked at %s, and tried each credential", countClusters(clusters), where)
	default:
		env.Notef("no problem found in %s of %s", countClusters(clusters), where)
	}
	return cli.Incomplete(untried...)
}

// countClusters counts the clusters, each once.
func countClusters(clusters []remotesecret.Cluster) string {
	ids := map[mesh.ClusterID]bool{}
	for i := range clusters {
		ids[clusters[i].ID] = true
	}
	return output.Plural(len(ids), "cluster")
}

// read returns the clusters of the files, or of the remote secrets in a cluster, and the
// place for messages.
func (o *remoteSecretCheckOptions) read(ctx context.Context, env *cli.Env) (clusters []remotesecret.Cluster, where string, err error) {
	if len(o.files) == 0 {
		return readClusters(ctx, env, &o.kube, o.context)
	}
	for _, path := range o.files {
		name, text, err := cli.ReadInput(env, path, remotesecret.MaxFileSize)
		if err != nil {
			return nil, "", err
		}
		found, err := remotesecret.DecodeFile(name, text)
		if err != nil {
			return nil, "", err
		}
		clusters = append(clusters, found...)
	}
	return clusters, strings.Join(o.files, ", "), nil
}
