package facts

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
	Held      map[clusterNamespace]map[snapshot.Key]snapshot.Event
}

type clusterNamespace struct {
	cluster   mesh.ClusterID
	namespace string
}

// discovers reports whether a namespace is in the mesh. The system namespace and the root
// namespace always are.
func (t *Tables) discovers(at clusterNamespace) bool {
	if len(t.Discovery.selectors) == 0 || at.namespace == "" || at.namespace == t.Cfg.SystemNamespace ||
		at.namespace == meshConfig(t.settingsOf(nil, t.Cfg.Local)).GetRootNamespace() {
		return true
	}
	ns, ok := t.namespaces.Get(nil, ObjectKey{at.cluster, "", at.namespace})
	return ok && slices.ContainsFunc(t.Discovery.selectors, func(s *meshv1alpha1.LabelSelector) bool { return matchesLabels(s, ns.Labels) })
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

// Apply enters one event.
func (t *Tables) Apply(e snapshot.Event) {
	t.Clusters.Set(e.Key.Cluster, struct{}{})
	if at := (clusterNamespace{e.Key.Cluster, e.Key.Namespace}); !t.discovers(at) {
		t.Discovery.hold(at, e)
		return
	}
	switch {
	case e.Key.Kind == snapshot.KindMeshSettings && e.Key.Cluster == t.Cfg.Local:
		t.enter(e)
		t.Discovery.selectors = meshConfig(t.settingsOf(nil, t.Cfg.Local)).GetDiscoverySelectors()
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
		delete(d.Held[at], e.Key)
		return
	}
	if d.Held == nil {
		d.Held = make(map[clusterNamespace]map[snapshot.Key]snapshot.Event)
	}
	if d.Held[at] == nil {
		d.Held[at] = make(map[snapshot.Key]snapshot.Event)
	}
	d.Held[at][e.Key] = e
}

// holdBack removes the objects of namespaces that are not in the mesh.
func (t *Tables) holdBack() {
	if len(t.Discovery.selectors) == 0 {
		return
	}
	var out []snapshot.Event
	for _, input := range t.Inputs {
		for e := range input.Events {
			if !t.discovers(clusterNamespace{e.Key.Cluster, e.Key.Namespace}) {
				out = append(out, e)
			}
		}
	}
	for _, e := range out {
		t.enter(snapshot.Event{Key: e.Key})
		t.Discovery.hold(clusterNamespace{e.Key.Cluster, e.Key.Namespace}, e)
	}
}

// release enters the held objects of namespaces that are in the mesh now.
func (t *Tables) release() {
	for at, events := range t.Discovery.Held {
		if t.discovers(at) {
			delete(t.Discovery.Held, at)
			for e := range maps.Values(events) {
				t.enter(e)
			}
		}
	}
}
