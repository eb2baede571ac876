package authn

import (
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

// byToken authenticates by the bearer token of a call. A clusterid header
// chooses whose issuers may have signed it; without one the issuer tells the
// cluster.
func (a *Authenticator) byToken(md metadata.MD) (mesh.Caller, error) {
	raw, err := bearer(md)
	if err != nil {
		return mesh.Caller{}, err
	}
	clusters, err := a.tokenClusters(md)
	if err != nil {
		return mesh.Caller{}, err
	}
	now := a.cfg.Now()
	p := proofOf(nil, []byte(raw), []byte(strings.Join(md.Get(headerCluster), "")))
	if caller, known := a.proofs.get(p, now); known {
		return caller, nil
	}
	var callers []mesh.Caller
	var errs []error
	var end time.Time
	for _, cluster := range clusters {
		claims, err := a.verify(cluster, raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("cluster %q: %w", cluster, err))
			continue
		}
		end = claims.Expiry()
		callers = append(callers, mesh.Caller{
			Identity: mesh.Identity{
				TrustDomain:    a.cfg.TrustDomain,
				Namespace:      claims.Namespace,
				ServiceAccount: claims.ServiceAccount,
			},
			Cluster: cluster,
		})
	}
	switch len(callers) {
	case 0:
		return mesh.Caller{}, errors.Join(errs...)
	case 1:
		a.proofs.put(p, callers[0], now, end)
		return callers[0], nil
	}
	return mesh.Caller{}, fmt.Errorf("its issuer is that of clusters %q and %q: the header %s must say which",
		callers[0].Cluster, callers[1].Cluster, headerCluster)
}

// bearer takes the token from the authorization header: "Bearer x" or, as
// older clients write, "Istio x".
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
	known := slices.Sorted(maps.Keys(a.cfg.Tokens))
	if len(known) == 0 {
		return nil, errors.New("no token issuer is trusted")
	}
	claimed := md.Get(headerCluster)
	switch {
	case len(claimed) == 0 || len(claimed) == 1 && claimed[0] == "":
		return known, nil
	case len(claimed) > 1:
		return nil, fmt.Errorf("%d %s headers: want one", len(claimed), headerCluster)
	}
	cluster := mesh.ClusterID(claimed[0])
	if _, ok := a.cfg.Tokens[cluster]; !ok {
		// Cut before it is quoted: the caller chose its length.
		return nil, fmt.Errorf("client claims to be in cluster %.100q, but token issuers are trusted for %q only", cluster, known)
	}
	return []mesh.ClusterID{cluster}, nil
}

// verify tries the issuers of one cluster.
func (a *Authenticator) verify(cluster mesh.ClusterID, raw string) (token.Claims, error) {
	var errs []error
	for _, v := range a.cfg.Tokens[cluster] {
		claims, err := v.Verify(raw, a.cfg.Now())
		if err == nil {
			return claims, nil
		}
		errs = append(errs, err)
	}
	return token.Claims{}, errors.Join(errs...)
}
