// Package ca signs the certificates of the mesh. CA loads the signing authority
// from a directory or from Secrets, reloads it when it changes, and keeps the
// last good one when peers could not trust what the new one signs. Issuer serves
// Istio's CA protocol: it turns the certificate requests of authenticated callers
// into certificates, within rate limits and a fair queue.
package ca

import (
	"bytes"
	"crypto/x509"
	"errors"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/certs/verify"
)

// Config configures a CA. All fields are required.
type Config struct {
	Source Source
	// Use gets each set that comes into use, one after the other.
	Use func(*Set)
	// Reloaded gets the result of each reload.
	Reloaded func(ok bool)
	// TrustDomain returns the trust domain of the mesh, "" while unknown, and its
	// aliases.
	TrustDomain func() (domain string, aliases []string)
	// ServerNames are the DNS names of the control plane.
	ServerNames []string
	// Alive returns the signers whose certificates are not all expired at the time.
	Alive func(time.Time) []*certs.Authority
	Now   func() time.Time
	Log   *slog.Logger
}

// Set is a signing authority with its roots and revocation lists. It is immutable.
type Set struct {
	*certs.Authority
	// Pool has the roots for the certificates of callers.
	Pool *x509.CertPool
	// Top are the roots that the signer's certificate leads to.
	Top         []*x509.Certificate
	Revocations store.Revocations
	// ForPeers are the revocation lists for proxies, which check their peers.
	ForPeers Lists
	LoadedAt time.Time

	revoked revoked
}

// Revoked reports whether issuer, the CA that signed cert, has revoked it.
func (s *Set) Revoked(cert, issuer *x509.Certificate) bool { return s.revoked.has(cert, issuer) }

// CA keeps the current Set of its source. It may be used concurrently.
type CA struct {
	cfg   Config
	set   atomic.Pointer[Set]
	last  atomic.Pointer[loadResult]
	ready chan struct{} // closed with the first set
}

// loadResult is the result of loading the source once.
type loadResult struct {
	at     time.Time
	stamp  store.Stamp
	domain string // trust domain that the set was checked for
	// set is the set in the source, nil if it is not valid; then seen describes
	// its readable parts.
	set  *Set
	seen *Material
	// err is the reason why set is not in use, alarm the problem of its
	// revocation lists.
	err, alarm error
	since      time.Time // of err or alarm
	// unfit is the reason why peers would refuse certificates of the set in use,
	// after a change of the trust domain.
	unfit error
	// warnings are harmless problems of the set in use.
	warnings []verify.Finding
}

// Open loads the source. A source without any file of a CA is no error: Ready is
// closed when the files have come.
func Open(cfg Config) (*CA, error) {
	c := &CA{cfg: cfg, ready: make(chan struct{})}
	m, err := cfg.Source.Read()
	if err != nil {
		return nil, err
	}
	if m.Empty() {
		c.last.Store(&loadResult{at: cfg.Now(), stamp: m.Stamp, err: errNone, since: cfg.Now()})
		return c, nil
	}
	c.load(m)
	return c, c.last.Load().err
}

var errNone = errors.New("the files of a CA are not there yet")

// Ready is closed when the first set is in use.
func (c *CA) Ready() <-chan struct{} { return c.ready }

// Current returns the set in use, nil before Ready is closed.
func (c *CA) Current() *Set { return c.set.Load() }

// Fits reports why peers would refuse certificates that the set signs for the current
// trust domain. While the trust domain is unknown every set fits.
func (c *CA) Fits(s *Set) error {
	domain, _ := c.cfg.TrustDomain()
	return tryAuthority(s.Authority, domain, c.cfg.ServerNames, c.cfg.Source.Place(), c.cfg.Now())
}

func newSet(a *certs.Authority, lists store.Revocations, now time.Time) *Set {
	return &Set{
		Authority: a, Pool: certs.Pool(a.Roots), Top: leadsTo(a, a.Roots, now),
		Revocations: lists, LoadedAt: now, revoked: newRevoked(lists.Lists),
	}
}

// leadsTo returns the given roots that the certificates of a lead to.
func leadsTo(a *certs.Authority, roots []*x509.Certificate, now time.Time) []*x509.Certificate {
	chains, err := a.Cert.Verify(x509.VerifyOptions{
		Roots: certs.Pool(roots), Intermediates: certs.Pool(a.Chain), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny},
	})
	var top []*x509.Certificate
	for _, root := range roots {
		if reissued(a.Cert, root, now) {
			top = append(top, root)
		}
	}
	if err != nil {
		return top
	}
	for _, chain := range chains {
		if root := chain[len(chain)-1]; !slices.ContainsFunc(top, root.Equal) {
			top = append(top, root)
		}
	}
	return top
}

// reissued reports whether a root is another certificate for the name and key of the
// signer, as when Istio renews its self-signed CA: each verifies signatures of the
// other. crypto/x509 finds no chain between the two.
func reissued(signer, root *x509.Certificate, now time.Time) bool {
	return root.IsCA && bytes.Equal(signer.RawSubject, root.RawSubject) &&
		bytes.Equal(signer.RawSubjectPublicKeyInfo, root.RawSubjectPublicKeyInfo) &&
		!now.Before(root.NotBefore) && !now.After(root.NotAfter)
}
