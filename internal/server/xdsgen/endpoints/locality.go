package endpoints

import (
	"math"
	"slices"
	"strings"

	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Place is everything about a client that decides which endpoints it prefers. It is zero
// if no client prefers any, so that clients of all localities share assignments.
type Place struct {
	locality mesh.Locality
	labels   wire.List[wire.Entry[string, string]] // the labels that failoverPriority compares
}

func clientPlace(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) Place {
	if !s.RuleTraits.Localities {
		return Place{}
	}
	p := Place{locality: localityOf(s, n, pod, labels)}
	if s.RuleTraits.Labels == "" {
		return p
	}
	values := make(map[string]string)
	for name := range strings.SplitSeq(s.RuleTraits.Labels, ",") {
		values[name] = labels[name]
		if v, ok := snapshot.TopologyLabel(name, n.Cluster, proxy.NetworkOf(s, n, labels), p.locality, proxy.NodeOf(pod)); ok {
			values[name] = v
		}
	}
	p.labels = wire.SortedEntries(values)
	return p
}

// localityOf returns the locality in a proxy's node, else in the labels of its workload,
// else of its WorkloadEntry or its Kubernetes node.
func localityOf(s *snapshot.Snapshot, n proxy.Node, pod *snapshot.Pod, labels map[string]string) mesh.Locality {
	if n.Locality != (mesh.Locality{}) {
		return n.Locality
	}
	if l, ok := mesh.LocalityOfLabels(labels); ok {
		return l
	}
	for _, key := range []string{proxy.PodKey(n), snapshot.NodeKey(n.Cluster, proxy.NodeOf(pod))} {
		if l := s.Localities.Get(key); l != nil {
			return *l
		}
	}
	return mesh.Locality{}
}

// LocalitySetting returns the setting that applies to a policy of a service: its own, else
// the service's, else the mesh's. It returns nil if the setting is disabled.
func LocalitySetting(m *snapshot.Mesh, of snapshot.Distribution, policy *networkingv1alpha3.TrafficPolicy) *networkingv1alpha3.LocalityLoadBalancerSetting {
	setting := policy.GetLoadBalancer().GetLocalityLbSetting()
	if setting == nil && of != snapshot.NoDistribution {
		return &networkingv1alpha3.LocalityLoadBalancerSetting{FailoverPriority: of.Labels()}
	}
	if setting == nil {
		setting = m.LocalityLB
	}
	if setting == nil {
		return &networkingv1alpha3.LocalityLoadBalancerSetting{} // it is enabled by default
	}
	return enabledSetting(setting)
}

func enabledSetting(s *networkingv1alpha3.LocalityLoadBalancerSetting) *networkingv1alpha3.LocalityLoadBalancerSetting {
	if s.GetEnabled() != nil && !s.GetEnabled().GetValue() {
		return nil
	}
	return s
}

// LocalityWeights sets whether the load is spread over localities by weight, before an
// endpoint is chosen.
type LocalityWeights uint8

const (
	noLocalityWeights LocalityWeights = iota
	withOutlierDetection
	// AlwaysWeighted means that localities have weights also without outlier detection.
	AlwaysWeighted
)

// LocalityWeightsOf returns how a setting weighs localities.
func LocalityWeightsOf(s *networkingv1alpha3.LocalityLoadBalancerSetting) LocalityWeights {
	switch {
	case len(s.GetDistribute()) > 0:
		return AlwaysWeighted
	case len(s.GetFailover())+len(s.GetFailoverPriority()) > 0:
		return withOutlierDetection
	}
	return noLocalityWeights
}

// WeighsLocalities reports whether a cluster spreads its load over localities by weight.
// mesh is the default of the mesh; own and policy are as in failsOver.
func WeighsLocalities(mesh LocalityWeights, own, policy *networkingv1alpha3.TrafficPolicy) bool {
	if own := own.GetLoadBalancer().GetLocalityLbSetting(); own != nil {
		mesh = LocalityWeightsOf(enabledSetting(own))
	}
	return mesh == AlwaysWeighted || mesh == withOutlierDetection && failsOver(own, policy)
}

// failsOver reports whether outlier detection lets the load go to other localities. own is the
// policy of a rule, and policy also has the defaults of the mesh. The mesh's outlier detection counts
// only where the rule itself has a setting for localities.
func failsOver(own, policy *networkingv1alpha3.TrafficPolicy) bool {
	return own.GetOutlierDetection() != nil || own.GetLoadBalancer().GetLocalityLbSetting() != nil && policy.GetOutlierDetection() != nil
}

// localityPolicy sets which endpoints a client prefers. If it is zero, the client prefers none.
type localityPolicy struct {
	// Shares holds the percentages of the load by patterns of localities, sorted. Other
	// localities get no load. If it is empty, no locality has a fixed share.
	Shares wire.List[wire.Entry[string, uint32]]
	// Labels holds the labels that an endpoint should have, the most important one first.
	Labels wire.List[wire.Entry[string, string]]
	// Near reports whether endpoints near the client's locality are preferred.
	Near     bool
	Locality mesh.Locality
	// To is the region that is preferred after the client's own.
	To string
}

// Policy returns the policy of a client under a setting. failover reports whether the first
// priority may fail: there is outlier detection, or users want to rely on the readiness of
// endpoints.
func (p Place) Policy(setting *networkingv1alpha3.LocalityLoadBalancerSetting, failover bool) (out localityPolicy) {
	if len(setting.GetDistribute()) > 0 {
		for _, d := range setting.GetDistribute() {
			if inLocality(p.locality, d.GetFrom()) {
				return localityPolicy{Shares: wire.SortedEntries(d.GetTo())}
			}
		}
		return out
	}
	if setting == nil || !failover {
		return out
	}
	if len(setting.GetFailoverPriority()) > 0 {
		var wanted []wire.Entry[string, string]
		for _, label := range setting.GetFailoverPriority() {
			name, value, fixed := strings.Cut(label, "=")
			if !fixed {
				value = wire.ValueOf(p.labels, name)
			}
			wanted = append(wanted, wire.Entry[string, string]{Key: name, Value: value})
		}
		out.Labels = wire.ListOf(wanted)
		if len(setting.GetFailover()) == 0 {
			return out
		}
	}
	out.Near, out.Locality = true, p.locality
	for _, f := range setting.GetFailover() {
		if f.GetFrom() == p.locality.Region {
			out.To = f.GetTo()
			break
		}
	}
	return out
}

// inLocality reports whether a locality matches a pattern such as "region/zone/*".
func inLocality(l mesh.Locality, pattern string) bool {
	p := mesh.ParseLocality(pattern)
	match := func(pattern, part string) bool { return pattern == "*" || pattern == part }
	return match(p.Region, l.Region) && (p.Zone == "" || match(p.Zone, l.Zone)) && (p.Subzone == "" || match(p.Subzone, l.Subzone))
}

// maxNear is the number of levels of nearness.
const maxNear = 5

// priority returns the priority of an endpoint, from 0, with gaps. A gateway stands for the
// endpoints behind it: of their labels only cluster and network count.
func (l *localityPolicy) priority(p path) uint32 {
	return l.byLabels(p)*maxNear + l.nearness(p.endpoint.Locality)
}

// byLabels counts the labels from the first one that differs. Another network, if it is
// the first label, comes after all endpoints of the own one, and the other labels count
// there, too.
func (l *localityPolicy) byLabels(p path) uint32 {
	e, offset, labels := p.endpoint, 0, l.Labels.Slice()
	for i, want := range labels {
		value, _ := e.Label(want.Key)
		if p.gateways != nil && want.Key != mesh.LabelCluster && want.Key != mesh.LabelNetwork {
			value = ""
		}
		switch {
		case value == want.Value:
		case i == 0 && want.Key == mesh.LabelNetwork:
			offset = len(labels)
		default:
			return uint32(offset + len(labels) - i)
		}
	}
	return uint32(offset)
}

func (l *localityPolicy) nearness(at mesh.Locality) uint32 {
	switch {
	case !l.Near, l.Locality == at:
		return 0
	case l.Locality.Region == at.Region && l.Locality.Zone == at.Zone:
		return 1
	case l.Locality.Region == at.Region:
		return 2
	case l.To == "" || l.To == at.Region:
		return 3
	}
	return maxNear - 1
}

// excludes reports whether endpoints of a locality get no load.
func (l *localityPolicy) excludes(at mesh.Locality) bool {
	return !l.Shares.Empty() && l.patternOf(at) == ""
}

// patternOf returns the first pattern of Shares that a locality matches, or "".
func (l *localityPolicy) patternOf(at mesh.Locality) string {
	for share := range l.Shares.All {
		if inLocality(at, share.Key) {
			return share.Key
		}
	}
	return ""
}

// shareOf returns the part of a locality's weight that endpoints in each locality give it
// by one unit of their own weight. It returns nil without Shares.
func (l *localityPolicy) shareOf(paths []path) map[mesh.Locality]float64 {
	if l.Shares.Empty() {
		return nil
	}
	totals := make(map[string]uint64)
	for _, p := range paths {
		totals[l.patternOf(p.endpoint.Locality)] += uint64(max(p.endpoint.Weight, 1))
	}
	out := make(map[mesh.Locality]float64)
	for _, p := range paths {
		at := p.endpoint.Locality
		pattern := l.patternOf(at)
		out[at] = float64(wire.ValueOf(l.Shares, pattern)) / float64(totals[pattern])
	}
	return out
}

// wholeWeight rounds a sum of parts up, except for errors of rounding.
func wholeWeight(sum float64) uint64 { return uint64(max(math.Ceil(sum-1e-6), 1)) }

// maxPriority is Envoy's limit.
const maxPriority = 128

// compact replaces priorities by 0, 1, 2 …, as Envoy requires.
func compact(priorities map[uint32]uint32) {
	list := make([]uint32, 0, len(priorities))
	for p := range priorities {
		list = append(list, p)
	}
	slices.Sort(list)
	for i, p := range list {
		priorities[p] = min(uint32(i), maxPriority)
	}
}
