package registry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// testRegistry is a running registry, which publishes one snapshot at a time.
type testRegistry struct {
	*Registry
	published chan *snapshot.Snapshot
}

func run(t *testing.T, clusters ...mesh.ClusterID) *testRegistry {
	t.Helper()
	r := &testRegistry{published: make(chan *snapshot.Snapshot, 100)}
	r.Registry = New(Config{
		Local: "c1", Clusters: clusters, SystemNamespace: "istio-system",
		Publish: func(s *snapshot.Snapshot, _ *snapshot.Changes) { r.published <- s },
		Log:     slog.New(slog.DiscardHandler), Now: time.Now,
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *testRegistry) next(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	select {
	case s := <-r.published:
		return s
	case <-time.After(time.Minute):
		t.Fatal("no snapshot was published")
		return nil
	}
}

// helloIn returns a Service, its pods and their EndpointSlice.
func helloIn(c mesh.ClusterID, ips ...string) []snapshot.Event {
	events := []snapshot.Event{up(service(c, "hello")), up(system(c, "n-"+string(c)))}
	var pods []*snapshot.Pod
	for _, ip := range ips {
		p := pod(c, "p-"+ip, ip)
		pods = append(pods, p)
		events = append(events, up(p))
	}
	return append(events, up(slice(c, "hello", "x", pods...)))
}

func addresses(s *snapshot.Snapshot) []string {
	var out []string
	if eps := s.Endpoints.Get(host); eps != nil {
		for _, e := range eps.ByPort["http"] {
			out = append(out, e.Address.String())
		}
	}
	return out
}

func TestClustersComeAndGo(t *testing.T) {
	r := run(t, "c1")
	r.Expect("c2")
	r.Apply(helloIn("c1", "10.1.0.1"))
	r.Synced("c1")
	r.Replace("c2", helloIn("c2", "10.2.0.1", "10.2.0.2"))
	select {
	case <-r.Ready():
		t.Fatal("a snapshot was published before an expected cluster was read")
	default:
	}
	r.Synced("c2")
	if got, want := addresses(r.next(t)), []string{"10.1.0.1", "10.2.0.1", "10.2.0.2"}; !slices.Equal(got, want) {
		t.Fatalf("endpoints %v, want %v", got, want)
	}

	// Repeating events changes nothing, so the next snapshot is of the later events. An
	// expected third cluster no longer delays it.
	r.Replace("c2", helloIn("c2", "10.2.0.1", "10.2.0.2"))
	r.Replace("c2", helloIn("c2", "10.2.0.2", "10.2.0.3"))
	if got, want := addresses(r.next(t)), []string{"10.1.0.1", "10.2.0.2", "10.2.0.3"}; !slices.Equal(got, want) {
		t.Fatalf("endpoints %v, want %v", got, want)
	}
	r.Expect("c3")
	r.Apply(helloIn("c3", "10.3.0.1"))
	for r.next(t).NetworkOf("c3") != "n-c3" {
	}

	r.Remove("c2")
	for {
		s := r.next(t)
		if s.Networks.Get("c2") != nil {
			continue
		}
		if got, want := addresses(s), []string{"10.1.0.1", "10.3.0.1"}; !slices.Equal(got, want) {
			t.Errorf("endpoints %v, want %v", got, want)
		}
		if s.Pods.Get("c2/sample/p-10.2.0.2") != nil {
			t.Error("a pod of the removed cluster is still known")
		}
		break
	}
	// Events in the same batch as the removal remain.
	r.Remove("c3")
	r.Apply(helloIn("c3", "10.3.0.9"))
	for s := r.next(t); !slices.Equal(addresses(s), []string{"10.1.0.1", "10.3.0.9"}); s = r.next(t) {
		if slices.Contains(addresses(s), "10.3.0.1") && s.Pods.Get("c3/sample/p-10.3.0.9") != nil {
			t.Fatal("old and new objects of the cluster are mixed")
		}
	}
}

// TestReplaceIsOneChange: facts that stay equal keep their address and are never
// missing.
func TestReplaceIsOneChange(t *testing.T) {
	b := newTestState(t)
	b.apply(append(helloIn("c1", "10.1.0.1"), helloIn("c2", "10.2.0.1", "10.2.0.2")...)...)
	before := b.snap
	batch := newBatch()
	batch.replace("c2", helloIn("c2", "10.2.0.1", "10.2.0.2"))
	batch.into(b.s)
	changes := b.apply()
	if len(changes.Endpoints)+len(changes.Services) > 0 || changes.Everywhere {
		t.Errorf("equal objects made changes: %+v", changes)
	}
	if before.Endpoints != b.snap.Endpoints {
		t.Error("the table of endpoints is a new one")
	}
	batch = newBatch()
	batch.replace("c2", helloIn("c2", "10.2.0.2"))
	causes := batch.into(b.s)
	if changes = b.apply(); len(changes.Endpoints) != 1 || changes.Everywhere {
		t.Errorf("changes: %+v", changes)
	}
	if got, want := addresses(b.snap), []string{"10.1.0.1", "10.2.0.2"}; !slices.Equal(got, want) {
		t.Errorf("endpoints %v, want %v", got, want)
	}
	if !slices.ContainsFunc(causes, func(c snapshot.Cause) bool { return c.String() == "Cluster c2 (cluster c2)" }) {
		t.Errorf("the causes do not name the cluster: %v", causes)
	}
}

func TestClusterBalancing(t *testing.T) {
	b := newTestState(t)
	b.apply(append(helloIn("c1", "10.1.0.1"), helloIn("c2", "10.2.0.1")...)...)
	type weights [2]uint32
	for _, tt := range []struct {
		c1, c2  snapshot.Balancing
		weights weights
	}{
		{weights: weights{0, 0}},
		{c2: snapshot.Balancing{Weight: 50}, weights: weights{2, 1}},
		{c2: snapshot.Balancing{Weight: 100}, weights: weights{0, 0}},
		{c2: snapshot.Balancing{Weight: 200}, weights: weights{0, 2}},
		{c1: snapshot.Balancing{Weight: 30}, c2: snapshot.Balancing{Weight: 75}, weights: weights{6, 15}},
		{c2: snapshot.Balancing{Drained: true}},
		{c1: snapshot.Balancing{Demoted: true}},
	} {
		b.s.SetBalancing("c1", tt.c1)
		b.s.SetBalancing("c2", tt.c2)
		b.apply()
		eps := b.endpoints()
		if got := (weights{eps[0].Weight, eps[1].Weight}); got != tt.weights {
			t.Errorf("%+v: weights %v", tt, got)
		}
		for i, s := range []snapshot.Balancing{tt.c1, tt.c2} {
			if eps[i].Drained != s.Drained || eps[i].Demoted != s.Demoted {
				t.Errorf("%+v: endpoint %d: %+v", tt, i, eps[i])
			}
		}
	}
	if b.s.SetBalancing("c1", snapshot.Balancing{Demoted: true}) {
		t.Error("the balancing that a cluster has changed something")
	}
}

// TestFirstSnapshotNamesAllCauses: the first snapshot names all events before it, and a
// later one names no events that changed nothing.
func TestFirstSnapshotNamesAllCauses(t *testing.T) {
	var published []*snapshot.Changes
	at := epoch
	r := New(Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1", "c2"}, SystemNamespace: "istio-system",
		Publish: func(_ *snapshot.Snapshot, c *snapshot.Changes) { published = append(published, c) },
		Log:     slog.New(slog.DiscardHandler), Now: func() time.Time { return at },
	})
	turn := func() {
		at = at.Add(time.Second)
		r.turn(t.Context())
	}
	web := service("c1", "web")
	r.Replace("c1", []snapshot.Event{up(web)})
	turn()
	r.Synced("c1")
	r.Synced("c2")
	turn()
	r.Apply([]snapshot.Event{up(web)}) // nothing new
	turn()
	other := service("c1", "other")
	later := at
	r.Apply([]snapshot.Event{up(other)})
	turn()
	if len(published) != 2 {
		t.Fatalf("%d snapshots", len(published))
	}
	for i, want := range []snapshot.Changes{
		{Since: epoch, Events: 2, Causes: []snapshot.Cause{
			{Key: snapshot.Key{Kind: snapshot.KindCluster, Cluster: "c1", Name: "c1"}}, {Key: web.Key()},
		}},
		{Since: later, Events: 1, Causes: []snapshot.Cause{{Key: other.Key()}}},
	} {
		got := snapshot.Changes{Since: published[i].Since, Events: published[i].Events, Causes: published[i].Causes}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("snapshot %d: %s", i+1, diff)
		}
	}
}

// TestNewClusterJoinsItsHosts: a new cluster computes only the services that it has, and
// changes nothing else that services or proxies of other clusters read.
func TestNewClusterJoinsItsHosts(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	for i := range 20 {
		b.apply(up(service("c1", fmt.Sprint("svc-", i))), up(service("c2", fmt.Sprint("svc-", i))))
	}
	p := pod("c3", "p", "10.3.0.1")
	joined, changes := b.joins(
		up(&snapshot.Namespace{Meta: meta("c3", "", "istio-system", mesh.LabelNetwork, "n3")}),
		up(service("c3", "svc-7")), up(p), up(slice("c3", "svc-7", "svc-7", p)),
	)
	if joined != 2 { // its endpoints and the service itself
		t.Errorf("%d facts were computed, want 2", joined)
	}
	if len(changes.Services)+len(changes.Endpoints) != 2 || changes.Kinds() != snapshot.ServiceFacts|snapshot.EndpointFacts|snapshot.PortFacts {
		t.Errorf("changes %+v", changes)
	}
	if changes.Traits || !maps.Equal(changes.Networks, map[mesh.ClusterID]struct{}{"c3": {}}) {
		t.Errorf("changes %+v, want those of one cluster", changes)
	}
}
