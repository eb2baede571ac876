package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/dial"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/identity"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/trust"
	"github.com/meshctl/meshctl/internal/server/xds"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/token"
)

// callers authenticates by the trust domains of one version of MeshConfig.
type callers struct {
	trustDomain string
	aliases     []string
	*identity.Authenticator
}

// errNoMesh is the error for callers before MeshConfig is read.
var errNoMesh = errors.New("the mesh configuration was not read yet")

// newTrust makes the roots of callers and peers, and reads the OIDC issuers.
func (s *Server) newTrust() (err error) {
	guard, kept := dial.Guard{Loopback: !s.cfg.InPod}, ""
	if s.cfg.StateDir != "" {
		kept = filepath.Join(s.cfg.StateDir, "bundles")
	}
	s.trust, err = trust.NewPeers(s.cfg.TrustDomain, trust.Config{
		Sources: s.cfg.Federated, Dir: kept, WebRoots: s.cfg.BundleWebRoots,
		Guard: guard, Fetched: trust.CountFetches(s.metrics),
		Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return fmt.Errorf("federation: %w", err)
	}
	s.metrics.MustRegister(trust.Metrics{Bundles: s.trust.Bundles})
	if len(s.cfg.OIDC) == 0 {
		return nil
	}
	s.oidc, err = identity.NewOIDC(identity.OIDCConfig{
		Rules: s.cfg.OIDC, Roots: s.cfg.OIDCRoots, Guard: guard, Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return fmt.Errorf("OIDC: %w", err)
	}
	return nil
}

func (s *Server) loadTokenIssuers() error {
	s.tokens = make(map[mesh.ClusterID][]identity.TokenVerifier)
	if len(s.cfg.TokenIssuers) == 0 && len(s.cfg.OIDC) == 0 && s.cfg.KubeAccess == nil && s.cfg.SecureGRPCAddr != "" {
		s.cfg.Log.Warn("no --token-issuer: workloads without a certificate cannot prove who they are, so none gets its first one")
	}
	for _, t := range s.cfg.TokenIssuers {
		v, err := token.LoadVerifier(t.Dir, s.cfg.TokenAudiences)
		if err != nil {
			return fmt.Errorf("token issuer of cluster %s: %w", t.Cluster, err)
		}
		s.tokens[t.Cluster] = append(s.tokens[t.Cluster], v)
		s.cfg.Log.Info("trusting token issuer", "cluster", t.Cluster, "issuer", v.Issuer(), "dir", t.Dir)
	}
	return nil
}

// trustMesh authenticates callers by the trust domains of the mesh from now on.
func (s *Server) trustMesh(m *snapshot.Mesh) error {
	s.trust.SetMesh(m)
	if c := s.callers.Load(); c != nil && c.trustDomain == m.TrustDomain && slices.Equal(c.aliases, m.Aliases) {
		return nil
	}
	a, err := identity.New(identity.Config{
		TrustDomain: m.TrustDomain, TrustDomainAliases: m.Aliases,
		Roots:         s.trust.Roots,
		Foreign:       s.trust.Foreign,
		Revoked:       s.revoked,
		IssuerCluster: s.issuerCluster,
		MayProve:      s.mayProve,
		Local:         s.cfg.ClusterID,
		Tokens:        s.tokens, Reviewers: s.apis.reviewers, OIDC: s.oidc, XFCCSources: s.cfg.XFCCSources, Now: s.cfg.Now, Log: s.cfg.log(logAuthn),
	})
	if err != nil {
		return err
	}
	s.callers.Store(&callers{m.TrustDomain, m.Aliases, a})
	s.judgeFit()
	return nil
}

// authenticate returns the caller of a request. From then on, the connection counts
// as one of the caller.
func (s *Server) authenticate(ctx context.Context) (mesh.Caller, error) {
	c := s.callers.Load()
	if c == nil {
		return mesh.Caller{}, status.Error(codes.Unavailable, errNoMesh.Error())
	}
	caller, err := c.Authenticate(ctx)
	if err != nil {
		return mesh.Caller{}, err
	}
	return caller, admission.Authenticated(ctx, caller.Identity)
}

// authenticateForCA returns the caller of a certificate request. No caller gets a
// certificate that peers would refuse: agents keep theirs and try again.
func (s *Server) authenticateForCA(ctx context.Context) (mesh.Caller, error) {
	if s.fit.get() != nil {
		return mesh.Caller{}, status.Error(codes.Unavailable, "the signing CA does not fit the trust domain of the mesh")
	}
	caller, err := s.authenticate(ctx)
	if err == nil && s.trust.Foreign(caller.Identity.TrustDomain) {
		err = status.Errorf(codes.PermissionDenied, "certificates of trust domain %s are signed by its own control plane", caller.Identity.TrustDomain)
	}
	return caller, err
}

// knownForCA returns the caller of a certificate request if it was authenticated a
// moment ago.
func (s *Server) knownForCA(ctx context.Context, md metadata.MD) (mesh.Caller, bool) {
	if c := s.callers.Load(); c != nil && s.fit.get() == nil {
		return c.Known(ctx, md)
	}
	return mesh.Caller{}, false
}

// authenticateToken returns the owner of a bearer token.
func (s *Server) authenticateToken(ctx context.Context, bearer, cluster string) (mesh.Caller, error) {
	c := s.callers.Load()
	if c == nil {
		return mesh.Caller{}, errNoMesh
	}
	return c.AuthenticateToken(ctx, bearer, cluster)
}

// recheckCallers checks the callers of all streams after each change of the roots or
// revocation lists, so that a revoked certificate does not outlive the change.
func (s *Server) recheckCallers(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.trust.Changed():
			s.hub.Recheck()
		}
	}
}

