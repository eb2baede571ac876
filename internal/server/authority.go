package server

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/store"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/ca"
	"github.com/meshctl/meshctl/internal/server/issuer"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
)

// loadCA loads the plugged-in CA, or makes and keeps a self-signed one. Either
// is followed from then on.
func (s *Server) loadCA() (err error) {
	source, flag, err := s.caSource()
	if err != nil {
		return fmt.Errorf("load the CA of %s: %w", flag, err)
	}
	s.issuer, err = issuer.New(issuer.Config{
		Policy: s.cfg.Signing, Authenticate: s.authenticateForCA, Known: s.knownForCA, SlowDown: admission.SlowDown,
		Now: s.cfg.Now, Rand: s.cfg.Rand, Log: s.cfg.log(logIssuer), Stats: issuerStats(s.metrics),
	})
	if err != nil {
		return err
	}
	s.ca, err = ca.Open(ca.Config{
		Source: source, Use: s.useCA, Reloaded: reloadStats(s.metrics), Now: s.cfg.Now, Log: s.cfg.log(logCA),
		TrustDomain: s.trustDomains, ServerNames: issuer.ServerNames(), Alive: s.aliveSigners,
	})
	if err != nil {
		return fmt.Errorf("load the CA of %s: %w", flag, err)
	}
	caStats(s.metrics, s.ca, s.cfg.Now)
	if s.ca.Current() == nil {
		s.cfg.Log.Warn("waiting for the files of the signing CA, nothing is served before", "source", source.Place())
		return nil
	}
	return s.makeServing()
}

// caSource is where the signing CA is kept, and the flag that says so.
func (s *Server) caSource() (source ca.Source, flag string, err error) {
	switch {
	case s.cfg.CADir != "":
		source, err = ca.NewDir(s.cfg.CADir, s.cfg.log(logCA))
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
	source, err = ca.NewDir(dir, s.cfg.log(logCA))
	return source, "--state-dir", err
}

// trustDomains are that of the mesh, which may not be known yet, and its
// aliases.
func (s *Server) trustDomains() (domain string, aliases []string) {
	if c := s.callers.Load(); c != nil {
		return c.trustDomain, c.aliases
	}
	return s.cfg.TrustDomain, nil
}

// aliveSigners are those that signed certificates that are valid now.
func (s *Server) aliveSigners(now time.Time) []*certs.Authority {
	var out []*certs.Authority
	for _, by := range s.issuer.Signed() {
		if by.Until.After(now) {
			out = append(out, by.Authority)
		}
	}
	return out
}

// useCA signs with another set from now on.
func (s *Server) useCA(set *ca.Set) {
	if l := set.Cert.Subject.Locality; len(l) == 1 && l[0] != string(s.cfg.ClusterID) {
		s.cfg.Log.Warn("the signing CA was made for another cluster", "ca", l[0], "cluster", s.cfg.ClusterID)
	}
	s.trust.setCA(set)
	s.issuer.SetAuthority(set.Authority)
	s.setRoots(set)
	s.judgeFit()
}

// fitness tells whether the signing CA fits the mesh, whose trust domain may come
// to be known after the CA, and may change. It may be used concurrently.
type fitness struct {
	mu      sync.Mutex // one judges at a time
	err     atomic.Pointer[error]
	changed chan struct{} // has a token after a change; capacity 1
}

// get is why the CA does not fit.
func (f *fitness) get() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// judgeFit is called when the CA or the trust domain has changed.
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

// awaitFit waits for a CA that fits the mesh; it is false when ctx ended first.
func (s *Server) awaitFit(ctx context.Context) bool {
	for said := false; s.fit.get() != nil; said = true {
		if !said {
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

// authenticateForCA is authenticate for who asks for a certificate. Nobody is
// given one that peers would refuse: agents keep what they have and try again.
func (s *Server) authenticateForCA(ctx context.Context) (mesh.Caller, error) {
	if s.fit.get() != nil {
		return mesh.Caller{}, status.Error(codes.Unavailable, "the signing CA does not fit the trust domain of the mesh")
	}
	caller, err := s.authenticate(ctx)
	if err == nil && s.trust.foreign(caller.Identity.TrustDomain) {
		err = status.Errorf(codes.PermissionDenied, "certificates of trust domain %s are signed by its own control plane", caller.Identity.TrustDomain)
	}
	return caller, err
}

// knownForCA is authenticateForCA for who was authenticated a moment ago.
func (s *Server) knownForCA(ctx context.Context, md metadata.MD) (mesh.Caller, bool) {
	if c := s.callers.Load(); c != nil && s.fit.get() == nil {
		return c.Known(ctx, md)
	}
	return mesh.Caller{}, false
}

// recheckCallers ends the streams of callers that another set of the CA no longer
// accepts: what was revoked does not last until the connection ends.
func (s *Server) recheckCallers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.trust.changed:
			s.hub.Recheck()
		}
	}
}

// recheck says why the caller of a stream is not accepted any more.
func (s *Server) recheck(ctx context.Context) error {
	if c := s.callers.Load(); c != nil {
		return c.Lost(ctx)
	}
	return nil
}

// clientCertificate is with which certificate a caller that was let in proved
// itself; nil when it was not by one.
func (s *Server) clientCertificate(ctx context.Context) *mesh.ClientCertificate {
	if c := s.callers.Load(); c != nil {
		return c.Certificate(ctx)
	}
	return nil
}

// makeServing makes the certificate of the secure port; each handshake has one
// of the authority in use, or that of the files.
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

// servingNames are the names beside istiod's: the address it listens on, so
// that it can be called by that.
func servingNames(addr string) []string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || net.ParseIP(host) == nil || net.ParseIP(host).IsUnspecified() {
		return nil
	}
	return []string{host}
}

func (s *Server) revoked(cert, issuer *x509.Certificate) bool {
	set := s.ca.Current()
	return set != nil && set.Revoked(cert, issuer)
}

// issuerCluster binds leaves that name no cluster, such as Istio's, to the one
// whose intermediate signed them: ours, or one of another cluster that the
// mesh's root gave that cluster's name as locality, as Istio's Makefile and
// certs intermediate-ca do. A root may sign for several, so it proves none.
func (s *Server) issuerCluster(signer *x509.Certificate) mesh.ClusterID {
	set := s.ca.Current()
	if set == nil || slices.ContainsFunc(set.Roots, signer.Equal) {
		return ""
	}
	if signer.Equal(set.Cert) {
		return s.cfg.ClusterID
	}
	if l := signer.Subject.Locality; len(l) == 1 && s.sources.Has(mesh.ClusterID(l[0])) {
		return mesh.ClusterID(l[0])
	}
	return ""
}

// caPage compares the CA on disk, in use and as it was given out.
func (s *Server) caPage() ca.Page {
	var served []ca.Signed
	for _, by := range s.issuer.Signed() {
		one := ca.Signed{Signer: ca.Describe(by.Authority.Cert), LastAt: by.Last.UTC(), ValidUntil: by.Until.UTC()}
		for _, r := range by.Authority.Roots {
			one.Roots = append(one.Roots, ca.Describe(r))
		}
		served = append(served, one)
	}
	p := ca.NewPage(s.ca.Status(), served, s.cfg.Now())
	if s.own != nil {
		p.Serving = new(ca.Describe(s.own.Leaf()))
	} else if leaf, signer := s.issuer.Serving(); leaf != nil {
		p.Serving, p.ServingSigner = new(ca.Describe(leaf)), new(ca.Describe(signer.Cert))
	}
	return p
}
