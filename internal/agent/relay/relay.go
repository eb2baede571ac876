// Package relay connects a workload with the control plane, in the name of the workload. It
// relays the xDS streams of Envoy and of applications that need no Envoy, and keeps the
// agent's own stream for roots and health.
//
// The proxy's stream stays open while streams to the control plane end and begin. On a new
// one, the relay requests what the proxy wants and reports what it holds, so that the control
// plane sends only differences. Responses pass as bytes: the relay decodes their envelopes, and the
// resources of the types that the agent itself needs.
package relay

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/meshctl/meshctl/internal/agent/unixsocket"
	"github.com/meshctl/meshctl/internal/agent/wasm"
	"github.com/meshctl/meshctl/internal/serving"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Limits of a relay. gRPC opens a stream for each target and each server of the application.
const (
	maxStreams  = 1000
	maxRequest  = 4 << 20  // bytes
	maxResponse = 64 << 20 // bytes
	maxTypes    = 32       // of a stream
	maxNames    = 200_000  // of a type
	// window is the number of bytes that a proxy may send before the relay acknowledges them.
	// Without it, gRPC measures the connection and sends a ping for each request.
	window = 64 << 10
	// maxOpen bounds the responses of a type that the proxy has not answered. Control planes
	// wait for the answer to one.
	maxOpen = 64
)

// Call makes one call to the control plane as the workload, over its own connection.
type Call func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error

// Handler uses the resources of a type that the agent itself needs. Its error refuses them.
// Handle may be called by several goroutines.
type Handler interface {
	Handle(typeURL string, resources []*anypb.Any) error
}

// Relay relays ADS streams. All fields but Handlers and Modules are needed.
type Relay struct {
	Call Call
	// Handlers take the resources of types by URL, for which the relay subscribes on the
	// stream of Envoy. Envoy does not receive them.
	Handlers map[string]Handler
	// Modules fetches the modules of plugins; nil fetches none.
	Modules *wasm.Store
	Log     *slog.Logger
	// Jitter returns a random number from 0 to 1. It may be called by several goroutines.
	Jitter func() float64

	counters counters
}

// Serve relays the ADS streams that arrive at the listener, until ctx ends, and closes the
// listener. With a proof, which may be nil, only its Envoy may connect.
func (r *Relay) Serve(ctx context.Context, listener net.Listener, proof *unixsocket.Proof) error {
	server := grpc.NewServer(append(unixsocket.ServerOptions(proof, listener.Addr(), r.Log),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.InitialWindowSize(window),
		grpc.InitialConnWindowSize(window),
		grpc.ForceServerCodecV2(codec{}),
	)...)
	stream := func(method string, v xdswire.Variant) grpc.StreamDesc {
		return grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true, Handler: func(_ any, down grpc.ServerStream) error {
			return newSession(r, v, down).run(down.Context())
		}}
	}
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService",
		HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{
			stream("StreamAggregatedResources", xdswire.SotW),
			stream("DeltaAggregatedResources", xdswire.Delta),
		},
	}, nil)
	if err := serving.Until(ctx, func() error { return server.Serve(listener) }, server.Stop); err != nil {
		return fmt.Errorf("serve xDS on %s: %w", listener.Addr(), err)
	}
	return nil
}
