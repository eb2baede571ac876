package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/mesh"
)

type cacertsOptions struct {
	dir       string
	layout    string
	namespace string
	name      string
}

func newCertsCacertsCmd(env *Env) *cobra.Command {
	o := &cacertsOptions{}
	cmd := &cobra.Command{
		Use:   "cacerts DIR",
		Short: "Print the Secret of a cluster's CA",
		Long: `Print the CA of a cluster, a directory with files in either layout, as the Kubernetes Secret that Istio's control plane reads.
The set is checked first: one that a control plane would refuse is not printed.

Layouts: "istio" has the names of the files; "tls" has tls.crt, tls.key and
ca.crt, as cert-manager and others write them.`,
		Example: `  meshctl certs cacerts certs/cluster1 | kubectl apply -f -
  meshctl certs cacerts certs/cluster1 --layout tls | kubectl apply -f -`,
		Args: cobra.ArbitraryArgs, // run tells what is wrong with them
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("name one directory")
			}
			o.dir = args[0]
			return o.run(cmd.Context(), env)
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&o.layout, "layout", string(store.LayoutIstio), "Names in the Secret: istio or tls")
	fs.StringVarP(&o.namespace, "namespace", "n", mesh.DefaultSystemNamespace, "Namespace of the Secret")
	fs.StringVar(&o.name, "name", "cacerts", "Name of the Secret")
	return cmd
}

func (o *cacertsOptions) run(_ context.Context, env *Env) error {
	layout := store.Layout(o.layout)
	switch {
	case layout != store.LayoutIstio && layout != store.LayoutTLS:
		return usagef("--layout is %q: want istio or tls", o.layout)
	case !mesh.IsDNSLabel(o.namespace):
		return usagef("--namespace: %q is not a DNS label", o.namespace)
	case !mesh.IsDNSName(o.name):
		return usagef("--name: %q is not a DNS name", o.name)
	}
	set, err := o.read(env.Now(), layout)
	if err != nil {
		return fmt.Errorf("%s: %w", o.dir, err)
	}
	var checked []verify.File
	for _, f := range set {
		checked = append(checked, verify.NewFile(f.Name, f.Data))
	}
	findings := verify.Check(verify.Arrange(o.dir, checked), verify.Options{Now: env.Now()})
	if err := verify.Refuse(findings); err != nil {
		return fmt.Errorf("%s: %w", o.dir, err)
	}
	for _, f := range findings {
		fmt.Fprintf(env.Stderr, "Warning: %s: %s: %s; %s\n", f.Place, f.Code, f.Reason, f.Fix)
	}
	data, err := store.EncodeSecret(store.Secret{Namespace: o.namespace, Name: o.name, Layout: layout}, set)
	if err != nil {
		return err
	}
	return printSecret(env, data)
}

// read returns the files of the Secret.
func (o *cacertsOptions) read(now time.Time, layout store.Layout) ([]files.File, error) {
	if info, err := os.Stat(o.dir); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
		return nil, errors.New("there is no such directory")
	}
	m, err := store.Read(o.dir)
	if err != nil {
		return nil, err
	}
	authority, _, err := m.Authority(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	crl, err := m.Revocations(verify.Options{Now: now})
	if err != nil {
		return nil, err
	}
	return store.SecretFiles(authority, crl.PEM, layout)
}
