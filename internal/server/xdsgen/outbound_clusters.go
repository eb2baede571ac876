package xdsgen

import (
	"cmp"
	"slices"
	"strings"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// clusterView is the view of the outbound clusters of proxies that see the same services
// and have the same DestinationRules.
type clusterView struct {
	scope       scope
	client      snapshot.RuleClient
	router      bool
	passthrough bool // for a gateway that passes TLS through by server name
	// families are the IP versions to which names are resolved, if some service needs it.
	families families
	place    place // zero if no name is resolved
}

// views returns the view with its private services apart from the public ones, which all
// namespaces share, and the own view. A Sidecar that limits the services keeps them
// together.
func (v clusterView) views(s *snapshot.Snapshot, own View) Views {
	if len(v.scope.egress()) > 0 {
		return Views{Shared: v, Own: own}
	}
	public, private := v, v
	public.scope, private.scope.only = scope{only: publicServices}, privateServices
	out := Views{Shared: public, Own: own}
	if s.Private {
		out.Private = private
	}
	return out
}

func (v clusterView) Type() string { return xdswire.ClusterType }

func (v clusterView) Keys() Keys {
	k := Keys{Fixed: 1, FixedFacts: snapshot.MeshFacts, ServiceFacts: snapshot.ServiceFacts | snapshot.RuleFacts | snapshot.MeshFacts, scope: v.scope}
	if v.scope.only == privateServices {
		k.Fixed = 0
	}
	if len(v.scope.egress()) > 0 {
		k.ServiceFacts |= snapshot.ReferrerFacts
	}
	return k
}

func (v clusterView) Unit(s *snapshot.Snapshot, k Key) Unit {
	if k.Kind == FixedKey {
		return fixedClusters{router: v.router, connectTimeout: s.Mesh.ConnectTimeout, keepAlive: s.Mesh.KeepAlive}
	}
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v clusterView) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) Unit {
	if svc == nil || !v.scope.sees(svc) && !v.scope.importsRouteTo(s, svc) {
		return nil
	}
	rule := s.Rules.Get(svc.Key).For(v.client)
	return serviceClusters{
		service: svc, rule: rule, router: v.router, passthrough: v.passthrough, dns: v.dns(s, svc, rule),
		connectTimeout: s.Mesh.ConnectTimeout, autoMTLS: s.Mesh.AutoMTLS, mtlsLimits: s.Mesh.MeshTLS, tlsLimits: s.Mesh.TLSDefaults,
		keepAlive: s.Mesh.KeepAlive, h2Upgrade: s.Mesh.H2Upgrade, localityWeights: localityWeightsOf(localitySetting(s.Mesh, snapshot.NoDistribution, nil)),
		stats: s.Mesh.OutboundStats, defaults: s.Mesh.DefaultPolicy,
	}
}

// resolver holds the settings by which proxies resolve names; zero if they resolve none.
type resolver struct {
	families families
	refresh  time.Duration
	subsets  list[endpointSubset]
}

func (v clusterView) dns(s *snapshot.Snapshot, svc *snapshot.MeshService, rule *snapshot.HostRule) resolver {
	if svc.Resolution.DNS() {
		return resolver{v.families, s.Mesh.DNSRefresh, endpointSubsets(s.Mesh, svc, rule, v.place)}
	}
	return resolver{}
}

// serviceClusters generates the clusters of one service: one for each port and for each
// subset of a port, and for gateways that pass TLS through another one for that.
type serviceClusters struct {
	service               *snapshot.MeshService
	rule                  *snapshot.HostRule // or nil
	router                bool
	passthrough           bool
	connectTimeout        time.Duration
	autoMTLS              bool
	mtlsLimits, tlsLimits snapshot.TLSLimits
	dns                   resolver
	// Defaults of the mesh.
	defaults        *networkingv1alpha3.TrafficPolicy
	keepAlive       snapshot.KeepAlive
	h2Upgrade       bool
	localityWeights localityWeights
	stats           string // Mesh.OutboundStats
}

func (u serviceClusters) Type() string { return xdswire.ClusterType }

