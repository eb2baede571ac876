package xds

import (
	"errors"
	"fmt"
	"strings"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// serviceDesc describes a service for resources of a type, or of all types if typeURL is
// empty.
type serviceDesc struct{ name, of, typeURL string }

// services are ADS and the services of single types. Their streams are called, for
// instance, StreamClusters and DeltaClusters. Unary methods such as FetchClusters, which
// poll, are not served, except FetchSecrets: see fetchMethods.
var services = [...]serviceDesc{
	{"envoy.service.discovery.v3.AggregatedDiscoveryService", "AggregatedResources", ""},
	{"envoy.service.cluster.v3.ClusterDiscoveryService", "Clusters", xdswire.ClusterType},
	{"envoy.service.endpoint.v3.EndpointDiscoveryService", "Endpoints", xdswire.EndpointType},
	{"envoy.service.listener.v3.ListenerDiscoveryService", "Listeners", xdswire.ListenerType},
	{"envoy.service.route.v3.RouteDiscoveryService", "Routes", xdswire.RouteType},
	{"envoy.service.secret.v3.SecretDiscoveryService", "Secrets", xdswire.SecretType},
	{"envoy.service.extension.v3.ExtensionConfigDiscoveryService", "ExtensionConfigs", xdswire.ExtensionType},
}

// register registers one service.
func (s *service) register(r grpc.ServiceRegistrar, d serviceDesc) {
	sotw := func(_ any, stream grpc.ServerStream) error {
		var in xdswire.Received
		recv := receiver(s.hub, stream, d.typeURL, sotwType, &in)
		return serve(s, stream, xdswire.SotW, recv, func(sess *session, r *discoveryv3.DiscoveryRequest) error { return sess.sotw(r, in.Names) })
	}
	delta := func(_ any, stream grpc.ServerStream) error {
		var in xdswire.Received
		recv := receiver(s.hub, stream, d.typeURL, deltaType, &in)
		return serve(s, stream, xdswire.Delta, recv, func(sess *session, r *discoveryv3.DeltaDiscoveryRequest) error { return sess.delta(r, in.Names) })
	}
	var methods []grpc.MethodDesc
	if d.typeURL == xdswire.SecretType {
		methods = fetchMethods(s)
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: d.name,
		HandlerType: (*any)(nil),
		Methods:     methods,
		Streams: []grpc.StreamDesc{
			{StreamName: "Stream" + d.of, Handler: sotw, ServerStreams: true, ClientStreams: true},
			{StreamName: "Delta" + d.of, Handler: delta, ServerStreams: true, ClientStreams: true},
		},
		Metadata: strings.ReplaceAll(d.name, ".", "/"),
	}, s)
}

func sotwType(m *discoveryv3.DiscoveryRequest) *string       { return &m.TypeUrl }
func deltaType(m *discoveryv3.DeltaDiscoveryRequest) *string { return &m.TypeUrl }

// receiver returns a function that receives the requests of a stream. With a typeURL the
// stream is for that type, which requests need not repeat. A request for another type
// ends the stream, and so does one that cannot be decoded. in receives each request.
func receiver[M any, R interface {
	*M
	request
}](h *Hub, stream grpc.ServerStream, typeURL string, field func(R) *string, in *xdswire.Received) func() (R, error) {
	return func() (R, error) {
		m := R(new(M))
		*in = xdswire.Received{Message: m}
		admission.NextRequest(stream.Context())
		if err := stream.RecvMsg(in); err != nil {
			return nil, err
		}
		if in.Err != nil {
			h.cfg.Metrics.rejected.Inc()
			if errors.Is(in.Err, xdswire.ErrTooManyNames) {
				return nil, status.Error(codes.ResourceExhausted, in.Err.Error())
			}
			return nil, status.Errorf(codes.InvalidArgument,
				"request is malformed, too large or nested too deeply: at most %d levels of node metadata are accepted: %v", h.cfg.Limits.MetadataDepth, in.Err)
		}
		switch t := field(m); {
		case typeURL == "", *t == typeURL:
		case *t == "":
			*t = typeURL
		default:
			h.cfg.Metrics.rejected.Inc()
			return nil, status.Error(codes.InvalidArgument,
				fmt.Sprintf("request for %s on a stream for %s: use the aggregated discovery service for several types", clip(*t), typeURL))
		}
		return m, nil
	}
}
