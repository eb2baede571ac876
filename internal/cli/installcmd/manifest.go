package installcmd

import (
	"context"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/install"
)

// NewManifest returns the command manifest.
func NewManifest(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "manifest",
		Short:   "Print the objects of an installation",
		Long:    "Print the objects of an installation, for GitOps tools and for review.",
		Example: "  meshctl manifest generate --cluster-id cluster1 --network network1",
	}
	cmd.AddCommand(newManifestGenerate(env))
	return cmd
}

type generateOptions struct{ values valueFlags }

func newManifestGenerate(env *cli.Env) *cobra.Command {
	var o generateOptions
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Print the objects of an installation as YAML",
		Long: `Print the objects of an installation in the order in which they must be applied. The
command needs no cluster.`,
		Example: `  meshctl manifest generate --cluster-id cluster1 --network network1 --east-west-gateway
  meshctl manifest generate -f cluster1.yaml --crds > mesh.yaml`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env, cmd.Flags()) },
	}
	o.values.bind(cmd.Flags())
	return cmd
}

func (o *generateOptions) run(ctx context.Context, env *cli.Env, f *pflag.FlagSet) error {
	v, err := o.values.values(ctx, env, f)
	if err != nil {
		return err
	}
	objects, err := install.Objects(v)
	if err != nil {
		return err
	}
	text, err := install.YAML(objects)
	if err != nil {
		return err
	}
	return env.WriteOut(text)
}
