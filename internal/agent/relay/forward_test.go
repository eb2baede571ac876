package relay

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 2 * time.Minute

// ads is a control plane that answers each message with the same, or ends the
// stream with an error.
type ads struct {
	mu  sync.Mutex
	err error
}

func (a *ads) stream(_ any, s grpc.ServerStream) error {
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			return nil //nolint:nilerr // the end
		}
		a.mu.Lock()
		err := a.err
		a.mu.Unlock()
		if err != nil {
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

const service = "envoy.service.discovery.v3.AggregatedDiscoveryService"

func serveADS(t *testing.T, a *ads) (addr string) {
	t.Helper()
	server := grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(maxRequest))
	desc := grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil)}
	for _, name := range []string{"StreamAggregatedResources", "DeltaAggregatedResources"} {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{StreamName: name, ServerStreams: true, ClientStreams: true, Handler: a.stream})
	}
	server.RegisterService(&desc, a)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() { server.Stop(); check(t, <-ended) })
	return l.Addr().String()
}

// forwarder serves to the returned client what call reaches.
func forwarder(t *testing.T, call Call) *grpc.ClientConn {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Forward(ctx, l, call) }()
	t.Cleanup(func() { stop(); check(t, <-ended) })
	return dial(t, l.Addr().String())
}

func dial(t *testing.T, addr string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close()) })
	return conn
}

func open(t *testing.T, conn *grpc.ClientConn, method string) grpc.ClientStream {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	t.Cleanup(cancel)
	s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, "/"+service+"/"+method)
	check(t, err)
	return s
}

func TestForwardForwards(t *testing.T) {
	plane := &ads{}
	conn := dial(t, serveADS(t, plane))
	client := forwarder(t, func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
		return do(ctx, conn)
	})

	for _, method := range []string{"StreamAggregatedResources", "DeltaAggregatedResources"} {
		s := open(t, client, method)
		for _, size := range []int{0, 1, 3 << 20} {
			want := wrapperspb.Bytes(make([]byte, size))
			check(t, s.SendMsg(want))
			var got wrapperspb.BytesValue
			check(t, s.RecvMsg(&got))
			if len(got.GetValue()) != size {
				t.Errorf("%s: %d bytes, want %d", method, len(got.GetValue()), size)
			}
		}
		check(t, s.CloseSend())
		if err := s.RecvMsg(&wrapperspb.BytesValue{}); err == nil || status.Code(err) != codes.Unknown { // io.EOF
			t.Errorf("%s: the end is %v", method, err)
		}
	}

	plane.mu.Lock()
	plane.err = status.Error(codes.PermissionDenied, "claims another namespace")
	plane.mu.Unlock()
	s := open(t, client, "StreamAggregatedResources")
	check(t, s.SendMsg(wrapperspb.Bytes(nil)))
	if err := s.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.PermissionDenied || status.Convert(err).Message() != "claims another namespace" {
		t.Errorf("got %v, want what the control plane said", err)
	}

	if _, err := testpb.NewTestServiceClient(client).EmptyCall(t.Context(), &testpb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another service: %v", err)
	}
}

func TestForwardWithoutControlPlane(t *testing.T) {
	client := forwarder(t, func(context.Context, func(context.Context, grpc.ClientConnInterface) error) error {
		return errors.New("no roots")
	})
	s := open(t, client, "DeltaAggregatedResources")
	if err := s.RecvMsg(&wrapperspb.BytesValue{}); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "control plane: no roots" {
		t.Errorf("got %v, want the cause", err)
	}
}