func (u serviceClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.service.ExternalName != "" {
		return nil, nil
	}
	g := generator{enc: enc}
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		for _, subset := range subsetsOf(u.rule) {
			of := clusterOf{u, port, subset, u.rule.PolicyOver(u.defaults, port.Number, subset)}
			c := of.cluster(&g)
			if c == nil {
				continue
			}
			g.cluster(c)
			if u.passthrough && passable(u.service) {
				c := of.base(&g, of.name().SNI(), "") // without a transport socket
				g.setHTTPOptions(c, of.httpOptions())
				g.cluster(c)
			}
		}
	}
	return g.resources()
}

// subsetsOf returns the subsets of a rule, first nil for the whole service.
func subsetsOf(r *snapshot.HostRule) []*networkingv1alpha3.Subset {
	out := []*networkingv1alpha3.Subset{nil}
	if r != nil {
		out = append(out, r.Subsets...)
	}
	return out
}

// clusterOf is a cluster of a port: for a subset, or for the whole service if subset is
// nil.
type clusterOf struct {
	serviceClusters
	port   *snapshot.ServicePort
	subset *networkingv1alpha3.Subset
	policy *networkingv1alpha3.TrafficPolicy // may be nil
}

func (u clusterOf) name() mesh.ClusterName {
	return mesh.ClusterName{Direction: mesh.Outbound, Port: u.port.Number, Subset: u.subset.GetName(), Host: u.service.Host}
}

// cluster returns the whole cluster. It returns nil if the cluster would have no endpoint
// whose name to resolve.
func (u clusterOf) cluster(g *generator) *clusterv3.Cluster {
	c, options := u.base(g, u.name().String(), u.alpn()), u.httpOptions()
	if c == nil {
		return nil
	}
	tls := u.policy.GetTls()
	switch tls.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		sans := certificateNames(tls, u.service.NamesOf(u.port.Number))
		c.TransportSocket = g.policyTLS(tls, sans, u.tlsLimits, u.mayUseCredential(tls), u.http2())
		options = autoSNI(options, tls, sans)
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		c.TransportSocket = u.meshTLS(g)
	default: // DISABLE, or no TLS settings
		if tls == nil {
			u.setAutoTLS(g, c)
		}
	}
	g.announceClient(c, u.policy.GetProxyProtocol())
	g.setHTTPOptions(c, options)
	return c
}

// base returns a cluster without its transport socket and its options of HTTP, or nil. alpn may be
// empty.
func (u clusterOf) base(g *generator, name, alpn string) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:           name,
		AltStatName:    cmp.Or(statName(u.stats, u.service, u.port, u.subset.GetName(), 0), name) + ";",
		ConnectTimeout: durationpb.New(u.connectTimeout),
		// By default Envoy also uses unhealthy endpoints as soon as half of all are
		// unhealthy. EDS includes unhealthy endpoints, so this is off by default.
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{
			Value: float64(u.policy.GetOutlierDetection().GetMinHealthPercent()),
		}},
		OutlierDetection: outlierDetection(u.policy.GetOutlierDetection()),
		Metadata:         u.metadata(alpn),
	}
	byDefault := u.localityWeights
	if u.service.Distribution != snapshot.NoDistribution {
		byDefault = alwaysWeighted
	}
	weighted := weighsLocalities(byDefault, u.rule.PolicyAt(u.port.Number, u.subset), u.policy)
	if weighted {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	switch {
	case u.originalDst():
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		if u.port.Target != u.port.Number && u.port.Target != 0 && u.service.Entry {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(u.port.Target),
			}}
		}
	case u.service.Resolution.DNS():
		if !u.resolve(c) {
			return nil
		}
		g.setLoadBalancer(c, u.loadBalancer(), weighted)
	default:
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_EDS)
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: name}
		g.setLoadBalancer(c, u.loadBalancer(), weighted)
	}
	setConnectionPool(c, u.policy.GetConnectionPool(), u.keepAlive, u.policy.GetRetryBudget())
	if u.router {
		c.PerConnectionBufferLimitBytes = hostileClients
	}
	return c
}

