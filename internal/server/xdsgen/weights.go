package xdsgen

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// localities returns the endpoints that the proxy gets, grouped by priority and locality.
// An endpoint that the proxy calls directly keeps its address. An endpoint in another
// network gives its weight, in equal parts, to the gateways that lead to it. All weights
// are multiplied by a common factor so that the parts are whole numbers and each endpoint
// keeps its share of the load. The policy sets the priorities and the
// shares of localities.
//
// Envoy keeps only the first of two hosts with one address. So in each priority a gateway
// occurs once, in the first locality (by name) of the endpoints behind it, with the weight
// of all of them. A gateway of two priorities has only the load of the first. With
// mtlsOnly, endpoints that cannot be called by server name are left out.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool, policy localityPolicy) []*endpointv3.LocalityLbEndpoints {
	paths := withoutDrained(u.paths(list, mtlsOnly))
	paths = slices.DeleteFunc(paths, func(p path) bool { return policy.excludes(p.endpoint.Locality) })
	factor, shares := divisible(paths), policy.shareOf(paths)
	byLocality := make(map[localityGroup]*localityLoad)
	gateways := make(map[gatewayKey]*gatewayLoad)
	priorities := make(map[uint32]uint32)
	for _, p := range paths {
		e, at := p.endpoint, localityGroup{policy.priority(p), p.endpoint.Locality}
		if e.Demoted {
			at.priority += demotion
		}
		priorities[at.priority] = 0
		weight, share := clip(uint64(factor)*uint64(max(e.Weight, 1))), shares[e.Locality]*float64(max(e.Weight, 1))
		if p.gateways == nil {
			byLocality[at] = byLocality[at].add(u.lbEndpoint(e, weight), share)
		}
		for _, g := range p.gateways {
			k := gatewayKey{at.priority, netip.AddrPortFrom(g.Address, uint16(g.Port))}
			n := len(p.gateways)
			gateways[k] = gateways[k].add(g, at, max(uint64(weight)/uint64(n), 1), share/float64(n))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(gateways), gatewayKey.compare) {
		l := gateways[k]
		byLocality[l.at] = byLocality[l.at].add(gatewayEndpoint(l.gateway, clip(l.weight)), l.share)
	}
	compact(priorities)
	var out []*endpointv3.LocalityLbEndpoints
	for _, at := range slices.SortedFunc(maps.Keys(byLocality), localityGroup.compare) {
		l := byLocality[at]
		if shares != nil {
			l.weight = wholeWeight(l.share)
		}
		out = append(out, &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(at.locality),
			LbEndpoints:         l.endpoints,
			LoadBalancingWeight: wrapperspb.UInt32(clip(l.weight)),
			Priority:            priorities[at.priority],
		})
	}
	return out
}

// localityLoad holds the endpoints of a group, and their weight and share of the load.
type localityLoad struct {
	endpoints []*endpointv3.LbEndpoint
	weight    uint64
	share     float64
}

// add adds an endpoint. l may be nil.
func (l *localityLoad) add(lb *endpointv3.LbEndpoint, share float64) *localityLoad {
	if l == nil {
		l = &localityLoad{}
	}
	l.endpoints = append(l.endpoints, lb)
	l.weight += uint64(lb.GetLoadBalancingWeight().GetValue())
	l.share += share
	return l
}

// demotion is more than all priorities of a localityPolicy.
const demotion = 1 << 16

// maxFactor keeps multiplied weights far from overflow.
const maxFactor = 1 << 16

// divisible returns a factor that makes weights divisible by the number of gateways of
// each path.
func divisible(paths []path) uint32 {
	var sizes []int
	for _, p := range paths {
		if n := len(p.gateways); n > 1 && !slices.Contains(sizes, n) {
			sizes = append(sizes, n)
		}
	}
	slices.Sort(sizes)
	factor := 1
	for _, n := range slices.Backward(sizes) { // the largest first: smaller ones may divide it
		if factor%n != 0 && factor*n <= maxFactor {
			factor *= n
		}
	}
	return uint32(factor)
}

// localityGroup is a group of endpoints with the same priority and locality.
type localityGroup struct {
	priority uint32 // with gaps
	locality mesh.Locality
}

func (g localityGroup) compare(other localityGroup) int {
	return cmp.Or(cmp.Compare(g.priority, other.priority), g.locality.Compare(other.locality))
}

// withoutDrained leaves out drained endpoints if another endpoint is healthy.
func withoutDrained(paths []path) []path {
	drained := func(p path) bool { return p.endpoint.Drained }
	if slices.ContainsFunc(paths, drained) && slices.ContainsFunc(paths, func(p path) bool {
		return !p.endpoint.Drained && p.endpoint.Health == snapshot.Healthy
	}) {
		return slices.DeleteFunc(paths, drained)
	}
	return paths
}

// gatewayKey is the address of a gateway in one priority.
type gatewayKey struct {
	priority uint32
	address  netip.AddrPort
}

// compare compares addresses: the order of priorities does not matter.
func (k gatewayKey) compare(other gatewayKey) int { return k.address.Compare(other.address) }

// gatewayLoad is a gateway with the weight of the endpoints behind it.
type gatewayLoad struct {
	gateway snapshot.NetworkGateway
	at      localityGroup
	weight  uint64
	share   float64
}

// add adds the weight and the share of an endpoint. l may be nil.
func (l *gatewayLoad) add(g snapshot.NetworkGateway, at localityGroup, weight uint64, share float64) *gatewayLoad {
	if l == nil {
		return &gatewayLoad{g, at, weight, share}
	}
	if at.compare(l.at) < 0 {
		l.at = at
	}
	l.weight += weight
	l.share += share
	return l
}

// clip limits a sum to the maximum that Envoy accepts.
func clip(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
