package relay

import (
	"context"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Workloads asks the control plane for the workloads of identities.
func Workloads(ctx context.Context, call Call, identities []string) (map[string]mesh.WorkloadLabels, error) {
	answer := &discoveryv3.DiscoveryResponse{}
	err := call(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return conn.Invoke(ctx, "/"+xdswire.WorkloadService+"/"+xdswire.WorkloadMethod, &discoveryv3.DiscoveryRequest{ResourceNames: identities}, answer)
	})
	if err != nil {
		return nil, err
	}
	out := make(map[string]mesh.WorkloadLabels, len(answer.GetResources()))
	for _, body := range answer.GetResources() {
		identity, w, err := xdswire.DecodeWorkload(body)
		if err != nil {
			return nil, err
		}
		out[identity] = w
	}
	return out, nil
}
