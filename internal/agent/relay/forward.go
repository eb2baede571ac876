// Package relay connects a workload with the control plane, in the name of the workload:
// it forwards the xDS streams of applications that need no Envoy, and keeps the agent's
// own stream for roots and health.
package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"

	"github.com/meshctl/meshctl/internal/serving"
)

// Limits of forwarding. gRPC opens a stream for each target and each server of the
// application.
const (
	maxStreams  = 1000
	maxRequest  = 4 << 20  // bytes
	maxResponse = 64 << 20 // bytes
)

// Call makes one call to the control plane as the workload, over its own connection.
type Call func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error

// Forward forwards the ADS streams that arrive at the listener, until ctx ends, and closes
// the listener. Messages pass unchanged. When the control plane ends a stream, the
// application gets its status and connects again.
func Forward(ctx context.Context, listener net.Listener, call Call) error {
	server := grpc.NewServer(
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.ForceServerCodecV2(codec{}),
		grpc.WaitForHandlers(true),
	)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService",
		HandlerType: (*any)(nil),
		Streams:     []grpc.StreamDesc{forwarded("StreamAggregatedResources", call), forwarded("DeltaAggregatedResources", call)},
	}, nil)
	if err := serving.Until(ctx, func() error { return server.Serve(listener) }, server.Stop); err != nil {
		return fmt.Errorf("serve xDS on %s: %w", listener.Addr(), err)
	}
	return nil
}

func forwarded(method string, call Call) grpc.StreamDesc {
	return grpc.StreamDesc{StreamName: method, ServerStreams: true, ClientStreams: true, Handler: func(_ any, down grpc.ServerStream) error {
		ended := errors.New("not connected")
		err := call(down.Context(), func(ctx context.Context, conn grpc.ClientConnInterface) error {
			ended = forward(ctx, conn, down)
			return ended
		})
		if status.Code(ended) != codes.Unknown {
			return ended // the status of the control plane
		}
		if err != nil {
			return status.Errorf(codes.Unavailable, "control plane: %v", err)
		}
		return nil
	}}
}

// forward opens the same stream on conn and passes messages both ways until one side ends
// it.
func forward(ctx context.Context, conn grpc.ClientConnInterface, down grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(down)
	up, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method,
		grpc.ForceCodecV2(codec{}), grpc.MaxCallRecvMsgSize(maxResponse))
	if err != nil {
		return err
	}
	go func() {
		// It ends with the application's stream: when that is closed or
		// canceled, or when this call has returned.
		if err := pass(up, down); errors.Is(err, io.EOF) {
			_ = up.CloseSend() // the response has the cause
		}
	}()
	if err := pass(down, up); !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}

// pass passes messages on until either side ends. The error is io.EOF when the sender
// closed the stream, else the status of the stream.
func pass(to interface{ SendMsg(any) error }, from interface{ RecvMsg(any) error }) error {
	for {
		var m message
		if err := from.RecvMsg(&m); err != nil {
			return err
		}
		if err := to.SendMsg(&m); err != nil {
			return fmt.Errorf("forward: %v", err) //nolint:errorlint // io.EOF here would mean that the sender closed the stream
		}
	}
}

type message struct{ data mem.BufferSlice }

// codec passes messages without decoding them. Sending a message gives up its buffers.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("forward: %T is no message", v)
	}
	return m.data, nil
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("forward: %T is no message", v)
	}
	data.Ref()
	m.data = data
	return nil
}
