package xds

import (
	"fmt"
	"runtime"
	"slices"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	dto "github.com/prometheus/client_model/go"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// manyStreams returns an unstarted hub with streams that subscribe to clusters and
// endpoints. Each has its own namespace, pod and views.
func manyStreams(tb testing.TB, streams int) (*Hub, *testMesh, []*session) {
	tb.Helper()
	w := newTestMesh().set("CDS", "shared", "a", "a:1").set("EDS", "shared", "a", "a:1").
		set("CDS", "apart", "b", "b:1").set("EDS", "apart", "b", "b:1").view("p0", "apart")
	h := newUnstartedHub()
	assign := h.cfg.Generator.Assign
	h.cfg.Generator.Assign = func(s *snapshot.Snapshot, n proxy.Node) units.Assignment {
		a := assign(s, n)
		for typ, v := range a { // like inbound configuration
			a[typ] = units.Views{Shared: v.Shared, Own: kindView{testView{typ, n.ID.Name}, 0}}
		}
		return a
	}
	h.Update(w.take())
	sessions := make([]*session, streams)
	for i := range sessions {
		s := newTestSession(tb, h, fmt.Sprintf("p%d", i), xdswire.SotW, func(*xdswire.Frame) error { return nil })
		s.sub.namespace = fmt.Sprintf("n%d", i)
		for _, url := range []string{xdswire.ClusterType, xdswire.EndpointType} {
			if err := s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: url, ResourceNames: []string{"a", "b"}}, nil); err != nil {
				tb.Fatal(err)
			}
		}
		sessions[i] = s
	}
	deliverAll(tb, h, sessions)
	return h, w, sessions
}

// deliverAll delivers and acknowledges everything.
func deliverAll(tb testing.TB, h *Hub, sessions []*session) {
	tb.Helper()
	for range 3 {
		h.deliver()
		h.queue.waiting = nil
		for _, s := range sessions {
			s.queued = false
			if err := s.flush(); err != nil {
				tb.Fatal(err)
			}
			s.accept(cds)
			s.accept(eds)
		}
	}
}

