package installcmd

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
	"github.com/meshctl/meshctl/internal/install/apply"
	"github.com/meshctl/meshctl/internal/kube"
)

// clusterFlags hold the flags for one cluster.
type clusterFlags struct {
	cli.KubeFlags
	context string
}

func (o *clusterFlags) bind(env *cli.Env, cmd *cobra.Command) {
	o.Bind(cmd.Flags())
	o.ContextVar(env, cmd, &o.context, "context", "Kubeconfig `context` of the cluster (default the current one)")
}

// connect returns the cluster and the access to it. The caller closes its API.
func (o *clusterFlags) connect(env *cli.Env) (*apply.Cluster, *kube.Access, error) {
	access, err := kube.Load(o.Options(env, o.context))
	if err != nil {
		return nil, nil, err
	}
	name := "this cluster"
	if access.Context != "" {
		name = "context " + access.Context
	}
	api, err := kube.NewClient(access.Config)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", name, err)
	}
	return &apply.Cluster{Name: name, API: api}, access, nil
}

type installOptions struct {
	values  valueFlags
	cluster clusterFlags
	caDir   string
	force   bool
	dryRun  bool
	wait    bool
	timeout time.Duration
}

// NewInstall returns the command install.
func NewInstall(env *cli.Env) *cobra.Command {
	var o installOptions
	cmd := &cobra.Command{
		Use:     "install",
		Aliases: []string{"upgrade"},
		Short:   "Install the control plane and gateways in a cluster, or change them",
		Long: `Install the control plane, its webhooks and gateways in the cluster of a context. Run
the command again, with all flags, to change or upgrade the installation: the command
deletes objects that the new installation does not have, and a second run changes
nothing.

The command changes only objects that it made. It writes nothing if another program,
such as Istio, made an object of the same name: use --revision to install beside it.

Values come from files and flags. Files are IstioOperators or Helm values of Istio; a
value that has no effect is an error. docs/install.md lists the values.`,
		Example: `  # A cluster of a mesh with two networks
  meshctl install --context cluster1 --cluster-id cluster1 --network network1 \
      --mesh-id mesh1 --ca-dir certs/cluster1 --crds --east-west-gateway

  # What would change
  meshctl install --context cluster1 -f cluster1.yaml --dry-run

  # A cluster that uses the control plane of cluster1
  meshctl install --context cluster2 --cluster-id cluster2 --network network2 \
      --east-west-gateway --control-plane cluster1=192.0.2.1

  # A control plane in cluster1 that reads the configuration of cluster2
  meshctl create-remote-secret --context cluster2 --name cluster2 --type config --apply --to cluster1
  meshctl install --context cluster1 --cluster-id cluster1 --config-cluster cluster2 --ca-dir certs/cluster1
  meshctl install --context cluster2 --cluster-id cluster2 --config-cluster cluster2 \
      --control-plane cluster1=192.0.2.1 --crds

  # A second control plane, for the namespaces with the label istio.io/rev=canary
  meshctl install --context cluster1 -f cluster1.yaml --revision canary`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env, cmd.Flags()) },
	}
	f := cmd.Flags()
	o.values.bind(f)
	o.cluster.bind(env, cmd)
	cli.DirVar(f, &o.caDir, "ca-dir", "`Directory` of the signing CA, as certs intermediate-ca makes it, for the Secret cacerts (default: the CA in the Secret, else a self-signed CA)")
	cli.ForceVar(f, &o.force, "Overwrite fields that other programs set, and replace a different signing CA in the Secret cacerts")
	f.BoolVar(&o.dryRun, "dry-run", false, "Show what would change as a diff, and write nothing")
	f.BoolVar(&o.wait, "wait", true, "Wait until the control plane, its webhooks and the gateways are available")
	cli.DurationVar(f, &o.timeout, "timeout", 5*time.Minute, "Longest wait for each Deployment")
	return cmd
}

func (o *installOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet) error {
	v, err := o.values.values(ctx, env, f)
	if err != nil {
		return err
	}
	if o.caDir != "" && v.Remote.Enabled {
		return cli.Usagef("--ca-dir has no effect in a cluster without a control plane: the CA of the control plane's cluster signs")
	}
	c, access, err := o.cluster.connect(env)
	if err != nil {
		return err
	}
	defer c.API.Close()
	options := apply.Options{Force: o.force, DryRun: o.dryRun, Say: env.Notef}
	if o.wait {
		options.Wait = o.timeout
	}
	if o.caDir != "" {
		if options.WriteCA, err = o.writeCA(env, v, access); err != nil {
			return err
		}
	}
	done, diff, err := c.Install(ctx, v, options)
	if err != nil {
		return err
	}
	fmt.Fprint(env.Stdout, diff)
	said := "installed in"
	if o.dryRun {
		said = "would be installed in"
	}
	env.Notef("%s %s %s: %d created, %d changed, %d unchanged, %d deleted",
		v.Installation(), said, c.Name, done.Created, done.Changed, done.Unchanged, done.Deleted)
	return nil
}

// writeCA returns the function that writes the signing CA, after its files are checked.
func (o *installOptions) writeCA(env *cli.Env, v *install.Values, access *kube.Access) (func(context.Context) error, error) {
	set, err := store.ReadSecretFiles(o.caDir, store.LayoutIstio, env.Now())
	if err != nil {
		return nil, err
	}
	secrets, err := store.Connect("", access.Context, v.Namespace, access.Config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		change, err := secrets.Plan(ctx, store.CACerts, set)
		if err != nil {
			return err
		}
		if err := change.Refuse(); err != nil && !o.force {
			return fmt.Errorf("%w; replace the root of a mesh with meshctl certs rotate-root, or write it with --force", err)
		}
		if change.Unchanged() {
			return nil
		}
		if err := change.Write(ctx, false); err != nil {
			return err
		}
		env.Notef("wrote Secret %s/%s", v.Namespace, store.CACerts)
		return nil
	}, nil
}
