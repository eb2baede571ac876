package server

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
)

// loadCA loads the signing CA, or makes and keeps a self-signed one, and the
// certificate of the secure port. Both are followed.
func (s *Server) loadCA() (err error) {
	if f := s.cfg.Own; f.Cert != "" {
		s.own, err = ca.LoadFileCertificate(ca.FileConfig{Cert: f.Cert, Key: f.Key, CA: f.CA, Now: s.cfg.Now, Log: s.cfg.log(logAuthn)})
		if err != nil {
			return err
		}
	}
	source, flag, err := s.caSource()
	if err != nil {
		return fmt.Errorf("load the CA of %s: %w", flag, err)
	}
	s.issuer, err = ca.NewIssuer(ca.IssuerConfig{
		Policy: s.cfg.Signing, Authenticate: s.authenticateForCA, Known: s.knownForCA, SlowDown: admission.SlowDown,
		Now: s.cfg.Now, Rand: s.cfg.Rand, Log: s.cfg.log(logIssuer), Stats: ca.NewIssuerStats(s.metrics),
	})
	if err != nil {
		return err
	}
	s.ca, err = ca.Open(ca.Config{
		Source: source, Use: s.useCA, Reloaded: ca.CountReloads(s.metrics), Now: s.cfg.Now, Log: s.cfg.log(logCA),
		TrustDomain: s.trustDomains, ServerNames: ca.ServerNames(), Alive: s.aliveSigners,
	})
	if err != nil {
		return fmt.Errorf("load the CA of %s: %w", flag, err)
	}
	s.ca.RegisterMetrics(s.metrics)
	if s.ca.Current() == nil {
		s.cfg.Log.Warn("waiting for the files of the signing CA, nothing is served before", "source", source.Place())
		return nil
	}
	return s.makeServing()
}

// caSource returns the source of the signing CA, and the flag that names it.
func (s *Server) caSource() (source ca.Source, flag string, err error) {
	switch {
	case s.cfg.CADir != "":
		source, err = ca.NewDir(s.cfg.CADir)
		return source, "--ca-dir", err
	case s.cfg.CASource != nil:
		return s.cfg.CASource, s.cfg.CASource.Place(), nil
	}
	dir := s.cfg.StateDir
	_, created, err := store.LoadOrCreate(dir, s.cfg.TrustDomain, s.cfg.Now(), s.cfg.Rand)
	if err != nil {
		return nil, "--state-dir", err
	}
	s.cfg.Log.Warn("no --ca-dir: certificates are signed by a self-signed CA, which other clusters do not trust",
		"dir", dir, "created", created)
	source, err = ca.NewDir(dir)
	return source, "--state-dir", err
}

// trustDomains returns the trust domain of the mesh, empty while it is not known, and
// its aliases.
func (s *Server) trustDomains() (domain string, aliases []string) {
	if c := s.callers.Load(); c != nil {
		return c.trustDomain, c.aliases
	}
	return s.cfg.TrustDomain, nil
}

// aliveSigners returns the CAs that signed certificates which are still valid.
func (s *Server) aliveSigners(now time.Time) []*certs.Authority {
	var out []*certs.Authority
	for _, by := range s.issuer.Signed() {
		if by.Until.After(now) {
			out = append(out, by.Authority)
		}
	}
	return out
}

// useCA signs with a set of the CA from now on.
func (s *Server) useCA(set *ca.Set) {
	if l := set.Cert.Subject.Locality; len(l) == 1 && l[0] != string(s.cfg.ClusterID) {
		s.cfg.Log.Warn("the signing CA was made for another cluster", "ca", l[0], "cluster", s.cfg.ClusterID)
	}
	var agents *xds.Trust // nil while proxies cannot use a revocation list
	if !set.ForPeers.Withheld {
		var err error
		if agents, err = xds.NewTrust(certs.EncodeCerts(set.Roots...), []byte(set.ForPeers.PEM)); err != nil {
			s.cfg.log(logAuthn).Error("agents get no roots and revocation lists", "error", err)
		}
	}
	s.agentTrust.Store(agents)
	s.trust.SetCA(set.Roots, set.Pool)
	s.issuer.SetAuthority(set.Authority)
	s.apis.roots.SetRoots(certs.EncodeCerts(set.Roots...))
	s.judgeFit()
}

// fitness holds whether the signing CA fits the mesh. The trust domain of the mesh
// may become known after the CA, and may change. It is safe for concurrent use.
type fitness struct {
	mu      sync.Mutex // held by the one that judges
	err     atomic.Pointer[error]
	changed chan struct{} // has a token after a change; capacity 1
}

// get returns why the CA does not fit, nil if it does.
func (f *fitness) get() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// judgeFit updates the fitness after a change of the CA or the trust domain.
func (s *Server) judgeFit() {
	if s.ca == nil {
		return // it is being opened, which judges it
	}
	s.fit.mu.Lock()
	defer s.fit.mu.Unlock()
	var err error
	if set := s.ca.Current(); set != nil {
		err = s.ca.Fits(set)
	}
	s.fit.err.Store(&err)
	select {
	case s.fit.changed <- struct{}{}:
	default:
	}
}

// awaitFit waits for a CA that fits the mesh. It returns false when ctx ends first.
func (s *Server) awaitFit(ctx context.Context) bool {
	for logged := false; s.fit.get() != nil; logged = true {
		if !logged {
			s.cfg.Log.Error("the signing CA does not fit the mesh, nothing is served before it does", "error", s.fit.get())
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.fit.changed:
		}
	}
	return true
}

// makeServing sets the certificate of the secure port: the one of the files, or one
// of the CA in use at each handshake.
func (s *Server) makeServing() error {
	switch {
	case s.serving != nil:
	case s.own != nil:
		s.serving = s.own.GetCertificate
	default:
		c, err := s.issuer.ServingCertificate(append(servingNames(s.cfg.SecureGRPCAddr), s.cfg.ServingNames...)...)
		if err != nil {
			return err
		}
		s.serving = c.GetCertificate
	}
	return nil
}

// servingNames returns the address that the secure port listens on, if it is one, as
// a name of its certificate in addition to the names of istiod.
func servingNames(addr string) []string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || net.ParseIP(host) == nil || net.ParseIP(host).IsUnspecified() {
		return nil
	}
	return []string{host}
}

// caPage makes /debug/certs: the CA as stored, in use, and in issued certificates.
func (s *Server) caPage() ca.Page {
	p := ca.NewPage(s.ca.Status(), s.issuer.Signed(), s.cfg.Now())
	if s.own != nil {
		p.Serving = new(ca.Describe(s.own.Leaf()))
	} else if leaf, signer := s.issuer.Serving(); leaf != nil {
		p.Serving, p.ServingSigner = new(ca.Describe(leaf)), new(ca.Describe(signer.Cert))
	}
	return p
}
