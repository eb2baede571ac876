// Package identity authenticates the callers of the control plane: by a
// certificate of the mesh, else by the token of a cluster or of an OIDC issuer,
// else by the certificate that a trusted gateway forwards. Claims of a caller about
// itself prove nothing; CheckNode compares them with the proved identity.
// SecretAccess decides which callers may read private keys.
package identity

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// TokenVerifier checks the tokens of one issuer.
type TokenVerifier interface {
	Verify(raw string, now time.Time) (token.Claims, error)
}

// Config configures an Authenticator.
type Config struct {
	// TrustDomain of the mesh. Callers with a token belong to it.
	TrustDomain string
	// TrustDomainAliases are further accepted trust domains. An identity keeps the
	// trust domain that its certificate names.
	TrustDomainAliases []string
	// Roots returns the roots for certificates of a trust domain; nil accepts none.
	// Every handshake and every call asks again, so the roots may change at any
	// time. Callers of a trust domain that has roots but is neither TrustDomain nor
	// an alias complete the handshake, and every call fails with PermissionDenied.
	Roots func(trustDomain string) *x509.CertPool
	// Foreign reports whether the roots of a trust domain belong to another mesh.
	// The clusters that its certificates name count for nothing here. May be nil.
	Foreign func(trustDomain string) bool
	// Revoked reports whether issuer, the CA that signed cert, has revoked it. May
	// be nil. Its answers may change only together with the pool of Roots.
	Revoked func(cert, issuer *x509.Certificate) bool
	// IssuerCluster returns the cluster of a CA certificate, or "". It gives a
	// cluster to leaves that name none. May be nil.
	IssuerCluster func(ca *x509.Certificate) mesh.ClusterID
	// MayProve reports whether the CAs of a chain, that of the leaf first, may prove that a workload
	// is of a cluster. May be nil.
	MayProve func(cas []*x509.Certificate, cluster mesh.ClusterID) bool
	// Local is the cluster of the control plane. Another cluster that publishes the keys of its issuer
	// does not prevent that its tokens count. May be empty.
	Local mesh.ClusterID
	// Tokens are the token issuers of each cluster.
	Tokens map[mesh.ClusterID][]TokenVerifier
	// Reviewers check the tokens of Kubernetes clusters. May be nil.
	Reviewers *Reviewers
	// OIDC checks the tokens of issuers that are no cluster. May be nil.
	OIDC *OIDC
	// XFCCSources are the addresses of gateways whose x-forwarded-client-cert
	// headers count. The default is none, not even loopback.
	XFCCSources []netip.Prefix
	Now         func() time.Time
	// Log gets the certificates that handshakes refuse. May be nil.
	Log *slog.Logger
}

// Authenticator authenticates callers. It may be used concurrently.
type Authenticator struct {
	cfg     Config
	domains []string // accepted in certificates
	proofs  proofCache
}

// New returns an authenticator.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Roots == nil || cfg.Now == nil {
		return nil, errors.New("identity: Roots and Now are required")
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	domains := append([]string{cfg.TrustDomain}, cfg.TrustDomainAliases...)
	for _, d := range domains {
		if !mesh.IsTrustDomain(d) {
			return nil, fmt.Errorf("trust domain %q: want lower-case letters, digits, '.', '-' and '_'", d)
		}
	}
	return &Authenticator{cfg: cfg, domains: domains}, nil
}

// Authenticate returns the caller of the gRPC call that ctx belongs to, by its
// client certificate, else its token, else the certificate that a trusted gateway
// forwards. All of them count on TLS connections only. Authenticate checks the
// certificate again, as it may have expired or lost its root since the handshake.
//
// The error is always an *Error.
func (a *Authenticator) Authenticate(ctx context.Context) (mesh.Caller, error) {
	info := tlsOf(ctx)
	if !info.State.HandshakeComplete {
		return mesh.Caller{}, &Error{errs: []error{errors.New("the connection is not TLS")}}
	}
	v, certErr := a.verifyChain(info.State.PeerCertificates, a.cfg.Now())
	if certErr == nil {
		if certErr = a.checkOfMesh(v.caller.Identity); certErr == nil {
			return v.caller, nil
		}
	}
	md, _ := metadata.FromIncomingContext(ctx)
	caller, tokenErr := a.byToken(ctx, md)
	if tokenErr == nil {
		return caller, nil
	}
	errs := []error{fmt.Errorf("client certificate: %w", certErr), fmt.Errorf("token: %w", tokenErr)}
	if len(a.cfg.XFCCSources) > 0 {
		caller, err := a.byXFCC(ctx, md)
		if err == nil {
			return caller, nil
		}
		errs = append(errs, fmt.Errorf("forwarded certificate: %w", err))
	}
	return mesh.Caller{}, &Error{errs: errs}
}

// checkOfMesh refuses identities of other meshes: an account of the same name
// there is a different workload.
func (a *Authenticator) checkOfMesh(id mesh.Identity) error {
	if !slices.Contains(a.domains, id.TrustDomain) {
		return fmt.Errorf("identity %s: %w", id, errOtherMesh)
	}
	return nil
}

var errOtherMesh = errors.New("its trust domain is none of trustDomain and trustDomainAliases of MeshConfig")

// Known returns the caller of a call with these headers if Authenticate accepted
// the same proof a moment ago. It only looks up a hash and verifies nothing, so
// false means nothing: Authenticate decides.
func (a *Authenticator) Known(ctx context.Context, md metadata.MD) (mesh.Caller, bool) {
	info := tlsOf(ctx)
	if !info.State.HandshakeComplete {
		return mesh.Caller{}, false
	}
	now := a.cfg.Now()
	if shown := info.State.PeerCertificates; len(shown) > 0 {
		id, err := leafIdentity(shown[0])
		if err != nil {
			return mesh.Caller{}, false
		}
		roots := a.cfg.Roots(id.TrustDomain)
		if roots == nil {
			return mesh.Caller{}, false
		}
		v, known := a.proofs.get(proofOf(roots, rawOf(shown)...), now)
		return v.caller, known
	}
	raw, err := bearer(md)
	if err != nil {
		return mesh.Caller{}, false
	}
	v, known := a.proofs.get(tokenProof(raw, md), now)
	return v.caller, known
}

func tlsOf(ctx context.Context) credentials.TLSInfo {
	var info credentials.TLSInfo
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(credentials.TLSInfo)
	}
	return info
}

// Error reports why authentication failed. Its text is for the log. The caller
// gets only a code and a fixed text, provided that the gRPC handler returns the
// error unwrapped.
type Error struct{ errs []error }

// Error returns one line with the reason why each kind of proof failed.
func (e *Error) Error() string {
	return "authentication failed: " + strings.ReplaceAll(errors.Join(e.errs...).Error(), "\n", "; ")
}

// GRPCStatus returns the status for the caller: Unavailable if no API server could
// review the token, PermissionDenied if the certificate is valid but of another
// mesh, else Unauthenticated.
func (e *Error) GRPCStatus() *status.Status {
	is := func(what error) bool {
		return slices.ContainsFunc(e.errs, func(err error) bool { return errors.Is(err, what) })
	}
	switch {
	case is(errUndecided):
		return status.New(codes.Unavailable, "the token could not be reviewed, try again")
	case is(errOtherMesh):
		return status.New(codes.PermissionDenied, "authorization failed: the trust domain is not one of this mesh")
	}
	return status.New(codes.Unauthenticated, "request authenticate failure")
}
