package registry

import (
	"maps"
	"slices"

	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// discovery holds back the objects of namespaces that discoverySelectors of MeshConfig
// leave out of the mesh.
type discovery struct {
	selectors []*meshv1alpha1.LabelSelector // none: all namespaces are in the mesh
	held      map[clusterNamespace]map[snapshot.Key]snapshot.Event
}

type clusterNamespace struct {
	cluster   mesh.ClusterID
	namespace string
}

// discovers reports whether a namespace is in the mesh. The system namespace and the root
// namespace always are.
func (t *tables) discovers(at clusterNamespace) bool {
	if len(t.discovery.selectors) == 0 || at.namespace == "" || at.namespace == t.cfg.SystemNamespace ||
		at.namespace == meshConfig(t.settingsOf(nil, t.cfg.Local)).GetRootNamespace() {
		return true
	}
	ns, ok := t.namespaces.Get(nil, objectKey{at.cluster, "", at.namespace})
	return ok && slices.ContainsFunc(t.discovery.selectors, func(s *meshv1alpha1.LabelSelector) bool { return matchesLabels(s, ns.Labels) })
}

// matchesLabels reports whether a selector selects an object with these labels.
func matchesLabels(s *meshv1alpha1.LabelSelector, labels map[string]string) bool {
	if !snapshot.Selects(s.GetMatchLabels(), labels) {
		return false
	}
	for _, e := range s.GetMatchExpressions() {
		value, there := labels[e.GetKey()]
		listed := there && slices.Contains(e.GetValues(), value)
		var matches bool
		switch e.GetOperator() {
		case "In":
			matches = listed
		case "NotIn":
			matches = !listed
		case "Exists":
			matches = there
		case "DoesNotExist":
			matches = !there
		}
		if !matches {
			return false
		}
	}
	return true
}

// apply enters one event.
func (t *tables) apply(e snapshot.Event) {
	t.clusters.Set(e.Key.Cluster, struct{}{})
	if at := (clusterNamespace{e.Key.Cluster, e.Key.Namespace}); !t.discovers(at) {
		t.discovery.hold(at, e)
		return
	}
	switch {
	case e.Key.Kind == snapshot.KindMeshSettings && e.Key.Cluster == t.cfg.Local:
		t.enter(e)
		t.discovery.selectors = meshConfig(t.settingsOf(nil, t.cfg.Local)).GetDiscoverySelectors()
		t.holdBack()
		t.release()
	case e.Key.Kind == snapshot.KindNamespace:
		at := clusterNamespace{e.Key.Cluster, e.Key.Name}
		was := t.discovers(at)
		t.enter(e)
		switch is := t.discovers(at); {
		case was && !is:
			t.holdBack()
		case is && !was:
			t.release()
		}
	default:
		t.enter(e)
	}
}

// hold keeps the object of an event back, or forgets it.
func (d *discovery) hold(at clusterNamespace, e snapshot.Event) {
	if e.Object == nil {
		delete(d.held[at], e.Key)
		return
	}
	if d.held == nil {
		d.held = make(map[clusterNamespace]map[snapshot.Key]snapshot.Event)
	}
	if d.held[at] == nil {
		d.held[at] = make(map[snapshot.Key]snapshot.Event)
	}
	d.held[at][e.Key] = e
}

// holdBack removes the objects of namespaces that are not in the mesh.
func (t *tables) holdBack() {
	if len(t.discovery.selectors) == 0 {
		return
	}
	var out []snapshot.Event
	for _, input := range t.inputs {
		for e := range input.events {
			if !t.discovers(clusterNamespace{e.Key.Cluster, e.Key.Namespace}) {
				out = append(out, e)
			}
		}
	}
	for _, e := range out {
		t.enter(snapshot.Event{Key: e.Key})
		t.discovery.hold(clusterNamespace{e.Key.Cluster, e.Key.Namespace}, e)
	}
}

// release enters the held objects of namespaces that are in the mesh now.
func (t *tables) release() {
	for at, events := range t.discovery.held {
		if t.discovers(at) {
			delete(t.discovery.held, at)
			for e := range maps.Values(events) {
				t.enter(e)
			}
		}
	}
}
