package xdsgen

import (
	"cmp"
	"math"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/matcher/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	lbcommonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/common/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	stringv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
)

// speaksHTTP2 reports whether connections to a port are always HTTP/2. upgrade reports
// whether the mesh upgrades HTTP by default.
func speaksHTTP2(p mesh.Protocol, upgrade bool, pool *networkingv1alpha3.ConnectionPoolSettings) bool {
	http := pool.GetHttp()
	upgrade = upgrade && p == mesh.HTTP
	switch http.GetH2UpgradePolicy() {
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_UPGRADE:
		upgrade = p == mesh.HTTP || p == mesh.Auto
	case networkingv1alpha3.ConnectionPoolSettings_HTTPSettings_DO_NOT_UPGRADE:
		upgrade = false
	}
	return !http.GetUseClientProtocol() && (p.IsHTTP2() || upgrade)
}

// upstreamHTTP returns the options of HTTP connections to a port, or nil for Envoy's
// defaults. detect reports whether the proxy detects the protocol of an Auto port, and http2
// whether connections are always HTTP/2.
func upstreamHTTP(p mesh.Protocol, detect, http2 bool, pool *networkingv1alpha3.ConnectionPoolSettings, outlier *networkingv1alpha3.OutlierDetection) *httpv3.HttpProtocolOptions {
	http, tcp := pool.GetHttp(), pool.GetTcp()
	var o *httpv3.HttpProtocolOptions
	switch {
	case http2:
		o = explicitHTTP2()
		setHTTP2(o.GetExplicitHttpConfig().GetHttp2ProtocolOptions(), http)
	case p == mesh.Auto && detect, http.GetUseClientProtocol():
		o = downstreamProtocol(0)
		setHTTP2(o.GetUseDownstreamProtocolConfig().GetHttp2ProtocolOptions(), http)
	}
	common := &corev3.HttpProtocolOptions{IdleTimeout: cmp.Or(http.GetIdleTimeout(), tcp.GetIdleTimeout()), MaxConnectionDuration: tcp.GetMaxConnectionDuration()}
	if n := http.GetMaxRequestsPerConnection(); n > 0 {
		common.MaxRequestsPerConnection = wrapperspb.UInt32(uint32(n))
	}
	codes := outlier.GetOutlierDetectionHttpErrorCodes()
	limited := common.IdleTimeout != nil || common.MaxConnectionDuration != nil || common.MaxRequestsPerConnection != nil
	if !limited && len(codes) == 0 || !p.IsHTTP() && p != mesh.Auto {
		return o
	}
	if o == nil {
		o = explicitHTTP1()
	}
	if limited {
		o.CommonHttpProtocolOptions = common
	}
	if len(codes) > 0 {
		o.OutlierDetection = &httpv3.HttpProtocolOptions_OutlierDetection{ErrorMatcher: statusMatcher(codes)}
	}
	return o
}

func explicitHTTP1() *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{HttpProtocolOptions: &corev3.Http1ProtocolOptions{}},
		},
	}}
}

func setHTTP2(o *corev3.Http2ProtocolOptions, http *networkingv1alpha3.ConnectionPoolSettings_HTTPSettings) {
	if n := http.GetMaxConcurrentStreams(); n > 0 {
		o.MaxConcurrentStreams = wrapperspb.UInt32(uint32(n))
	}
	if k := http.GetHttp2KeepAlive(); k != nil {
		o.ConnectionKeepalive = &corev3.KeepaliveSettings{Interval: k.GetInterval(), Timeout: k.GetTimeout()}
	}
}

// statusMatcher matches responses with one of the codes.
func statusMatcher(codes []uint32) *matcherv3.MatchPredicate {
	var rules []*matcherv3.MatchPredicate
	for _, code := range codes {
		rules = append(rules, &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_HttpResponseHeadersMatch{
			HttpResponseHeadersMatch: &matcherv3.HttpHeadersMatch{Headers: []*routev3.HeaderMatcher{{
				Name: ":status",
				HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &stringv3.StringMatcher{
					MatchPattern: &stringv3.StringMatcher_Exact{Exact: strconv.Itoa(int(code))},
				}},
			}}},
		}})
	}
	if len(rules) == 1 {
		return rules[0]
	}
	return &matcherv3.MatchPredicate{Rule: &matcherv3.MatchPredicate_OrMatch{OrMatch: &matcherv3.MatchPredicate_MatchSet{Rules: rules}}}
}

// setConnectionPool sets the limits of a connection pool, except the options of HTTP.
func setConnectionPool(c *clusterv3.Cluster, pool *networkingv1alpha3.ConnectionPoolSettings, alive snapshot.KeepAlive, budget *networkingv1alpha3.TrafficPolicy_RetryBudget) {
	limits := c.GetCircuitBreakers().GetThresholds()[0]
	set := func(to **wrapperspb.UInt32Value, n int32) {
		if n > 0 {
			*to = wrapperspb.UInt32(uint32(n))
		}
	}
	set(&limits.MaxConnections, pool.GetTcp().GetMaxConnections())
	set(&limits.MaxPendingRequests, pool.GetHttp().GetHttp1MaxPendingRequests())
	set(&limits.MaxRequests, pool.GetHttp().GetHttp2MaxRequests())
	set(&limits.MaxRetries, pool.GetHttp().GetMaxRetries())
	if budget != nil {
		limits.RetryBudget = &clusterv3.CircuitBreakers_Thresholds_RetryBudget{BudgetInterval: budget.GetBudgetInterval()}
		if p := budget.GetPercent(); p != nil {
			limits.RetryBudget.BudgetPercent = &typev3.Percent{Value: p.GetValue()}
		}
		if n := budget.GetMinRetryConcurrency(); n > 0 {
			limits.RetryBudget.MinRetryConcurrency = wrapperspb.UInt32(n)
		}
	}
	if d := pool.GetTcp().GetConnectTimeout(); d != nil {
		c.ConnectTimeout = d
	}
	if k := pool.GetTcp().GetTcpKeepalive(); k != nil {
		alive.On, alive.Probes = true, cmp.Or(k.GetProbes(), alive.Probes)
		alive.Time = cmp.Or(k.GetTime().AsDuration(), alive.Time)
		alive.Interval = cmp.Or(k.GetInterval().AsDuration(), alive.Interval)
	}
	setKeepAlive(c, alive)
}

