package xds

import (
	"context"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// registerWorkloads serves the workloads of identities to authenticated callers.
func (s *service) registerWorkloads(r grpc.ServiceRegistrar) {
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: xdswire.WorkloadService,
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{unaryMethod(xdswire.WorkloadMethod, func(ctx context.Context, in *xdswire.Received, r *discoveryv3.DiscoveryRequest) (*discoveryv3.DiscoveryResponse, error) {
			names := r.GetResourceNames()
			if in.Names != nil {
				names = in.Names.Names()
			}
			return s.fetchWorkloads(ctx, names)
		})},
	}, s)
}

func (s *service) fetchWorkloads(ctx context.Context, identities []string) (*discoveryv3.DiscoveryResponse, error) {
	if _, err := s.authenticate(ctx); err != nil {
		return nil, err
	}
	if len(identities) > xdswire.MaxWorkloads {
		return nil, status.Errorf(codes.InvalidArgument, "%d identities: at most %d are accepted", len(identities), xdswire.MaxWorkloads)
	}
	answer := &discoveryv3.DiscoveryResponse{}
	for _, identity := range identities {
		w, ok := s.access.Workload(identity)
		if !ok {
			continue
		}
		body, err := xdswire.EncodeWorkload(identity, w)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		answer.Resources = append(answer.Resources, body)
	}
	return answer, nil
}
