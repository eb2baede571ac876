package relay

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// request is a request of either variant.
type request struct {
	node    *corev3.Node
	typeURL string
	nonce   string
	problem *rpcstatus.Status // of a NACK

	// State of the world: all names, and the accepted version.
	names   []string
	version string

	// Delta: changes of the names and, in the first request of a type, the versions of
	// the resources that the proxy holds.
	subscribe, unsubscribe []string
	held                   map[string]string
}

func decodeRequest(v xdswire.Variant, b []byte) (*request, error) {
	if v == xdswire.Delta {
		var m discoveryv3.DeltaDiscoveryRequest
		if err := proto.Unmarshal(b, &m); err != nil {
			return nil, fmt.Errorf("decode request: %w", err)
		}
		return &request{
			node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), problem: m.GetErrorDetail(),
			subscribe: m.GetResourceNamesSubscribe(), unsubscribe: m.GetResourceNamesUnsubscribe(),
			held: m.GetInitialResourceVersions(),
		}, nil
	}
	var m discoveryv3.DiscoveryRequest
	if err := proto.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("decode request: %w", err)
	}
	return &request{
		node: m.GetNode(), typeURL: m.GetTypeUrl(), nonce: m.GetResponseNonce(), problem: m.GetErrorDetail(),
		names: m.GetResourceNames(), version: m.GetVersionInfo(),
	}, nil
}

func (r *request) encode(v xdswire.Variant) (*message, error) {
	var m proto.Message = &discoveryv3.DiscoveryRequest{
		Node: r.node, TypeUrl: r.typeURL, ResponseNonce: r.nonce, ErrorDetail: r.problem,
		ResourceNames: r.names, VersionInfo: r.version,
	}
	if v == xdswire.Delta {
		m = &discoveryv3.DeltaDiscoveryRequest{
			Node: r.node, TypeUrl: r.typeURL, ResponseNonce: r.nonce, ErrorDetail: r.problem,
			ResourceNamesSubscribe: r.subscribe, ResourceNamesUnsubscribe: r.unsubscribe,
			InitialResourceVersions: r.held,
		}
	}
	b, err := proto.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	return &message{mem.BufferSlice{mem.SliceBuffer(b)}}, nil
}
