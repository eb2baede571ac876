package cli

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
)

func newCertsCmd(env *Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "certs",
		Short: "Make the certificate authorities of a mesh",
		Long: `Make a root CA for the mesh and an intermediate CA for each cluster, in the
files that Istio's "cacerts" secret holds. The control plane of a cluster signs
with its intermediate; the root's key is needed only to add clusters, so keep
it offline.`,
		Example: `  # a root, and the CAs of two clusters
  meshctl certs root-ca --out certs
  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2`,
	}
	cmd.AddCommand(newCertsRootCmd(env), newCertsIntermediateCmd(env))
	return cmd
}

// caOptions are the flags that both kinds of CA share.
type caOptions struct {
	out          string
	algorithm    string
	ttl          time.Duration
	organization string
	commonName   string
	force        bool
}

func (o *caOptions) bind(fs *pflag.FlagSet, commonName string) {
	var names []string
	for _, a := range certs.Algorithms() {
		names = append(names, string(a))
	}
	fs.StringVar(&o.out, "out", "", "Write the files into this `directory` (required)")
	fs.StringVar(&o.algorithm, "algorithm", names[0], "Kind of key, one of "+strings.Join(names, ", "))
	durationVar(fs, &o.ttl, "ttl", 3650*day, "How long the certificate is valid")
	fs.StringVar(&o.organization, "org", "meshctl", "Organization (O) in the certificate's subject")
	fs.StringVar(&o.commonName, "cn", commonName, "Common name (CN) in the certificate's subject")
	fs.BoolVar(&o.force, "force", false, "Overwrite files that exist")
}

// spec checks the options and turns them into a certificate's description.
func (o *caOptions) spec() (certs.CASpec, error) {
	algorithm, err := certs.ParseAlgorithm(o.algorithm)
	switch {
	case err != nil:
		return certs.CASpec{}, usagef("--algorithm: %w", err)
	case o.out == "":
		return certs.CASpec{}, usagef("--out is required")
	case o.ttl == 0:
		return certs.CASpec{}, usagef("--ttl must be more than 0")
	case o.organization == "" && o.commonName == "":
		return certs.CASpec{}, usagef("one of --org and --cn must not be empty")
	}
	return certs.CASpec{
		Algorithm:    algorithm,
		Organization: o.organization,
		CommonName:   o.commonName,
		TTL:          o.ttl,
	}, nil
}

func newCertsRootCmd(env *Env) *cobra.Command {
	o := &caOptions{}
	cmd := &cobra.Command{
		Use:   "root-ca",
		Short: "Make a root CA",
		Long: `Make a self-signed root: root-cert.pem and root-key.pem (mode 0600). Existing
files are kept unless --force is given.`,
		Example: `  meshctl certs root-ca --out certs
  meshctl certs root-ca --out certs --algorithm rsa-4096 --ttl 3650d --org example.com`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.runRoot(cmd.Context(), env) },
	}
	o.bind(cmd.Flags(), "Root CA")
	return cmd
}

func (o *caOptions) runRoot(_ context.Context, env *Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	root, err := certs.NewRoot(spec, env.Now(), rand.Reader)
	if err != nil {
		return err
	}
	paths, err := store.SaveRoot(o.out, root, o.force)
	if err != nil {
		return err
	}
	printPaths(env.Stdout, paths)
	printCA(env.Stdout, "root", root)
	return nil
}

type intermediateOptions struct {
	caOptions
	root     string
	clusters []string
}

func newCertsIntermediateCmd(env *Env) *cobra.Command {
	o := &intermediateOptions{}
	cmd := &cobra.Command{
		Use:   "intermediate-ca CLUSTER...",
		Short: "Make the intermediate CA of each cluster",
		Long: `Make an intermediate CA for each cluster, signed by the root in --root: in
<out>/<cluster> the files ca-cert.pem, ca-key.pem (mode 0600), root-cert.pem and
cert-chain.pem, which meshctl serve reads with --ca-dir and Istio from the
secret "cacerts". An intermediate never outlives the root. The files of all
clusters are written or none; existing ones are kept unless --force is given.`,
		Example: `  meshctl certs intermediate-ca --root certs --out certs cluster1 cluster2

  # hand one to an Istio control plane
  kubectl create secret generic cacerts -n istio-system --from-file=certs/cluster1`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			o.clusters = args
			return o.run(cmd.Context(), env)
		},
	}
	o.bind(cmd.Flags(), "Intermediate CA")
	cmd.Flags().StringVar(&o.root, "root", "", "Directory with root-cert.pem and root-key.pem (required)")
	return cmd
}

func (o *intermediateOptions) run(ctx context.Context, env *Env) error {
	spec, err := o.spec()
	if err != nil {
		return err
	}
	if err := o.checkClusters(); err != nil {
		return err
	}
	root, err := store.LoadRoot(o.root, env.Now())
	if err != nil {
		return err
	}
	var made []store.Intermediate
	for _, name := range o.clusters {
		// An RSA key takes long enough for a person to change their mind.
		if err := ctx.Err(); err != nil {
			return err
		}
		cluster := mesh.ClusterID(name)
		a, err := root.NewIntermediate(cluster, spec, env.Now(), rand.Reader)
		if err != nil {
			return fmt.Errorf("make CA of %s: %w", name, err)
		}
		made = append(made, store.Intermediate{Cluster: cluster, Authority: a})
	}
	paths, err := store.SaveIntermediates(o.out, made, o.force)
	if err != nil {
		return err
	}
	printPaths(env.Stdout, paths)
	for _, m := range made {
		printCA(env.Stdout, string(m.Cluster), m.Authority)
	}
	return nil
}

func (o *intermediateOptions) checkClusters() error {
	if o.root == "" {
		return usagef("--root is required")
	}
	if len(o.clusters) == 0 {
		return usagef("name at least one cluster")
	}
	for i, name := range o.clusters {
		if !mesh.IsDNSLabel(name) {
			return usagef("cluster name %q is not a DNS label: use a-z, 0-9 and '-', at most 63 characters", name)
		}
		if slices.Contains(o.clusters[:i], name) {
			return usagef("cluster %q is named twice", name)
		}
	}
	return nil
}

func printPaths(w io.Writer, paths []string) {
	for _, path := range paths {
		fmt.Fprintln(w, "wrote", path)
	}
}

func printCA(w io.Writer, name string, a *certs.Authority) {
	fmt.Fprintf(w, "%s: valid until %s, SHA-256 %s\n",
		name, a.Cert.NotAfter.UTC().Format(time.RFC3339), certs.Fingerprint(a.Cert))
}
