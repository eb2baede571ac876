package clusters

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	lbcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// passesThrough reports whether connections go on to the address that the client chose.
func passesThrough(lb *networkingv1alpha3.LoadBalancerSettings) bool {
	return lb.GetSimple() == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH
}

// setLoadBalancer sets the policy by which the proxy chooses endpoints. weighted reports
// whether it chooses a locality first.
func setLoadBalancer(g *wire.Generator, c *clusterv3.Cluster, lb *networkingv1alpha3.LoadBalancerSettings, weighted bool) {
	if hash := lb.GetConsistentHash(); hash != nil {
		setConsistentHash(g, c, hash, weighted)
		return
	}
	switch lb.GetSimple() {
	case networkingv1alpha3.LoadBalancerSettings_RANDOM:
		c.LbPolicy = clusterv3.Cluster_RANDOM
	case networkingv1alpha3.LoadBalancerSettings_ROUND_ROBIN:
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
		if slow := slowStart(lb); slow != nil {
			c.LbConfig = &clusterv3.Cluster_RoundRobinLbConfig_{RoundRobinLbConfig: &clusterv3.Cluster_RoundRobinLbConfig{SlowStartConfig: slow}}
		}
	default:
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
		if slow := slowStart(lb); slow != nil {
			c.LbConfig = &clusterv3.Cluster_LeastRequestLbConfig_{LeastRequestLbConfig: &clusterv3.Cluster_LeastRequestLbConfig{SlowStartConfig: slow}}
		}
	}
}

// slowStart returns the settings by which the load of new endpoints grows, or nil.
func slowStart(lb *networkingv1alpha3.LoadBalancerSettings) *clusterv3.Cluster_SlowStartConfig {
	w := lb.GetWarmup()
	if w == nil {
		if lb.GetWarmupDurationSecs() == nil {
			return nil
		}
		return &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: lb.GetWarmupDurationSecs()}
	}
	out := &clusterv3.Cluster_SlowStartConfig{SlowStartWindow: w.GetDuration()}
	if a := w.GetAggression(); a != nil {
		out.Aggression = &corev3.RuntimeDouble{DefaultValue: a.GetValue()}
	}
	if p := w.GetMinimumPercent(); p != nil {
		out.MinWeightPercent = &typev3.Percent{Value: p.GetValue()}
	}
	return out
}

// minRing is Istio's default of the minimum size of a ring.
const minRing = 1024

// setConsistentHash makes requests with equal keys go to the same endpoint. The cluster
// has the hash policy, not its routes, so that it applies to all of them and to TCP.
func setConsistentHash(g *wire.Generator, c *clusterv3.Cluster, hash *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB, weighted bool) {
	var localities *lbcommonv3.LocalityLbConfig_LocalityWeightedLbConfig
	if weighted {
		localities = &lbcommonv3.LocalityLbConfig_LocalityWeightedLbConfig{}
	}
	config := &lbcommonv3.ConsistentHashingLbConfig{HashPolicy: hashPolicy(hash)}
	size := func(n uint64) *wrapperspb.UInt64Value {
		if n == 0 {
			return nil
		}
		return wrapperspb.UInt64(n)
	}
	policy := &corev3.TypedExtensionConfig{}
	if m := hash.GetMaglev(); m != nil {
		c.LbPolicy = clusterv3.Cluster_MAGLEV
		policy.Name = "envoy.load_balancing_policies.maglev"
		policy.TypedConfig = g.Any(&maglevv3.Maglev{TableSize: size(m.GetTableSize()), ConsistentHashingLbConfig: config, LocalityWeightedLbConfig: localities})
	} else {
		n := hash.GetRingHash().GetMinimumRingSize()
		if hash.GetRingHash() == nil {
			n = max(hash.GetMinimumRingSize(), minRing) //nolint:staticcheck // the older field
		}
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		policy.Name = "envoy.load_balancing_policies.ring_hash"
		policy.TypedConfig = g.Any(&ringhashv3.RingHash{MinimumRingSize: size(n), ConsistentHashingLbConfig: config, LocalityWeightedLbConfig: localities})
	}
	c.LoadBalancingPolicy = &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{TypedExtensionConfig: policy}}}
}

// hashPolicy returns the key of consistent hashing, or nil.
func hashPolicy(hash *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB) []*routev3.RouteAction_HashPolicy {
	p := &routev3.RouteAction_HashPolicy{}
	switch k := hash.GetHashKey().(type) {
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpHeaderName:
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_Header_{Header: &routev3.RouteAction_HashPolicy_Header{HeaderName: k.HttpHeaderName}}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpQueryParameterName:
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_QueryParameter_{
			QueryParameter: &routev3.RouteAction_HashPolicy_QueryParameter{Name: k.HttpQueryParameterName},
		}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp:
		if !k.UseSourceIp {
			return nil
		}
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_ConnectionProperties_{
			ConnectionProperties: &routev3.RouteAction_HashPolicy_ConnectionProperties{SourceIp: true},
		}
	case *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_HttpCookie:
		cookie := &routev3.RouteAction_HashPolicy_Cookie{Name: k.HttpCookie.GetName(), Ttl: k.HttpCookie.GetTtl(), Path: k.HttpCookie.GetPath()}
		for _, a := range k.HttpCookie.GetAttributes() {
			cookie.Attributes = append(cookie.Attributes, &routev3.RouteAction_HashPolicy_CookieAttribute{Name: a.GetName(), Value: a.GetValue()})
		}
		p.PolicySpecifier = &routev3.RouteAction_HashPolicy_Cookie_{Cookie: cookie}
	default:
		return nil
	}
	return []*routev3.RouteAction_HashPolicy{p}
}

// loadBalancer returns the settings of the policy or, if they choose no load balancer, of the
// Service.
func (u ClusterOf) loadBalancer() *networkingv1alpha3.LoadBalancerSettings {
	lb := u.policy.GetLoadBalancer()
	if !u.Service.Sticky || lb.GetLbPolicy() != nil {
		return lb
	}
	return &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{
		ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
			HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
		},
	}}
}
