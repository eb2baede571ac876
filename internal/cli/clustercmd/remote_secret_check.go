package clustercmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/multicluster"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

type remoteSecretCheckOptions struct {
	kube     kubeFlags
	contexts cli.MeshContexts
	allow    []string
	inPod    bool
	output   output.Format
	files    []string
}

func newRemoteSecretCheckCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Check remote secrets as the control plane does",
		Long: `Check remote secrets before or after you apply them, with the code of the control
plane. Files hold Secrets or kubeconfigs in YAML or JSON, - is standard input. Without
files the command checks the remote secrets of clusters, and tries each credential: it
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
  meshctl remote-secret check --context east
  meshctl remote-secret check --all-clusters`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.files = args
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.kube.bind(env, cmd, "the secrets")
	o.contexts.Bind(env, cmd, &o.kube.KubeFlags, ", without files")
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
	asked, untried, err := o.read(ctx, env)
	if err != nil {
		return err
	}
	findings, clusters := []foundIn{}, []remotesecret.Cluster{}
	options := remotesecret.Options{Now: env.Now(), InPod: o.inPod, Allow: allow}
	for _, a := range asked {
		var found []remotesecret.Finding
		for i := range a.clusters {
			found = append(found, remotesecret.Check(&a.clusters[i], options)...)
		}
		found = append(found, remotesecret.Repeated(a.clusters)...)
		if len(o.files) == 0 {
			tried, not := multicluster.TryCredentials(ctx, a.clusters, options, found)
			for _, err := range not {
				if a.context != "" {
					err = fmt.Errorf("%s: %w", a.context, err)
				}
				untried = append(untried, err)
			}
			found = append(found, tried...)
		}
		for _, f := range found {
			findings = append(findings, foundIn{a.context, f})
		}
		clusters = append(clusters, a.clusters...)
	}
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
		return cli.Findingsf("%s found in %s", output.Plural(bad, "problem"), countClusters(clusters))
	}
	switch where := placesOf(asked); {
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

// foundIn is a finding in the cluster of a context, which is empty if only one is asked.
type foundIn struct {
	Context string `json:"context,omitzero"`
	remotesecret.Finding
}

// countClusters counts the clusters, each once.
func countClusters(clusters []remotesecret.Cluster) string {
	ids := map[mesh.ClusterID]bool{}
	for i := range clusters {
		ids[clusters[i].ID] = true
	}
	return output.Plural(len(ids), "cluster")
}

// read returns the clusters of the files, or of the remote secrets in clusters.
func (o *remoteSecretCheckOptions) read(ctx context.Context, env *cli.Env) (asked []secretsOf, unread []error, err error) {
	if len(o.files) == 0 {
		return readClusters(ctx, env, &o.kube, &o.contexts)
	}
	all := secretsOf{place: strings.Join(o.files, ", ")}
	for _, path := range o.files {
		name, text, err := cli.ReadInput(env, path, remotesecret.MaxFileSize)
		if err != nil {
			return nil, nil, err
		}
		found, err := remotesecret.DecodeFile(name, text)
		if err != nil {
			return nil, nil, err
		}
		all.clusters = append(all.clusters, found...)
	}
	return []secretsOf{all}, nil, nil
}
