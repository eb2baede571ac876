package registry

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/testing/protocmp"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// testState drives the state of a registry without goroutines.
type testState struct {
	t    testing.TB
	s    *state
	snap *snapshot.Snapshot
}

func newTestState(t testing.TB) *testState {
	s := newState(Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1", "c2"}, SystemNamespace: "istio-system",
		Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return epoch },
	})
	return &testState{t: t, s: s}
}

func (b *testState) apply(events ...snapshot.Event) *snapshot.Changes {
	b.t.Helper()
	for _, e := range events {
		b.s.Apply(e)
	}
	next, changes := b.s.build(context.Background(), b.snap)
	b.snap = next
	return changes
}

func up(o snapshot.Object) snapshot.Event { return snapshot.Event{Key: o.Key(), Object: o} }

func down(o snapshot.Object) snapshot.Event { return snapshot.Event{Key: o.Key()} }

func meta(c mesh.ClusterID, ns, n string, labels ...string) snapshot.Meta {
	m := snapshot.Meta{Cluster: c, Namespace: ns, Name: n, Created: epoch, Labels: map[string]string{}}
	for i := 0; i+1 < len(labels); i += 2 {
		m.Labels[labels[i]] = labels[i+1]
	}
	return m
}

func service(c mesh.ClusterID, n string, labels ...string) *snapshot.Service {
	return &snapshot.Service{
		Meta: meta(c, "sample", n, labels...), Selector: map[string]string{"app": n},
		Ports: []snapshot.ServicePort{{Name: "http", Number: 5000, Protocol: mesh.HTTP, Target: 5000}},
	}
}

func pod(c mesh.ClusterID, n, ip string, labels ...string) *snapshot.Pod {
	return &snapshot.Pod{
		Meta: meta(c, "sample", n, append([]string{mesh.LabelTLSMode, "istio", "app", "hello"}, labels...)...),
		IPs:  []netip.Addr{netip.MustParseAddr(ip)}, ServiceAccount: "hello", Workload: "hello", Node: "node-" + string(c),
	}
}

func slice(c mesh.ClusterID, svc, n string, pods ...*snapshot.Pod) *snapshot.EndpointSlice {
	e := &snapshot.EndpointSlice{
		Meta: meta(c, "sample", n), Service: svc, Ports: []snapshot.SlicePort{{Name: "http", Number: 5000}},
	}
	for _, p := range pods {
		e.Endpoints = append(e.Endpoints, snapshot.SliceEndpoint{Addresses: p.IPs, Ready: true, Pod: p.Name, Node: p.Node})
	}
	return e
}

func system(c mesh.ClusterID, network string) *snapshot.Namespace {
	return &snapshot.Namespace{Meta: meta(c, "", "istio-system", mesh.LabelNetwork, network)}
}

func node(c mesh.ClusterID, zone string) *snapshot.Node {
	return &snapshot.Node{Meta: meta(c, "", "node-"+string(c)), Locality: mesh.Locality{Region: "r", Zone: zone}}
}

func gateway(c mesh.ClusterID, network string, external ...string) *snapshot.Service {
	s := service(c, "eastwest", mesh.LabelNetwork, network)
	s.Namespace = "istio-system"
	s.Ports = []snapshot.ServicePort{{Name: "tls", Number: 15443, Protocol: mesh.TLS}}
	s.External = external
	return s
}

func peerAuth(ns, n string, mode securityv1beta1.PeerAuthentication_MutualTLS_Mode, selector map[string]string) *snapshot.PeerAuthentication {
	p := &snapshot.PeerAuthentication{
		Meta: meta("c1", ns, n), Kind: snapshot.KindPeerAuthentication,
		Spec: &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: mode}},
	}
	if selector != nil {
		p.Spec.Selector = &typev1beta1.WorkloadSelector{MatchLabels: selector}
	}
	return p
}

const host = "hello.sample.svc.cluster.local"

func (b *testState) endpoints() []snapshot.Endpoint {
	eps := b.snap.Endpoints.Get(host)
	if eps == nil {
		return nil
	}
	return eps.ByPort["http"]
}

