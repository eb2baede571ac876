package servecmd

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/source/jwks"
	"github.com/meshctl/meshctl/internal/server/trust"
)

// callerOptions hold the flags for identities other than certificates and tokens of
// clusters.
type callerOptions struct {
	rules         []string
	caFile        string
	gateways      []string
	refused       []string
	webhookCAFile string
}

func (o *callerOptions) bind(f *pflag.FlagSet, cfg *server.Config) {
	f.StringArrayVar(&o.rules, "jwt-rule", nil, "OIDC issuer of accepted tokens, as `JSON`: {\"issuer\":…,\"jwks_uri\":… or \"jwks_file\":…,\"audiences\":[…]}; may be repeated")
	f.StringVar(&o.caFile, "jwks-ca-file", "", "PEM `file` of roots for the servers of jwks_uri and of the jwksUri of RequestAuthentications (default the roots of the system)")
	cli.DurationVar(f, &cfg.KeyRefresh, "jwks-refresh-interval", jwks.DefaultEvery, "Longest interval between two fetches of a key set of a RequestAuthentication, from 1s to 24h")
	f.StringSliceVar(&o.refused, "jwks-refused-cidr", nil, "Addresses (`CIDR`) from which no key set of a RequestAuthentication is fetched; link-local addresses and metadata services always are refused")
	f.StringSliceVar(&o.gateways, "trusted-gateway-cidr", nil, "Addresses (`CIDR`) of gateways whose header x-forwarded-client-cert is trusted (default none)")
	cli.MarkWeakening(f, "trusted-gateway-cidr")
	f.StringVar(&o.webhookCAFile, "webhook-client-ca-file", "", "PEM `file` of roots for the client certificates of API servers; the webhooks then refuse callers without one (default any caller)")
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
	if d := cfg.KeyRefresh; d < time.Second || d > 24*time.Hour {
		return cli.Usagef("--jwks-refresh-interval %s: want 1s to 24h", d)
	}
	var err error
	if cfg.KeyNetworksRefused, err = networks("--jwks-refused-cidr", o.refused); err != nil {
		return err
	}
	if cfg.XFCCSources, err = networks("--trusted-gateway-cidr", o.gateways); err != nil {
		return err
	}
	if cfg.OIDCRoots, err = readRoots("--jwks-ca-file", o.caFile); err != nil {
		return err
	}
	cfg.WebhookClientRoots, err = readRoots("--webhook-client-ca-file", o.webhookCAFile)
	return err
}

// networks parses the ranges of addresses of a flag.
func networks(flag string, texts []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, text := range texts {
		n, err := netip.ParsePrefix(text)
		if err != nil || n != n.Masked() || n.Bits() == 0 {
			return nil, cli.Usagef("%s %q: want a range of addresses such as 10.0.0.0/24", flag, text)
		}
		out = append(out, n)
	}
	return out, nil
}

// readRoots reads the file of a flag, if any.
func readRoots(flag, path string) ([]byte, error) {
	if path == "" {
		return nil, nil
	}
	data, err := files.Read(path, 1<<20)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return data, nil
}

// federationOptions hold the flags for other trust domains.
type federationOptions struct {
	endpoints, ids, files []string
	caFile                string
}

func (o *federationOptions) bind(f *pflag.FlagSet, cfg *server.Config) {
	f.StringArrayVar(&o.endpoints, "federate", nil, "Another trust domain and the https URL of its SPIFFE bundle endpoint, as `DOMAIN=URL`; may be repeated")
	f.StringArrayVar(&o.files, "federate-bundle", nil, "Another trust domain and a file of its roots, PEM or SPIFFE JSON, as `DOMAIN=FILE`; with --federate, the file is used until the endpoint answers; may be repeated")
	f.StringArrayVar(&o.ids, "federate-id", nil, "`SPIFFE-ID` that a bundle endpoint must prove with a certificate of its bundle (default verify its host name as for web sites); may be repeated")
	f.StringVar(&o.caFile, "federate-ca-file", "", "PEM `file` of roots for bundle endpoints without --federate-id (default the roots of the system)")
	f.StringVar(&cfg.BundleAddr, "bundle-addr", "", "`Address` of the SPIFFE bundle endpoint of the mesh (https_spiffe); empty turns it off")
	cli.DurationVar(f, &cfg.BundleRefresh, "bundle-refresh-hint", 5*time.Minute, "Interval at which other meshes should read the bundle endpoint, from 1s to 1h")
}

func (o *federationOptions) apply(cfg *server.Config) error {
	if r := cfg.BundleRefresh; r < time.Second || r > time.Hour || r%time.Second != 0 {
		return cli.Usagef("--bundle-refresh-hint %s: want whole seconds from 1s to 1h", r)
	}
	sources := map[string]*trust.Source{}
	pair := func(flag, value, form string, field func(*trust.Source) *string) error {
		td, v, ok := strings.Cut(value, "=")
		if !ok || td == "" || v == "" {
			return cli.Usagef("%s %q: want %s", flag, value, form)
		}
		if sources[td] == nil {
			sources[td] = &trust.Source{TrustDomain: td, Via: flag}
		}
		at := field(sources[td])
		if *at != "" {
			return cli.Usagef("%s is given twice for trust domain %s", flag, td)
		}
		*at = v
		return nil
	}
	var errs []error
	for _, v := range o.endpoints {
		errs = append(errs, pair("--federate", v, "DOMAIN=URL", func(s *trust.Source) *string { return &s.URL }))
	}
	for _, v := range o.files {
		errs = append(errs, pair("--federate-bundle", v, "DOMAIN=FILE", func(s *trust.Source) *string { return &s.File }))
	}
	for _, id := range o.ids {
		td, _, _ := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
		errs = append(errs, pair("--federate-id", td+"="+id, "a SPIFFE id", func(s *trust.Source) *string { return &s.ID }))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, s := range sources {
		if err := s.Check(); err != nil {
			return cli.Usagef("%s: %w", s.Via, err)
		}
		cfg.Federated = append(cfg.Federated, *s)
	}
	slices.SortFunc(cfg.Federated, func(a, b trust.Source) int { return strings.Compare(a.TrustDomain, b.TrustDomain) })
	var err error
	cfg.BundleWebRoots, err = readRoots("--federate-ca-file", o.caFile)
	return err
}
