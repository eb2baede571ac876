package trust

import (
	"cmp"
	"fmt"

	"github.com/meshctl/meshctl/internal/mesh"
)

// Source is a source of the roots of a trust domain.
type Source struct {
	// TrustDomain of the roots. Empty means the mesh's own, and its aliases without
	// a source.
	TrustDomain string
	// PEM are the roots themselves.
	PEM string
	// File has a bundle, PEM or SPIFFE JSON. With a URL it counts until the endpoint
	// has given one.
	File string
	// URL is the URL of a SPIFFE bundle endpoint.
	URL string
	// ID is the SPIFFE id that the endpoint must prove, by the bundle in use (profile
	// https_spiffe). If empty, its certificate is verified like the certificates of
	// web sites (https_web).
	ID string
	// Via names the configuration of the source, for people.
	Via string
}

// Check returns the problems of a source.
func (s Source) Check() error {
	switch {
	case s.TrustDomain != "" && !mesh.IsTrustDomain(s.TrustDomain):
		return fmt.Errorf("%q is not a SPIFFE trust domain", s.TrustDomain)
	case s.PEM == "" && s.File == "" && s.URL == "":
		return fmt.Errorf("no bundle endpoint and no file for trust domain %s", s.TrustDomain)
	case s.ID != "" && s.URL == "":
		return fmt.Errorf("%s: no bundle endpoint that could prove it", s.ID)
	case s.ID != "" && s.File == "":
		return fmt.Errorf("%s: no file with the bundle for the first connection to the endpoint", s.ID)
	}
	if s.ID != "" {
		if id, err := mesh.ParseIdentity(s.ID); err != nil {
			return err
		} else if id.TrustDomain != s.TrustDomain {
			return fmt.Errorf("%s is not of trust domain %s, whose bundle proves it", s.ID, s.TrustDomain)
		}
	}
	if s.URL != "" {
		if err := mesh.CheckHTTPS(s.URL); err != nil {
			return fmt.Errorf("bundle endpoint: %w", err)
		}
	}
	return nil
}

// place names the location of the roots, for people.
func (s Source) place() string { return cmp.Or(s.URL, s.File, s.Via) }

func (s Source) profile() string {
	switch {
	case s.URL == "":
		return ""
	case s.ID != "":
		return "https_spiffe"
	}
	return "https_web"
}
