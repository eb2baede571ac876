package identity

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
)

// NodeClaims is what a proxy says of itself in its first request.
type NodeClaims struct {
	Namespace      string         // required
	ServiceAccount string         // empty if not said
	Cluster        mesh.ClusterID // empty if not said
	TrustDomain    string         // empty if not said
}

// CheckNode compares what a proxy says of itself with who it was proved to be.
// Namespace, service account and trust domain must be those of the identity. The cluster
// must be the caller's where both are known: a caller whose cluster nothing
// proves may say any, so who gives out secrets of a cluster must go by
// caller.Cluster. The error has code PermissionDenied.
func CheckNode(caller mesh.Caller, claims NodeClaims) error {
	id := caller.Identity
	if claims.Namespace == "" || claims.Namespace != id.Namespace ||
		claims.ServiceAccount != "" && claims.ServiceAccount != id.ServiceAccount {
		return status.Errorf(codes.PermissionDenied, "authorization failed: no identities (%s) matched %.253s/%.253s",
			id, claims.Namespace, claims.ServiceAccount)
	}
	if claims.TrustDomain != "" && claims.TrustDomain != id.TrustDomain {
		return status.Errorf(codes.PermissionDenied, "authorization failed: %s is not of trust domain %.253q", id, claims.TrustDomain)
	}
	if claims.Cluster != "" && caller.Cluster != "" && claims.Cluster != caller.Cluster {
		return status.Errorf(codes.PermissionDenied, "authorization failed: %s is of cluster %q, not of cluster %.253q",
			id, caller.Cluster, claims.Cluster)
	}
	return nil
}
