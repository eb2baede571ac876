package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// pipe is one end of a stream of encoded messages.
type pipe struct {
	ctx     context.Context
	in, out chan []byte
	err     error // after the last message
}

func (p *pipe) RecvMsg(m any) error {
	select {
	case b, open := <-p.in:
		if !open {
			return p.err
		}
		m.(*message).data = mem.BufferSlice{mem.SliceBuffer(b)}
		return nil
	case <-p.ctx.Done():
		return p.ctx.Err()
	}
}

func (p *pipe) SendMsg(m any) error {
	select {
	case p.out <- m.(*message).data.Materialize():
		return nil
	case <-p.ctx.Done():
		return io.EOF
	}
}

type serverStream struct {
	grpc.ServerStream
	*pipe
}

func (s serverStream) Context() context.Context { return s.ctx }
func (s serverStream) SendMsg(m any) error      { return s.pipe.SendMsg(m) }
func (s serverStream) RecvMsg(m any) error      { return s.pipe.RecvMsg(m) }

type clientStream struct {
	grpc.ClientStream
	*pipe
}

func (s clientStream) SendMsg(m any) error { return s.pipe.SendMsg(m) }
func (s clientStream) RecvMsg(m any) error { return s.pipe.RecvMsg(m) }

// relayTest is a session between the test, which plays proxy and control plane. It runs in
// a bubble of synctest.
type relayTest[Q, R proto.Message] struct {
	t      *testing.T
	proxy  *pipe
	planes chan *pipe
	refuse atomic.Pointer[error] // of the control plane
	done   chan error
	stop   context.CancelFunc
	relay  *Relay
}

func newRelayTest[Q, R proto.Message](t *testing.T, v xdswire.Variant, handlers map[string]Handler) *relayTest[Q, R] {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	rt := &relayTest[Q, R]{t: t, planes: make(chan *pipe, 1), done: make(chan error, 1), stop: stop}
	rt.proxy = &pipe{ctx, make(chan []byte), make(chan []byte, 100), io.EOF}
	rt.relay = &Relay{Call: rt.call, Handlers: handlers, Log: slog.New(slog.DiscardHandler), Jitter: func() float64 { return 0.5 }}
	go func() { rt.done <- newSession(rt.relay, v, serverStream{pipe: rt.proxy}).run(ctx) }()
	t.Cleanup(func() {
		stop()
		synctest.Wait()
	})
	return rt
}

func (rt *relayTest[Q, R]) call(ctx context.Context, do func(context.Context, grpc.ClientConnInterface) error) error {
	if err := rt.refuse.Load(); err != nil {
		return *err
	}
	return do(ctx, rt)
}

func (rt *relayTest[Q, R]) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.ErrUnsupported
}

