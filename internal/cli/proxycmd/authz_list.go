package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newAuthzListCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	return o.command(env, &cobra.Command{
		Use:   "list [WORKLOAD]",
		Short: "Show the security policies in force at the ports of a proxy",
		Long: `Show for each port of a workload the policies that its Envoy enforces: the mode of mTLS,
the AuthorizationPolicies by action, external authorizers, and the issuers of accepted
tokens. WORKLOAD, --admin and --file name the Envoy, as in meshctl proxy-config.`,
		Example: `  meshctl authz list shop-1.apps
  meshctl authz list -f dump.json -o json`,
	}, pcRequest{path: fetch.Everything, read: func(_ context.Context, r io.Reader, _ bool) (pcResult, error) {
		filters, err := proxyconfig.ReadFilters(r)
		if err != nil {
			return pcResult{}, err
		}
		ports := access.Policies((*access.Config)(filters))
		return pcResult{table: policyTable(ports), none: "The proxy has no ports of a service", json: ports}, nil
	}})
}
