// Package ca keeps the authority that the control plane signs with: it loads a
// source, follows its changes, and stays with the last good set when a new one
// would not do.
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

// Config of a CA. Everything is required.
type Config struct {
	Source Source
	// Use is told of each set that is used from then on, one at a time.
	Use func(*Set)
	// Reloaded is told how each reload went.
	Reloaded func(ok bool)
	// TrustDomain returns that of the mesh, "" while it is not known, and the
	// other ones that peers may have.
	TrustDomain func() (domain string, aliases []string)
	// ServerNames are the names that peers call the control plane by.
	ServerNames []string
	// Alive returns the signers with certificates that are valid at the time.
	Alive func(time.Time) []*certs.Authority
	Now   func() time.Time
	Log   *slog.Logger
}

// Set is what is used together. It is immutable.
type Set struct {
	*certs.Authority
	// Pool is what callers' certificates must lead to.
	Pool *x509.CertPool
	// Top are the roots that the signer leads to.
	Top         []*x509.Certificate
	Revocations store.Revocations
	// ForPeers are the revocation lists that proxies check their peers with.
	ForPeers Lists
	LoadedAt time.Time

	revoked revoked
}

// Revoked reports whether issuer, the CA that signed cert, has revoked it.
func (s *Set) Revoked(cert, issuer *x509.Certificate) bool { return s.revoked.has(cert, issuer) }

// CA is an authority that follows its source. It may be used concurrently.
type CA struct {
	cfg   Config
	set   atomic.Pointer[Set]
	look  atomic.Pointer[look]
	ready chan struct{} // closed with the first set
}

// look is how the last look at the source went.
type look struct {
	at     time.Time
	stamp  store.Stamp
	domain string // trust domain that it was judged for
	// set is what the source holds, nil when it is not good; then seen is
	// what could be read of it.
	set  *Set
	seen *Material
	// err is why set is not in use, and alarm why its revocation lists are not,
	// or not without care.
	err, alarm error
	since      time.Time // of err or alarm
	// unfit is why peers would refuse what the set in use signs, since the mesh
	// has this trust domain.
	unfit error
	// warnings are what is wrong with what is in use.
	warnings []verify.Finding
}

// Open loads the source. When it holds nothing of a CA, that is no error: Ready tells when the files have come.
func Open(cfg Config) (*CA, error) {
	c := &CA{cfg: cfg, ready: make(chan struct{})}
	m, err := cfg.Source.Read()
	if err != nil {
		return nil, err
	}
	if m.Empty() {
		c.look.Store(&look{at: cfg.Now(), stamp: m.Stamp, err: errNone, since: cfg.Now()})
		return c, nil
	}
	c.load(m)
	return c, c.look.Load().err
}

var errNone = errors.New("the files of a CA are not there yet")

// Ready is closed when there is a set to use.
func (c *CA) Ready() <-chan struct{} { return c.ready }

// Current returns the set in use, nil before Ready.
func (c *CA) Current() *Set { return c.set.Load() }

