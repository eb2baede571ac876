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

func newPCBootstrapCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	cmd := o.command(env, &cobra.Command{
		Use:     "bootstrap [POD]",
		Aliases: []string{"b"},
		Short:   "Show the bootstrap configuration of a proxy",
		Long: `Show the bootstrap configuration of a proxy: its node with the metadata, and the
clusters, listeners and secrets that do not come from a control plane. JSON and YAML
show all of it without private keys; the table shows only versions.`,
		Example: `  meshctl pc bootstrap --admin 127.0.0.1:15000 -o table

  # Show the metadata that the proxy sends to its control plane
  meshctl pc bootstrap --admin 127.0.0.1:15000 | jq .bootstrap.node.metadata`,
	}, pcRequest{path: fetch.Bootstrap, read: func(_ context.Context, r io.Reader, _ bool) (pcResult, error) {
		b, err := proxyconfig.ReadBootstrap(r)
		if err != nil {
			return pcResult{}, err
		}
		return pcResult{table: proxyconfig.BootstrapTable(b), none: "The bootstrap has no versions.", json: b.Resource}, nil
	}})
	o.output = output.FormatJSON
	cmd.Flags().Lookup("output").DefValue = o.output.String()
	return cmd
}
