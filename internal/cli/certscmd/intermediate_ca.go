package certscmd

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/mesh"
)

type intermediateOptions struct {
	caOptions
	root     string
	dnsNames []string
	clusters []string
}

func newCertsIntermediateCmd(env *cli.Env) *cobra.Command {
	o := &intermediateOptions{}
	cmd := &cobra.Command{
		Use:   "intermediate-ca CLUSTER...",
		Short: "Make the intermediate CA of each cluster",
		Long: `Make an intermediate CA for each cluster, signed by the root in --root: in
<out>/<cluster> the files ca-cert.pem, ca-key.pem (mode 0600), root-cert.pem and
cert-chain.pem, which meshctl serve reads with --ca-dir and Istio from the
secret "cacerts". The cluster is the locality (L) of the subject, and the path
length is 0: an intermediate signs workloads, not CAs. It never outlives the
root. The files of all clusters are written or none; existing ones are kept
unless --force is given.`,
		Example: `  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2

  # hand one to an Istio control plane
  meshctl certs cacerts certs/cluster1 | kubectl apply -f -`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			o.clusters = args
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files below this `directory` (required)")
	o.bind(fs, "Intermediate CA")
	cli.DirVar(fs, &o.root, "root", "Directory with root-cert.pem and root-key.pem (required)")
	fs.StringSliceVar(&o.dnsNames, "dns", []string{"istiod." + mesh.DefaultSystemNamespace + ".svc"},
		"DNS `name` of the control plane, an alternative name of the certificate; may be repeated")
	return cmd
}

func (o *intermediateOptions) run(ctx context.Context, env *cli.Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	if err := o.check(); err != nil {
		return err
	}
	spec.DNSNames = o.dnsNames
	root, err := store.LoadRoot(o.root, env.Now())
	if err != nil {
		return err
	}
	var made []store.Intermediate
	err = patiently(env, fmt.Sprintf("making %d keys, which takes a moment", len(o.clusters)), func() error {
		made, err = o.make(ctx, env, root, spec)
		return err
	})
	if err != nil {
		return err
	}
	paths, err := store.SaveIntermediates(o.out, made, o.force)
	if err != nil {
		return err
	}
	env.Wrote(paths...)
	for _, m := range made {
		printCA(env.Stdout, string(m.Cluster), m.Authority)
		sayClamped(env, string(m.Cluster), m.Authority.Cert.NotAfter, env.Now().Add(o.ttl))
	}
	return nil
}

func (o *intermediateOptions) make(ctx context.Context, env *cli.Env, root *certs.Authority, spec certs.CASpec) ([]store.Intermediate, error) {
	var made []store.Intermediate
	for _, name := range o.clusters {
		// An RSA key takes long enough for a person to change their mind.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cluster := mesh.ClusterID(name)
		a, err := root.NewIntermediate(cluster, spec, env.Now(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("make CA of %s: %w", name, err)
		}
		made = append(made, store.Intermediate{Cluster: cluster, Authority: a})
	}
	return made, nil
}

func (o *intermediateOptions) check() error {
	if o.out == toStdout {
		return cli.Usagef("--out: an intermediate is four files; name a directory, then meshctl certs cacerts prints them as one")
	}
	if o.root == "" {
		return cli.Usagef("--root is required")
	}
	if len(o.clusters) == 0 {
		return cli.Usagef("name at least one cluster")
	}
	for i, name := range o.clusters {
		if !mesh.IsDNSLabel(name) {
			return cli.Usagef("cluster name %q is not a DNS label: use a-z, 0-9 and '-', at most 63 characters", name)
		}
		if slices.Contains(o.clusters[:i], name) {
			return cli.Usagef("cluster %q is named twice", name)
		}
	}
	for _, name := range o.dnsNames {
		if !mesh.IsDNSName(name) {
			return cli.Usagef("--dns: %q is not a DNS name", name)
		}
	}
	return nil
}
