package servecmd

import (
	"fmt"
	"net/netip"

	"github.com/go-json-experiment/json"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/identity"
)

// callerOptions hold the flags for identities other than certificates and tokens of
// clusters.
type callerOptions struct {
	rules    []string
	caFile   string
	gateways []string
}

func (o *callerOptions) bind(f *pflag.FlagSet) {
	f.StringArrayVar(&o.rules, "jwt-rule", nil, `OIDC issuer of accepted tokens, as JSON: {"issuer":…,"jwks_uri":… or "jwks_file":…,"audiences":[…]}; may be repeated`)
	f.StringVar(&o.caFile, "jwks-ca-file", "", "PEM `file` of roots for the servers of jwks_uri (default the roots of the system)")
	f.StringSliceVar(&o.gateways, "trusted-gateway-cidr", nil, "Addresses (`CIDR`) of gateways whose header x-forwarded-client-cert is trusted (default none)")
	cli.MarkWeakening(f, "trusted-gateway-cidr")
}

func (o *callerOptions) apply(cfg *server.Config) error {
	for _, text := range o.rules {
		var r identity.OIDCRule
		if err := json.Unmarshal([]byte(text), &r, json.RejectUnknownMembers(true)); err != nil {
			return cli.Usagef("--jwt-rule: %w", err)
		}
		if len(r.Audiences) == 0 {
			r.Audiences = cfg.TokenAudiences
		}
		if err := r.Check(); err != nil {
			return cli.Usagef("--jwt-rule: %w", err)
		}
		cfg.OIDC = append(cfg.OIDC, r)
	}
	for _, text := range o.gateways {
		n, err := netip.ParsePrefix(text)
		if err != nil || n != n.Masked() || n.Bits() == 0 {
			return cli.Usagef("--trusted-gateway-cidr %q: want a range of addresses such as 10.0.0.0/24", text)
		}
		cfg.XFCCSources = append(cfg.XFCCSources, n)
	}
	if o.caFile == "" {
		return nil
	}
	data, err := files.Read(o.caFile, 1<<20)
	if err != nil {
		return fmt.Errorf("--jwks-ca-file: %w", err)
	}
	cfg.OIDCRoots = data
	return nil
}
