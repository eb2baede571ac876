package server

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// entryOf returns a ServiceEntry with as many hosts, ports and endpoints.
func entryOf(hosts, ports, endpoints int) *snapshot.ServiceEntry {
	e := &snapshot.ServiceEntry{
		Meta:       snapshot.Meta{Cluster: "c1", Namespace: "ns", Name: "e"},
		Resolution: snapshot.ByEndpoints, Endpoints: make([]snapshot.EntryEndpoint, endpoints),
	}
	for i := range hosts {
		e.Hosts = append(e.Hosts, fmt.Sprintf("h%d.example", i))
	}
	for i := range ports {
		e.Ports = append(e.Ports, snapshot.ServicePort{Name: fmt.Sprint("p", i), Number: uint32(i + 1), Protocol: mesh.TCP})
	}
	return e
}

// trialServer returns a server whose registry runs with a first snapshot.
func trialServer(t *testing.T) *Server {
	t.Helper()
	r := registry.New(registry.Config{
		Local: "c1", Clusters: []mesh.ClusterID{"c1"}, SystemNamespace: mesh.DefaultSystemNamespace,
		Publish: func(*snapshot.Snapshot, *snapshot.Changes) {}, Log: slog.New(slog.DiscardHandler), Now: time.Now,
	})
	r.Synced("c1")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	<-r.Ready()
	return &Server{cfg: Config{ClusterID: "c1", Now: time.Now}, registry: r, checking: make(chan struct{}, 1)}
}

// TestTrialIsLimited: what an object would become counts, not only the objects.
func TestTrialIsLimited(t *testing.T) {
	for name, tc := range map[string]struct {
		object snapshot.Object
		more   map[snapshot.Kind][]snapshot.Object
		large  bool
	}{
		"small":     {object: entryOf(10, 10, 10)},
		"clusters":  {object: entryOf(1000, 21, 0), large: true},
		"endpoints": {object: entryOf(10, 10, 300), large: true},
		"others":    {object: entryOf(1, 1, 1), more: map[snapshot.Kind][]snapshot.Object{snapshot.KindServiceEntry: {entryOf(1000, 21, 0)}}, large: true},
	} {
		if got := sizeOf(tc.more, tc.object); got > maxCheckedMesh != tc.large {
			t.Errorf("%s: the size is %d, and the limit %d", name, got, maxCheckedMesh)
		}
	}
	selecting := entryOf(10, 10, 0)
	selecting.Selector = map[string]string{"app": "a"}
	pods := make([]snapshot.Object, 300)
	for i := range pods {
		pods[i] = &snapshot.Pod{Meta: snapshot.Meta{Cluster: "c1", Namespace: "ns", Name: fmt.Sprint("p", i)}}
	}
	if got := sizeOf(map[snapshot.Kind][]snapshot.Object{snapshot.KindPod: pods}, selecting); got <= maxCheckedMesh {
		t.Errorf("a ServiceEntry that selects 300 pods has the size %d", got)
	}
}

// TestTrialEnds: the computation ends with its caller, and leaves no goroutine.
func TestTrialEnds(t *testing.T) {
	s := trialServer(t)
	if _, err := s.withObject(t.Context(), nil, entryOf(10, 2, 2)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.withObject(ctx, nil, entryOf(5000, 2, 20)); err == nil {
		t.Error("a computation without a caller was made")
	}
	if got := s.findingsOfChange(ctx, entryOf(10, 2, 2)); got != nil {
		t.Errorf("without a caller, the findings are %v", got)
	}
	select {
	case s.checking <- struct{}{}:
	default:
		t.Error("the place of the computation is taken")
	}
}
