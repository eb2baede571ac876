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
	cmd := command(&cobra.Command{
		Use:   "intermediate-ca CLUSTER...",
		Short: "Create the intermediate CA of each cluster",
		Long: `Create an intermediate CA for each cluster, signed by the root in --root: in
<out>/<cluster> the files ca-cert.pem, ca-key.pem (mode 0600), root-cert.pem and
cert-chain.pem, for meshctl serve --ca-dir and for Istio's Secret "cacerts". The
locality (L) of the subject is the cluster, and the path length is 0: an intermediate
signs certificates of workloads, not of CAs. It expires no later than the root. The
command writes the files of all clusters or none, and overwrites existing files only
with --force.`,
		Example: `  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2

  # Give one to an Istio control plane
  meshctl certs cacerts certs/cluster1 | kubectl apply -f -`,
	}, func(args []string) error {
		o.clusters = args
		return nil
	}, func(ctx context.Context) error { return o.run(ctx, env) })
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files to directories in this `directory` (required)")
	o.bind(fs, "Intermediate CA")
	cli.DirVar(fs, &o.root, "root", "`Directory` with root-cert.pem and root-key.pem (required)")
	fs.StringSliceVar(&o.dnsNames, "dns", []string{"istiod." + mesh.DefaultSystemNamespace + ".svc"},
		"DNS `name` of the control plane in the certificate; may be repeated")
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
	err = patiently(env, fmt.Sprintf("generating %d keys, which takes a moment", len(o.clusters)), func() error {
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
		printMade(env, string(m.Cluster), m.Authority.Cert)
		noteClamped(env, string(m.Cluster), m.Authority.Cert.NotAfter, env.Now().Add(o.ttl))
	}
	return nil
}

func (o *intermediateOptions) make(ctx context.Context, env *cli.Env, root *certs.Authority, spec certs.CASpec) ([]store.Intermediate, error) {
	var made []store.Intermediate
	for _, name := range o.clusters {
		// Generating an RSA key takes long.
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		cluster := mesh.ClusterID(name)
		a, err := root.NewIntermediate(cluster, spec, env.Now(), rand.Reader)
		if err != nil {
			return nil, fmt.Errorf("create CA of %s: %w", name, err)
		}
		made = append(made, store.Intermediate{Cluster: cluster, Authority: a})
	}
	return made, nil
}

func (o *intermediateOptions) check() error {
	if o.out == toStdout {
		return cli.Usagef("--out: an intermediate has four files: name a directory, then print it as one with: meshctl certs cacerts DIR")
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
