package authzcmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/cli/pccmd"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/access"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newAuthzListCmd(env *cli.Env) *cobra.Command {
	var o pccmd.Options
	return o.Command(env, &cobra.Command{
		Use:   "list [WORKLOAD]",
		Short: "Show the security policies in force at the ports of a proxy",
		Long: `Show for each port of a workload the policies that its Envoy enforces: the mode of mTLS,
the AuthorizationPolicies by action, external authorizers, and the issuers of accepted
tokens. WORKLOAD, --admin and --file name the Envoy, as in meshctl proxy-config.`,
		Example: `  meshctl authz list shop-1.apps
  meshctl authz list -f dump.json -o json`,
	}, pccmd.Request{Path: fetch.Everything, Read: func(_ context.Context, r io.Reader, _ bool) (pccmd.Result, error) {
		filters, err := proxyconfig.ReadFilters(r)
		if err != nil {
			return pccmd.Result{}, err
		}
		ports := access.Policies((*access.Config)(filters))
		return pccmd.Result{Table: pccmd.PolicyTable(ports), None: "The proxy has no ports of a service", JSON: ports}, nil
	}})
}