// load uses what was read if it is good, and notes how that went.
func (c *CA) load(m *store.Material) {
	now, old, last := c.cfg.Now(), c.set.Load(), c.look.Load()
	l := &look{at: now, stamp: m.Stamp, since: now}
	l.domain, _ = c.cfg.TrustDomain()
	if l.set, l.warnings, l.alarm, l.err = c.judge(m); l.set == nil {
		l.seen = describeSeen(m)
	}
	if l.err != nil && old != nil {
		l.unfit = c.Fits(old)
	}
	known := last != nil && text(last.err) == text(l.err) && text(last.alarm) == text(l.alarm)
	if known {
		l.since = last.since
	}
	switch {
	case l.err != nil && old == nil:
		c.cfg.Log.Error("signing CA refused", "source", c.cfg.Source.Place(), "error", l.err)
	case l.unfit != nil && !known:
		c.cfg.Log.Error("the signing CA does not fit the mesh, nothing is signed", "source", c.cfg.Source.Place(), "error", l.unfit)
	case l.err != nil && !known:
		c.cfg.Log.Error("new signing CA refused, the last good one keeps signing", "source", c.cfg.Source.Place(), "error", l.err)
	case l.err != nil:
	case old != nil && same(old, l.set):
		l.set = old
	default:
		signer := l.set.Cert
		c.cfg.Log.Info("signing CA loaded", "subject", signer.Subject.String(), "until", signer.NotAfter.UTC().Format(time.RFC3339),
			"sha256", certs.Fingerprint(signer), "roots", len(l.set.Roots), "revoked", l.set.revoked.count())
		c.set.Store(l.set) // callers with its certificates are known before there are any
		c.cfg.Use(l.set)
		if old == nil {
			close(c.ready)
		}
	}
	if l.alarm != nil && !known {
		c.cfg.Log.Error("revocation lists of the signing CA", "source", c.cfg.Source.Place(), "error", l.alarm)
	}
	c.look.Store(l)
	if last == nil || last.stamp != l.stamp {
		c.cfg.Reloaded(l.err == nil && l.alarm == nil)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// judge returns what the source holds. The error is why it cannot be used
// in place of the set in use; it may be good all the same.
func (c *CA) judge(m *store.Material) (next *Set, warnings []verify.Finding, alarm, err error) {
	now, old := c.cfg.Now(), c.set.Load()
	opts := verify.Options{Now: now}
	opts.TrustDomain, opts.Aliases = c.cfg.TrustDomain()
	a, warnings, err := m.Authority(opts)
	if err == nil {
		err = try(a, opts.TrustDomain, c.cfg.ServerNames, c.cfg.Source.Place(), now)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	lists, alarm, err := c.lists(m, a, now)
	if err != nil {
		return nil, nil, nil, err
	}
	next = newSet(a, lists, now)
	next.ForPeers = forPeers(old, lists)
	if old != nil {
		err = follows(old, next, c.Fits(old) == nil, c.cfg.Alive(now), c.cfg.Source.Place(), now)
	}
	return next, append(warnings, lists.Warnings...), alarm, err
}

// Fits says why peers would refuse what the set signs for the mesh as it is now.
// While the trust domain is not known every set fits.
func (c *CA) Fits(s *Set) error {
	domain, _ := c.cfg.TrustDomain()
	return try(s.Authority, domain, c.cfg.ServerNames, c.cfg.Source.Place(), c.cfg.Now())
}

func newSet(a *certs.Authority, lists store.Revocations, now time.Time) *Set {
	return &Set{
		Authority: a, Pool: certs.Pool(a.Roots), Top: leadsTo(a, a.Roots, now),
		Revocations: lists, LoadedAt: now, revoked: newRevoked(lists.Lists),
	}
}

// leadsTo returns the roots, of those given, that certificates of a lead to.
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

// reissued reports whether a root is the signer with another certificate for
// the same name and key, as Istio makes its own anew: each verifies what the
// other signs. The verifier of Go does not look for a way between the two.
func reissued(signer, root *x509.Certificate, now time.Time) bool {
	return root.IsCA && bytes.Equal(signer.RawSubject, root.RawSubject) &&
		bytes.Equal(signer.RawSubjectPublicKeyInfo, root.RawSubjectPublicKeyInfo) &&
		!now.Before(root.NotBefore) && !now.After(root.NotAfter)
}

func same(a, b *Set) bool {
	equal := func(x, y []*x509.Certificate) bool { return slices.EqualFunc(x, y, (*x509.Certificate).Equal) }
	return a.Cert.Equal(b.Cert) && equal(a.Chain, b.Chain) && equal(a.Roots, b.Roots) &&
		bytes.Equal(a.Revocations.PEM, b.Revocations.PEM) && a.ForPeers == b.ForPeers
}
