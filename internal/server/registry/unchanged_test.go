package registry

import (
	"log/slog"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	securityv1beta1 "istio.io/api/security/v1beta1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// unchanged returns objects before and after a change that no fact depends on, such as
// the heartbeat of a node.
func unchanged() (before, after []snapshot.Object) {
	region := mesh.Locality{Region: "r", Zone: "z"}
	settings := &meshv1alpha1.MeshConfig{TrustDomain: "td"}
	gateway := &networkingv1alpha3.Gateway{Servers: []*networkingv1alpha3.Server{{Hosts: []string{"*"}, Port: &networkingv1alpha3.Port{Number: 15443, Protocol: "TLS", Name: "tls"}}}}
	strict := &securityv1beta1.PeerAuthentication{Mtls: &securityv1beta1.PeerAuthentication_MutualTLS{Mode: securityv1beta1.PeerAuthentication_MutualTLS_STRICT}}
	sidecar := &networkingv1alpha3.Sidecar{OutboundTrafficPolicy: &networkingv1alpha3.OutboundTrafficPolicy{}}
	objects := func(label string, line int) []snapshot.Object {
		pods := []*snapshot.Pod{pod("c1", "p", "10.1.0.1"), pod("c2", "p", "10.2.0.1")}
		config := meta("c1", "sample", "a")
		config.Place = snapshot.Place{File: "mesh.yaml", Line: line}
		root := config
		root.Namespace = "istio-system"
		kube := &snapshot.KubeGateway{Meta: meta("c2", "istio-system", "eastwest"), Network: "n2", Addresses: []string{"198.51.100.1"}, Ports: []uint32{15443}}
		return []snapshot.Object{
			&snapshot.Namespace{Meta: meta("c1", "", "istio-system", mesh.LabelNetwork, "n1", "seen", label)},
			&snapshot.Namespace{Meta: meta("c1", "", "sample", "seen", label)},
			&snapshot.Node{Meta: meta("c1", "", "node-c1", "seen", label), Locality: region},
			&snapshot.MeshSettings{Meta: meta("c1", "istio-system", "istio", "seen", label), Mesh: proto.CloneOf(settings)},
			service("c1", "hello"), service("c2", "hello"),
			slice("c1", "hello", "hello-1", pods[0]), slice("c2", "hello", "hello-2", pods[1]), pods[0], pods[1], kube,
			&snapshot.Secret{Meta: meta("c1", "sample", "key")},
			&snapshot.Gateway{Meta: config, Kind: snapshot.KindGateway, Spec: proto.CloneOf(gateway)},
			&snapshot.PeerAuthentication{Meta: config, Kind: snapshot.KindPeerAuthentication, Spec: proto.CloneOf(strict)},
			&snapshot.PeerAuthentication{Meta: root, Kind: snapshot.KindPeerAuthentication, Spec: proto.CloneOf(strict)},
			&snapshot.Sidecar{Meta: config, Kind: snapshot.KindSidecar, Spec: proto.CloneOf(sidecar)},
			&snapshot.EnvoyFilter{Meta: config, Extensions: []snapshot.Extension{{Name: "x", Body: "y"}}},
		}
	}
	return objects("before", 1), objects("after", 2)
}

// joins applies the events and counts the services and endpoints that are recomputed.
func (b *testState) joins(events ...snapshot.Event) (joined int, changes *snapshot.Changes) {
	b.t.Helper()
	for _, e := range events {
		b.s.Apply(e)
	}
	before := b.s.Joins.Computed() + b.s.MeshServices.Computed()
	changes = b.apply()
	return int(b.s.Joins.Computed() + b.s.MeshServices.Computed() - before), changes
}

// TestUnchangedObjectsJoinNothing: an object that is repeated, or changes only in
// fields that no fact depends on, causes no work and no change.
func TestUnchangedObjectsJoinNothing(t *testing.T) {
	t.Parallel()
	before, after := unchanged()
	for i, o := range after {
		b := newTestState(t)
		for _, o := range before {
			b.s.Apply(up(o))
		}
		b.apply()
		joined, changes := b.joins(up(o))
		if joined != 0 || !changes.Empty() {
			t.Errorf("%s: %d joins, changes %+v", before[i].Key(), joined, changes)
		}
	}
}

// TestNodeOfAnotherLocality: a node counts when it is added or removed, or its locality
// changes.
func TestNodeOfAnotherLocality(t *testing.T) {
	t.Parallel()
	b := newTestState(t)
	node := &snapshot.Node{Meta: meta("c1", "", "node-c1"), Locality: mesh.Locality{Zone: "z"}}
	other := &snapshot.Node{Meta: node.Meta, Locality: mesh.Locality{Zone: "y"}}
	p := pod("c1", "p", "10.1.0.1")
	b.apply(up(service("c1", "hello")), up(slice("c1", "hello", "hello-1", p)), up(p))
	for _, e := range []snapshot.Event{up(node), up(other), down(other)} {
		if joined, changes := b.joins(e); joined != 1 || len(changes.Endpoints) != 1 {
			t.Errorf("%s: %d joins, changes %+v", e.Key, joined, changes)
		}
	}
}

// TestUnchangedObjectsPublishNothing: a batch without effect publishes no snapshot.
func TestUnchangedObjectsPublishNothing(t *testing.T) {
	t.Parallel()
	published := make(chan uint64, 1000)
	r := New(Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1", "c2"}, SystemNamespace: "istio-system", Now: time.Now,
		Log: slog.New(slog.DiscardHandler), Publish: func(s *snapshot.Snapshot, _ *snapshot.Changes) { published <- s.Seq },
	})
	before, after := unchanged()
	events := func(objects []snapshot.Object) []snapshot.Event {
		var out []snapshot.Event
		for _, o := range objects {
			out = append(out, up(o))
		}
		return out
	}
	r.Apply(events(before))
	r.Synced("c1")
	r.Synced("c2")
	r.turn(t.Context())
	for range 3 {
		for _, e := range events(after) {
			r.Apply([]snapshot.Event{e})
			r.turn(t.Context())
		}
	}
	r.Apply([]snapshot.Event{up(service("c1", "another"))})
	r.turn(t.Context())
	for want := range uint64(2) {
		if got := <-published; got != want+1 {
			t.Errorf("snapshot %d, want %d", got, want+1)
		}
	}
	if len(published) > 0 || r.Current().Seq != 2 {
		t.Errorf("%d snapshots more", len(published))
	}
}

// TestNamespaceWithoutFacts: a namespace without policies and services is removed.
func TestNamespaceWithoutFacts(t *testing.T) {
	t.Parallel()
	_, objects := unchanged()
	sidecar := objects[len(objects)-2]
	for _, events := range [][]snapshot.Event{
		{up(service("c1", "hello")), down(service("c1", "hello"))},
		{up(sidecar), down(sidecar)},
		{up(service("c1", "hello")), up(sidecar), down(service("c1", "hello")), down(sidecar)},
	} {
		b := newTestState(t)
		for i, e := range events {
			changes := b.apply(e)
			if _, changed := changes.Namespaces["sample"]; !changed {
				t.Errorf("%s: not among the changes %+v", e.Key, changes)
			}
			if there := b.snap.Namespaces.Get("sample") != nil; there == (i == len(events)-1) {
				t.Errorf("after %s the namespace has facts: %v", e.Key, there)
			}
		}
	}
}
