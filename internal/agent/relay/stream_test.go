package relay

import (
	"context"
	"crypto/x509"
	"log/slog"
	"math/rand/v2"
	"net"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/anypb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/certs"
	"github.com/meshctl/meshctl/internal/certs/certstest"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// plane is a control plane that shows every stream to the test.
type plane struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	streams chan *planeStream
}

// planeStream is a stream as the control plane has it.
type planeStream struct {
	discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer
	t   *testing.T
	end chan struct{} // closed by the test to end the stream
	got chan *discoveryv3.DiscoveryRequest
}

func (p *plane) StreamAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	s := &planeStream{stream, nil, make(chan struct{}), make(chan *discoveryv3.DiscoveryRequest, 10)}
	p.streams <- s
	go func() {
		defer close(s.got)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			s.got <- r
		}
	}()
	for {
		select {
		case <-s.end:
			return nil
		case <-stream.Context().Done():
			return nil
		}
	}
}

// upstreamTest is an upstream of a control plane.
type upstreamTest struct {
	t     *testing.T
	plane *plane
	stop  context.CancelFunc
	done  chan error
}

func start(t *testing.T, change func(*Stream)) *upstreamTest {
	t.Helper()
	u := &upstreamTest{t, &plane{streams: make(chan *planeStream, 10)}, nil, make(chan error, 1)}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, u.plane)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	cfg := &Stream{
		Call: func(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
			conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer conn.Close()
			return do(ctx, conn)
		},
		Node:     mesh.NodeID{Type: mesh.Sidecar, Name: "vm", Namespace: "bank"},
		Metadata: map[string]any{"WORKLOAD_ENTRY": "vm-1"},
		Log:      slog.New(slog.NewTextHandler(t.Output(), nil)), Now: time.Now, Rand: rand.New(rand.NewPCG(1, 2)),
	}
	change(cfg)
	ctx, cancel := context.WithCancel(t.Context())
	u.stop = cancel
	go func() { u.done <- cfg.Run(ctx); close(u.done) }()
	t.Cleanup(func() {
		cancel()
		<-u.done
		server.Stop()
		check(t, <-served)
	})
	return u
}

func (u *upstreamTest) accept() *planeStream {
	u.t.Helper()
	select {
	case s := <-u.plane.streams:
		s.t = u.t
		return s
	case <-time.After(deadline):
		u.t.Fatal("no stream comes")
		return nil
	}
}

// next is the next request, nil when the agent has said all.
func (s *planeStream) next() *discoveryv3.DiscoveryRequest {
	s.t.Helper()
	select {
	case r := <-s.got:
		return r
	case <-time.After(deadline):
		s.t.Fatal("no request comes")
		return nil
	}
}

func (s *planeStream) wantHealth(want string) {
	s.t.Helper()
	r := s.next()
	if r.GetTypeUrl() != xdswire.HealthType || r.GetErrorDetail().GetMessage() != want || (r.GetErrorDetail() == nil) != (want == "") {
		s.t.Errorf("told %v, want health %q", r, want)
	}
}

func (s *planeStream) wantFirst(typ string) {
	s.t.Helper()
	r := s.next()
	if r.GetTypeUrl() != typ || r.GetNode().GetMetadata().GetFields()["WORKLOAD_ENTRY"].GetStringValue() != "vm-1" || len(r.GetResourceNames()) > 0 {
		s.t.Errorf("first request %v, want one of type %s that says who the workload is", r, typ)
	}
}

// TestHealth: each change is reported, after the first request of the stream. A new stream
// repeats the newest report, and the last report is sent at the end.
func TestHealth(t *testing.T) {
	health := make(chan string, 1)
	u := start(t, func(c *Stream) { c.Health = health })
	s := u.accept()
	s.wantFirst(xdswire.ExtensionType)
	health <- ""
	s.wantHealth("")
	health <- "connection refused"
	s.wantHealth("connection refused")
	close(s.end)

	s = u.accept()
	s.wantFirst(xdswire.ExtensionType)
	s.wantHealth("connection refused")
	if err := s.Send(&discoveryv3.DiscoveryResponse{TypeUrl: xdswire.ExtensionType, Nonce: "n", VersionInfo: "v"}); err != nil {
		t.Fatal(err)
	}
	if r := s.next(); r.GetResponseNonce() != "n" || r.GetVersionInfo() != "v" || r.GetErrorDetail() != nil {
		t.Errorf("got %v, want an ACK", r)
	}

	health <- "stopping"
	s.wantHealth("stopping")
	health <- "last"
	u.stop()
	s.wantHealth("last")
	if r := s.next(); r != nil {
		t.Errorf("after the last word: %v", r)
	}
	close(s.end)
	check(t, <-u.done)
}

// A control plane that does not take the last word does not keep the agent.
func TestEndOfNobody(t *testing.T) {
	u := start(t, func(c *Stream) { c.Health = make(chan string) })
	u.accept().wantFirst(xdswire.ExtensionType)
	u.stop()
	check(t, <-u.done)
}

// Roots are used and acknowledged, those that cannot be used refused.
func TestRoots(t *testing.T) {
	root := certstest.NewRoot(t)
	used := make(chan int, 10)
	u := start(t, func(c *Stream) {
		c.Handlers = map[string]Handler{xdswire.ProxyConfigType: Roots(func(roots []*x509.Certificate) error { used <- len(roots); return nil })}
	})
	s := u.accept()
	s.wantFirst(xdswire.ProxyConfigType)
	for i, tc := range []struct{ pem, version, problem string }{
		{string(certs.EncodeCerts(root.Cert)), "v0", ""},
		{"junk", "v0", "certificate 1"},
	} {
		body, err := anypb.New(&meshv1alpha1.ProxyConfig{CaCertificatesPem: []string{tc.pem}})
		check(t, err)
		check(t, s.Send(&discoveryv3.DiscoveryResponse{
			TypeUrl: xdswire.ProxyConfigType, Nonce: "n", VersionInfo: []string{"v0", "v1"}[i], Resources: []*anypb.Any{body},
		}))
		r := s.next()
		if r.GetVersionInfo() != tc.version || (r.GetErrorDetail() == nil) != (tc.problem == "") {
			t.Errorf("answer %d: %v, want version %s, problem %q", i, r, tc.version, tc.problem)
		}
	}
	if n := <-used; n != 1 || len(used) > 0 {
		t.Errorf("%d roots used, then %d more times", n, len(used))
	}
}
