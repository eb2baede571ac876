package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcExtensionsOptions struct{ pcOptions }

func newPCExtensionsCmd(env *cli.Env) *cobra.Command {
	var o pcExtensionsOptions
	cmd := &cobra.Command{
		Use:     "ecds [POD]",
		Aliases: []string{"ec"},
		Short:   "Show the extension configurations",
		Long: `Show the configurations of extensions, such as HTTP filters, that the proxy got
on their own (ECDS), by type and name. JSON and YAML hold them whole.`,
		Example: `  meshctl pc ecds --admin 127.0.0.1:15000

  # when did Envoy take which version?
  meshctl pc ecds --admin 127.0.0.1:15000 -o json | jq '.ecdsFilters[] | .ecdsFilter.name, .lastUpdated'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	return cmd
}

func (o *pcExtensionsOptions) run(ctx context.Context, env *cli.Env) error {
	return o.show(ctx, env, fetch.Extensions, func(r io.Reader, _ bool) (pcResult, error) {
		extensions, err := proxyconfig.ReadExtensions(r)
		return pcResult{table: proxyconfig.ExtensionTable(extensions.Items), none: "No extension configurations found.", json: extensions.Resource}, err
	})
}
