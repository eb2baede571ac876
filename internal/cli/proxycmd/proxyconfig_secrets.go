package proxycmd

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/proxyconfig"
	"github.com/meshctl/meshctl/internal/proxyconfig/fetch"
)

type pcSecretsOptions struct{ pcOptions }

func newPCSecretsCmd(env *cli.Env) *cobra.Command {
	var o pcSecretsOptions
	cmd := &cobra.Command{
		Use:     "secrets [POD]",
		Aliases: []string{"secret", "s"},
		Short:   "Show the certificates and trust bundles",
		Long: `Show the certificates and trust bundles that the proxy got: of each the first
certificate. JSON and YAML hold them whole; private keys are never shown.`,
		Example: `  meshctl pc secrets --admin 127.0.0.1:15000

  # look into the certificate
  meshctl pc secrets --admin 127.0.0.1:15000 -o json |
    jq -r '.dynamicActiveSecrets[0].secret.tlsCertificate.certificateChain.inlineBytes' |
    base64 -d | openssl x509 -noout -text`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	o.bind(env, cmd)
	return cmd
}

func (o *pcSecretsOptions) run(ctx context.Context, env *cli.Env) error {
	return o.show(ctx, env, fetch.Secrets, func(r io.Reader, _ bool) (pcResult, error) {
		secrets, err := proxyconfig.ReadSecrets(r)
		return pcResult{table: proxyconfig.SecretTable(secrets.Items, env.Now()), none: "No active or warming secrets found.", json: secrets.Resource}, err
	})
}
