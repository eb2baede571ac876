package xds

import (
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// TestConvergence: The convergence time of a change ends with the last of its
// responses, however many there are. A change that was reverted before has none.
func TestConvergence(t *testing.T) {
	now := time.Unix(1000, 0)
	h := newUnstartedHub()
	h.cfg.Now = func() time.Time { return now }
	w := small()
	h.Update(w.take())
	s := newTestSession(t, h, "p", xdswire.SotW, func(*xdswire.Frame) error { return nil })
	for i, name := range map[int]string{cds: "a", eds: "b"} {
		if err := s.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: xdswire.PushOrder[i], ResourceNames: []string{name}}, nil); err != nil {
			t.Fatal(err)
		}
	}
	change := func(typ, name, content string) {
		w.changes.Causes, w.changes.Since, w.changes.Taken = []snapshot.Cause{{}}, now, now
		w.set(typ, "shared", name, content)
		h.Update(w.take())
		h.deliver()
		s.catchUp()
	}
	answer := func(i int) {
		if err := s.take(func() error { s.accept(i); return nil }); err != nil {
			t.Fatal(err)
		}
	}
	reg := prometheus.NewRegistry()
	converged, ok := h.cfg.Metrics.push.converged.(prometheus.Collector)
	if !ok {
		t.Fatal("no collector")
	}
	reg.MustRegister(converged)
	want := func(when string, count uint64, sum float64) {
		t.Helper()
		families, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if m := families[0].GetMetric()[0].GetHistogram(); m.GetSampleCount() != count || m.GetSampleSum() != sum {
			t.Errorf("%s: %d in %v s, want %d in %v s", when, m.GetSampleCount(), m.GetSampleSum(), count, sum)
		}
	}
	h.deliver()
	s.catchUp()
	answer(cds)
	answer(eds)
	want("after what the proxy asked for", 0, 0)
	change("CDS", "a", "a:2")
	want("after a change that was sent at once", 1, 0)
	change("CDS", "a", "a:3") // waits for the answer to a:2
	now = now.Add(time.Second)
	change("EDS", "b", "b:2")
	want("while a part waits", 1, 0)
	now = now.Add(time.Second)
	answer(cds)
	want("after the last part", 2, 2)
	answer(cds)
	change("CDS", "a", "a:4")
	want("after another", 3, 2)
	change("CDS", "a", "a:5")
	change("CDS", "a", "a:4") // reverts the waiting change
	now = now.Add(time.Second)
	answer(cds)
	answer(eds)
	change("EDS", "b", "b:3")
	want("after one that was taken back", 4, 2)
}
