package identity

import (
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// CheckNode compares the claims of a proxy, in its first request, with its proved identity. Namespace,
// service account and trust domain must equal the identity's. The cluster must equal
// caller.Cluster where both are known. A caller without a proved cluster may claim
// any, so code that hands out secrets of a cluster must use caller.Cluster. The error
// has code PermissionDenied.
func CheckNode(caller mesh.Caller, claims proxy.Node) error {
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
