package load

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/registry"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/source"
)

// seen holds all objects of a cluster.
type seen struct {
	mu      sync.Mutex
	objects map[snapshot.Key]snapshot.Object
}

func newSeen() *seen { return &seen{objects: make(map[snapshot.Key]snapshot.Object)} }

func (s *seen) add(events []snapshot.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if e.Object == nil {
			delete(s.objects, e.Key)
		} else {
			s.objects[e.Key] = e.Object
		}
	}
}

// isConfiguration reports whether only the control planes of a cluster read its objects of a kind.
func isConfiguration(kind snapshot.Kind) bool {
	return slices.ContainsFunc(source.Watched(), func(r source.Resource) bool { return r.Kind == kind && r.Use == source.ForConfiguration })
}

// Views returns the mesh as the control planes of each cluster know it, that of the first cluster
// first. A cluster whose control plane is in another cluster has none.
func (m *Mesh) Views(ctx context.Context) ([]*registry.Contents, error) {
	out := []*registry.Contents{m.Contents}
	if len(m.readers) == 1 {
		return out, nil
	}
	var events []snapshot.Event
	var ids []mesh.ClusterID
	for _, r := range m.readers {
		ids = append(ids, r.cluster.ID)
		for key, object := range r.seen.objects {
			events = append(events, snapshot.Event{Key: key, Object: object})
		}
	}
	slices.SortFunc(events, func(a, b snapshot.Event) int { return strings.Compare(a.Key.String(), b.Key.String()) })
	for _, r := range m.readers[1:] {
		if !r.seen.hasControlPlane(source.SystemNamespaceOf(m.cfg.SystemNamespace)) {
			continue
		}
		view, err := registry.ContentsOf(ctx, registry.Config{
			Local: r.cluster.ID, Clusters: ids, TrustDomain: m.cfg.TrustDomain,
			SystemNamespace: source.SystemNamespaceOf(m.cfg.SystemNamespace), Now: m.cfg.Now,
		}, events, m.cfg.Resolve)
		if err != nil {
			return nil, err
		}
		out = append(out, view)
	}
	return out, nil
}

// hasControlPlane reports whether a cluster has a control plane of its own. A cluster that uses the
// control plane of another cluster has a Service istiod without pods, or webhooks with a URL.
func (s *seen) hasControlPlane(systemNamespace string) bool {
	workloads := false
	for _, key := range slices.Collect(maps.Keys(s.objects)) {
		switch o := s.objects[key].(type) {
		case *snapshot.Service:
			if len(o.Selector) == 0 && snapshot.IsControlPlane(o.Namespace, o.Name, systemNamespace) {
				return false
			}
		case *snapshot.Injector:
			if o.Webhooks[0].Service == "" {
				return false
			}
		case *snapshot.Pod, *snapshot.MeshSettings:
			workloads = true
		}
		workloads = workloads || isConfiguration(key.Kind)
	}
	return workloads
}
