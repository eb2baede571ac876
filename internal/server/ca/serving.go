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

// ServingCertificate is the certificate of the control plane's secure port. A
// handshake renews it when half of its lifetime is over or the issuer has another
// authority. It may be used concurrently.
type ServingCertificate struct {
	issuer *Issuer
	extra  []string // names in addition to ServerNames

	mu        sync.Mutex // guards what follows
	cert      *tls.Certificate
	authority *certs.Authority // that signed cert
	renewAt   time.Time
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
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cert != nil && s.authority == authority && now.Before(s.renewAt) {
		return s.cert, nil
	}
	if authority == nil {
		return nil, errNoAuthority
	}
	key, err := certs.GenerateKey(certs.ECDSAP256)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	leaf, err := s.sign(authority, key.Public(), now)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range authority.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	s.issuer.serving.Store(&servingLeaf{leaf, authority})
	s.cert, s.authority, s.renewAt = cert, authority, now.Add(leaf.NotAfter.Sub(now)/2)
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
