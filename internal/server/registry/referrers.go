package registry

import (
	"cmp"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// destinationsOf indexes a VirtualService for sidecars by the hosts that it routes to.
func destinationsOf(into []string, _ objectKey, v routedService) []string {
	if slices.Contains(v.Gateways, snapshot.MeshGateway) {
		v.eachDestination(func(d *networkingv1alpha3.Destination) {
			if !slices.Contains(into, d.GetHost()) {
				into = append(into, d.GetHost())
			}
		})
	}
	return into
}

// eachDestination yields the destinations of all routes and mirrors.
func (v routedService) eachDestination(yield func(*networkingv1alpha3.Destination)) {
	for _, route := range v.HTTP {
		for _, d := range route.Route {
			yield(d.Destination)
		}
		if route.Mirror != nil {
			yield(route.Mirror)
		}
		for _, m := range route.Mirrors {
			yield(m.Destination)
		}
	}
	for _, route := range v.TLS {
		for _, d := range route.Route {
			yield(d.Destination)
		}
	}
	for _, route := range v.TCP {
		for _, d := range route.Route {
			yield(d.Destination)
		}
	}
}

// findReferrers returns the VirtualServices that route to a host.
func (t *tables) findReferrers(r *derive.Reads, host string) (*snapshot.Referrers, bool) {
	out := &snapshot.Referrers{}
	for _, v := range t.referrersOf.Lookup(r, host) {
		out.Services = append(out.Services, snapshot.Referrer{Namespace: v.Namespace, Hosts: v.Hosts, ExportTo: t.virtualExports(r, v.VirtualService)})
	}
	slices.SortFunc(out.Services, func(a, b snapshot.Referrer) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), slices.Compare(a.Hosts, b.Hosts), slices.Compare(a.ExportTo, b.ExportTo))
	})
	out.Services = slices.CompactFunc(out.Services, equalReferrer)
	return out, true
}

func equalReferrer(a, b snapshot.Referrer) bool {
	return a.Namespace == b.Namespace && slices.Equal(a.Hosts, b.Hosts) && slices.Equal(a.ExportTo, b.ExportTo)
}

func equalReferrers(a, b *snapshot.Referrers) bool {
	return slices.EqualFunc(a.Services, b.Services, equalReferrer)
}
