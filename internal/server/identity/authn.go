// Package identity says who is calling: by a certificate of the mesh, else by a
// token of a cluster or of an OIDC issuer, else by the word of a trusted gateway. What callers say of themselves is never believed;
// CheckNode compares it with what was proved.
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

// Config of an Authenticator.
type Config struct {
	// TrustDomain is the mesh's own, which callers with a token belong to.
	TrustDomain string
	// TrustDomainAliases are others whose identities are accepted as well. An
	// identity keeps the trust domain that its certificate names.
	TrustDomainAliases []string
	// Roots returns what certificates of a trust domain must chain to; nil
	// means none are accepted. It is asked for every handshake and every call,
	// so the roots may change at any time. A trust domain with roots that is
	// neither own nor alias may shake hands, and is told that it may do nothing
	// more.
	Roots func(trustDomain string) *x509.CertPool
	// Foreign reports whether the roots of a trust domain are those of another
	// mesh: what its CAs say of clusters proves nothing here. May be nil.
	Foreign func(trustDomain string) bool
	// Revoked reports whether issuer, the CA that signed cert, has revoked it.
	// May be nil. What it answers may change when the pool of Roots does.
	Revoked func(cert, issuer *x509.Certificate) bool
	// IssuerCluster returns the cluster whose CA certificate this is, or "".
	// It binds leaves that do not name their cluster. May be nil.
	IssuerCluster func(ca *x509.Certificate) mesh.ClusterID
	// Tokens are the token issuers that each cluster's callers may use.
	Tokens map[mesh.ClusterID][]TokenVerifier
	// Reviewers check the tokens of Kubernetes clusters. May be nil.
	Reviewers *Reviewers
	// OIDC checks the tokens of issuers that are no cluster. May be nil.
	OIDC *OIDC
	// XFCCSources are the addresses of gateways that are believed what they say
	// of their clients' certificates; none by default, loopback included.
	XFCCSources []netip.Prefix
	Now         func() time.Time
	// Log gets the certificates that handshakes refuse. May be nil.
	Log *slog.Logger
}

// Authenticator authenticates callers. It may be used concurrently.
type Authenticator struct {
	cfg     Config
	domains []string // accepted in certificates
	proofs  cache
}

// New returns an authenticator.
func New(cfg Config) (*Authenticator, error) {
	if cfg.Roots == nil || cfg.Now == nil {
		return nil, errors.New("authn: Roots and Now are required")
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

// Authenticate returns the caller of the gRPC call that ctx belongs to: of its
// client certificate, else of its token, else of what a trusted gateway says. All
// count only on a TLS connection.
// The certificate is checked here again, whatever the handshake found: it may
// have expired or lost its root while the connection lives.
//
// The error is always an *Error.
func (a *Authenticator) Authenticate(ctx context.Context) (mesh.Caller, error) {
	info := tlsOf(ctx)
	if !info.State.HandshakeComplete {
		return mesh.Caller{}, &Error{errs: []error{errors.New("the connection is not TLS")}}
	}
	caller, certErr := a.byCertificate(info.State.PeerCertificates)
	if certErr == nil {
		if certErr = a.ofMesh(caller.Identity); certErr == nil {
			return caller, nil
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

// ofMesh refuses identities of trust domains that are known, but whose accounts
// are none of the mesh's: the same name there is somebody else.
func (a *Authenticator) ofMesh(id mesh.Identity) error {
	if !slices.Contains(a.domains, id.TrustDomain) {
		return fmt.Errorf("identity %s: %w", id, errOtherMesh)
	}
	return nil
}

var errOtherMesh = errors.New("its trust domain is none of trustDomain and trustDomainAliases of MeshConfig")

// Known returns the caller of a call that has these headers, if he was
// authenticated by the same proof a moment ago. Otherwise it says nothing, and
// Authenticate will tell. It verifies nothing: it costs a hash.
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
		return a.proofs.get(proofOf(roots, rawOf(shown)...), now)
	}
	raw, err := bearer(md)
	if err != nil {
		return mesh.Caller{}, false
	}
	return a.proofs.get(tokenProof(raw, md), now)
}

func tlsOf(ctx context.Context) credentials.TLSInfo {
	var info credentials.TLSInfo
	if p, ok := peer.FromContext(ctx); ok {
		info, _ = p.AuthInfo.(credentials.TLSInfo)
	}
	return info
}

// Error says why nobody was authenticated. Its text is for the log. To the
// caller gRPC sends only a code and a fixed text, provided that
// a handler returns the error unwrapped.
type Error struct{ errs []error }

// Error names every way that was tried and why it failed, in one line.
func (e *Error) Error() string {
	return "authentication failed: " + strings.ReplaceAll(errors.Join(e.errs...).Error(), "\n", "; ")
}

// GRPCStatus is what the caller sees: Unavailable when the token could be good
// and nobody could be asked, PermissionDenied when the certificate is good and
// of another mesh.
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
