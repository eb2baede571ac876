package registry

import (
	"iter"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// remove removes a cluster and its objects.
func (t *tables) remove(id mesh.ClusterID) {
	for _, k := range t.keys(id) {
		t.enter(snapshot.Event{Key: k})
	}
	maps.DeleteFunc(t.discovery.held, func(at clusterNamespace, _ map[snapshot.Key]snapshot.Event) bool { return at.cluster == id })
	t.clusters.Delete(id)
	t.withPods.Delete(id)
}

// keys returns the keys of all objects of a cluster.
func (t *tables) keys(id mesh.ClusterID) []snapshot.Key {
	var out []snapshot.Key
	for _, input := range t.inputs {
		for e := range input.events {
			if e.Key.Cluster == id {
				out = append(out, e.Key)
			}
		}
	}
	for at, held := range t.discovery.held {
		if at.cluster == id {
			out = slices.AppendSeq(out, maps.Keys(held))
		}
	}
	return out
}

// enter sets the object of an event in its table, or removes it.
func (t *tables) enter(e snapshot.Event) {
	if input := t.inputs[e.Key.Kind]; input != nil {
		input.apply(e)
	}
	if e.Key.Kind == snapshot.KindPod && e.Object != nil {
		t.withPods.Set(e.Key.Cluster, struct{}{})
	}
}

func keys[K, V any](seq iter.Seq2[K, V]) (out []K) {
	for k := range seq {
		out = append(out, k)
	}
	return out
}

func values[K, V any](seq iter.Seq2[K, V]) (out []V) {
	for _, v := range seq {
		out = append(out, v)
	}
	return out
}
