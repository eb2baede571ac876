package registry

import (
	"cmp"
	"iter"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// remove removes a cluster and its objects.
func (t *tables) remove(id mesh.ClusterID) {
	for _, k := range t.keys(id) {
		t.enter(snapshot.Event{Key: k})
	}
	maps.DeleteFunc(t.discovery.held, func(at clusterNamespace, _ map[snapshot.Key]snapshot.Event) bool { return at.cluster == id })
	t.clusters.Delete(id)
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
}

// ordered returns the clusters in the order of precedence: the local one, then by id.
func (t *tables) ordered(r *derive.Reads) []mesh.ClusterID {
	return toFront(keys(t.allClusters.Lookup(r, struct{}{})), func(id mesh.ClusterID) bool { return id == t.cfg.Local })
}

// toFront moves the first element for which is holds to the front. The others keep their
// order.
func toFront[T any](list []T, is func(T) bool) []T {
	if i := slices.IndexFunc(list, is); i > 0 {
		first := list[i]
		copy(list[1:i+1], list[:i])
		list[0] = first
	}
	return list
}

// servicesNamed returns the Services of a host, in the order of precedence of their
// clusters.
func (t *tables) servicesNamed(r *derive.Reads, host string) []*snapshot.Service {
	list := values(t.servicesOf.Lookup(r, host))
	if name, namespace, ok := snapshot.ExportedName(host); ok {
		list = t.exported(r, name, namespace, host)
	}
	return toFront(list, func(s *snapshot.Service) bool { return s.Cluster == t.cfg.Local })
}

// decisive returns the Service that decides the fields of a host which do not differ by
// cluster, or nil if no cluster has one.
func (t *tables) decisive(r *derive.Reads, host string) *snapshot.Service {
	var first *snapshot.Service
	for _, s := range t.servicesOf.Lookup(r, host) {
		if first == nil || s.Cluster == t.cfg.Local {
			first = s
		}
	}
	return first
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

// setBalancing sets the Balancing of a cluster and reports whether it changed.
func (t *tables) setBalancing(id mesh.ClusterID, b snapshot.Balancing) bool {
	if b == (snapshot.Balancing{}) {
		return t.balancing.Delete(id)
	}
	return t.balancing.Set(id, b)
}

// share is the part of a cluster's endpoints in load balancing.
type share struct {
	drained, demoted bool
	weight           uint32 // of each endpoint; 0 means 1
}

// defaultWeight is the weight of endpoints in percent in a cluster without a weight.
const defaultWeight = 100

// clusterShare returns the share of a cluster. Weights are divided by the greatest common
// divisor of the weights of all clusters.
func (t *tables) clusterShare(r *derive.Reads, id mesh.ClusterID) (share, bool) {
	own, _ := t.balancing.Get(r, id)
	divisor := uint32(defaultWeight)
	for _, b := range t.allBalancing.Lookup(r, struct{}{}) {
		if b.Weight != 0 {
			divisor = gcd(divisor, b.Weight)
		}
	}
	out := share{drained: own.Drained, demoted: own.Demoted}
	if weight := cmp.Or(own.Weight, defaultWeight); weight != defaultWeight || divisor != defaultWeight {
		out.weight = weight / divisor
	}
	return out, true
}

func gcd(a, b uint32) uint32 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
