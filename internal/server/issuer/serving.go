package issuer

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

// ServingCertificate is the certificate of the control plane's own secure
// port. It is made anew, at a handshake, when half of its life is over or the
// issuer got another authority. It is safe for concurrent use.
type ServingCertificate struct {
	issuer *Issuer
	extra  []string // names beside ServerNames

	mu        sync.Mutex // guards what follows
	cert      *tls.Certificate
	authority *certs.Authority // that signed cert
	renewAt   time.Time
}

// ServerNames are the names that agents call the control plane by.
func ServerNames() []string {
	var names []string
	for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
		names = append(names, service+"."+mesh.DefaultSystemNamespace+".svc")
	}
	return names
}

// ServingCertificate returns the certificate for the names that agents call
// the control plane by (istiod, istiod-remote and istio-pilot of the system
// namespace) and extra ones, which are DNS names or IP addresses; those only
// where the name constraints of the CA permit them. The error is that of the
// first certificate, which is made at once.
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
	s.issuer.serving.Store(&served{leaf, authority})
	s.cert, s.authority, s.renewAt = cert, authority, now.Add(leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

// sign leaves the extra names out when peers would refuse a certificate with
// them, whichever name they call.
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

// Serving returns the last certificate that was made for the control plane's
// own port, and who signed it, nil when there is none yet.
func (i *Issuer) Serving() (*x509.Certificate, *certs.Authority) {
	if s := i.serving.Load(); s != nil {
		return s.leaf, s.authority
	}
	return nil, nil
}

// served is a certificate of the own port.
type served struct {
	leaf      *x509.Certificate
	authority *certs.Authority
}
