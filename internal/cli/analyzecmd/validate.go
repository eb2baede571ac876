package analyzecmd

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/server/analyze"
	"github.com/meshctl/meshctl/internal/server/analyze/codes"
	"github.com/meshctl/meshctl/internal/server/load"
)

type validateOptions struct {
	paths     []string
	socketDir string
	output    output.Format
}

// NewValidate returns the command validate.
func NewValidate(env *cli.Env) *cobra.Command {
	var o validateOptions
	cmd := &cobra.Command{
		Use:     "validate -f FILE|DIR...",
		Aliases: []string{"v"},
		Short:   "Check objects, each without the others",
		Long: `Check each object of files and directories (- is standard input) without the others, as
the control plane does before it uses the object. It refuses objects that Istio's API would
refuse, or that Envoy would refuse later. The exit code is 3 when it refuses an object.
It also lists fields without effect, and ignores objects of other programs.

meshctl analyze also checks the objects together.`,
		Example: `  meshctl validate -f mesh/route.yaml
  kubectl kustomize . | meshctl validate -f -`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			o.paths = append(o.paths, args...)
			return o.run(cmd.Context(), env)
		},
	}
	f := cmd.Flags()
	f.StringSliceVarP(&o.paths, "file", "f", nil, "`File` or directory to check, - for standard input; may be repeated")
	cli.Rename(f, "file", "filename")
	cli.SocketDirVar(f, &o.socketDir)
	cli.TableVar(f, &o.output)
	return cmd
}

func (o *validateOptions) run(ctx context.Context, env *cli.Env) error {
	if len(o.paths) == 0 {
		return cli.Usagef("name the files to check with -f")
	}
	own := load.Cluster{ID: "Kubernetes"}
	var err error
	if own.Dirs, own.Files, err = cli.ReadPaths(env, o.paths); err != nil {
		return err
	}
	m, err := load.Read(ctx, load.Config{Clusters: []load.Cluster{own}, SocketDir: o.socketDir, Now: env.Now})
	if err != nil {
		return err
	}
	found := slices.DeleteFunc(analyze.OfFiles(m.Files), func(f analyze.Finding) bool { return f.Code == codes.RepeatedObject })
	return report(env, o.output, analyze.Sort(found), codes.Error, looked(m, []load.Cluster{own}), nil)
}
