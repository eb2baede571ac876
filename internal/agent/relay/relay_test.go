package relay

import (
	"context"
	"log/slog"
	"net"
	"path/filepath"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	testpb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 2 * time.Minute

// TestServe: both variants of ADS pass through sockets, also large responses; other services do not.
func TestServe(t *testing.T) {
	plane := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(plane, &large{})
	upstream := listen(t, func(l net.Listener) error { return plane.Serve(l) }, plane.Stop)
	conn := dial(t, upstream)
	r := &Relay{
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			return do(ctx, conn)
		},
		Log: slog.New(slog.DiscardHandler), Jitter: func() float64 { return 0 },
	}
	ctx, stop := context.WithCancel(context.Background())
	client := dial(t, listen(t, func(l net.Listener) error { return r.Serve(ctx, l, nil) }, stop))

	ads := discoveryv3.NewAggregatedDiscoveryServiceClient(client)
	body, err := anypb.New(wrapperspb.Bytes(make([]byte, largeSize)))
	check(t, err)
	delta, err := ads.DeltaAggregatedResources(t.Context())
	check(t, err)
	check(t, delta.Send(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType}))
	got, err := delta.Recv()
	check(t, err)
	if n := len(got.GetResources()[0].GetResource().GetValue()); n != len(body.GetValue()) {
		t.Errorf("delta: %d bytes, want %d", n, len(body.GetValue()))
	}
	check(t, delta.CloseSend())
	sotw, err := ads.StreamAggregatedResources(t.Context())
	check(t, err)
	check(t, sotw.Send(&sreq{Node: testNode(), TypeUrl: xdswire.ClusterType}))
	got2, err := sotw.Recv()
	check(t, err)
	if n := len(got2.GetResources()[0].GetValue()); n != len(body.GetValue()) {
		t.Errorf("state of the world: %d bytes, want %d", n, len(body.GetValue()))
	}
	check(t, sotw.CloseSend())
	if _, err := testpb.NewTestServiceClient(client).EmptyCall(t.Context(), &testpb.Empty{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("another service: %v", err)
	}
}

const largeSize = 8 << 20

// large answers the first request of a stream with a large resource.
type large struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
}

func (*large) StreamAggregatedResources(s discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}
	body, err := anypb.New(wrapperspb.Bytes(make([]byte, largeSize)))
	if err == nil {
		err = s.Send(&sresp{TypeUrl: r.GetTypeUrl(), Nonce: "1", Resources: []*anypb.Any{body}})
	}
	<-s.Context().Done()
	return err
}

func (*large) DeltaAggregatedResources(s discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	r, err := s.Recv()
	if err != nil {
		return err
	}
	body, err := anypb.New(wrapperspb.Bytes(make([]byte, largeSize)))
	if err == nil {
		err = s.Send(&dresp{TypeUrl: r.GetTypeUrl(), Nonce: "1", Resources: []*discoveryv3.Resource{{Name: "a", Resource: body}}})
	}
	<-s.Context().Done()
	return err
}

// listen serves on a Unix socket, whose target it returns, until the end of the test.
func listen(t *testing.T, serve func(net.Listener) error, stop func()) (target string) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	check(t, err)
	ended := make(chan error, 1)
	go func() { ended <- serve(l) }()
	t.Cleanup(func() { stop(); check(t, <-ended) })
	return "unix://" + l.Addr().String()
}

func dial(t *testing.T, target string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	check(t, err)
	t.Cleanup(func() { check(t, conn.Close()) })
	return conn
}