func TestServiceOfTwoClustersIsOne(t *testing.T) {
	b := newTestState(t)
	p1, p2 := pod("c1", "a", "10.1.0.1"), pod("c2", "a", "10.2.0.1")
	s2 := service("c2", "hello")
	s2.Ports[0].Number = 9999 // the local cluster decides
	b.apply(up(service("c1", "hello")), up(s2), up(p1), up(p2), up(slice("c1", "hello", "x", p1)), up(slice("c2", "hello", "y", p2)),
		up(system("c1", "n1")), up(system("c2", "n2")), up(node("c1", "z1")), up(node("c2", "z2")))
	svc := b.snap.Services.Get(host)
	if svc == nil || len(svc.Clusters) != 2 || svc.Ports[0].Number != 5000 {
		t.Fatalf("service: %+v", svc)
	}
	if got, want := svc.Accounts, []string{"spiffe://cluster.local/ns/sample/sa/hello"}; !slices.Equal(got, want) {
		t.Errorf("accounts %v, want %v", got, want)
	}
	eps := b.endpoints()
	if len(eps) != 2 {
		t.Fatalf("endpoints: %+v", eps)
	}
	for i, want := range []struct {
		network mesh.NetworkID
		zone    string
	}{{"n1", "z1"}, {"n2", "z2"}} {
		if eps[i].Network != want.network || eps[i].Locality.Zone != want.zone || !eps[i].MTLS {
			t.Errorf("endpoint %d: %+v, want %+v", i, eps[i], want)
		}
	}
	if eps[0].Workload != "hello;sample;hello;;c1" {
		t.Errorf("workload %q", eps[0].Workload)
	}
}

func TestOneSliceTouchesOneService(t *testing.T) {
	b := newTestState(t)
	p := pod("c1", "a", "10.1.0.1")
	events := []snapshot.Event{up(p)}
	for i := range 50 {
		n := fmt.Sprintf("svc-%d", i)
		events = append(events, up(service("c1", n)), up(slice("c1", n, n, p)))
	}
	b.apply(events...)
	before := b.snap
	q := pod("c1", "b", "10.1.0.2")
	c := b.apply(up(q), up(slice("c1", "svc-7", "svc-7", p, q)))
	if want := map[string]struct{}{"svc-7.sample.svc.cluster.local": {}}; !cmp.Equal(c.Endpoints, want) {
		t.Errorf("endpoints changed: %v", c.Endpoints)
	}
	if c.Kinds() != snapshot.EndpointFacts || len(c.Namespaces) != 0 || c.Traits || c.Everywhere {
		t.Errorf("more changed than endpoints: %+v", c)
	}
	if before.Services != b.snap.Services {
		t.Error("the table of services is a new one")
	}
	if before.Endpoints.Get("svc-8.sample.svc.cluster.local") != b.snap.Endpoints.Get("svc-8.sample.svc.cluster.local") {
		t.Error("endpoints of another service have a new address")
	}
}

func TestEqualEventChangesNothing(t *testing.T) {
	b := newTestState(t)
	p := pod("c1", "a", "10.1.0.1")
	b.apply(up(service("c1", "hello")), up(p), up(slice("c1", "hello", "x", p)), up(system("c1", "n1")), up(node("c1", "z")))
	c := b.apply(up(service("c1", "hello")), up(pod("c1", "a", "10.1.0.1")), up(slice("c1", "hello", "x", p)), up(system("c1", "n1")), up(node("c1", "z")))
	if !c.Empty() {
		t.Errorf("changes: %+v", c)
	}
}

func TestEndpointWaitsForItsPod(t *testing.T) {
	b := newTestState(t)
	p := pod("c1", "a", "10.1.0.1")
	b.apply(up(service("c1", "hello")), up(slice("c1", "hello", "x", p)))
	if eps := b.endpoints(); len(eps) != 0 {
		t.Fatalf("endpoint without its pod: %+v", eps)
	}
	b.apply(up(p))
	if eps := b.endpoints(); len(eps) != 1 {
		t.Fatalf("pod arrived: %+v", eps)
	}
	b.apply(down(p))
	if eps := b.endpoints(); len(eps) != 0 {
		t.Fatalf("pod is gone: %+v", eps)
	}
}

