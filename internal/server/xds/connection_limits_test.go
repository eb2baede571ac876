package xds

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/xds/admission"
	"github.com/meshctl/meshctl/internal/xdswire"
	"github.com/meshctl/meshctl/test/harness"
)

// dialStalling connects with a small receive buffer. Once stop is closed, it stops reading
// from the socket.
func (b *testServer) dialStalling(stop <-chan struct{}) *grpc.ClientConn {
	return b.dial(grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
		return harness.DialStalling(ctx, net.Dialer{}, addr, 4<<10, stop)
	}))
}

// TestClientsStopReading: Half of the clients stop reading while responses fill gRPC's
// windows, the sockets, or only their buffers. The other half is served.
func TestClientsStopReading(t *testing.T) {
	if testing.Short() {
		t.Skip("sends 8 MB to each of 40 clients")
	}
	t.Parallel()
	for _, tt := range []struct {
		name string
		size int
	}{
		{"in the queue", 8 << 20},
		{"in the socket", 48 << 10},
	} {
		t.Run(tt.name, func(t *testing.T) {
			both(t, func(t *testing.T, v xdswire.Variant) {
				t.Parallel()
				const clients = 20
				w := newTestMesh().set("CDS", "shared", "big", "big:1").set("EDS", "shared", "a", "a:1")
				b := startServer(t, w, func(c *Config, _ *Access) { c.Limits.Write = time.Second })
				stalled := make(chan struct{})
				var good []*client
				for i := range clients {
					slow := b.connectOn(b.dialStalling(stalled), v, fmt.Sprintf("slow%d", i))
					go slow.receive()
					slow.subscribe("CDS")
					slow.wantAck("CDS", "big=big:1")
					c := b.connect(v, fmt.Sprintf("good%d", i))
					c.subscribe("EDS", "a")
					c.wantAck("EDS", "a=a:1")
					good = append(good, c)
				}
				close(stalled)
				b.mesh.set("CDS", "shared", "big", "big:"+strings.Repeat("x", tt.size)).set("EDS", "shared", "a", "a:2")
				b.push()
				for _, c := range good {
					c.wantAck("EDS", "a=a:2")
				}
				b.eventually("the end of the streams that nobody reads", func() bool { return len(b.hub.Proxies()) == clients })
				b.eventually("the count of them", func() bool {
					return b.metric("meshctl_xds_write_timeouts_total", "") == clients
				})
				b.mesh.set("EDS", "shared", "a", "a:3")
				b.push()
				for _, c := range good {
					c.wantAck("EDS", "a=a:3")
				}
			})
		})
	}
}

// authenticateAsOne authenticates every peer as the same identity.
func authenticateAsOne(_ *Config, a *Access) {
	a.Authenticate = func(ctx context.Context) (mesh.Caller, error) {
		id := mesh.Identity{TrustDomain: "td", Namespace: "ns", ServiceAccount: "sa"}
		return mesh.Caller{Identity: id}, admission.Authenticated(ctx, id)
	}
}

// idle opens n connections that send nothing. The channel receives the end of each.
func (b *testServer) idle(n int) <-chan error {
	b.t.Helper()
	ended := make(chan error, n)
	var wg sync.WaitGroup
	b.t.Cleanup(wg.Wait)
	for range n {
		conn, err := new(net.Dialer).DialContext(b.t.Context(), "tcp", b.addr)
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Cleanup(func() { conn.Close() })
		wg.Go(func() {
			_, err := io.Copy(io.Discard, conn)
			ended <- err
		})
	}
	return ended
}

func (b *testServer) wait(what string, n int, ended <-chan error) {
	b.t.Helper()
	for i := range n {
		select {
		case <-ended:
		case <-time.After(patience):
			b.t.Fatalf("%s: %d of %d", what, i, n)
		}
	}
}

// withoutTimeouts sets long time limits, so that only the limits of a test close
// connections.
func withoutTimeouts(c *Config, _ *Access) {
	c.Limits.Handshake, c.Limits.FirstRequest = time.Hour, time.Hour
}

func TestConnectionsOfOneAddress(t *testing.T) {
	b := startServer(t, small(), withoutTimeouts, func(c *Config, _ *Access) { c.Limits.AddressConns = 5 })
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	ended := b.idle(12)
	b.wait("connections over the limit are closed", 8, ended)
	if n := b.metric("meshctl_xds_refused_connections_total", ""); n != 8 {
		t.Errorf("%v of 12 refused, want 8: one of 5 is in use", n)
	}
	c.quiet()
}

