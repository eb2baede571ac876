package facts

import (
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// ordered returns the clusters in the order of precedence: the local one, then by id.
func (t *Tables) ordered(r *derive.Reads) []mesh.ClusterID {
	return toFront(keys(t.allClusters.Lookup(r, struct{}{})), func(id mesh.ClusterID) bool { return id == t.Cfg.Local })
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
func (t *Tables) servicesNamed(r *derive.Reads, host string) []*snapshot.Service {
	list := values(t.servicesOf.Lookup(r, host))
	if name, namespace, ok := snapshot.ExportedName(host); ok {
		list = t.exported(r, name, namespace, host)
	}
	return toFront(list, func(s *snapshot.Service) bool { return s.Cluster == t.Cfg.Local })
}

// decisive returns the Service that decides the fields of a host which do not differ by
// cluster, or nil if no cluster has one.
func (t *Tables) decisive(r *derive.Reads, host string) *snapshot.Service {
	var first *snapshot.Service
	for _, s := range t.servicesOf.Lookup(r, host) {
		if first == nil || s.Cluster == t.Cfg.Local {
			first = s
		}
	}
	return first
}