func TestNetworkOfEndpoint(t *testing.T) {
	settings := &snapshot.MeshSettings{
		Meta: meta("c1", "istio-system", "istio"), Mesh: &meshv1alpha1.MeshConfig{},
		Networks: &meshv1alpha1.MeshNetworks{Networks: map[string]*meshv1alpha1.Network{
			"by-registry": {Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromRegistry{FromRegistry: "c2"}}}},
			"by-cidr":     {Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromCidr{FromCidr: "10.1.0.0/16"}}}},
			"a-wider-one": {Endpoints: []*meshv1alpha1.Network_NetworkEndpoints{{Ne: &meshv1alpha1.Network_NetworkEndpoints_FromCidr{FromCidr: "10.0.0.0/8"}}}},
		}},
	}
	for _, tc := range []struct {
		name   string
		events []snapshot.Event
		labels []string
		c      mesh.ClusterID
		want   mesh.NetworkID
	}{
		{"nothing", nil, nil, "c1", ""},
		{"namespace label", []snapshot.Event{up(system("c1", "n1"))}, nil, "c1", "n1"},
		{"pod label wins", []snapshot.Event{up(system("c1", "n1"))}, []string{mesh.LabelNetwork, "own"}, "c1", "own"},
		{"label before meshNetworks", []snapshot.Event{up(system("c2", "n2")), up(settings)}, nil, "c2", "n2"},
		{"fromRegistry", []snapshot.Event{up(settings)}, nil, "c2", "by-registry"},
		{"fromCidr, the longest prefix", []snapshot.Event{up(settings)}, nil, "c1", "by-cidr"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newTestState(t)
			p := pod(tc.c, "a", "10.1.0.1", tc.labels...)
			b.apply(up(service(tc.c, "hello")), up(p), up(slice(tc.c, "hello", "x", p)))
			b.apply(tc.events...)
			if eps := b.endpoints(); len(eps) != 1 || eps[0].Network != tc.want {
				t.Errorf("endpoints %+v, want network %q", eps, tc.want)
			}
		})
	}
}

func TestPeerAuthenticationDecidesMTLS(t *testing.T) {
	const (
		strict  = securityv1beta1.PeerAuthentication_MutualTLS_STRICT
		disable = securityv1beta1.PeerAuthentication_MutualTLS_DISABLE
		unset   = securityv1beta1.PeerAuthentication_MutualTLS_UNSET
	)
	app := map[string]string{"app": "hello"}
	for _, tc := range []struct {
		name      string
		policies  []*snapshot.PeerAuthentication
		mtls      bool
		plaintext bool
	}{
		{"none", nil, true, false},
		{"mesh disables", []*snapshot.PeerAuthentication{peerAuth("istio-system", "m", disable, nil)}, false, true},
		{"namespace over mesh", []*snapshot.PeerAuthentication{peerAuth("istio-system", "m", disable, nil), peerAuth("sample", "n", strict, nil)}, true, false},
		{"unset inherits", []*snapshot.PeerAuthentication{peerAuth("istio-system", "m", disable, nil), peerAuth("sample", "n", unset, nil)}, false, true},
		{"workload over namespace", []*snapshot.PeerAuthentication{peerAuth("sample", "n", strict, nil), peerAuth("sample", "w", disable, app)}, false, false},
		{"selector of another", []*snapshot.PeerAuthentication{peerAuth("sample", "w", disable, map[string]string{"app": "x"})}, true, false},
		{"selector in the root namespace selects nothing", []*snapshot.PeerAuthentication{peerAuth("istio-system", "w", disable, app)}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newTestState(t)
			p := pod("c1", "a", "10.1.0.1")
			b.apply(up(service("c1", "hello")), up(p), up(slice("c1", "hello", "x", p)))
			for _, policy := range tc.policies {
				b.apply(up(policy))
			}
			if got := b.endpoints()[0].MTLS; got != tc.mtls {
				t.Errorf("mTLS %v, want %v", got, tc.mtls)
			}
			if got := b.snap.Services.Get(host).Plaintext; got != tc.plaintext {
				t.Errorf("plaintext %v, want %v", got, tc.plaintext)
			}
		})
	}
}

