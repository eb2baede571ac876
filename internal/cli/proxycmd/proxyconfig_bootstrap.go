package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/output"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcBootstrapOptions struct{ pcOptions }

func newPCBootstrapCmd(env *cli.Env) *cobra.Command {
	var o pcBootstrapOptions
	cmd := &cobra.Command{
		Use:     "bootstrap [POD]",
		Aliases: []string{"b"},
		Short:   "Show what the proxy was started with",
		Long: `Show what the proxy was started with: its node with the metadata, and the
clusters, listeners and secrets that do not come from a control plane. JSON and
YAML hold it whole, private keys redacted; the table has versions only.`,
		Example: `  meshctl pc bootstrap --admin 127.0.0.1:15000 -o table

  # what the proxy tells its control plane of itself
  meshctl pc bootstrap --admin 127.0.0.1:15000 | jq .bootstrap.node.metadata`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	o.output = output.FormatJSON
	cmd.Flags().Lookup("output").DefValue = o.output.String()
	return cmd
}

func (o *pcBootstrapOptions) run(ctx context.Context, env *cli.Env) error {
	return o.show(ctx, env, fetch.Bootstrap, func(r io.Reader, _ bool) (pcResult, error) {
		b, err := proxyconfig.ReadBootstrap(r)
		if err != nil {
			return pcResult{}, err
		}
		return pcResult{table: proxyconfig.BootstrapTable(b), none: "The bootstrap has no versions.", json: b.Resource}, nil
	})
}