// hostileClients bounds what Envoy reads at once from a server whose clients may be hostile, in
// bytes. Callers that send many requests and read no response would otherwise fill the memory, a MiB
// for each request, before Envoy looks at its heap.
var hostileClients = wrapperspb.UInt32(64 << 10)

// toDestination reports whether clients of a service choose the address of an endpoint.
func toDestination(svc *snapshot.MeshService) bool {
	return svc.Headless || svc.Resolution == snapshot.ByDestination
}

// resolve makes the proxy resolve the names of a cluster's endpoints. It returns false if
// there are none.
func (u clusterOf) resolve(c *clusterv3.Cluster) bool {
	if u.service.Targets == nil {
		return false
	}
	subsets := wholeAndSubsets(u.dns.subsets)
	subset := &subsets[slices.IndexFunc(subsets, func(s endpointSubset) bool { return s.Name == u.subset.GetName() })]
	list := subset.of(u.service.Targets.ByPort[u.port.Name], u.port.Number)
	if len(list) == 0 {
		return false
	}
	c.ClusterDiscoveryType = discovery(clusterv3.Cluster_STRICT_DNS)
	if u.service.Resolution == snapshot.ByFirstOfDNS {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_LOGICAL_DNS)
		list = list[:1] // Envoy refuses more
	}
	c.DnsRefreshRate = durationpb.New(u.dns.refresh) //nolint:staticcheck // as in Istio, and every Envoy reads it
	c.RespectDnsTtl = true                           //nolint:staticcheck // see above
	switch u.dns.families {
	case v4:
		c.DnsLookupFamily = clusterv3.Cluster_V4_ONLY
	case v6:
		c.DnsLookupFamily = clusterv3.Cluster_V6_ONLY
	default:
		c.DnsLookupFamily = clusterv3.Cluster_ALL
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.GetName(), Endpoints: assignments{service: u.service}.localities(list, false, valueOf(subset.Ports, u.port.Number).Locality),
	}
	return true
}

// protocol returns the protocol by which the proxy calls the port. A VirtualService may send
// requests to a port of any protocol for which the proxy originates TLS, mostly HTTPS.
func (u clusterOf) protocol() mesh.Protocol {
	if p := u.port.Protocol; p.IsHTTP() || !originatesTLS(u.policy.GetTls()) {
		return p
	}
	return mesh.Auto
}

// mayUseCredential reports whether the proxy may use credentialName. Most sidecars have no
// right to read Secrets, while all may read the CA certificates of ConfigMaps.
func (u clusterOf) mayUseCredential(t *networkingv1alpha3.ClientTLSSettings) bool {
	return u.router || u.rule.Selector != "" || strings.HasPrefix(t.GetCredentialName(), configMapPrefix)
}

func originatesTLS(t *networkingv1alpha3.ClientTLSSettings) bool {
	return t.GetMode() == networkingv1alpha3.ClientTLSSettings_SIMPLE || t.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
}

func (u clusterOf) http2() bool {
	return speaksHTTP2(u.protocol(), u.h2Upgrade, u.policy.GetConnectionPool())
}

func (u clusterOf) httpOptions() *httpv3.HttpProtocolOptions {
	return upstreamHTTP(u.protocol(), !u.router && u.port.Protocol == mesh.Auto, u.http2(), u.policy.GetConnectionPool(), u.policy.GetOutlierDetection())
}

// originalDst reports whether connections go to the address that the client chose, as for
// headless services. The clients of gateways choose none.
func (u clusterOf) originalDst() bool {
	return !u.router && (toDestination(u.service) || passesThrough(u.policy.GetLoadBalancer()))
}

