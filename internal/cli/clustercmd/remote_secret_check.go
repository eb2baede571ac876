package clustercmd

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/remotesecret"
)

type remoteSecretCheckOptions struct {
	kube      cli.KubeFlags
	namespace cli.NamespaceFlags
	context   string
	allow     []string
	inPod     bool
	output    output.Format
	files     []string
}

func newRemoteSecretCheckCmd(env *cli.Env) *cobra.Command {
	o := &remoteSecretCheckOptions{}
	cmd := &cobra.Command{
		Use:   "check [FILE...]",
		Short: "Judge remote secrets as the control plane does",
		Long: `Decode remote secrets and judge them with the code of the control plane: what it
would refuse, what cannot work, what may not. Files hold Secrets or kubeconfigs
in YAML or JSON, - is standard input; without files it is the remote secrets of
a cluster. Nothing in them is run or read, and no server in them is asked.

Severities: a refused kubeconfig is not used at all; a broken one is, and the
API server will not have it; a warning may be fine. Exit code 3 when something
is refused or broken.`,
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
	o.kube.Bind(fs)
	o.namespace.Bind(fs, "Namespace of the secrets")
	fs.StringVar(&o.context, "context", "", "Kubeconfig `context` of the cluster, without files (default the current one)")
	fs.StringSliceVar(&o.allow, "insecure-remote", nil, "What the control plane is told to let pass by the flag of the same name, as `CLUSTER=WHAT`; may be repeated")
	fs.BoolVar(&o.inPod, "in-pod", false, "The control plane runs in a pod, where loopback addresses are its own")
	cli.TableVar(fs, &o.output)
	o.kube.ContextFlags(env, cmd, "context")
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
		return cli.Findingsf("%s of %s wrong", cli.Plural(bad, "thing"), cli.Plural(len(clusters), "cluster"))
	}
	switch {
	case !o.output.ForPeople():
	case len(clusters) == 0:
		fmt.Fprintf(env.Stderr, "there are no remote secrets in %s\n", where)
	default:
		fmt.Fprintf(env.Stderr, "%s can be used\n", cli.Plural(len(clusters), "cluster"))
	}
	return nil
}

// read returns the clusters of the files, or those of the API server, and where it
// looked for them.
func (o *remoteSecretCheckOptions) read(ctx context.Context, env *cli.Env) (clusters []remotesecret.Cluster, where string, err error) {
	if len(o.files) == 0 {
		return readClusters(ctx, env, &o.kube, o.context, &o.namespace)
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
