package issuer

import (
	"crypto/tls"
	"crypto/x509"
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
	names  []string

	mu        sync.Mutex // guards what follows
	cert      *tls.Certificate
	authority *certs.Authority // that signed cert
	renewAt   time.Time
}

// ServingCertificate returns the certificate for the names that agents call
// the control plane by (istiod, istiod-remote and istio-pilot of the system
// namespace) and extra ones, which are DNS names or IP addresses. The error
// is that of the first certificate, which is made at once.
func (i *Issuer) ServingCertificate(extra ...string) (*ServingCertificate, error) {
	var names []string
	for _, service := range []string{"istiod", "istiod-remote", "istio-pilot"} {
		names = append(names, service+"."+mesh.DefaultSystemNamespace+".svc")
	}
	for _, name := range extra {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	s := &ServingCertificate{issuer: i, names: names}
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
	leaf, err := authority.SignServer(key.Public(), s.names, DefaultTTL, now, s.issuer.cfg.Rand)
	if err != nil {
		return nil, fmt.Errorf("make serving certificate: %w", err)
	}
	cert := &tls.Certificate{Certificate: [][]byte{leaf.Raw}, PrivateKey: key, Leaf: leaf}
	for _, c := range authority.Chain {
		cert.Certificate = append(cert.Certificate, c.Raw)
	}
	s.issuer.serving.Store(leaf)
	s.cert, s.authority, s.renewAt = cert, authority, now.Add(leaf.NotAfter.Sub(now)/2)
	return cert, nil
}

// Serving returns the last certificate that was made for the control plane's
// own port, nil when there is none yet.
func (i *Issuer) Serving() *x509.Certificate { return i.serving.Load() }
