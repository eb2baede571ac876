package xdsgen

import (
	"cmp"
	"maps"
	"slices"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
)

// LostRoute is routes of a VirtualService to a subset of a service without endpoints: requests that a
// proxy sends on these routes fail.
type LostRoute struct {
	Namespace, Name string // of the VirtualService
	Subset          string
	// Labels are those of the subset. Nil means that no DestinationRule for the proxy defines it.
	Labels map[string]string
}

// LostRoutes returns the routes of a proxy to subsets of a service that do not exist, or that have no
// endpoint, sorted and each once. A service without endpoints has none.
func LostRoutes(s *snapshot.Snapshot, n proxy.Node, svc *snapshot.MeshService) []LostRoute {
	endpoints := s.Endpoints.Get(svc.Key)
	if endpoints == nil {
		return nil
	}
	_, labels := proxy.PodOf(s, n)
	rule := s.Rules.Get(svc.Key).For(snapshot.RuleClientOf(s.Namespaces.Get(n.Namespace), labels))
	has := func(want map[string]string) bool {
		for _, list := range endpoints.ByPort {
			if slices.ContainsFunc(list, func(e snapshot.Endpoint) bool { return e.HasLabels(want) }) {
				return true
			}
		}
		return false
	}
	var out []LostRoute
	type route struct{ namespace, name, subset string }
	known := map[route]bool{}
	for _, v := range routesOfProxy(s, n, labels) {
		for d := range v.Destinations {
			r := route{v.Namespace, v.Name, d.GetSubset()}
			if d.GetHost() != svc.Host || r.subset == "" || known[r] {
				continue
			}
			known[r] = true
			lost := LostRoute{Namespace: v.Namespace, Name: v.Name, Subset: r.subset}
			if subset := rule.Subset(r.subset); subset != nil {
				if has(subset.GetLabels()) {
					continue
				}
				lost.Labels = subset.GetLabels()
			}
			out = append(out, lost)
		}
	}
	return out
}

// routesOfProxy returns the VirtualServices that apply to a proxy, by name.
func routesOfProxy(s *snapshot.Snapshot, n proxy.Node, labels map[string]string) []*snapshot.VirtualService {
	all := map[*snapshot.VirtualService]bool{}
	add := func(list []*snapshot.VirtualService) {
		for _, v := range list {
			all[v] = true
		}
	}
	if n.ID.Type == mesh.Router {
		for _, gw := range proxy.GatewaysOf(s, labels) {
			if routes := s.GatewayRoutes.Get(gw.Namespace + "/" + gw.Name); routes != nil {
				add(routes.For(n.Namespace))
			}
		}
	} else {
		for _, h := range s.Routes.All() {
			add(h.HTTP.For(n.Namespace))
			add(h.Streams.For(n.Namespace))
		}
	}
	return slices.SortedFunc(maps.Keys(all), func(a, b *snapshot.VirtualService) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}
