package xds

import (
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestSlowPeersAreNotStalled: Peers that read slowly, with a small share of the network
// each, do not count as stalled.
func TestSlowPeersAreNotStalled(t *testing.T) {
	const limit = 30 * time.Second
	for _, tc := range []struct {
		name string
		size int
		rate int64 // bytes a second that the connection writes
		want time.Duration
	}{
		{"small, nothing moves", 1, 0, limit},
		{"large, nothing moves", 4 << 20, 0, limit},
		{"large, too slow", 4 << 20, slowest / 2, limit},
		{"large, slow", 4 << 20, slowest, 4 * limit}, // checked every 30 s, done after 94 s
		{"small, others move", 1, 10 * slowest, 2 * limit},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var e xdswire.Encoder
				r := e.Raw(xdswire.ClusterType, "c", make([]byte, tc.size))
				frame := xdswire.NewFrame(xdswire.Header{TypeURL: xdswire.ClusterType}, xdswire.NewBody(xdswire.SotW, r))
				c := &testConn{begin: time.Now(), rate: tc.rate}
				w := newStreamWriter(limit, time.Now, c, func() {}, func() {})
				if err := w.send(discard{}, frame); err != nil {
					t.Fatal(err)
				}
				if w.hasRoom() != (tc.size < maxUnwritten) {
					t.Errorf("room for more is %v behind %d bytes", w.hasRoom(), tc.size)
				}
				time.Sleep(time.Hour)
				if got := time.Duration(c.stalled.Load()); got != tc.want {
					t.Errorf("closed after %v, want %v", got, tc.want)
				}
			})
		})
	}
}

type testConn struct {
	begin   time.Time
	rate    int64
	stalled atomic.Int64 // nanoseconds
}

func (c *testConn) Written() int64 { return int64(time.Since(c.begin).Seconds()) * c.rate }

func (c *testConn) Queue(int) {}
func (c *testConn) Stall()    { c.stalled.Store(int64(time.Since(c.begin))) }

// TestPanicInARequest: A panic ends the stream, which releases everything that it held.
func TestPanicInARequest(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small(), authenticateAsOne, func(c *Config, _ *Access) {
			c.Limits.IdentityStreams = 2
			good := c.Generator.Fallback
			c.Generator.Fallback = func(url, name string, e *xdswire.Encoder) (*xdswire.Resource, error) {
				if name == "panic" {
					panic(name)
				}
				return good(url, name, e)
			}
		})
		other := b.connect(v, "other")
		other.subscribe("CDS")
		other.wantAck("CDS", "a=a:1 b=b:1")
		for i := range 3 {
			c := b.connect(v, "p")
			c.subscribe("RDS", "panic")
			if s := c.status(); s.Code() != codes.Internal {
				t.Fatalf("stream %d: got %v", i, s)
			}
			b.eventually("room for another", func() bool { return len(b.hub.Proxies()) == 1 })
		}
		if n := b.metric("meshctl_xds_panics_total", ""); n != 3 {
			t.Errorf("%v panics counted, want 3", n)
		}
		b.mesh.set("CDS", "shared", "a", "a:2")
		b.push()
		other.recv()
	})
}

// TestPanicInAPush: A panic while sending a publication ends the stream.
func TestPanicInAPush(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		var armed atomic.Bool
		w := newRegistryMesh()
		w.secret("c1", "ns", "s", 1)
		b := startServer(t, w.testMesh, realGenerator, func(c *Config, _ *Access) {
			c.MayReadKeys = func(*snapshot.Snapshot, mesh.Caller, proxy.Node) error {
				if armed.Load() {
					panic("push")
				}
				return nil
			}
		})
		a := b.ask(v, "ns/gw@c1", gateway, "SDS", "kubernetes://s")
		a.want(map[string]string{"kubernetes://s": fmt.Sprintf(pairOf, "c1/ns/s 1")})
		armed.Store(true)
		w.view("/ns/gw", "any")
		b.push()
		b.eventually("the end of the stream", func() bool { return len(b.hub.Proxies()) == 0 })
		if n := b.metric("meshctl_xds_panics_total", ""); n != 1 {
			t.Errorf("%v panics counted, want 1", n)
		}
	})
}

// TestRequestsGoBeforePushes: A request that arrives while a publication is sent is
// handled before the next response.
func TestRequestsGoBeforePushes(t *testing.T) {
	h, w := newUnstartedHub(), small()
	h.Update(w.take())
	var s *session
	var events []string
	handled := make(chan struct{})
	request := func() {
		defer close(handled)
		if err := s.take(func() error {
			events = append(events, "request")
			return s.sotw(&discoveryv3.DiscoveryRequest{
				TypeUrl: xdswire.EndpointType, ResourceNames: []string{"a", "b"}, ResponseNonce: s.types[eds].nonce,
			}, nil)
		}); err != nil {
			t.Error(err)
		}
	}
	armed := false
	s = newTestSession(t, h, "p", xdswire.SotW, func(f *xdswire.Frame) error {
		m := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(f.Buffers().Materialize(), m); err != nil {
			return err
		}
		events = append(events, xdswire.ShortType(m.GetTypeUrl()))
		if armed {
			armed = false
			go request()
			for !s.requestWaiting.Load() {
				runtime.Gosched()
			}
		}
		return nil
	})
	watched := map[int][]string{cds: {"a"}, eds: {"b"}, lds: {"l"}, rds: {"r"}}
	for i, names := range watched {
		if err := s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.PushOrder[i], ResourceNames: names}, nil); err != nil {
			t.Fatal(err)
		}
	}
	h.deliver()
	s.catchUp()
	for i := range watched {
		s.accept(i)
	}
	w.set("CDS", "shared", "a", "a:2").set("LDS", "shared", "l", "l:2").set("RDS", "shared", "r", "r:2")
	h.Update(w.take())
	h.deliver()
	events, armed = nil, true
	s.catchUp()
	<-handled
	if want := []string{"CDS", "request", "EDS", "LDS", "RDS"}; !slices.Equal(events, want) {
		t.Errorf("%v, want %v", events, want)
	}
}

// TestIndependentTypesComeFirst: A request for secrets arrives when all types
// have changed.
func TestIndependentTypesComeFirst(t *testing.T) {
	h, w := newUnstartedHub(), small().set("SDS", "shared", "s", "s:1").set("NDS", "shared", "n", "n:1")
	h.cfg.Generator = generatorOf(xdswire.SecretType, xdswire.NameTableType)
	for _, first := range []int{sds, nds} {
		h.Update(w.take())
		var sent []string
		s := newTestSession(t, h, "p", xdswire.Delta, func(f *xdswire.Frame) error {
			m := &discoveryv3.DeltaDiscoveryResponse{}
			err := proto.Unmarshal(f.Buffers().Materialize(), m)
			sent = append(sent, xdswire.ShortType(m.GetTypeUrl()))
			return err
		})
		h.deliver()
		for _, i := range []int{first, rds, lds, eds, cds, first} {
			if err := s.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.PushOrder[i], ResourceNamesSubscribe: []string{"*"}}, nil); err != nil {
				t.Fatal(err)
			}
			s.demand(s.sub.assigned.Load())
			h.deliver()
		}
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		if want := []string{xdswire.ShortType(xdswire.PushOrder[first]), "CDS", "EDS", "LDS", "RDS"}; !slices.Equal(sent, want) {
			t.Errorf("%v, want %v", sent, want)
		}
	}
}

// discard is the stream of a peer that never reads.
type discard struct{ grpc.ServerStream }

func (discard) SendMsg(any) error { return nil }
