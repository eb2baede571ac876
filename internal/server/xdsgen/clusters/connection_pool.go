package clusters

import (
	"cmp"
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
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

// UpstreamHTTP returns the options of HTTP connections to a port, or nil for Envoy's
// defaults. detect reports whether the proxy detects the protocol of an Auto port, and http2
// whether connections are always HTTP/2.
func UpstreamHTTP(p mesh.Protocol, detect, http2 bool, pool *networkingv1alpha3.ConnectionPoolSettings, outlier *networkingv1alpha3.OutlierDetection) *httpv3.HttpProtocolOptions {
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

// SetConnectionPool sets the limits of a connection pool, except the options of HTTP.
func SetConnectionPool(c *clusterv3.Cluster, pool *networkingv1alpha3.ConnectionPoolSettings, alive snapshot.KeepAlive, budget *networkingv1alpha3.TrafficPolicy_RetryBudget) {
	c.CircuitBreakers = circuitBreakers(pool, budget)
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

// circuitBreakers returns the limits of a connection pool. pool and budget may be nil.
func circuitBreakers(pool *networkingv1alpha3.ConnectionPoolSettings, budget *networkingv1alpha3.TrafficPolicy_RetryBudget) *clusterv3.CircuitBreakers {
	if pool == nil && budget == nil {
		return Unlimited()
	}
	limits := UnlimitedThresholds()
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
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{limits}}
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
