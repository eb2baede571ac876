package certscmd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

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
	layout string
	name   string
	apply  bool
	dryRun bool
	force  bool
}

func newCertsCacertsCmd(env *cli.Env) *cobra.Command {
	o := &cacertsOptions{}
	cmd := &cobra.Command{
		Use:   "cacerts DIR",
		Short: "Print the Secret of a cluster's CA, or write it into clusters",
		Long: `Print the CA of a cluster, a directory with files in either layout, as the Kubernetes Secret that Istio's control plane reads.
The set is checked first: one that a control plane would refuse is not printed.

With --apply the Secret is written into the clusters of --context, and what
changes is shown. DIR is then the CA of all of them, or has a directory for each,
as certs intermediate-ca makes them. Nothing is written when one of the Secrets
holds another CA, unless --force is given: the proxies of a mesh whose root is
replaced at once refuse each other, which certs rotate-root avoids.

Layouts: "istio" has the names of the files; "tls" has tls.crt, tls.key and
ca.crt, as cert-manager and others write them.`,
		Example: `  meshctl certs cacerts certs/cluster1 | kubectl apply -f -
  meshctl certs cacerts certs/cluster1 --layout tls | kubectl apply -f -
  meshctl certs cacerts certs --apply --context cluster1,cluster2 --dry-run
  meshctl certs cacerts certs --apply --context cluster1=kind-1,cluster2=kind-2`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("name one directory")
			}
			o.dir = args[0]
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	o.bind(env, cmd)
	fs.BoolVar(&o.apply, "apply", false, "Write the Secret into the clusters of --context")
	fs.BoolVar(&o.dryRun, "dry-run", false, "With --apply: have the API servers check everything, and write nothing")
	cli.ForceVar(fs, &o.force, "With --apply: replace another CA, too")
	cli.ChoiceVar(fs, &o.layout, "layout", "Names of the keys in the Secret", string(store.LayoutIstio), string(store.LayoutTLS))
	fs.StringVar(&o.name, "name", "cacerts", "Name of the Secret")
	return cmd
}

func (o *cacertsOptions) run(ctx context.Context, env *cli.Env) error {
	layout := store.Layout(o.layout)
	switch {
	case !mesh.IsDNSLabel(o.namespace):
		return cli.Usagef("--namespace: %q is not a DNS label", o.namespace)
	case !mesh.IsDNSName(o.name):
		return cli.Usagef("--name: %q is not a DNS name", o.name)
	case o.apply && len(o.contexts) == 0:
		return cli.Usagef("--apply needs --context: the clusters to write to")
	case !o.apply && (len(o.contexts) > 0 || o.dryRun || o.force):
		return cli.Usagef("--context, --dry-run and --force need --apply")
	case o.apply:
		return o.write(ctx, env, layout)
	}
	set, err := o.read(env, o.dir, layout)
	if err != nil {
		return err
	}
	data, err := store.EncodeSecret(store.SecretMeta{Namespace: o.namespace, Name: o.name, Layout: layout}, set)
	if err != nil {
		return err
	}
	env.WarnSecret("a private key")
	return env.WriteOut(data)
}

// write writes the Secrets of all clusters, once all are known to be good.
func (o *cacertsOptions) write(ctx context.Context, env *cli.Env, layout store.Layout) error {
	clusters, err := o.connect(env)
	if err != nil {
		return err
	}
	var puts []*store.SecretChange
	var refused []error
	for _, c := range clusters {
		set, err := o.read(env, o.dirOf(c.ID), layout)
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
		return fmt.Errorf("nothing is written: %w; replace the root of a mesh with meshctl certs rotate-root, or write it all the same with --force", err)
	}
	note := ""
	if o.dryRun {
		note = " (dry run)"
	}
	for _, put := range puts {
		if err := put.Write(ctx, o.dryRun); err != nil {
			return err
		}
		fmt.Fprintf(env.Stdout, "%s%s\n", put, note)
	}
	return nil
}

// dirOf is the directory of a cluster's CA: DIR, or the one in it that is named
// after the cluster.
func (o *cacertsOptions) dirOf(id mesh.ClusterID) string {
	if store.HasAuthority(o.dir) {
		return o.dir
	}
	return filepath.Join(o.dir, string(id))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// read returns the files of the Secret for the CA in a directory, if a control
// plane will accept them.
func (o *cacertsOptions) read(env *cli.Env, dir string, layout store.Layout) ([]files.File, error) {
	set, err := o.files(env.Now(), dir, layout)
	if err != nil {
		return nil, err
	}
	var checked []verify.File
	for _, f := range set {
		checked = append(checked, verify.NewFile(f.Name, f.Data))
	}
	findings := verify.Check(verify.Arrange(dir, checked), verify.Options{Now: env.Now()})
	if err := verify.Refuse(findings); err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	for _, f := range findings {
		fmt.Fprintf(env.Stderr, "Warning: %s: %s: %s; %s\n", f.Place, f.Code, f.Reason, f.Fix)
	}
	return set, nil
}

func (o *cacertsOptions) files(now time.Time, dir string, layout store.Layout) ([]files.File, error) {
	if !isDir(dir) {
		return nil, fmt.Errorf("%s: there is no such directory", dir)
	}
	m, err := store.Read(dir)
	if err != nil {
		return nil, err
	}
	clusters, err := store.Authorities(dir)
	if err != nil {
		return nil, err
	}
	if len(clusters) > 0 && !store.HasAuthority(dir) {
		return nil, fmt.Errorf("%s has the CAs of clusters, each in a directory of its own: name one of them, such as %s, or write all with --apply --context",
			dir, filepath.Join(dir, clusters[0]))
	}
	authority, _, err := m.Authority(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	crl, err := m.Revocations(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	set, err := store.SecretFiles(authority, crl.PEM, layout)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return set, nil
}