// setAutoTLS sets the transport sockets of a cluster without TLS settings: mTLS for
// endpoints that accept it, else plaintext.
func (u clusterOf) setAutoTLS(g *generator, c *clusterv3.Cluster) {
	if !u.autoMTLS || u.service.Plaintext {
		return
	}
	if u.originalDst() && (!u.service.AllTLS || slices.Contains(u.service.PlainPorts, u.port.Name)) {
		return // the endpoints' own modes do not count
	}
	tls := u.meshTLS(g)
	if u.originalDst() {
		c.TransportSocket = tls
		return
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: tlsModeMatch(), TransportSocket: tls},
		{Name: "tlsMode-disabled", Match: everyEndpoint, TransportSocket: rawBuffer()},
	}
}

// meshTLS returns the transport socket for mTLS with the certificates of the mesh.
func (u clusterOf) meshTLS(g *generator) *corev3.TransportSocket {
	accounts, tls := u.service.Accounts, u.policy.GetTls()
	if names := tls.GetSubjectAltNames(); len(names) > 0 {
		accounts = names
	}
	return g.upstreamTLS(u.mtlsLimits, accounts, cmp.Or(tls.GetSni(), u.name().SNI()), u.http2())
}

// fixedClusters generates BlackHoleCluster and, for sidecars, PassthroughCluster.
type fixedClusters struct {
	router         bool
	connectTimeout time.Duration
	keepAlive      snapshot.KeepAlive
}

func (u fixedClusters) Type() string { return xdswire.ClusterType }

func (u fixedClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := generator{enc: enc}
	g.cluster(&clusterv3.Cluster{
		Name:                 mesh.BlackHoleCluster,
		AltStatName:          mesh.BlackHoleCluster + ";",
		ClusterDiscoveryType: discovery(clusterv3.Cluster_STATIC),
		ConnectTimeout:       durationpb.New(u.connectTimeout),
	})
	if !u.router {
		g.cluster(g.passthroughCluster(mesh.PassthroughCluster, u.connectTimeout, u.keepAlive))
	}
	return g.resources()
}

// passthroughCluster returns a cluster that connects to the original destination.
func (g *generator) passthroughCluster(name string, connectTimeout time.Duration, alive snapshot.KeepAlive) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          mesh.PassthroughCluster + ";",
		ClusterDiscoveryType: discovery(clusterv3.Cluster_ORIGINAL_DST),
		ConnectTimeout:       durationpb.New(connectTimeout),
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers:      unlimited(),
	}
	setKeepAlive(c, alive)
	g.protocolOptions(c, downstreamProtocol(passthroughIdle))
	return c
}

// passthroughIdle is the idle timeout of HTTP connections to unknown destinations.
const passthroughIdle = 5 * time.Minute

// unlimited returns circuit breakers without Envoy's default limits (1024 connections …).
var unlimited = encodedOnce(&clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{unlimitedThresholds()}})

func unlimitedThresholds() *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{MaxConnections: maxCount, MaxPendingRequests: maxCount, MaxRequests: maxCount, MaxRetries: maxCount}
}

func explicitHTTP2() *httpv3.HttpProtocolOptions {
	return &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
		ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
			ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
				Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
			},
		},
	}}
}

// downstreamProtocol makes the proxy use the client's HTTP version for the upstream. idle
// 0 keeps Envoy's idle timeout.
func downstreamProtocol(idle time.Duration) *httpv3.HttpProtocolOptions {
	o := &httpv3.HttpProtocolOptions{UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_UseDownstreamProtocolConfig{
		UseDownstreamProtocolConfig: &httpv3.HttpProtocolOptions_UseDownstreamHttpConfig{
			HttpProtocolOptions:  &corev3.Http1ProtocolOptions{},
			Http2ProtocolOptions: &corev3.Http2ProtocolOptions{},
		},
	}}
	if idle > 0 {
		o.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idle)}
	}
	return o
}

// setHTTPOptions sets the options of HTTP connections; nil means Envoy's defaults.
func (g *generator) setHTTPOptions(c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) {
	if o != nil {
		g.protocolOptions(c, o)
	}
}

func (g *generator) protocolOptions(c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) {
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": g.any(o),
	}
}

// clusterLocal reports whether clients call only endpoints of their own cluster, or of
// their own node.
func clusterLocal(svc *snapshot.MeshService) bool {
	return svc.NodeLocal || svc.ClusterLocal
}
