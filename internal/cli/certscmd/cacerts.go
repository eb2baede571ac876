package certscmd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

type cacertsOptions struct {
	clusterFlags
	dir    string
	layout store.Layout
	name   string
	apply  bool
	dryRun bool
	force  bool
}

func newCertsCacertsCmd(env *cli.Env) *cobra.Command {
	o := &cacertsOptions{}
	cmd := command(&cobra.Command{
		Use:   "cacerts DIR",
		Short: "Print or apply the Secret with the CA of a cluster",
		Long: `Print the CA of a cluster as the Kubernetes Secret of Istio's control plane. DIR has the
files of the CA, with the names of either layout. The command first checks that a
control plane would accept the CA.

With --apply, the command writes the Secret to the clusters of --context and shows the
changes. DIR is then one CA for all clusters, or contains a directory for each cluster,
as certs intermediate-ca creates them. Without --force, the command does not overwrite a
different CA: proxies refuse each other if the root of a mesh is replaced in one step.
Use certs rotate-root instead.

The keys of the Secret depend on the layout: "istio" has ca-cert.pem, ca-key.pem,
root-cert.pem and cert-chain.pem, and "tls" has tls.crt, tls.key and ca.crt, as
cert-manager writes them.`,
		Example: `  meshctl certs cacerts certs/cluster1 | kubectl apply -f -
  meshctl certs cacerts certs/cluster1 --layout tls | kubectl apply -f -
  meshctl certs cacerts certs --apply --context cluster1,cluster2 --dry-run
  meshctl certs cacerts certs --apply --context cluster1=kind-1,cluster2=kind-2`,
	}, oneArgument(&o.dir, "directory"), func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.BoolVar(&o.apply, "apply", false, "Write the Secret to the clusters of --context")
	fs.BoolVar(&o.dryRun, "dry-run", false, "With --apply, let the API servers check everything, and write nothing")
	cli.ForceVar(fs, &o.force, "With --apply, replace a different CA")
	cli.ChoiceVar(fs, &o.layout, "layout", "Names of the keys in the Secret", store.LayoutIstio, store.LayoutTLS)
	fs.StringVar(&o.name, "name", "cacerts", "`Name` of the Secret")
	return cmd
}

func (o *cacertsOptions) run(ctx context.Context, env *cli.Env) error {
	switch {
	case !mesh.IsDNSLabel(o.namespace):
		return cli.Usagef("--namespace: %q is not a DNS label", o.namespace)
	case !mesh.IsDNSName(o.name):
		return cli.Usagef("--name: %q is not a DNS name", o.name)
	case o.apply && len(o.contexts) == 0:
		return cli.Usagef("--apply needs --context")
	case !o.apply && (len(o.contexts) > 0 || o.dryRun || o.force):
		return cli.Usagef("--context, --dry-run and --force need --apply")
	case o.apply:
		return o.write(ctx, env)
	}
	set, err := o.read(env, o.dir)
	if err != nil {
		return err
	}
	data, err := store.EncodeSecret(store.SecretMeta{Namespace: o.namespace, Name: o.name, Layout: o.layout}, set)
	if err != nil {
		return err
	}
	env.WarnSecret("a private key")
	return env.WriteOut(data)
}

// write writes the Secrets of all clusters after checking all of them.
func (o *cacertsOptions) write(ctx context.Context, env *cli.Env) error {
	clusters, err := o.connect(env)
	if err != nil {
		return err
	}
	var puts []*store.SecretChange
	var refused []error
	for _, c := range clusters {
		set, err := o.read(env, o.dirOf(c.ID))
		if err != nil {
			return err
		}
		put, err := c.Plan(ctx, o.name, set)
		if err != nil {
			return err
		}
		if err := put.Refuse(); err != nil && !o.force {
			refused = append(refused, err)
		}
		puts = append(puts, put)
	}
	if err := errors.Join(refused...); err != nil {
		return fmt.Errorf("nothing is written: %w; replace the root of a mesh with meshctl certs rotate-root, or write it with --force", err)
	}
	return writeChanges(ctx, env, puts, o.dryRun)
}

// dirOf returns the directory of the CA of a cluster: DIR, or its directory of that name.
func (o *cacertsOptions) dirOf(id mesh.ClusterID) string {
	if store.HasAuthority(o.dir) {
		return o.dir
	}
	return filepath.Join(o.dir, string(id))
}

// read returns the files of the Secret for the CA in a directory. A control plane accepts
// them.
func (o *cacertsOptions) read(env *cli.Env, dir string) ([]files.File, error) {
	set, err := store.ReadSecretFiles(dir, o.layout, env.Now())
	if err != nil {
		return nil, err
	}
	findings := store.FromFiles(dir, set).Check(verify.Options{Now: env.Now()})
	if err := verify.Refuse(findings); err != nil {
		return nil, err
	}
	for _, f := range findings {
		env.Warnf("%s: %s: %s; %s", f.Place, f.Code, f.Reason, f.Fix)
	}
	return set, nil
}