// TestPodsOfOneAddress: of several pods with one address the first by name counts.
func TestPodsOfOneAddress(t *testing.T) {
	b := newTestState(t)
	first, second := pod("c1", "a", "10.1.0.1"), pod("c1", "b", "10.1.0.1")
	first.Workload, second.Workload = "first", "second"
	byAddress := slice("c1", "hello", "x", first)
	byAddress.Endpoints[0].Pod = ""
	b.apply(up(service("c1", "hello")), up(byAddress))
	for i, step := range []struct {
		event snapshot.Event
		want  string
	}{
		{up(second), "second"},
		{up(first), "first"},
		{up(second), "first"},
		{down(first), "second"},
		{up(first), "first"},
		{down(second), "first"},
	} {
		b.apply(step.event)
		want := step.want + ";sample;hello;;c1"
		if eps := b.endpoints(); len(eps) != 1 || eps[0].Workload != want {
			t.Errorf("step %d: endpoints %+v, want the workload %s", i, eps, want)
		}
	}
}

// TestOrderDoesNotMatter: after random changes in random batches, the snapshot equals
// the snapshot of a new registry with the remaining objects.
func TestOrderDoesNotMatter(t *testing.T) {
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		b := newTestState(t)
		final := make(map[snapshot.Key]snapshot.Event)
		for range 12 {
			var batch []snapshot.Event
			for range 1 + r.IntN(6) {
				e := randomEvent(r)
				final[e.Key] = e
				batch = append(batch, e)
			}
			b.apply(batch...)
		}
		fresh := newTestState(t)
		var all []snapshot.Event
		for _, e := range final {
			all = append(all, e)
		}
		fresh.apply(all...)
		if d := cmp.Diff(fresh.snap, b.snap, protocmp.Transform(), cmpopts.EquateEmpty(),
			cmpopts.IgnoreFields(snapshot.Snapshot{}, "Seq"), cmpopts.EquateComparable(netip.Addr{}, snapshot.List[snapshot.TraceTag]{}, snapshot.List[string]{}), compareTables(), noEmptyNamespaces()); d != "" {
			t.Fatalf("seed %d: incremental differs from fresh (-fresh +incremental):\n%s", seed, d)
		}
	}
}

func compareTables() cmp.Option {
	return cmp.Options{
		tableOption[string, snapshot.MeshService](), tableOption[string, snapshot.Endpoints](),
		tableOption[uint32, snapshot.PortServices](), tableOption[string, snapshot.Pod](), tableOption[string, mesh.Locality](),
		tableOption[mesh.ClusterID, mesh.NetworkID](),
	}
}

func tableOption[K interface{ ~string | ~uint32 }, V any]() cmp.Option {
	return cmp.Transformer("table", func(t *snapshot.Table[K, V]) map[K]*V {
		return maps.Collect(t.All())
	})
}

// noEmptyNamespaces ignores namespaces without facts, which may stay.
func noEmptyNamespaces() cmp.Option {
	return cmp.Transformer("namespaces", func(t *snapshot.Table[string, snapshot.NamespaceFacts]) map[string]*snapshot.NamespaceFacts {
		out := make(map[string]*snapshot.NamespaceFacts)
		for k, v := range t.All() {
			if len(v.Policies)+len(v.EnvoyFilters)+len(v.Services) > 0 {
				out[k] = v
			}
		}
		return out
	})
}

