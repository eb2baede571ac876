package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/token"
)

// Request headers that go with a token.
const (
	headerAuthorization = "authorization"
	headerCluster       = "clusterid"
)

// byToken authenticates by the bearer token of a call. A cluster or an OIDC issuer
// may have signed it.
func (a *Authenticator) byToken(ctx context.Context, md metadata.MD) (mesh.Caller, error) {
	raw, err := bearer(md)
	if err != nil {
		return mesh.Caller{}, err
	}
	caller, err := a.byClusterToken(ctx, raw, md)
	if err == nil || a.cfg.OIDC == nil {
		return caller, err
	}
	claims, oidcErr := a.cfg.OIDC.verify(ctx, raw, a.cfg.Now())
	if oidcErr != nil {
		return mesh.Caller{}, errors.Join(err, fmt.Errorf("OIDC: %w", oidcErr))
	}
	return mesh.Caller{Identity: mesh.Identity{
		TrustDomain: a.cfg.TrustDomain, Namespace: claims.Namespace, ServiceAccount: claims.ServiceAccount,
	}}, nil
}

// byClusterToken authenticates by the token of a cluster. The clusterid header
// names the cluster; without it the issuer of the token determines the cluster.
func (a *Authenticator) byClusterToken(ctx context.Context, raw string, md metadata.MD) (mesh.Caller, error) {
	clusters, err := a.tokenClusters(md)
	if err != nil {
		return mesh.Caller{}, err
	}
	now := a.cfg.Now()
	p := tokenProof(raw, md)
	if v, known := a.proofs.get(p, now); known {
		return v.caller, nil
	}
	good, err := a.verify(ctx, raw, clusters, now)
	if own := slices.IndexFunc(good, func(t verifiedToken) bool { return t.cluster == a.cfg.Local }); own >= 0 {
		good = good[own : own+1]
	}
	switch {
	case len(good) == 0:
		return mesh.Caller{}, cmp.Or(err, errNoIssuer) // the clusters may have gone meanwhile
	case len(good) > 1:
		return mesh.Caller{}, fmt.Errorf("clusters %q and %q have the same issuer: the header %s must name one",
			good[0].cluster, good[1].cluster, headerCluster)
	}
	t := good[0]
	if t.review != nil {
		// The proof counts from the start of the review, so that it expires in time.
		if now, err = t.review(ctx, raw, t.claims); err != nil {
			return mesh.Caller{}, fmt.Errorf("cluster %q: %w", t.cluster, err)
		}
	}
	caller := mesh.Caller{
		Identity: mesh.Identity{
			TrustDomain:    a.cfg.TrustDomain,
			Namespace:      t.claims.Namespace,
			ServiceAccount: t.claims.ServiceAccount,
		},
		Cluster: t.cluster,
	}
	a.proofs.put(p, verifiedCaller{caller: caller}, now, t.claims.Expiry())
	return caller, nil
}

// tokenProof returns the proof of a token for the cluster that the headers name.
func tokenProof(raw string, md metadata.MD) proof {
	return proofOf(nil, raw, strings.Join(md.Get(headerCluster), ""))
}

// verifiedToken is a token with a valid signature of a cluster's issuer.
type verifiedToken struct {
	cluster mesh.ClusterID
	claims  token.Claims
	// review, if not nil, decides finally. It returns the time of the review.
	review func(ctx context.Context, raw string, claims token.Claims) (time.Time, error)
}

// verify checks a token against the issuers of the clusters. It returns the
// clusters whose issuers signed it.
func (a *Authenticator) verify(ctx context.Context, raw string, clusters []mesh.ClusterID, now time.Time) ([]verifiedToken, error) {
	var good []verifiedToken
	var errs []error
	var rest []mesh.ClusterID
	for _, cluster := range clusters {
		claims, err := a.verifyLocal(cluster, raw, now)
		if err == nil {
			good = append(good, verifiedToken{cluster: cluster, claims: claims})
			continue
		}
		rest = append(rest, cluster)
		if !errors.Is(err, errNoIssuer) {
			errs = append(errs, fmt.Errorf("cluster %q: %w", cluster, err))
		}
	}
	if a.cfg.Reviewers != nil {
		more, err := a.cfg.Reviewers.check(ctx, raw, rest)
		good = append(good, more...)
		errs = append(errs, err)
	}
	return good, errors.Join(errs...)
}

// bearer returns the token of the authorization header: "Bearer x" or, from older
// clients, "Istio x".
func bearer(md metadata.MD) (string, error) {
	values := md.Get(headerAuthorization)
	if len(values) != 1 {
		return "", fmt.Errorf("%d %s headers: want one", len(values), headerAuthorization)
	}
	scheme, raw, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") && !strings.EqualFold(scheme, "Istio") {
		return "", fmt.Errorf("header %s is neither Bearer nor Istio", headerAuthorization)
	}
	return raw, nil
}

// tokenClusters returns the clusters whose issuers may have signed a call's
// token.
func (a *Authenticator) tokenClusters(md metadata.MD) ([]mesh.ClusterID, error) {
	known := slices.Collect(maps.Keys(a.cfg.Tokens))
	if a.cfg.Reviewers != nil {
		known = append(known, a.cfg.Reviewers.ids()...)
	}
	slices.Sort(known)
	known = slices.Compact(known)
	if len(known) == 0 {
		return nil, errNoIssuer
	}
	claimed := md.Get(headerCluster)
	switch {
	case len(claimed) == 0 || len(claimed) == 1 && claimed[0] == "":
		return known, nil
	case len(claimed) > 1:
		return nil, fmt.Errorf("%d %s headers: want one", len(claimed), headerCluster)
	}
	cluster := mesh.ClusterID(claimed[0])
	if !slices.Contains(known, cluster) {
		// Cut before it is quoted: the caller chose its length.
		return nil, fmt.Errorf("client claims to be in cluster %.100q, but token issuers are trusted for %q only", cluster, known)
	}
	return []mesh.ClusterID{cluster}, nil
}

var errNoIssuer = errors.New("no token issuer is trusted")

// verifyLocal tries the configured issuers of one cluster, without its API server.
func (a *Authenticator) verifyLocal(cluster mesh.ClusterID, raw string, now time.Time) (token.Claims, error) {
	errs := []error{}
	for _, v := range a.cfg.Tokens[cluster] {
		claims, err := v.Verify(raw, now)
		if err == nil {
			return claims, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return token.Claims{}, errNoIssuer
	}
	return token.Claims{}, errors.Join(errs...)
}

// AuthenticateToken returns the caller with the bearer token, for servers that do
// not use gRPC. The cluster is the caller's own claim and may be empty. The error is
// always an *Error.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token, cluster string) (mesh.Caller, error) {
	md := metadata.Pairs(headerAuthorization, "Bearer "+token)
	if cluster != "" {
		md.Set(headerCluster, cluster)
	}
	caller, err := a.byToken(ctx, md)
	if err != nil {
		return mesh.Caller{}, &Error{errs: []error{err}}
	}
	return caller, nil
}
