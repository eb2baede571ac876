package xds

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/meshctl/meshctl/internal/server/xdsgen"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// wide returns a mesh of n clusters with endpoints.
func wide(n int) (*testMesh, []string) {
	w := newTestMesh()
	names := make([]string, n)
	for i := range n {
		names[i] = fmt.Sprintf("s%04d", i)
		w.set("CDS", "shared", names[i], names[i]+":1").set("EDS", "shared", names[i], names[i]+":1")
	}
	return w, names
}

func TestCountersShowOneChange(t *testing.T) {
	t.Parallel()
	const units, streams = 1000, 50
	both(t, func(t *testing.T, v xdswire.Variant) {
		w, names := wide(units)
		b := startServer(t, w)
		join := func(name string) *client {
			c := b.connect(v, name)
			c.subscribe("CDS")
			c.ack(c.recv())
			c.subscribe("EDS", names...)
			r := c.recv()
			if len(r.resources) != units {
				t.Fatalf("%d endpoints came, want %d", len(r.resources), units)
			}
			c.ack(r)
			return c
		}
		var clients []*client
		for i := range streams {
			clients = append(clients, join(fmt.Sprintf("p%d", i)))
		}
		all := []string{"generated", "encoded", "sent", "sent_resources"}
		read := func() map[string]float64 {
			m := make(map[string]float64)
			for _, name := range all {
				for _, typ := range []string{"CDS", "EDS", "LDS", "RDS", "SDS"} {
					m[name+" "+typ] = b.metric("meshctl_xds_"+name+"_total", typ)
				}
			}
			return m
		}
		check := func(what string, before map[string]float64, want map[string]float64) {
			t.Helper()
			for k, after := range read() {
				if after-before[k] != want[k] {
					t.Errorf("%s: %s grew by %v, want %v", what, k, after-before[k], want[k])
				}
			}
		}
		before := read()
		if before["generated EDS"] != units || before["encoded EDS"] != units {
			t.Errorf("%v generated and %v encoded for %d streams of one view, want %d", before["generated EDS"], before["encoded EDS"], streams, units)
		}
		b.mesh.set("EDS", "shared", names[7], names[7]+":2")
		b.push()
		for _, c := range clients {
			c.wantAck("EDS", names[7]+"="+names[7]+":2")
		}
		check("one change", before, map[string]float64{
			"generated EDS": 1, "encoded EDS": 1, "sent EDS": streams, "sent_resources EDS": streams,
		})
		before = read()
		join("late")
		check("a late proxy", before, map[string]float64{
			"sent CDS": 1, "sent_resources CDS": units, "sent EDS": 1, "sent_resources EDS": units,
		})
		// 2 shared views, and 2 own views for each proxy; equal subscriptions are one.
		b.eventually("the number of views", func() bool { return b.metric("meshctl_xds_views", "") == 2+2*(streams+1) })
		if n := b.hub.names.Size(); n != 1 {
			t.Errorf("%d name sets for equal subscriptions", n)
		}
	})
}

func TestSharedUnitsAreGeneratedOnce(t *testing.T) {
	// Two streams of one proxy have the same own views.
	b := startServer(t, small().set("CDS", "p", "own", "own:1"))
	for range 3 {
		c := b.connect(xdswire.Delta, "p")
		c.subscribe("CDS")
		c.wantAck("CDS", "a=a:1 b=b:1 own=own:1")
	}
	if n := b.metric("meshctl_xds_generated_total", "CDS"); n != 3 {
		t.Errorf("%v generated, want 3", n)
	}
}

func TestSlowReaderDelaysNoOther(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, v xdswire.Variant) {
		w, names := wide(500)
		b := startServer(t, w)
		slow := b.connectSilently(v, "slow")
		slow.subscribe("CDS")
		good := b.connect(v, "good")
		good.subscribe("EDS", names...)
		good.ack(good.recv())
		for i := 2; i < 30; i++ {
			for _, n := range names[:50] {
				b.mesh.set("CDS", "shared", n, fmt.Sprintf("%s:%d", n, i))
			}
			b.mesh.set("EDS", "shared", "s0000", fmt.Sprintf("s0000:%d", i))
			b.push()
			good.wantAck("EDS", fmt.Sprintf("s0000=s0000:%d", i))
		}
	})
}

func TestStalledStreamIsClosed(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		w := newTestMesh()
		huge := make([]byte, 1<<20)
		for i := range huge {
			huge[i] = 'x'
		}
		for i := range 4 {
			name := fmt.Sprintf("s%d", i)
			w.set("CDS", "shared", name, name+":"+string(huge)).set("LDS", "shared", name, name+":"+string(huge))
		}
		b := startServer(t, w, func(c *Config, _ *Access) { c.Limits.Write = 50 * time.Millisecond })
		c := b.connectSilently(v, "p")
		c.subscribe("CDS")
		c.subscribe("LDS")
		b.eventually("the stalled stream to be closed", func() bool {
			return b.metric("meshctl_xds_write_timeouts_total", "") > 0 && len(b.hub.Proxies()) == 0
		})
		go c.receive()
		if s := c.status(); s.Code() != codes.Unavailable {
			t.Errorf("got %v, want Unavailable", s)
		}
	})
}