func countOf(tb testing.TB, c interface{ Write(*dto.Metric) error }) int {
	tb.Helper()
	m := &dto.Metric{}
	if err := c.Write(m); err != nil {
		tb.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// TestChangeVisitsOnlyAffectedViews: A change visits only views that read such facts,
// and streams that read the pod or namespace or share the changed view. The cost does
// not depend on the number of other streams.
func TestChangeVisitsOnlyAffectedViews(t *testing.T) {
	type work struct{ assigned, listed, woken int }
	for _, streams := range []int{20, 400} {
		h, w, sessions := manyStreams(t, streams)
		for _, tc := range []struct {
			name   string
			change func()
			want   work
		}{
			{"an endpoint that one stream sees", func() { w.set("EDS", "apart", "b", "b:2") }, work{listed: 2, woken: 1}},
			{"a cluster that the others see", func() { w.set("CDS", "shared", "a", "a:2") }, work{listed: 2, woken: streams - 1}},
			{"endpoints that no stream sees", func() { w.set("EDS", "nobody", "b", "b:2") }, work{listed: 2}},
			{"the pod of one stream", func() { w.changes.Pods = map[string]struct{}{"p3": {}} }, work{assigned: 1, woken: 1}},
			{"a pod without a stream", func() { w.changes.Pods = map[string]struct{}{"other": {}} }, work{}},
			{"the namespace of one stream", func() { w.changes.Namespaces = map[string]struct{}{"n4": {}} }, work{assigned: 1, woken: 1}},
			{"a secret", func() { w.changes.Secrets = map[string]struct{}{"s": {}} }, work{}},
			{"everything", func() { w.changes.Everywhere = true }, work{assigned: streams, listed: len(h.views.all), woken: streams}},
		} {
			t.Run(fmt.Sprintf("%d streams/%s", streams, tc.name), func(t *testing.T) {
				m := h.cfg.Metrics
				before := work{countOf(t, m.assigned), countOf(t, m.listed), 0}
				tc.change()
				h.Update(w.take())
				h.deliver()
				got := work{countOf(t, m.assigned) - before.assigned, countOf(t, m.listed) - before.listed, len(h.queue.waiting)}
				if got != tc.want {
					t.Errorf("%+v, want %+v", got, tc.want)
				}
				deliverAll(t, h, sessions)
			})
		}
	}
}

// TestViewsOfOtherKindsAreNotVisited: A change visits no views that read other kinds of
// facts.
func TestViewsOfOtherKindsAreNotVisited(t *testing.T) {
	l := newViewIndex()
	reads := map[string]snapshot.Kinds{
		"services": snapshot.ServiceFacts, "endpoints": snapshot.ServiceFacts | snapshot.EndpointFacts,
		"clusters": snapshot.ServiceFacts | snapshot.MeshFacts, "ports": snapshot.PortFacts, "secrets": snapshot.SecretFacts, "nothing": 0,
	}
	for name, kinds := range reads {
		delete(l.stale, l.of(kindView{testView{xdswire.ClusterType, name}, kinds}))
	}
	some := map[string]struct{}{"x": {}}
	for _, tc := range []struct {
		changes *snapshot.Changes
		want    []string
	}{
		{nil, nil},
		{&snapshot.Changes{Pods: some, Namespaces: some}, nil},
		{&snapshot.Changes{Endpoints: some}, []string{"endpoints"}},
		{&snapshot.Changes{Services: some}, []string{"clusters", "endpoints", "services"}},
		{&snapshot.Changes{Secrets: some, Ports: map[uint32]struct{}{1: {}}}, []string{"ports", "secrets"}},
		{&snapshot.Changes{Traits: true, GatewayConfigs: true, Networks: map[mesh.ClusterID]struct{}{"c": {}}}, nil},
		{&snapshot.Changes{Mesh: true}, []string{"clusters"}},
		{&snapshot.Changes{Everywhere: true}, []string{"clusters", "endpoints", "nothing", "ports", "secrets", "services"}},
	} {
		var got []string
		for v := range l.touched(tc.changes) {
			k, _ := v.view.(kindView)
			got = append(got, k.name)
		}
		if slices.Sort(got); !slices.Equal(got, tc.want) {
			t.Errorf("%+v touches %v, want %v", tc.changes, got, tc.want)
		}
	}
}

type kindView struct {
	testView
	kinds snapshot.Kinds
}

func (v kindView) Keys() units.Keys { return units.Keys{FixedFacts: v.kinds} }

// BenchmarkUnconcerned changes an endpoint that one of many streams sees.
func BenchmarkUnconcerned(b *testing.B) {
	for _, streams := range []int{100, 10_000} {
		b.Run(fmt.Sprint(streams), func(b *testing.B) {
			h, w, sessions := manyStreams(b, streams)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				w.changes.Pods = map[string]struct{}{"p0": {}}
				w.changes.Endpoints = map[string]struct{}{"b": {}}
				h.Update(w.take())
				h.deliver()
			}
			runtime.KeepAlive(sessions)
		})
	}
}

// TestViewsAreMadeOnDemand: Types that no stream subscribes to are neither generated
// nor sent.
func TestViewsAreMadeOnDemand(t *testing.T) {
	both(t, func(t *testing.T, v xdswire.Variant) {
		b := startServer(t, small().set("LDS", "q", "own", "own:1"))
		views := func() (found []string) {
			list, err := b.hub.Views(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range list {
				found = append(found, fmt.Sprintf("%s %s %dx%d", l.Type, l.Scope, l.Views, l.Streams))
			}
			slices.Sort(found)
			return found
		}
		check := func(want ...string) {
			t.Helper()
			if got := views(); !slices.Equal(got, want) {
				t.Errorf("views %q, want %q", got, want)
			}
		}
		check()
		p, q := b.connect(v, "p"), b.connect(v, "q")
		p.subscribe("CDS")
		p.wantAck("CDS", "a=a:1 b=b:1")
		check("CDS own 1x1", "CDS shared 1x1")
		q.subscribe("LDS")
		q.wantAck("LDS", "l=l:1 own=own:1")
		check("CDS own 1x1", "CDS shared 1x1", "LDS own 1x1", "LDS shared 1x1")
		p.subscribe("LDS")
		p.wantAck("LDS", "l=l:1")
		check("CDS own 1x1", "CDS shared 1x1", "LDS own 2x2", "LDS shared 1x2")
		for _, typ := range []string{"EDS", "RDS"} {
			if n := b.metric("meshctl_xds_generated_total", typ); n != 0 {
				t.Errorf("%v resources of %s were generated, which nobody asked for", n, typ)
			}
		}
		p.subscribe("EDS", "a")
		p.wantAck("EDS", "a=a:1")
		check("CDS own 1x1", "CDS shared 1x1", "EDS own 1x1", "EDS shared 1x1", "LDS own 2x2", "LDS shared 1x2")
		q.cancel()
		b.eventually("the end of the stream", func() bool { return len(views()) == 6 && !slices.Contains(views(), "LDS shared 1x2") })
		check("CDS own 1x1", "CDS shared 1x1", "EDS own 1x1", "EDS shared 1x1", "LDS own 1x1", "LDS shared 1x1")
		if v == xdswire.SotW {
			p.subscribe("EDS") // unsubscribes from the type
			b.eventually("the end of the views", func() bool { return len(views()) == 4 })
		}
	})
}
