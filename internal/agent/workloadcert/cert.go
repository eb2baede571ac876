// Package workloadcert obtains and renews the certificate of a workload: it makes keys, asks
// the mesh's certificate authority, checks the response and renews in time.
package workloadcert

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// Certificate is a private key with its certificate chain and roots. It is immutable.
type Certificate struct {
	key   crypto.Signer
	chain []*x509.Certificate
	roots []*x509.Certificate
}

// NotAfter returns when the certificate expires.
func (c *Certificate) NotAfter() time.Time { return c.chain[0].NotAfter }

func (c *Certificate) notBefore() time.Time { return c.chain[0].NotBefore }

// Chain returns the certificate and its intermediates in PEM, leaf first.
func (c *Certificate) Chain() []byte { return certs.EncodeCerts(c.chain...) }

// Key returns the private key in PEM.
func (c *Certificate) Key() ([]byte, error) { return certs.EncodeKey(c.key) }

// Roots returns the roots that sign peers, and more roots, in PEM. Equal sets give equal
// bytes.
func (c *Certificate) Roots(more ...*x509.Certificate) []byte {
	return certs.EncodeCerts(distinct(slices.Concat(c.roots, more))...)
}

// Certificates returns the certificate and its intermediates, leaf first, and the roots that
// sign peers. The caller must not change them.
func (c *Certificate) Certificates() (chain, roots []*x509.Certificate) { return c.chain, c.roots }

func (c *Certificate) client() *tls.Certificate {
	out := &tls.Certificate{PrivateKey: c.key, Leaf: c.chain[0]}
	for _, cert := range c.chain {
		out.Certificate = append(out.Certificate, cert.Raw)
	}
	return out
}

// check returns a Certificate if the response is for the key and the identity, and leads to
// its roots. A wrong clock must not keep a workload from its certificate.
func check(id mesh.Identity, key crypto.Signer, r Response, now time.Time) (*Certificate, error) {
	leaf := r.Chain[0]
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != id.String() {
		return nil, fmt.Errorf("the certificate is for %v, want %s: do POD_NAMESPACE, SERVICE_ACCOUNT and TRUST_DOMAIN fit the token?", leaf.URIs, id)
	}
	return verified(key, r, now)
}

// verified returns a Certificate if the response is for the key and leads to its roots at the
// time of the certificate's life that is nearest to now.
func verified(key crypto.Signer, r Response, now time.Time) (*Certificate, error) {
	leaf := r.Chain[0]
	pub, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	at := now
	if at.Before(leaf.NotBefore) {
		at = leaf.NotBefore
	}
	if at.After(leaf.NotAfter) {
		at = leaf.NotAfter
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		Roots:         certs.Pool(r.Roots),
		Intermediates: certs.Pool(r.Chain[1:]),
		CurrentTime:   at,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	if err != nil {
		return nil, fmt.Errorf("the certificate does not lead to a root: %w", err)
	}
	return &Certificate{key: key, chain: r.Chain, roots: r.Roots}, nil
}

// distinct sorts certificates by content and drops duplicates.
func distinct(list []*x509.Certificate) []*x509.Certificate {
	slices.SortFunc(list, func(a, b *x509.Certificate) int { return bytes.Compare(a.Raw, b.Raw) })
	return slices.CompactFunc(list, (*x509.Certificate).Equal)
}

func without(list, drop []*x509.Certificate) []*x509.Certificate {
	return slices.DeleteFunc(list, func(c *x509.Certificate) bool {
		return slices.ContainsFunc(drop, c.Equal)
	})
}
