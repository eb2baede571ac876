package ca

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/mesh"
)

// renewedCertificate is a server certificate that the CA in use signs. It may be used
// concurrently.
type renewedCertificate struct {
	mu        sync.Mutex // guards what follows
	cert      *tls.Certificate
	id        mesh.Identity
	authority *certs.Authority // that signed cert
	renewAt   time.Time
}

// get returns the certificate for an identity. It calls sign for another one when half
// of the lifetime is over, or the identity or the authority has changed.
func (r *renewedCertificate) get(
	id mesh.Identity, a *certs.Authority, now time.Time, sign func(crypto.PublicKey) (*x509.Certificate, error),
) (*tls.Certificate, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now = now.Round(0) // peers compare their clocks, not the time that has passed
	// A clock that was set back may be before the life of the certificate.
	if r.cert != nil && r.id == id && r.authority == a && now.Before(r.renewAt) && !now.Before(r.cert.Leaf.NotBefore) {
		return r.cert, nil
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return nil, err
	}
	leaf, err := sign(key.Public())
	if err != nil {
		return nil, err
	}
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, above := range a.Chain {
		cert.Certificate = append(cert.Certificate, above.Raw)
	}
	r.cert, r.id, r.authority, r.renewAt = cert, id, a, now.Add(leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

// ServingCertificate is the certificate of the control plane's secure port. It may be
// used concurrently.
type ServingCertificate struct {
	issuer  *Issuer
	extra   []string // names in addition to ServerNames
	renewed renewedCertificate
}

// ServerNames returns the DNS names by which agents connect to the control plane.
func ServerNames() []string {
	var names []string
	for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
		names = append(names, service+"."+mesh.DefaultSystemNamespace+".svc")
	}
	return names
}

// ServingCertificate returns the certificate for ServerNames and for extra DNS names
// or IP addresses. It leaves the extra names out if the name constraints of the CA
// forbid them. The first certificate is made at once, and may fail.
func (i *Issuer) ServingCertificate(extra ...string) (*ServingCertificate, error) {
	s := &ServingCertificate{issuer: i, extra: extra}
	if _, err := s.GetCertificate(nil); err != nil {
		return nil, err
	}
	return s, nil
}

// GetCertificate is for tls.Config.GetCertificate.
func (s *ServingCertificate) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	now, authority := s.issuer.cfg.Now(), s.issuer.Authority()
	if authority == nil {
		return nil, errNoAuthority
	}
	cert, err := s.renewed.get(mesh.Identity{}, authority, now, func(key crypto.PublicKey) (*x509.Certificate, error) {
		leaf, err := s.sign(authority, key, now)
		if err == nil {
			s.issuer.serving.Store(&servingLeaf{leaf, authority})
		}
		return leaf, err
	})
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	return cert, nil
}

// sign leaves the extra names out if peers would refuse a certificate with them.
func (s *ServingCertificate) sign(a *certs.Authority, key crypto.PublicKey, now time.Time) (*x509.Certificate, error) {
	names := ServerNames()
	for _, name := range s.extra {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	leaf, err := a.SignServer(key, names, DefaultTTL, now, s.issuer.cfg.Rand)
	if err != nil || len(s.extra) == 0 {
		return leaf, err
	}
	_, err = leaf.Verify(x509.VerifyOptions{Roots: certs.Pool(a.Roots), Intermediates: certs.Pool(a.Chain), CurrentTime: now})
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok && invalid.Reason == x509.CANotAuthorizedForThisName {
		return a.SignServer(key, ServerNames(), DefaultTTL, now, s.issuer.cfg.Rand)
	}
	return leaf, nil
}

// Serving returns the latest certificate for the control plane's port and its signer,
// nil if there is none yet.
func (i *Issuer) Serving() (*x509.Certificate, *certs.Authority) {
	if s := i.serving.Load(); s != nil {
		return s.leaf, s.authority
	}
	return nil, nil
}

// servingLeaf is a certificate for the control plane's port.
type servingLeaf struct {
	leaf      *x509.Certificate
	authority *certs.Authority
}