func (rt *relayTest[Q, R]) NewStream(ctx context.Context, _ *grpc.StreamDesc, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	p := &pipe{ctx, make(chan []byte), make(chan []byte), errors.New("connection lost")}
	select {
	case rt.planes <- p:
		return clientStream{pipe: p}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// request sends a request of the proxy.
func (rt *relayTest[Q, R]) request(m Q) {
	rt.t.Helper()
	b, err := proto.Marshal(m)
	check(rt.t, err)
	rt.proxy.in <- b
}

// want receives a request at the control plane.
func (rt *relayTest[Q, R]) want(plane *pipe, want Q) {
	rt.t.Helper()
	got := want.ProtoReflect().New().Interface()
	check(rt.t, proto.Unmarshal(<-plane.out, got))
	if !proto.Equal(got, want) {
		rt.t.Errorf("the control plane got\n%v, want\n%v", got, want)
	}
}

// wantNone fails if there is a request at the control plane.
func (rt *relayTest[Q, R]) wantNone(plane *pipe) {
	rt.t.Helper()
	synctest.Wait()
	select {
	case b := <-plane.out:
		rt.t.Errorf("the control plane got %q, want nothing", b)
	default:
	}
}

// respond sends a response of the control plane, and returns what the proxy receives.
func (rt *relayTest[Q, R]) respond(plane *pipe, m R) R {
	rt.t.Helper()
	b, err := proto.Marshal(m)
	check(rt.t, err)
	plane.in <- b
	got := m.ProtoReflect().New().Interface().(R)
	check(rt.t, proto.Unmarshal(<-rt.proxy.out, got))
	return got
}

func testNode() *corev3.Node {
	return &corev3.Node{Id: "sidecar~10.0.0.1~web.apps~apps.svc.cluster.local"}
}

func resource(name, version string) *discoveryv3.Resource {
	body, err := anypb.New(wrapperspb.String(name + version))
	if err != nil {
		panic(err)
	}
	return &discoveryv3.Resource{Name: name, Version: version, Resource: body}
}

type (
	dreq  = discoveryv3.DeltaDiscoveryRequest
	dresp = discoveryv3.DeltaDiscoveryResponse
	sreq  = discoveryv3.DiscoveryRequest
	sresp = discoveryv3.DiscoveryResponse
)

// TestDeltaResumes: a new stream to the control plane begins with what the proxy wants and
// holds, and never has a nonce of the old stream.
func TestDeltaResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
		rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		plane := <-rt.planes
		rt.want(plane, &dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		got := rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "1", SystemVersionInfo: "s", Resources: []*discoveryv3.Resource{resource("a", "1"), resource("b", "1"), resource("gone", "1")}})
		want := &dresp{TypeUrl: xdswire.ClusterType, Nonce: got.GetNonce(), SystemVersionInfo: "s", Resources: []*discoveryv3.Resource{resource("a", "1"), resource("b", "1"), resource("gone", "1")}}
		if !proto.Equal(got, want) {
			t.Errorf("the proxy got %v, want %v", got, want)
		}
		rt.request(&dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: got.GetNonce()})
		rt.want(plane, &dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: "1"})

		rt.request(&dreq{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"a", "b"}})
		rt.want(plane, &dreq{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"a", "b"}})
		got = rt.respond(plane, &dresp{TypeUrl: xdswire.EndpointType, Nonce: "2", Resources: []*discoveryv3.Resource{resource("a", "5"), resource("b", "5")}})
		nack := &rpcstatus.Status{Code: int32(codes.Internal), Message: "bad"}
		rt.request(&dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: got.GetNonce(), ErrorDetail: nack})
		rt.want(plane, &dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: "2", ErrorDetail: nack})
		got = rt.respond(plane, &dresp{TypeUrl: xdswire.EndpointType, Nonce: "3", Resources: []*discoveryv3.Resource{resource("b", "6")}})
		rt.request(&dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: got.GetNonce()})
		rt.want(plane, &dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: "3"})

		// These responses have no answer when the stream ends.
		open := rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "4", Resources: []*discoveryv3.Resource{resource("b", "2")}, RemovedResources: []string{"gone"}})
		close(plane.in)
		plane = <-rt.planes
		rt.want(plane, &dreq{
			Node: testNode(), TypeUrl: xdswire.ClusterType,
			InitialResourceVersions: map[string]string{"a": "1", "b": "", "gone": ""},
		})
		rt.want(plane, &dreq{ // a cluster may wait for endpoints
			TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"a", "b"},
			InitialResourceVersions: map[string]string{"a": "", "b": ""},
		})
		ends := rt.respond(plane, &dresp{TypeUrl: xdswire.EndpointType, Nonce: "1", Resources: []*discoveryv3.Resource{resource("a", "5"), resource("b", "6")}})
		rt.request(&dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: ends.GetNonce()})
		rt.want(plane, &dreq{TypeUrl: xdswire.EndpointType, ResponseNonce: "1"})
		// The late answer reaches no control plane, but its names do.
		rt.request(&dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: open.GetNonce()})
		rt.wantNone(plane)
		// The new control plane uses the same nonce, for another response.
		got = rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "4", Resources: []*discoveryv3.Resource{resource("c", "1")}})
		if got.GetNonce() == open.GetNonce() {
			t.Errorf("the nonce %q stands for responses of two streams", got.GetNonce())
		}
		rt.request(&dreq{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"c"}, ResourceNamesUnsubscribe: []string{"a"}})
		rt.want(plane, &dreq{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"c"}, ResourceNamesUnsubscribe: []string{"a"}})
		rt.request(&dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: got.GetNonce()})
		rt.want(plane, &dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: "4"})
		close(plane.in)
		plane = <-rt.planes
		rt.want(plane, &dreq{
			Node: testNode(), TypeUrl: xdswire.ClusterType,
			InitialResourceVersions: map[string]string{"a": "1", "b": "2", "c": "1"},
		})
		rt.want(plane, &dreq{
			TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: []string{"b", "c"},
			InitialResourceVersions: map[string]string{"b": "6"},
		})
		if c := rt.relay.Counts(); c.Terminations != (Ends{Error: 2}) || c.Failures != 0 || c.Responses != 6 {
			t.Errorf("counts: %+v", c)
		}
	})
}

