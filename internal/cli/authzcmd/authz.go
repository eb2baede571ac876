// Package authzcmd holds the command authz, which shows what an Envoy permits.
package authzcmd

import (
	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
)

// NewAuthz returns the command authz.
func NewAuthz(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "authz",
		Short: "Find out who may call what, and why",
		Long: `Find out which requests a proxy lets through, and which rule of which policy decides.
check decides about one request, by the filters that an Envoy has or would have. matrix
decides about all callers of a namespace, by the policies of a cluster or a directory.
list shows the policies that an Envoy enforces.`,
		Example: `  meshctl authz check web-1.apps --principal clients/web --path /cart --port 8080`,
	}
	cmd.AddCommand(newAuthzCheckCmd(env), newAuthzMatrixCmd(env), newAuthzListCmd(env))
	return cmd
}