// setKeepAlive sets how the proxy probes idle connections.
func setKeepAlive(c *clusterv3.Cluster, k snapshot.KeepAlive) {
	if !k.On {
		return
	}
	out := &corev3.TcpKeepalive{KeepaliveTime: seconds(k.Time), KeepaliveInterval: seconds(k.Interval)}
	if k.Probes > 0 {
		out.KeepaliveProbes = wrapperspb.UInt32(k.Probes)
	}
	c.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: out}
}

// seconds returns a duration in whole seconds, at least one, or nil for 0.
func seconds(d time.Duration) *wrapperspb.UInt32Value {
	if d == 0 {
		return nil
	}
	return wrapperspb.UInt32(uint32(min(max(d/time.Second, 1), math.MaxInt32)))
}

// outlierDetection returns the settings by which the proxy leaves out endpoints that
// fail, or nil. Failures are counted; the rate of success does not matter.
func outlierDetection(o *networkingv1alpha3.OutlierDetection) *clusterv3.OutlierDetection {
	if o == nil {
		return nil
	}
	out := &clusterv3.OutlierDetection{
		EnforcingSuccessRate: wrapperspb.UInt32(0), Interval: o.GetInterval(), BaseEjectionTime: o.GetBaseEjectionTime(),
	}
	enforce := func(n uint32) *wrapperspb.UInt32Value {
		if n > 0 {
			n = 100
		}
		return wrapperspb.UInt32(n)
	}
	if n := o.GetConsecutive_5XxErrors(); n != nil {
		out.Consecutive_5Xx, out.EnforcingConsecutive_5Xx = n, enforce(n.GetValue())
	}
	if n := o.GetConsecutiveGatewayErrors(); n != nil {
		out.ConsecutiveGatewayFailure, out.EnforcingConsecutiveGatewayFailure = n, enforce(n.GetValue())
	}
	if n := o.GetMaxEjectionPercent(); n > 0 {
		out.MaxEjectionPercent = wrapperspb.UInt32(uint32(n))
	}
	if o.GetSplitExternalLocalOriginErrors() {
		out.SplitExternalLocalOriginErrors = true
		if n := o.GetConsecutiveLocalOriginFailures(); n.GetValue() > 0 {
			out.ConsecutiveLocalOriginFailure, out.EnforcingConsecutiveLocalOriginFailure = n, wrapperspb.UInt32(100)
		}
		out.EnforcingLocalOriginSuccessRate = wrapperspb.UInt32(0)
	}
	return out
}

// passesThrough reports whether connections go on to the address that the client chose.
func passesThrough(lb *networkingv1alpha3.LoadBalancerSettings) bool {
	return lb.GetSimple() == networkingv1alpha3.LoadBalancerSettings_PASSTHROUGH
}

// setLoadBalancer sets the policy by which the proxy chooses endpoints. weighted reports
// whether it chooses a locality first.
func (g *generator) setLoadBalancer(c *clusterv3.Cluster, lb *networkingv1alpha3.LoadBalancerSettings, weighted bool) {
	if hash := lb.GetConsistentHash(); hash != nil {
		g.setConsistentHash(c, hash, weighted)
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
func (g *generator) setConsistentHash(c *clusterv3.Cluster, hash *networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB, weighted bool) {
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
		policy.TypedConfig = g.any(&maglevv3.Maglev{TableSize: size(m.GetTableSize()), ConsistentHashingLbConfig: config, LocalityWeightedLbConfig: localities})
	} else {
		n := hash.GetRingHash().GetMinimumRingSize()
		if hash.GetRingHash() == nil {
			n = max(hash.GetMinimumRingSize(), minRing) //nolint:staticcheck // the older field
		}
		c.LbPolicy = clusterv3.Cluster_RING_HASH
		policy.Name = "envoy.load_balancing_policies.ring_hash"
		policy.TypedConfig = g.any(&ringhashv3.RingHash{MinimumRingSize: size(n), ConsistentHashingLbConfig: config, LocalityWeightedLbConfig: localities})
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
func (u clusterOf) loadBalancer() *networkingv1alpha3.LoadBalancerSettings {
	lb := u.policy.GetLoadBalancer()
	if !u.service.Sticky || lb.GetLbPolicy() != nil {
		return lb
	}
	return &networkingv1alpha3.LoadBalancerSettings{LbPolicy: &networkingv1alpha3.LoadBalancerSettings_ConsistentHash{
		ConsistentHash: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB{
			HashKey: &networkingv1alpha3.LoadBalancerSettings_ConsistentHashLB_UseSourceIp{UseSourceIp: true},
		},
	}}
}