// TestVirtualHostsResume: a new stream begins with the virtual hosts that the proxy has. The
// proxy may lack the virtual hosts that it reports, and the virtual hosts of later route configurations.
func TestVirtualHostsResume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
		var plane *pipe
		accepts := func(typ, nonce string, resources ...*discoveryv3.Resource) {
			t.Helper()
			got := rt.respond(plane, &dresp{TypeUrl: typ, Nonce: nonce, Resources: resources})
			rt.request(&dreq{TypeUrl: typ, ResponseNonce: got.GetNonce()})
			rt.want(plane, &dreq{TypeUrl: typ, ResponseNonce: nonce})
		}
		resumes := func(routes, hosts map[string]string) {
			t.Helper()
			close(plane.in)
			plane = <-rt.planes
			rt.want(plane, &dreq{Node: testNode(), TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80", "81"}, InitialResourceVersions: routes})
			rt.want(plane, &dreq{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: hosts})
		}
		rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80", "81"}})
		plane = <-rt.planes
		rt.want(plane, &dreq{Node: testNode(), TypeUrl: xdswire.RouteType, ResourceNamesSubscribe: []string{"80", "81"}})
		rt.request(&dreq{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: map[string]string{"80/a": "1", "80/c": "1"}})
		rt.want(plane, &dreq{TypeUrl: xdswire.VirtualHostType, InitialResourceVersions: map[string]string{"80/a": "", "80/c": ""}})
		accepts(xdswire.RouteType, "1", resource("80", "1"))
		accepts(xdswire.VirtualHostType, "2", resource("80/a", "1"), resource("80/b", "1"), resource("81/a", "1"))
		resumes(map[string]string{"80": "1"}, map[string]string{"80/a": "1", "80/b": "1", "80/c": "", "81/a": "1"})
		accepts(xdswire.RouteType, "1", resource("81", "1"))
		resumes(map[string]string{"80": "1", "81": "1"}, map[string]string{"80/a": "1", "80/b": "1", "80/c": "", "81/a": ""})
		accepts(xdswire.VirtualHostType, "1", resource("81/a", "1"))
		resumes(map[string]string{"80": "1", "81": "1"}, map[string]string{"80/a": "1", "80/b": "1", "80/c": "", "81/a": "1"})
	})
}

// TestSotWResumes: a new stream begins with the accepted version and the newest names.
func TestSotWResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*sreq, *sresp](t, xdswire.SotW, nil)
		rt.request(&sreq{Node: testNode(), TypeUrl: xdswire.ListenerType})
		plane := <-rt.planes
		rt.want(plane, &sreq{Node: testNode(), TypeUrl: xdswire.ListenerType})
		got := rt.respond(plane, &sresp{TypeUrl: xdswire.ListenerType, Nonce: "1", VersionInfo: "v1"})
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), VersionInfo: "v1"})
		rt.want(plane, &sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: "1", VersionInfo: "v1"})
		// A change of names repeats the last nonce.
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), VersionInfo: "v1", ResourceNames: []string{"a"}})
		rt.want(plane, &sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: "1", VersionInfo: "v1", ResourceNames: []string{"a"}})
		got = rt.respond(plane, &sresp{TypeUrl: xdswire.ListenerType, Nonce: "2", VersionInfo: "v2"})
		nack := &rpcstatus.Status{Code: int32(codes.Internal), Message: "bad"}
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), VersionInfo: "v1", ResourceNames: []string{"a"}, ErrorDetail: nack})
		rt.want(plane, &sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: "2", VersionInfo: "v1", ResourceNames: []string{"a"}, ErrorDetail: nack})
		close(plane.in)
		plane = <-rt.planes
		rt.want(plane, &sreq{Node: testNode(), TypeUrl: xdswire.ListenerType, VersionInfo: "v1", ResourceNames: []string{"a"}})
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), VersionInfo: "v1", ResourceNames: []string{"a"}})
		rt.wantNone(plane)
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), VersionInfo: "v1", ResourceNames: []string{"a", "b"}})
		rt.want(plane, &sreq{TypeUrl: xdswire.ListenerType, VersionInfo: "v1", ResourceNames: []string{"a", "b"}})
	})
}