func randomEvent(r *rand.Rand) snapshot.Event {
	c := mesh.ClusterID([]string{"c1", "c2"}[r.IntN(2)])
	podOf := func() *snapshot.Pod {
		p := pod(c, fmt.Sprintf("p%d", r.IntN(4)), fmt.Sprintf("10.%s.0.%d", c[1:], 1+r.IntN(3))) // some share an address
		p.ServiceAccount = p.Name
		p.HostNetwork = r.IntN(8) == 0
		return p
	}
	var o snapshot.Object
	switch r.IntN(11) {
	case 9, 10:
		o = randomEntry(r, c)
	case 0:
		o = system(c, fmt.Sprintf("n%d", r.IntN(2)))
	case 1:
		o = node(c, fmt.Sprintf("z%d", r.IntN(3)))
	case 2, 3:
		o = podOf()
	case 4:
		svc := service(c, []string{"hello", "other"}[r.IntN(2)])
		svc.Ports[0].Number = uint32(5000 + r.IntN(2))
		o = svc
	case 5, 6:
		var pods []*snapshot.Pod
		for range r.IntN(3) {
			pods = append(pods, podOf())
		}
		e := slice(c, []string{"hello", "other"}[r.IntN(2)], fmt.Sprintf("s%d", r.IntN(3)), pods...)
		for i := range e.Endpoints {
			if r.IntN(3) == 0 {
				e.Endpoints[i].Node = ""
			}
			if r.IntN(3) == 0 {
				e.Endpoints[i].Pod = ""
			}
		}
		o = e
	case 7:
		o = gateway(c, fmt.Sprintf("n%d", r.IntN(2)), []string{"192.0.2.1", "192.0.2.2"}[:r.IntN(3)]...)
	default:
		mode := securityv1beta1.PeerAuthentication_MutualTLS_Mode(r.IntN(4))
		o = peerAuth([]string{"sample", "istio-system"}[r.IntN(2)], "p", mode, nil)
		switch r.IntN(3) {
		case 0:
			o = envoyFilter([]string{"sample", "istio-system"}[r.IntN(2)], fmt.Sprintf("f%d", r.IntN(2)), "e")
		case 1:
			o = &snapshot.Sidecar{Meta: meta("c1", "sample", "sc"), Kind: snapshot.KindSidecar, Spec: &networkingv1alpha3.Sidecar{}}
		}
	}
	if r.IntN(4) == 0 {
		return down(o)
	}
	return up(o)
}

// TestRun: batches that arrive during a turn merge, and the first snapshot waits for
// all clusters.
func TestRun(t *testing.T) {
	published := make(chan *snapshot.Snapshot, 100)
	r := New(Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1", "c2"}, SystemNamespace: "istio-system",
		Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Publish: func(s *snapshot.Snapshot, _ *snapshot.Changes) { published <- s },
	})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	r.Apply([]snapshot.Event{up(service("c1", "hello"))})
	r.Synced("c1")
	select {
	case s := <-published:
		t.Fatalf("published %+v before c2 was read", s)
	case <-r.Ready():
		t.Fatal("ready before c2 was read")
	default:
	}
	r.Synced("c2")
	<-r.Ready()
	if s := <-published; s.Seq != 1 || s.Services.Len() != 1 {
		t.Errorf("first snapshot: %+v", s)
	}
	r.Apply([]snapshot.Event{up(service("c2", "other"))})
	if s := <-published; s.Seq != 2 || s != r.Current() || s.Services.Len() != 2 {
		t.Errorf("second snapshot: %+v", s)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func BenchmarkOneSliceOfThousandServices(b *testing.B) {
	bb := newTestState(b)
	p, q := pod("c1", "a", "10.1.0.1"), pod("c1", "b", "10.1.0.2")
	events := []snapshot.Event{up(p), up(q)}
	for i := range 1000 {
		n := fmt.Sprintf("svc-%d", i)
		events = append(events, up(service("c1", n)), up(slice("c1", n, n, p)))
	}
	bb.apply(events...)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			bb.apply(up(slice("c1", "svc-7", "svc-7", p, q)))
		} else {
			bb.apply(up(slice("c1", "svc-7", "svc-7", p)))
		}
	}
}
