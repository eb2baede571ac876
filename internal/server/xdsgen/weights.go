package xdsgen

import (
	"maps"
	"math"
	"net/netip"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// localities returns the endpoints as the proxy is given them: those that it
// calls directly keep their address; each endpoint of another network gives its
// weight to the gateways of that network that the proxy can use. Weights are
// multiplied so that they divide evenly, which keeps the share of every endpoint.
//
// Of each priority a gateway stands in the first locality, by name, that it stands
// in for, with the weight of all of them: Envoy keeps only the first of two hosts
// with one address. So of a gateway of two priorities it uses the first, with the
// weight of that priority alone. mtlsOnly leaves out what cannot be reached by server
// name.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool) []*endpointv3.LocalityLbEndpoints {
	routes := withoutDrained(u.routes(list, mtlsOnly))
	factor := divisible(routes)
	direct := make(map[group][]*endpointv3.LbEndpoint)
	far := make(map[stand]*standIn)
	for _, r := range routes {
		e, at := r.endpoint, group{r.endpoint.Demoted, r.endpoint.Locality}
		weight := clip(uint64(factor) * uint64(max(e.Weight, 1)))
		if r.gateways == nil {
			direct[at] = append(direct[at], u.lbEndpoint(e, weight))
		}
		for _, g := range r.gateways {
			s := stand{at.demoted, netip.AddrPortFrom(g.Address, uint16(g.Port))}
			far[s] = far[s].with(g, at, max(uint64(weight)/uint64(len(r.gateways)), 1))
		}
	}
	for _, s := range slices.SortedFunc(maps.Keys(far), stand.compare) {
		in := far[s]
		direct[in.at] = append(direct[in.at], gatewayEndpoint(in.gateway, clip(in.weight)))
	}
	var out []*endpointv3.LocalityLbEndpoints
	some := false // something comes before what is demoted
	for _, at := range slices.SortedFunc(maps.Keys(direct), group.compare) {
		var total uint64
		for _, lb := range direct[at] {
			total += uint64(lb.GetLoadBalancingWeight().GetValue())
		}
		l := &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(at.locality),
			LbEndpoints:         direct[at],
			LoadBalancingWeight: wrapperspb.UInt32(clip(total)),
		}
		some = some || !at.demoted
		if at.demoted && some { // Envoy wants priorities without gaps
			l.Priority = 1
		}
		out = append(out, l)
	}
	return out
}

// maxFactor keeps multiplied weights far from overflow.
const maxFactor = 1 << 16

// divisible returns a factor that makes weights divide by the number of gateways of
// each route.
func divisible(routes []route) uint32 {
	var sizes []int
	for _, r := range routes {
		if n := len(r.gateways); n > 1 && !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	factor := 1
	for _, n := range slices.Backward(sizes) { // the largest first: others may divide it
		if factor%n != 0 && factor*n <= maxFactor {
			factor *= n
		}
	}
	return uint32(factor)
}

// group is where endpoints are balanced together.
type group struct {
	demoted  bool
	locality mesh.Locality
}

func (g group) compare(other group) int {
	switch {
	case g.demoted == other.demoted:
		return g.locality.Compare(other.locality)
	case g.demoted:
		return 1
	}
	return -1
}

// withoutDrained leaves out what is drained where something else is healthy.
func withoutDrained(routes []route) []route {
	drained := func(r route) bool { return r.endpoint.Drained }
	if slices.ContainsFunc(routes, drained) && slices.ContainsFunc(routes, func(r route) bool {
		return !r.endpoint.Drained && r.endpoint.Health == snapshot.Healthy
	}) {
		return slices.DeleteFunc(routes, drained)
	}
	return routes
}

// stand is the address of a gateway in one priority.
type stand struct {
	demoted bool
	address netip.AddrPort
}

// compare orders those of one priority.
func (s stand) compare(other stand) int { return s.address.Compare(other.address) }

// standIn is a gateway in the place of endpoints of its network.
type standIn struct {
	gateway snapshot.NetworkGateway
	at      group
	weight  uint64
}

// with adds the weight of an endpoint of the group; s may be nil.
func (s *standIn) with(g snapshot.NetworkGateway, at group, weight uint64) *standIn {
	if s == nil {
		return &standIn{g, at, weight}
	}
	if at.compare(s.at) < 0 {
		s.at = at
	}
	s.weight += weight
	return s
}

// clip keeps a sum within what Envoy accepts.
func clip(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
