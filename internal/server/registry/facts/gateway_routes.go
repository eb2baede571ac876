package facts

import (
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// addGateways adds the tables of Gateway objects and their VirtualServices.
func (t *Tables) addGateways() {
	t.Configs = derive.Single(t.Graph, "gateway configs", slices.Equal[[]*snapshot.Gateway], func(r *derive.Reads) []*snapshot.Gateway {
		return oldestFirst(t.allGateways.Lookup(r, struct{}{}))
	})
	t.ServerConflicts = derive.Single(t.Graph, "conflicts of gateways", slices.Equal[[]ServerConflict], t.findServerConflicts)
	t.routedBy = derive.NewIndex(t.routed, func(into []string, _ ObjectKey, v routedService) []string {
		for _, name := range v.Gateways {
			if name != snapshot.MeshGateway {
				into = append(into, name)
			}
		}
		return into
	})
	t.GatewayRoutes = derive.New(t.Graph, "routes of gateways", strings.Compare, func(a, b *snapshot.ClientRoutes) bool { return a.Same(*b) }, t.routesOfGateway, t.routedBy)
}

// routesOfGateway returns the VirtualServices that name a Gateway object.
func (t *Tables) routesOfGateway(r *derive.Reads, name string) (*snapshot.ClientRoutes, bool) {
	var all []routedService
	for _, v := range t.routedBy.Lookup(r, name) {
		all = append(all, v)
	}
	slices.SortFunc(all, compareAge)
	routes := clientRoutes(all, func(list []routedService) []*snapshot.VirtualService { return servicesOf(list) })
	return &routes, true
}
