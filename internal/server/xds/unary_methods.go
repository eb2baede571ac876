package xds

import (
	"context"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// unaryMethod returns a method with one DiscoveryRequest, which answer serves.
func unaryMethod(
	name string, answer func(context.Context, *xdswire.Received, *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error),
) grpc.MethodDesc {
	return grpc.MethodDesc{
		MethodName: name,
		Handler: func(_ any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			in := xdswire.Received{Message: &discoveryv3.DiscoveryRequest{}}
			if err := decode(&in); err != nil {
				return nil, err
			}
			request, _ := in.Message.(*discoveryv3.DiscoveryRequest)
			if in.Err != nil {
				return nil, status.Error(codes.InvalidArgument, "request is malformed")
			}
			return answer(ctx, &in, request)
		},
	}
}