// TestUnauthenticatedConnectionsBlockNone: Unauthenticated connections that use all their places
// do not keep authenticated ones out.
func TestUnauthenticatedConnectionsBlockNone(t *testing.T) {
	b := startServer(t, small(), authenticateAsOne, withoutTimeouts, func(c *Config, _ *Access) { c.Limits.PendingConns, c.Limits.AddressConns = 8, 8 })
	before := b.connect(xdswire.Delta, "before")
	before.subscribe("CDS")
	before.wantAck("CDS", "a=a:1 b=b:1")
	b.wait("strangers over the limit are closed", 12, b.idle(20))
	before.quiet()
}

func TestOldestPendingConnectionIsClosed(t *testing.T) {
	b := startServer(t, small(), authenticateAsOne, withoutTimeouts, func(c *Config, _ *Access) { c.Limits.PendingConns = 8 })
	b.wait("strangers over the limit are closed", 12, b.idle(20))
	c := b.connect(xdswire.Delta, "after")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
}

func TestConnectionsMustAuthenticateInTime(t *testing.T) {
	t.Parallel()
	b := startServer(t, small(), authenticateAsOne, func(c *Config, _ *Access) { c.Limits.FirstRequest = time.Second })
	c := b.connect(xdswire.Delta, "p")
	c.subscribe("CDS")
	c.wantAck("CDS", "a=a:1 b=b:1")
	// A connection after its handshake, without a call.
	h := b.dialRaw()
	h.wantEnd()
	c.quiet()
}

func TestStreamsOfOneIdentity(t *testing.T) {
	testStreamLimit(t, startServer(t, small(), authenticateAsOne, func(c *Config, _ *Access) { c.Limits.IdentityStreams = 3 }))
}

func TestStreamsOfOneAddress(t *testing.T) {
	testStreamLimit(t, startServer(t, small(), func(c *Config, _ *Access) { c.Limits.AddressStreams = 3 }))
}

// testStreamLimit checks that a peer may have three streams.
func testStreamLimit(t *testing.T, b *testServer) {
	t.Helper()
	conn := b.dial()
	join := func() *client {
		c := b.connectOn(conn, xdswire.Delta, "p")
		go c.receive()
		c.subscribe("CDS")
		return c
	}
	var in []*client
	for range 3 {
		c := join()
		c.wantAck("CDS", "a=a:1 b=b:1")
		in = append(in, c)
	}
	if s := join().status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("the fourth stream: got %v", s)
	}
	in[0].cancel()
	b.eventually("the end of a stream", func() bool { return len(b.hub.Proxies()) == 2 })
	b.eventually("room for another", func() bool {
		c := join()
		select {
		case <-c.in:
			return true
		case err := <-c.ended:
			return err == nil
		}
	})
}

func TestConnectionsOfOneIdentity(t *testing.T) {
	b := startServer(t, small(), authenticateAsOne, func(c *Config, _ *Access) { c.Limits.IdentityConns = 2 })
	for range 2 {
		c := b.connect(xdswire.Delta, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
	}
	if s := b.connect(xdswire.Delta, "p").status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("the third connection: got %v", s)
	}
}

func TestHugeRequests(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small())
		good := b.connect(v, "good")
		good.subscribe("CDS")
		good.wantAck("CDS", "a=a:1 b=b:1")
		for what, names := range map[string][]string{
			"a million names":  slices.Repeat([]string{"name"}, 1_000_000),
			"a name of 4 MiB":  {strings.Repeat("x", 4<<20)},
			"too many names":   numbered(150_000),
			"too many of each": numbered(100_001),
		} {
			c := b.connect(v, "p")
			c.request("EDS", "", names[:0], nil, "")
			if v == xdswire.Delta {
				_ = c.delta.Send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: names})
			} else {
				_ = c.sotw.Send(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNames: names})
			}
			if s := c.status(); s.Code() != codes.ResourceExhausted {
				t.Errorf("%s: got %v", what, s)
			}
		}
		c := b.connect(v, "flood")
		for i := range 10_000 {
			c.request(fmt.Sprintf("type.googleapis.com/unknown%d", i), "", []string{"x"}, nil, "")
		}
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		good.quiet()
		b.eventually("the end of the others", func() bool { return len(b.hub.Proxies()) == 2 })
		for _, p := range b.hub.Proxies() {
			if len(p.Types) > 2 {
				t.Errorf("%s has the types %v", p.ID, p.Types)
			}
		}
	})
}

