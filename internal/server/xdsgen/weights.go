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

// localities returns the endpoints that the proxy gets, grouped by priority and locality.
// An endpoint that the proxy calls directly keeps its address. An endpoint in another
// network gives its weight, in equal parts, to the gateways that lead to it. All weights
// are multiplied by a common factor so that the parts are whole numbers and each endpoint
// keeps its share of the load.
//
// Envoy keeps only the first of two hosts with one address. So in each priority a gateway
// occurs once, in the first locality (by name) of the endpoints behind it, with the weight
// of all of them. A gateway of two priorities has only the load of the first. With
// mtlsOnly, endpoints that cannot be called by server name are left out.
func (u assignments) localities(list []snapshot.Endpoint, mtlsOnly bool) []*endpointv3.LocalityLbEndpoints {
	paths := withoutDrained(u.paths(list, mtlsOnly))
	factor := divisible(paths)
	byLocality := make(map[localityGroup][]*endpointv3.LbEndpoint)
	gateways := make(map[gatewayKey]*gatewayLoad)
	for _, p := range paths {
		e, at := p.endpoint, localityGroup{p.endpoint.Demoted, p.endpoint.Locality}
		weight := clip(uint64(factor) * uint64(max(e.Weight, 1)))
		if p.gateways == nil {
			byLocality[at] = append(byLocality[at], u.lbEndpoint(e, weight))
		}
		for _, g := range p.gateways {
			k := gatewayKey{at.demoted, netip.AddrPortFrom(g.Address, uint16(g.Port))}
			gateways[k] = gateways[k].add(g, at, max(uint64(weight)/uint64(len(p.gateways)), 1))
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(gateways), gatewayKey.compare) {
		l := gateways[k]
		byLocality[l.at] = append(byLocality[l.at], gatewayEndpoint(l.gateway, clip(l.weight)))
	}
	var out []*endpointv3.LocalityLbEndpoints
	some := false // there are endpoints that are not demoted
	for _, at := range slices.SortedFunc(maps.Keys(byLocality), localityGroup.compare) {
		var total uint64
		for _, lb := range byLocality[at] {
			total += uint64(lb.GetLoadBalancingWeight().GetValue())
		}
		l := &endpointv3.LocalityLbEndpoints{
			Locality:            localityProto(at.locality),
			LbEndpoints:         byLocality[at],
			LoadBalancingWeight: wrapperspb.UInt32(clip(total)),
		}
		some = some || !at.demoted
		if at.demoted && some { // Envoy requires priorities without gaps
			l.Priority = 1
		}
		out = append(out, l)
	}
	return out
}

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
	demoted  bool
	locality mesh.Locality
}

func (g localityGroup) compare(other localityGroup) int {
	switch {
	case g.demoted == other.demoted:
		return g.locality.Compare(other.locality)
	case g.demoted:
		return 1
	}
	return -1
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
	demoted bool
	address netip.AddrPort
}

// compare compares addresses: the order of priorities does not matter.
func (k gatewayKey) compare(other gatewayKey) int { return k.address.Compare(other.address) }

// gatewayLoad is a gateway with the weight of the endpoints behind it.
type gatewayLoad struct {
	gateway snapshot.NetworkGateway
	at      localityGroup
	weight  uint64
}

// add adds the weight of an endpoint. l may be nil.
func (l *gatewayLoad) add(g snapshot.NetworkGateway, at localityGroup, weight uint64) *gatewayLoad {
	if l == nil {
		return &gatewayLoad{g, at, weight}
	}
	if at.compare(l.at) < 0 {
		l.at = at
	}
	l.weight += weight
	return l
}

// clip limits a sum to the maximum that Envoy accepts.
func clip(n uint64) uint32 { return uint32(min(n, math.MaxUint32)) }