func TestManyStreamsAtOnce(t *testing.T) {
	w, names := wide(50)
	b := startServer(t, w)
	done := make(chan error, 40)
	for i := range 40 {
		c := b.connect(xdswire.Variant(i%2), fmt.Sprintf("p%d", i%10))
		go func() {
			c.subscribe("CDS")
			c.subscribe("EDS", names...)
			for r := range c.in {
				c.nonce[r.typ] = r.nonce
				if i%7 == 0 && len(r.resources) == 2 {
					c.nack(r, "no")
				} else {
					c.ack(r)
				}
				if r.resources["s0049"] == "s0049:end" && r.typ == "EDS" {
					done <- nil
					return
				}
			}
		}()
	}
	for i := range 50 {
		name := names[i%49]
		b.mesh.set("CDS", "shared", name, fmt.Sprintf("%s:%d", name, i)).set("EDS", "shared", name, fmt.Sprintf("%s:%d", name, i))
		b.hub.Update(b.mesh.take())
		if i%10 == 0 {
			b.hub.Proxies()
		}
	}
	b.mesh.set("EDS", "shared", "s0049", "s0049:end")
	b.push()
	for range 40 {
		select {
		case <-done:
		case <-time.After(patience):
			t.Fatal("not every proxy has the last change")
		}
	}
}

// TestEndpointsNeverOvertakeClusters: While the hub publishes, a response with the
// endpoints of a snapshot comes after its clusters.
func TestEndpointsNeverOvertakeClusters(t *testing.T) {
	w := newTestMesh().set("CDS", "shared", "a", "a:1").set("EDS", "shared", "a", "a:1")
	h := newUnstartedHub()
	h.Update(w.take())
	last := make(map[string]int)
	s := newTestSession(t, h, "p", xdswire.SotW, func(f *xdswire.Frame) error {
		m := &discoveryv3.DiscoveryResponse{}
		if err := proto.Unmarshal(f.Buffers().Materialize(), m); err != nil {
			return err
		}
		var n int
		if _, err := fmt.Sscanf(decode(t, m.GetResources()[0]), "a:%d", &n); err != nil {
			return err
		}
		last[xdswire.ShortType(m.GetTypeUrl())] = n
		if last["EDS"] > last["CDS"] {
			t.Errorf("endpoints of %d are sent after clusters of %d", last["EDS"], last["CDS"])
		}
		return nil
	})
	h.deliver()
	for _, typ := range []string{xdswire.ClusterType, xdswire.EndpointType} {
		if err := s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: typ, ResourceNames: []string{"a"}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	const rounds = 3000
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := 2; i <= rounds; i++ {
			w.set("CDS", "shared", "a", fmt.Sprintf("a:%d", i)).set("EDS", "shared", "a", fmt.Sprintf("a:%d", i))
			h.Update(w.take())
			h.deliver()
		}
	}()
	for done := false; !done || last["EDS"] < rounds; {
		select {
		case <-published:
			done = true
		default:
		}
		if err := s.flush(); err != nil {
			t.Fatal(err)
		}
		s.accept(cds)
		s.accept(eds)
	}
}

// TestStreamsSeeWholeChanges: While the hub publishes, a stream sees the states of all
// types, and its views, from one snapshot.
func TestStreamsSeeWholeChanges(t *testing.T) {
	t.Parallel()
	h, w := newUnstartedHub(), newTestMesh()
	types := []string{"CDS", "EDS", "LDS", "RDS"}
	step := func(i int) {
		for _, view := range []string{"even", "odd"} {
			for _, typ := range types {
				w.set(typ, view, "a", fmt.Sprintf("a:%s %d", view, i))
			}
		}
		h.Update(w.view("p", []string{"even", "odd"}[i/8%2]).take())
	}
	step(0)
	s := newTestSession(t, h, "p", xdswire.SotW, nil)
	for i := range types {
		s.types[i].watched = true
	}
	h.deliver()
	const rounds = 5000
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range rounds {
			step(i)
			h.deliver()
		}
	}()
	for {
		seen := s.shown()
		want := seen.now[cds].get("a").Version
		for i := range types {
			if got := seen.now[i].get("a").Version; got != want {
				t.Fatalf("%s of one snapshot with CDS of another", types[i])
			}
		}
		select {
		case <-published:
			return
		default:
		}
	}
}

