package certscmd

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/token"
)

func NewToken(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Make tokens by which workloads prove who they are",
		Long: `Make service-account tokens without Kubernetes. An issuer is a directory with a
signing key; a control plane that is started with --token-issuer CLUSTER=DIR
accepts its tokens from callers of that cluster.`,
		Example: `  meshctl token issuer --out issuer
  meshctl token create --issuer issuer --service-account sample/helloworld --out token`,
	}
	cmd.AddCommand(newTokenIssuerCmd(env), newTokenCreateCmd(env))
	return cmd
}

type tokenIssuerOptions struct {
	out    string
	issuer string
	force  bool
}

func newTokenIssuerCmd(env *cli.Env) *cobra.Command {
	o := &tokenIssuerOptions{}
	cmd := &cobra.Command{
		Use:   "issuer",
		Short: "Make a token issuer",
		Long: `Make a signing key (ECDSA P-256) and what is needed to check its tokens:

  key.pem    the signing key, mode 0600
  jwks.json  the public key
  issuer     the issuer URL, one line

A control plane needs the last two only. Existing files are kept unless --force
is given, which makes tokens of the replaced issuer worthless.`,
		Example: `  meshctl token issuer --out issuer
  meshctl token issuer --out issuer --issuer https://tokens.example.com/cluster1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files into this `directory` (required)")
	fs.StringVar(&o.issuer, "issuer", "", "Issuer `URL`, https (default https://meshctl.local/<key id>)")
	cli.ForceVar(fs, &o.force, "Overwrite files that exist")
	return cmd
}

func (o *tokenIssuerOptions) run(_ context.Context, env *cli.Env) error {
	if o.out == "" {
		return cli.Usagef("--out is required")
	}
	issuer, err := token.GenerateIssuer(o.issuer)
	if err != nil {
		return cli.Usagef("--issuer: %w", err)
	}
	if err := token.SaveIssuer(o.out, issuer, o.force); err != nil {
		return err
	}
	var paths []string
	for _, name := range []string{token.KeyFile, token.JWKSFile, token.IssuerFile} {
		paths = append(paths, filepath.Join(o.out, name))
	}
	env.Wrote(paths...)
	fmt.Fprintln(env.Stdout, "issuer:", issuer.URL())
	return nil
}

type tokenCreateOptions struct {
	issuer         string
	serviceAccount string
	pod            string
	audiences      []string
	ttl            time.Duration
	out            string
}

func newTokenCreateCmd(env *cli.Env) *cobra.Command {
	o := &tokenCreateOptions{}
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a token of a service account",
		Long: `Make a token that says its bearer is a service account, in the shape of a
Kubernetes service-account token. Who has the token is the service account until
it ends: keep it in a file (--out, mode 0600), not in a terminal or a log. A file
that exists is replaced.`,
		Example: `  meshctl token create --issuer issuer --service-account sample/helloworld --out token

  # one that another service accepts too, for a day
  meshctl token create --issuer issuer --service-account sample/helloworld \
    --audience istio-ca --audience vault --ttl 1d --out token`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.issuer, "issuer", "", "`Directory` that meshctl token issuer made (required)")
	fs.StringVar(&o.serviceAccount, "service-account", "", "Who the bearer is, as `namespace/name` (required)")
	fs.StringVar(&o.pod, "pod", "", "Name of the pod that the token is bound to")
	fs.StringSliceVar(&o.audiences, "audience", []string{"istio-ca"}, "Who may accept the token; may be repeated")
	cli.DurationVar(fs, &o.ttl, "ttl", time.Hour, "How long the token is valid")
	fs.StringVar(&o.out, "out", "", "Write the token into this `file` (default stdout)")
	return cmd
}

func (o *tokenCreateOptions) run(_ context.Context, env *cli.Env) error {
	if o.issuer == "" {
		return cli.Usagef("--issuer is required")
	}
	namespace, name, ok := strings.Cut(o.serviceAccount, "/")
	if !ok {
		return cli.Usagef("--service-account is %q: want namespace/name", o.serviceAccount)
	}
	claims := token.Claims{
		Namespace: namespace, ServiceAccount: name, Pod: o.pod, Audiences: o.audiences, TTL: o.ttl,
	}
	if err := claims.Check(); err != nil {
		return cli.Usagef("%w", err)
	}
	issuer, err := token.LoadIssuer(o.issuer)
	if err != nil {
		return err
	}
	raw, err := issuer.Create(claims, env.Now())
	if err != nil {
		return err
	}
	if o.out != "" {
		if err := files.Write(o.out, []byte(raw+"\n"), files.Secret); err != nil {
			return err
		}
		env.Wrote(o.out)
		return nil
	}
	env.WarnSecret("a token of " + o.serviceAccount)
	return env.WriteOut([]byte(raw + "\n"))
}
