package trust

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs/bundle"
	"github.com/meshctl/meshctl/internal/mesh"
)

// maxRoots bounds the roots of one bundle, as every proxy gets them.
const maxRoots = 100

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

// judge parses a bundle, and returns an error if the trust domain cannot use it.
func judge(trustDomain string, data []byte, now time.Time) (*bundle.Bundle, error) {
	b, err := bundle.Parse(data)
	if err != nil {
		return nil, err
	}
	if len(b.Roots) > maxRoots {
		return nil, fmt.Errorf("holds %d roots: want at most %d", len(b.Roots), maxRoots)
	}
	if lastEnd(b.Roots).Before(now) {
		return nil, fmt.Errorf("all its roots have expired, the last one at %s", lastEnd(b.Roots).UTC().Format(time.RFC3339))
	}
	for _, root := range b.Roots {
		if err := ofDomain(root, trustDomain); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// ofDomain refuses a root of another trust domain, by its own SPIFFE id or its name
// constraints.
func ofDomain(root *x509.Certificate, trustDomain string) error {
	if trustDomain == "" {
		return nil
	}
	for _, u := range root.URIs {
		if u.Scheme == "spiffe" && u.Host != trustDomain {
			return fmt.Errorf("root %q is of trust domain %q, not of %q", root.Subject, u.Host, trustDomain)
		}
	}
	if len(root.PermittedURIDomains) == 0 {
		return nil
	}
	for _, permitted := range root.PermittedURIDomains {
		if permitted == trustDomain || strings.HasPrefix(permitted, ".") && strings.HasSuffix(trustDomain, permitted) {
			return nil
		}
	}
	return fmt.Errorf("root %q may sign for %q only, not for trust domain %q", root.Subject, root.PermittedURIDomains, trustDomain)
}

// lastEnd returns the time at which the last root expires.
func lastEnd(roots []*x509.Certificate) time.Time {
	var end time.Time
	for _, r := range roots {
		if r.NotAfter.After(end) {
			end = r.NotAfter
		}
	}
	return end
}