// newTestSession returns a session without a network.
func newTestSession(tb testing.TB, h *Hub, name string, v xdswire.Variant, send func(*xdswire.Frame) error) *session {
	tb.Helper()
	node, err := h.cfg.Generator.ParseNode(testNode(name), h.cfg.Limits.MetadataBytes)
	if err != nil {
		tb.Fatal(err)
	}
	sub := &subscriber{id: name, node: node, variant: v}
	sub.session = &session{hub: h, sub: sub, log: slog.New(slog.DiscardHandler), writer: &streamWriter{}, send: send}
	for _, url := range xdswire.PushOrder {
		sub.session.expect(url)
	}
	h.attach(sub)
	return sub.session
}

// BenchmarkFanOut measures one changed assignment for 1,000 streams without the
// network: generation, frames, bookkeeping and ACKs.
func BenchmarkFanOut(b *testing.B) {
	const streams = 1000
	for _, v := range []xdswire.Variant{xdswire.SotW, xdswire.Delta} {
		b.Run(v.String(), func(b *testing.B) {
			w, names := wide(1000)
			h := newUnstartedHub()
			h.Update(w.take())
			var sessions []*session
			for i := range streams {
				s := newTestSession(b, h, fmt.Sprintf("p%d", i), v, func(f *xdswire.Frame) error {
					f.Buffers()
					return nil
				})
				sessions = append(sessions, s)
			}
			h.deliver()
			ack := func(s *session) {
				var err error
				if v == xdswire.Delta {
					err = s.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResponseNonce: s.types[eds].nonce}, nil)
				} else {
					s.accept(eds) // leaves out the cost of decoding names
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			for _, s := range sessions {
				var err error
				if v == xdswire.Delta {
					err = s.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNamesSubscribe: names}, nil)
				} else {
					err = s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.EndpointType, ResourceNames: names}, nil)
				}
				if err != nil {
					b.Fatal(err)
				}
				if err := s.flush(); err != nil {
					b.Fatal(err)
				}
				ack(s)
			}
			b.ReportAllocs()
			i := 1
			for b.Loop() {
				i++
				w.set("EDS", "shared", names[i%1000], fmt.Sprintf("%s:%d", names[i%1000], i))
				h.Update(w.take())
				h.deliver()
				for _, s := range sessions {
					if err := s.flush(); err != nil {
						b.Fatal(err)
					}
					ack(s)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*streams), "ns/stream")
		})
	}
}

// TestEmptyAnswersAreEncodedOnce: Streams that request the same unknown names share the
// answers.
func TestEmptyAnswersAreEncodedOnce(t *testing.T) {
	const unknown = 2_000
	names := make([]string, unknown)
	for i := range names {
		names[i] = fmt.Sprintf("r%04d", i)
	}
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, newTestMesh()) // has no routes
		for i := range 5 {
			c := b.connect(v, fmt.Sprintf("p%d", i))
			c.subscribe("RDS", names...)
			r := c.recv()
			if len(r.resources) != unknown || r.resources["r0007"] != "r0007:fallback" {
				t.Fatalf("%d answers came, want %d", len(r.resources), unknown)
			}
			c.ack(r)
		}
		if n := b.metric("meshctl_xds_encoded_total", "RDS"); n != unknown {
			t.Errorf("%v answers were encoded for %d names", n, unknown)
		}
	})
}

func TestEmptyAnswersAreBounded(t *testing.T) {
	var e fallbackCache
	var enc xdswire.Encoder
	long := make([]byte, maxFallbackBytes/8)
	for i := range 100 {
		name := fmt.Sprint(i)
		if _, err := e.get(rds, name, func() (*xdswire.Resource, error) {
			return enc.Raw(xdswire.RouteType, name, long), nil
		}); err != nil {
			t.Fatal(err)
		}
		if len(e.byName) > 8 || e.size > maxFallbackBytes {
			t.Fatalf("%d answers of %d bytes are kept", len(e.byName), e.size)
		}
	}
}

// BenchmarkUnknownNames answers a stream that requests 99,000 unknown names again.
func BenchmarkUnknownNames(b *testing.B) {
	names := make([]string, 99_000)
	for i := range names {
		names[i] = fmt.Sprintf("%d.namespace.svc.cluster.local:80", i)
	}
	h := newUnstartedHub()
	h.cfg.Generator.Fallback = xdsgen.Fallback
	h.Update(small().take())
	s := newTestSession(b, h, "p", xdswire.SotW, func(*xdswire.Frame) error { return nil })
	h.deliver()
	b.ReportAllocs()
	for b.Loop() {
		err := s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.RouteType, ResourceNames: names}, nil)
		if err == nil {
			h.deliver()
			err = s.flush()
		}
		if err != nil || !s.types[rds].inflight {
			b.Fatal("no answer", err)
		}
	}
}