// recheck returns why the caller of a stream is no longer accepted, nil if it is.
func (s *Server) recheck(ctx context.Context) error {
	if c := s.callers.Load(); c != nil {
		return c.Lost(ctx)
	}
	return nil
}

// clientCertificate returns the certificate by which a caller was authenticated, nil
// if it was not by one.
func (s *Server) clientCertificate(ctx context.Context) *mesh.ClientCertificate {
	if c := s.callers.Load(); c != nil {
		return c.Certificate(ctx)
	}
	return nil
}

func (s *Server) revoked(cert, issuer *x509.Certificate) bool {
	set := s.ca.Current()
	return set != nil && set.Revoked(cert, issuer)
}

// issuerCluster returns the cluster of leaves that name none, such as Istio's: the
// cluster whose intermediate signed them. That is ours, or one whose name is the
// locality of the intermediate, as Istio's Makefile and certs intermediate-ca set it.
// A root may sign for several clusters, so it proves none.
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

// mayProve refuses that CAs of another cluster prove that a workload is of ours: that cluster could
// have the keys of our gateways. The locality of an intermediate is its cluster. Intermediates without
// one are believed, and so are roots, which may sign for several clusters.
func (s *Server) mayProve(cas []*x509.Certificate, cluster mesh.ClusterID) bool {
	set := s.ca.Current()
	if set == nil || cluster != s.cfg.ClusterID {
		return true
	}
	return !slices.ContainsFunc(cas, func(ca *x509.Certificate) bool {
		l := ca.Subject.Locality
		isOwn := len(l) == 0 || slices.Equal(l, []string{string(s.cfg.ClusterID)}) || slices.Equal(l, set.Cert.Subject.Locality)
		return !isOwn && !slices.ContainsFunc(set.Chain, ca.Equal) && !slices.ContainsFunc(set.Roots, ca.Equal)
	})
}

// controlPlaneAccount is the service account of the control plane.
const controlPlaneAccount = "istiod"

// ownIdentity returns the identity of the control plane as a workload.
func (s *Server) ownIdentity() (mesh.Identity, error) {
	c := s.callers.Load()
	if c == nil || s.fit.get() != nil {
		return mesh.Identity{}, errors.New("the trust domain or its CA is not known yet")
	}
	return mesh.Identity{TrustDomain: c.trustDomain, Namespace: s.cfg.systemNamespace(), ServiceAccount: controlPlaneAccount}, nil
}

// forAgents returns the roots and revocation lists that agents give to their Envoys.
func (s *Server) forAgents() (*xds.Trust, error) {
	if t := s.agentTrust.Load(); t != nil {
		return t, nil
	}
	return nil, errors.New("the revocation lists of the control plane cannot be used by proxies")
}

// checkMesh refuses proxies of another mesh.
func (s *Server) checkMesh(n proxy.Node) error {
	if s.cfg.MeshID != "" && n.MeshID != "" && n.MeshID != s.cfg.MeshID {
		return fmt.Errorf("the proxy says that it belongs to mesh %q, this control plane serves %q", n.MeshID, s.cfg.MeshID)
	}
	return nil
}

// checkNode refuses a proxy whose node metadata contradict its identity.
func (s *Server) checkNode(caller mesh.Caller, n proxy.Node) error {
	if err := s.checkMesh(n); err != nil {
		return err
	}
	err := identity.CheckNode(caller, n)
	if err != nil {
		s.cfg.log(logAuthn).Warn("proxy refused: it says that it is another than it was proved to be", "identity", caller.Identity.String(),
			"cluster", caller.Cluster, "node", n.ID.String(), "error", err)
	}
	return err
}

// mayReadKeys returns why a proxy gets no private keys, nil if it does. The directory
// of its cluster decides, or the API server.
func (s *Server) mayReadKeys(snap *snapshot.Snapshot, caller mesh.Caller, n proxy.Node) error {
	for _, d := range s.cfg.dirs() {
		if d.Cluster == caller.Cluster && d.Dir != "" {
			return identity.ConfiguredGateway(snap, caller, n)
		}
	}
	pod, _ := xdsgen.AssignReads(n)
	return s.apis.keyReviews.MayRead(caller, pod)
}
