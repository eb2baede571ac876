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

// NewToken returns the command token.
func NewToken(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "token",
		Short: "Create service account tokens without Kubernetes",
		Long: `Create service account tokens without Kubernetes. An issuer is a directory with a
signing key. A control plane with --token-issuer CLUSTER=DIR accepts its tokens from
callers of that cluster.`,
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
		Short: "Create a token issuer",
		Long: `Create a signing key (ECDSA P-256) and the files that verify its tokens:

  key.pem    the signing key, mode 0600
  jwks.json  the public key
  issuer     the issuer URL, one line

A control plane needs only the last two. The command keeps existing files. With --force
it overwrites them, and the tokens of the old issuer become invalid.`,
		Example: `  meshctl token issuer --out issuer
  meshctl token issuer --out issuer --issuer https://tokens.example.com/cluster1`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	fs.StringVar(&o.out, "out", "", "Write the files to this `directory` (required)")
	fs.StringVar(&o.issuer, "issuer", "", "Issuer `URL`, https (default https://meshctl.local/<key id>)")
	cli.ForceVar(fs, &o.force, "Overwrite existing files")
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
		Short: "Create a token of a service account",
		Long: `Create a token of a service account in the format of Kubernetes. Anyone with the token
has this identity until it expires: write it to a file (--out, mode 0600), not to a
terminal or a log. The command replaces an existing file.`,
		Example: `  meshctl token create --issuer issuer --service-account sample/helloworld --out token

  # Create a token for a day that another service accepts, too
  meshctl token create --issuer issuer --service-account sample/helloworld \
    --audience istio-ca --audience vault --ttl 1d --out token`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), env) },
	}
	fs := cmd.Flags()
	cli.DirVar(fs, &o.issuer, "issuer", "`Directory` of meshctl token issuer (required)")
	fs.StringVar(&o.serviceAccount, "service-account", "", "Service `account` of the token, as `namespace/name` (required)")
	fs.StringVar(&o.pod, "pod", "", "`Name` of the pod to which the token is bound")
	fs.StringSliceVar(&o.audiences, "audience", []string{"istio-ca"}, "`Audience` of the token; may be repeated")
	cli.DurationVar(fs, &o.ttl, "ttl", time.Hour, "Lifetime of the token")
	fs.StringVar(&o.out, "out", "", "Write the token to this `file` (default standard output)")
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
		if err := files.CheckOutput(filepath.Dir(o.out)); err != nil {
			return err
		}
		if err := files.Write(o.out, []byte(raw+"\n"), files.Secret); err != nil {
			return err
		}
		env.Wrote(o.out)
		return nil
	}
	env.WarnSecret("a token of " + o.serviceAccount)
	return env.WriteOut([]byte(raw + "\n"))
}
