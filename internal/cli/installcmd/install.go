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
	"github.com/meshctl/meshctl/internal/output"
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
	return connect(env, &o.KubeFlags, o.context)
}

// connect returns the cluster of a context, empty for the current one, and the access to it. The
// caller closes its API.
func connect(env *cli.Env, flags *cli.KubeFlags, context string) (*apply.Cluster, *kube.Access, error) {
	access, err := kube.Load(flags.Options(env, context))
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
	yes     bool
	dryRun  bool
	wait    bool
	timeout time.Duration
	upgrade bool // starts from the values of the installation
}

// NewInstall returns the command install.
func NewInstall(env *cli.Env) *cobra.Command {
	var o installOptions
	return o.bind(env, &cobra.Command{
		Use:   "install",
		Short: "Install the control plane and gateways in a cluster, or change them",
		Long: `Install the control plane, its webhooks and gateways in the cluster of a context. Run
the command again, with all flags, to change the installation: the command deletes
objects that the new installation does not have, and a second run changes nothing.
meshctl upgrade needs only the flags that change.

The command changes only objects that it made. It writes nothing if another program,
such as Istio, made an object of the same name: use --revision to install beside it. It
asks before it deletes a gateway or a control plane, or gives the cluster another name,
mesh, network or trust domain.

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
	})
}

// NewUpgrade returns the command upgrade.
func NewUpgrade(env *cli.Env) *cobra.Command {
	o := installOptions{upgrade: true}
	return o.bind(env, &cobra.Command{
		Use:   "upgrade",
		Short: "Upgrade an installation, or change some of its values",
		Long: `Install this version with the values that the installation was made with, which it keeps
in a ConfigMap. Flags replace values one by one, files replace all earlier
files, and --set changes single values of the files.

Without --image, the image is the one of this version, or the one that was given before.`,
		Example: `  # This version with the same values
  meshctl upgrade --context cluster1 --dry-run
  meshctl upgrade --context cluster1

  # Another image, and an ingress gateway
  meshctl upgrade --context cluster1 --image registry.example/meshctl:v2 --ingress-gateway`,
	})
}

func (o *installOptions) bind(env *cli.Env, cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env, cmd.Flags()) }
	f := cmd.Flags()
	o.values.bind(f)
	o.cluster.bind(env, cmd)
	cli.DirVar(f, &o.caDir, "ca-dir", "`Directory` of the signing CA, as certs intermediate-ca makes it, for the Secret cacerts (default: the CA in the Secret, else a self-signed CA)")
	cli.ForceVar(f, &o.force, "Overwrite fields that other programs set, and replace a different signing CA in the Secret cacerts")
	yesVar(f, &o.yes)
	f.BoolVar(&o.dryRun, "dry-run", false, "Show what would change as a diff, and write nothing")
	f.BoolVar(&o.wait, "wait", true, "Wait until the control plane, its webhooks and the gateways are available")
	cli.DurationVar(f, &o.timeout, "timeout", 5*time.Minute, "Longest wait for each Deployment")
	return cmd
}

func (o *installOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet) error {
	in, err := o.values.read(env)
	if err != nil {
		return err
	}
	meant := in.Flags // the flags whose effects are not asked for
	c, access, err := o.cluster.connect(env)
	if err != nil {
		return err
	}
	defer c.API.Close()
	if o.upgrade {
		name, earlier, err := earlierInputs(ctx, c, o.values.namespace, in, o.values.revision)
		if err != nil {
			return err
		}
		env.Notef("upgrade of %s, which was made with %s", name, earlier)
		in = in.over(earlier)
		if err := in.give(f); err != nil {
			return err
		}
	}
	v, err := o.values.valuesOf(ctx, env, f, in)
	if err != nil {
		return err
	}
	if v.Inputs, err = in.text(); err != nil {
		return err
	}
	if o.caDir != "" && v.Remote.Enabled {
		return cli.Usagef("--ca-dir has no effect in a cluster without a control plane: the CA of the control plane's cluster signs")
	}
	options := apply.Options{Force: o.force, DryRun: o.dryRun, Say: env.Notef, Confirm: func(risks []apply.Risk) error {
		return o.confirm(env, c.Name, risks, meant)
	}}
	if o.wait {
		options.Wait = o.timeout
	}
	if o.caDir != "" {
		if options.WriteCA, err = o.writeCA(ctx, env, v, access); err != nil {
			return err
		}
	}
	done, diff, err := c.Install(ctx, v, options)
	if err != nil {
		return err
	}
	fmt.Fprint(env.Stdout, diff)
	did := "installed"
	if o.upgrade {
		did = "upgraded"
	}
	said := did + " in"
	if o.dryRun {
		said = "would be " + said
	}
	env.Notef("%s %s %s: %d created, %d changed, %d unchanged, %d deleted",
		v.Installation(), said, c.Name, done.Created, done.Changed, done.Unchanged, done.Deleted)
	if done.Created > 0 && !o.dryRun && !o.upgrade && v.Network != "" && access.Context != "" && !c.ReadsOthers(ctx, v.Namespace) {
		link := withFlags("meshctl multicluster link "+output.ShellWord(access.Context)+" CONTEXT", o.cluster.CommandFlags(""))
		env.Notef("next, to join it to other clusters: %s", link)
	}
	return nil
}

// confirm asks for the risks that no flag names.
func (o *installOptions) confirm(env *cli.Env, cluster string, risks []apply.Risk, meant map[string][]string) error {
	var asked []string
	for _, r := range risks {
		if _, ok := meant[r.Flag]; !ok {
			asked = append(asked, r.Text)
		}
	}
	what := "this installation"
	if !o.upgrade {
		what = "an installation with these flags"
	}
	return confirm(env, o.yes, fmt.Sprintf("%s: %s", cluster, what), asked,
		"give the flags that keep them, or start from the values of the installation with meshctl upgrade")
}

// writeCA returns the function that writes the signing CA, after its files and the Secret that
// exists are checked.
func (o *installOptions) writeCA(ctx context.Context, env *cli.Env, v *install.Values, access *kube.Access) (func(context.Context) error, error) {
	set, err := store.ReadSecretFiles(o.caDir, store.LayoutIstio, env.Now())
	if err != nil {
		return nil, err
	}
	secrets, err := store.Connect("", access.Context, v.Namespace, access.Config)
	if err != nil {
		return nil, err
	}
	plan := func(ctx context.Context) (*store.SecretChange, error) {
		change, err := secrets.Plan(ctx, store.CACerts, set)
		if err != nil {
			return nil, err
		}
		if err := change.Refuse(); err != nil && !o.force {
			return nil, fmt.Errorf("%w; to keep the CA of the cluster, such as one that meshctl certs rotate-root wrote, leave out --ca-dir; "+
				"to change the root of a mesh, use meshctl certs rotate-root", err)
		}
		return change, nil
	}
	if _, err := plan(ctx); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		change, err := plan(ctx)
		if err != nil || change.Unchanged() {
			return err
		}
		if err := change.Write(ctx, false); err != nil {
			return err
		}
		env.Notef("wrote Secret %s/%s", v.Namespace, store.CACerts)
		return nil
	}, nil
}
