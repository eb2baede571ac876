package identity

import (
	"context"

	"google.golang.org/grpc/metadata"

	"github.com/meshctl/meshctl/internal/mesh"
)

// AuthenticateToken returns the caller whose bearer token it is, for servers
// that do not speak gRPC. The cluster is what the caller says of it, empty if
// nothing. The error is always an *Error.
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
