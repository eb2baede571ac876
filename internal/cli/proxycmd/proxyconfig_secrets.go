package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

func newPCSecretsCmd(env *cli.Env) *cobra.Command {
	var o pcOptions
	return o.command(env, &cobra.Command{
		Use:     "secrets [POD]",
		Aliases: []string{"secret", "s"},
		Short:   "Show the certificates and trust bundles of a proxy",
		Long: `Show the first certificate of each certificate chain and trust bundle of the proxy.
JSON and YAML show all of them. Private keys are never shown.`,
		Example: `  meshctl pc secrets --admin 127.0.0.1:15000

  # Show the certificate of the workload
  meshctl pc secrets --admin 127.0.0.1:15000 -o json |
    jq -r '.dynamicActiveSecrets[0].secret.tlsCertificate.certificateChain.inlineBytes' |
    base64 -d | openssl x509 -noout -text`,
	}, pcRequest{path: fetch.Secrets, read: func(_ context.Context, r io.Reader, _ bool) (pcResult, error) {
		secrets, err := proxyconfig.ReadSecrets(r)
		return pcResult{table: proxyconfig.SecretTable(secrets.Items, env.Now()), none: "No active or warming secrets found.", json: secrets.Resource}, err
	}})
}