// TestProxyOutlivesControlPlane: while no control plane answers for an hour, the proxy's stream
// stays open and receives nothing, and the tries are bounded. Then it goes on.
func TestProxyOutlivesControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
		rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		plane := <-rt.planes
		rt.want(plane, &dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		got := rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "1", Resources: []*discoveryv3.Resource{resource("a", "1")}})
		rt.request(&dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: got.GetNonce()})
		rt.want(plane, &dreq{TypeUrl: xdswire.ClusterType, ResponseNonce: "1"})
		rt.refuse.Store(new(status.Error(codes.PermissionDenied, "not now")))
		close(plane.in)
		time.Sleep(time.Hour)
		synctest.Wait()
		select {
		case err := <-rt.done:
			t.Fatalf("the proxy's stream ended: %v", err)
		case b := <-rt.proxy.out:
			t.Errorf("the proxy got %q", b)
		default:
		}
		if n := rt.relay.Counts().Failures; n < 3600/30 || n > 3600/15 {
			t.Errorf("%d tries in an hour, want one each 15 s to 30 s", n)
		}
		rt.refuse.Store(nil)
		rt.want(<-rt.planes, &dreq{Node: testNode(), TypeUrl: xdswire.ClusterType, InitialResourceVersions: map[string]string{"a": "1"}})
	})
}

// TestRefusedProxyLearnsReason: a proxy that has nothing yet receives the status with which
// the control plane refuses it.
func TestRefusedProxyLearnsReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
		rt.refuse.Store(new(status.Error(codes.Unavailable, "not ready")))
		rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		time.Sleep(time.Minute)
		rt.refuse.Store(new(status.Error(codes.PermissionDenied, "claims another namespace")))
		if err := <-rt.done; status.Code(err) != codes.PermissionDenied {
			t.Errorf("the stream ended with %v", err)
		}
	})
}

// TestBadRequests: requests that cannot be relayed end the stream of the proxy.
func TestBadRequests(t *testing.T) {
	for name, requests := range map[string]func(send func(b []byte) bool){
		"malformed": func(send func([]byte) bool) { send([]byte{0xff}) },
		"no node":   func(send func([]byte) bool) { send(encoded(t, &dreq{TypeUrl: "x"})) },
		"many types": func(send func([]byte) bool) {
			for i := 0; send(encoded(t, &dreq{Node: testNode(), TypeUrl: fmt.Sprint(i)})); i++ {
			}
		},
		"many names": func(send func([]byte) bool) {
			for i := 0; ; i++ {
				r := &dreq{Node: testNode(), TypeUrl: "x"}
				for j := range 1000 {
					r.ResourceNamesSubscribe = append(r.ResourceNamesSubscribe, fmt.Sprint(i, j))
				}
				if !send(encoded(t, r)) {
					return
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
				rt.refuse.Store(new(errors.New("no control plane")))
				requests(func(b []byte) bool {
					select {
					case rt.proxy.in <- b:
						return true
					case err := <-rt.done:
						rt.done <- err
						return false
					}
				})
				if c := status.Code(<-rt.done); c != codes.InvalidArgument && c != codes.ResourceExhausted {
					t.Errorf("the stream ended with %v", c)
				}
			})
		})
	}
}

func encoded(t *testing.T, m proto.Message) []byte {
	t.Helper()
	b, err := proto.Marshal(m)
	check(t, err)
	return b
}

// TestBadResponses: responses that cannot be relayed end the stream to the control plane, and
// the proxy neither sees them nor loses its stream.
func TestBadResponses(t *testing.T) {
	for name, bad := range map[string][]byte{
		"malformed":          {0xff},
		"malformed resource": {fieldResources<<3 | 2, 1, 0xff},
		"no type":            encoded(t, &dresp{Nonce: "1"}),
		"too many":           nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
				rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
				plane := <-rt.planes
				first := &dreq{Node: testNode(), TypeUrl: xdswire.ClusterType}
				rt.want(plane, first)
				if bad != nil {
					plane.in <- bad
				} else {
					for i := range maxOpen {
						rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: fmt.Sprint(i)})
					}
					plane.in <- encoded(t, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "one more"})
				}
				rt.want(<-rt.planes, first)
				if len(rt.proxy.out) > 0 || len(rt.done) > 0 {
					t.Error("the proxy noticed")
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, nil)
		rt.request(&dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		plane := <-rt.planes
		rt.want(plane, &dreq{Node: testNode(), TypeUrl: xdswire.ClusterType})
		plane.in <- encoded(t, &dresp{TypeUrl: xdswire.RouteType, Nonce: "not requested"})
		if got := rt.respond(plane, &dresp{TypeUrl: xdswire.ClusterType, Nonce: "2"}); got.GetTypeUrl() != xdswire.ClusterType {
			t.Errorf("the proxy got %v, which it has not requested", got)
		}
	})
}