// TestNameBudget: The names of all streams of a peer count together.
func TestNameBudget(t *testing.T) {
	const most = 3_700 // bytes: ten names of 84 bytes and 256 more each, and one name for quiet
	for what, limit := range map[string]struct {
		oneConn bool
		set     serverOption
	}{
		"one connection": {true, func(c *Config, _ *Access) { c.Limits.PeerBytes = most }},
		"an address":     {false, func(c *Config, _ *Access) { c.Limits.PeerBytes = most }},
		"an identity": {false, func(c *Config, a *Access) {
			authenticateAsOne(c, a)
			c.Limits.PeerBytes = most
		}},
	} {
		t.Run(what, func(t *testing.T) {
			both(t, func(t *testing.T, v xdswire.Variant) {
				testNameBudget(t, startServer(t, small(), limit.set), v, limit.oneConn)
			})
		})
	}
}

// testNameBudget checks that a peer may subscribe to ten names.
func testNameBudget(t *testing.T, b *testServer, v xdswire.Variant, oneConn bool) {
	t.Helper()
	conn := b.dial()
	join := func(typ string, names ...string) *client {
		if !oneConn {
			conn = b.dial()
		}
		c := b.connectOn(conn, v, "p")
		go c.receive()
		c.subscribe(typ, names...)
		return c
	}
	taken := func(c *client) *client {
		t.Helper()
		c.ack(c.recv())
		return c
	}
	names := make([]string, 15)
	for i := range names {
		names[i] = fmt.Sprintf("%084d", i)
	}
	first := taken(join("EDS", names[:5]...))
	second := taken(join("EDS", names[:5]...)) // the same set
	first.subscribe("RDS", names[5:10]...)
	taken(first)
	if s := join("RDS", names[10]).status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("names over the limit: got %v", s)
	}
	second.quiet()
	second.cancel()
	b.eventually("the end of a stream", func() bool { return len(b.hub.Proxies()) == 1 })
	if s := join("RDS", names[10]).status(); s.Code() != codes.ResourceExhausted {
		t.Errorf("names that another stream holds were given back: got %v", s)
	}
	first.cancel()
	var third *client
	b.eventually("room for another", func() bool {
		third = join("EDS", names[:10]...)
		select {
		case r := <-third.in:
			third.ack(r)
			return true
		case <-third.ended:
			return false
		}
	})
	third.subscribe("EDS", names[5:15]...) // in place of other names
	taken(third)
	third.quiet()
}

func numbered(n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	return names
}

func TestNodeMetadata(t *testing.T) {
	nested := func(levels int) *structpb.Value { // counting the metadata itself
		v := structpb.NewStringValue("bottom")
		for range levels - 1 {
			v = structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"d": v}})
		}
		return v
	}
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small(), func(c *Config, _ *Access) { c.Limits.MetadataDepth = 10 })
		good := b.connect(v, "good")
		good.subscribe("CDS")
		good.wantAck("CDS", "a=a:1 b=b:1")
		for what, tt := range map[string]struct {
			value *structpb.Value
			says  string
		}{
			"too deep":  {nested(11), "at most 10 levels"},
			"very deep": {nested(3000), "at most 10 levels"}, // the other values may cost 10,000 messages, three each
			"3 MiB":     {structpb.NewStringValue(strings.Repeat("x", 3<<20)), "bytes besides names, at most 786432"},
			"600 KiB":   {structpb.NewStringValue(strings.Repeat("x", 600<<10)), "at most 524288"},
			"100 KiB":   {structpb.NewStringValue(strings.Repeat("x", 100<<10)), ""},
			"deep":      {nested(10), ""},
		} {
			rejected := b.metric("meshctl_xds_rejected_streams_total", "")
			c := b.connect(v, "p")
			c.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"X": tt.value}}
			c.subscribe("CDS")
			if tt.says == "" {
				c.wantAck("CDS", "a=a:1 b=b:1")
				continue
			}
			if s := c.status(); s.Code() != codes.InvalidArgument || !strings.Contains(s.Message(), tt.says) || len(s.Message()) > 1000 {
				t.Errorf("%s: got %.1000s", what, s)
			}
			if n := b.metric("meshctl_xds_rejected_streams_total", ""); n != rejected+1 {
				t.Errorf("%s: %v streams counted as rejected, want one", what, n-rejected)
			}
		}
		c := b.connect(v, "nan")
		c.node.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{
			"X": structpb.NewNumberValue(math.NaN()), "CLUSTER_ID": structpb.NewNumberValue(math.Inf(-1)),
			"LABELS": structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"n": structpb.NewNumberValue(math.NaN())}}),
		}}
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1")
		good.quiet()
	})
}
