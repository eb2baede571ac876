package servecmd

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/meshctl/meshctl/internal/cli"
	"github.com/meshctl/meshctl/internal/files"
	"github.com/meshctl/meshctl/internal/server"
	"github.com/meshctl/meshctl/internal/server/trust"
)

// federationOptions hold the flags for other trust domains.
type federationOptions struct {
	endpoints, ids, files []string
	caFile                string
}

func (o *federationOptions) bind(f *pflag.FlagSet, cfg *server.Config) {
	f.StringArrayVar(&o.endpoints, "federate", nil, "Another trust domain and the https URL of its SPIFFE bundle endpoint, as `DOMAIN=URL`; may be repeated")
	f.StringArrayVar(&o.files, "federate-bundle", nil, "Another trust domain and a file of its roots, PEM or SPIFFE JSON, as `DOMAIN=FILE`; with --federate used until the endpoint answers; may be repeated")
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
	for _, v := range o.endpoints {
		if err := pair("--federate", v, "DOMAIN=URL", func(s *trust.Source) *string { return &s.URL }); err != nil {
			return err
		}
	}
	for _, v := range o.files {
		if err := pair("--federate-bundle", v, "DOMAIN=FILE", func(s *trust.Source) *string { return &s.File }); err != nil {
			return err
		}
	}
	for _, id := range o.ids {
		td, _, _ := strings.Cut(strings.TrimPrefix(id, "spiffe://"), "/")
		if err := pair("--federate-id", td+"="+id, "a SPIFFE id", func(s *trust.Source) *string { return &s.ID }); err != nil {
			return err
		}
	}
	for _, s := range sources {
		if err := s.Check(); err != nil {
			return cli.Usagef("%s: %w", s.Via, err)
		}
		cfg.Federated = append(cfg.Federated, *s)
	}
	slices.SortFunc(cfg.Federated, func(a, b trust.Source) int { return strings.Compare(a.TrustDomain, b.TrustDomain) })
	if o.caFile == "" {
		return nil
	}
	data, err := files.Read(o.caFile, 1<<20)
	if err != nil {
		return fmt.Errorf("--federate-ca-file: %w", err)
	}
	cfg.BundleWebRoots = data
	return nil
}
