package trust

import (
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"strings"
	"time"

	"github.com/meshctl/meshctl/internal/certs/bundle"
)

const (
	// maxRoots bounds the roots of one bundle, as every proxy gets them.
	maxRoots = 100
	// maxRSABits bounds their keys: with larger ones each handshake takes long.
	maxRSABits = 8192
)

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
		if key, ok := root.PublicKey.(*rsa.PublicKey); ok && key.N.BitLen() > maxRSABits {
			return nil, fmt.Errorf("root %q has an RSA key of %d bits: want at most %d", root.Subject, key.N.BitLen(), maxRSABits)
		}
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
