package facts

import (
	"cmp"
	"slices"
	"strings"

	"github.com/meshctl/meshctl/internal/server/derive"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// destinationsOf indexes a VirtualService for sidecars by the hosts that it routes to.
func destinationsOf(into []string, _ ObjectKey, v routedService) []string {
	if slices.Contains(v.Gateways, snapshot.MeshGateway) {
		for d := range v.Destinations {
			if !slices.Contains(into, d.GetHost()) {
				into = append(into, d.GetHost())
			}
		}
	}
	return into
}

// findReferrers returns the VirtualServices that route to a host.
func (t *Tables) findReferrers(r *derive.Reads, host string) (*snapshot.Referrers, bool) {
	out := &snapshot.Referrers{}
	for _, v := range t.referrersOf.Lookup(r, host) {
		out.Services = append(out.Services, snapshot.Referrer{Namespace: v.Namespace, Hosts: v.Hosts, ExportTo: v.exports})
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