// TestFloodIsBounded: the newest state of each type is sent when the control plane reads
// again, however many requests arrive meanwhile, and an unsent NACK stays one.
func TestFloodIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := newRelayTest[*sreq, *sresp](t, xdswire.SotW, nil)
		rt.request(&sreq{Node: testNode(), TypeUrl: xdswire.ListenerType})
		plane := <-rt.planes
		rt.want(plane, &sreq{Node: testNode(), TypeUrl: xdswire.ListenerType})
		got := rt.respond(plane, &sresp{TypeUrl: xdswire.ListenerType, Nonce: "1", VersionInfo: "v1"})
		rt.request(&sreq{TypeUrl: xdswire.RouteType, ResourceNames: []string{"first"}})
		rt.request(&sreq{TypeUrl: xdswire.RouteType, ResourceNames: []string{"second"}})
		nack := &rpcstatus.Status{Code: int32(codes.Internal), Message: "bad"}
		rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), ErrorDetail: nack})
		for i := range 10_000 {
			rt.request(&sreq{TypeUrl: xdswire.ListenerType, ResponseNonce: got.GetNonce(), ResourceNames: []string{fmt.Sprint(i)}})
		}
		rt.want(plane, &sreq{TypeUrl: xdswire.RouteType, ResourceNames: []string{"first"}})
		var got2 []*sreq
		for synctest.Wait(); ; synctest.Wait() {
			select {
			case b := <-plane.out:
				r := &sreq{}
				check(t, proto.Unmarshal(b, r))
				got2 = append(got2, r)
				continue
			default:
			}
			break
		}
		if len(got2) > 4 {
			t.Fatalf("%d requests: %v", len(got2), got2)
		}
		last := map[string]*sreq{}
		refused := false
		for _, r := range got2 {
			last[r.GetTypeUrl()] = r
			refused = refused || r.GetErrorDetail() != nil
		}
		if !refused {
			t.Error("the NACK is lost")
		}
		if n := last[xdswire.ListenerType].GetResourceNames(); !slices.Equal(n, []string{"9999"}) {
			t.Errorf("the last names are %v", n)
		}
		if n := last[xdswire.RouteType].GetResourceNames(); !slices.Equal(n, []string{"second"}) {
			t.Errorf("the last route is %v", n)
		}
	})
}

// handlerFunc is a Handler.
type handlerFunc func(resources []*anypb.Any) error

func (f handlerFunc) Handle(_ string, resources []*anypb.Any) error { return f(resources) }

// TestHandlers: the relay subscribes for its handlers after the first request for listeners,
// answers for them, and Envoy receives nothing of it.
func TestHandlers(t *testing.T) {
	for _, generator := range []string{"", "grpc"} {
		t.Run("generator "+generator, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var used []string
				rt := newRelayTest[*dreq, *dresp](t, xdswire.Delta, map[string]Handler{xdswire.NameTableType: handlerFunc(func(resources []*anypb.Any) error {
					m := &wrapperspb.StringValue{}
					check(t, resources[0].UnmarshalTo(m))
					if strings.HasPrefix(m.GetValue(), "bad") {
						return errors.New("no table")
					}
					used = append(used, m.GetValue())
					return nil
				})})
				n := testNode()
				n.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"GENERATOR": structpb.NewStringValue(generator)}}
				rt.request(&dreq{Node: n, TypeUrl: xdswire.ListenerType})
				plane := <-rt.planes
				rt.want(plane, &dreq{Node: n, TypeUrl: xdswire.ListenerType})
				if generator != "" {
					rt.wantNone(plane)
					return
				}
				rt.want(plane, &dreq{TypeUrl: xdswire.NameTableType})
				for nonce, name := range []string{"table", "bad"} {
					plane.in <- encoded(t, &dresp{TypeUrl: xdswire.NameTableType, Nonce: fmt.Sprint(nonce), Resources: []*discoveryv3.Resource{resource(name, "1")}})
				}
				rt.want(plane, &dreq{TypeUrl: xdswire.NameTableType, ResponseNonce: "0"})
				rt.want(plane, &dreq{TypeUrl: xdswire.NameTableType, ResponseNonce: "1", ErrorDetail: &rpcstatus.Status{Code: int32(codes.InvalidArgument), Message: "no table"}})
				close(plane.in)
				plane = <-rt.planes
				rt.want(plane, &dreq{Node: n, TypeUrl: xdswire.ListenerType})
				rt.want(plane, &dreq{TypeUrl: xdswire.NameTableType, InitialResourceVersions: map[string]string{"table": "1", "bad": ""}})
				if !slices.Equal(used, []string{"table1"}) || len(rt.proxy.out) > 0 {
					t.Errorf("used %v, the proxy has %d messages", used, len(rt.proxy.out))
				}
			})
		})
	}
}
