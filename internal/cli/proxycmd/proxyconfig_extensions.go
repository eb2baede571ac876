package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCExtensionsCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	return o.command(env, &cobra.Command{
		Use:     "ecds [POD]",
		Aliases: []string{"ec"},
		Short:   "Show the extension configurations of a proxy",
		Long: `Show type and name of the extension configurations (ECDS) of a proxy, such as HTTP
filters. JSON and YAML show all of each.`,
		Example: `  meshctl pc ecds --admin 127.0.0.1:15000

  # Show when Envoy took each of them
  meshctl pc ecds --admin 127.0.0.1:15000 -o json | jq '.ecdsFilters[] | .ecdsFilter.name, .lastUpdated'`,
	}, pcRequest{path: fetch.Extensions, read: func(_ context.Context, r io.Reader, _ bool) (pcResult, error) {
		extensions, err := proxyconfig.ReadExtensions(r)
		return pcResult{table: proxyconfig.ExtensionTable(extensions.Items), none: "No extension configurations found.", json: extensions.Resource}, err
	}})
}
