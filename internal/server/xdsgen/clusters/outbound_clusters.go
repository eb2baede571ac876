// Package clusters generates the clusters of services, as DestinationRules configure them.
package clusters

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
	"github.com/meshctl/meshctl/internal/server/xdsgen/endpoints"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/tlsconfig"
	"github.com/meshctl/meshctl/internal/server/xdsgen/units"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// View is the view of the outbound clusters of proxies that see the same services
// and have the same DestinationRules.
type View struct {
	Scope       proxy.Scope
	Client      snapshot.RuleClient
	Router      bool
	Passthrough bool // for a gateway that passes TLS through by server name
	// Families are the IP versions to which names are resolved, if some service needs it.
	Families proxy.Families
	Place    endpoints.Place // zero if no name is resolved
}

// Views returns the view with its private services apart from the public ones, which all
// namespaces share, and the own view. A Sidecar that limits the services keeps them
// together.
func (v View) Views(s *snapshot.Snapshot, own units.View) units.Views {
	if len(v.Scope.Egress()) > 0 {
		return units.Views{Shared: v, Own: own}
	}
	public, private := v, v
	public.Scope, private.Scope.Only = proxy.Scope{Only: proxy.PublicServices}, proxy.PrivateServices
	out := units.Views{Shared: public, Own: own}
	if s.Private {
		out.Private = private
	}
	return out
}

// Type implements units.View.
func (v View) Type() string { return xdswire.ClusterType }

// Keys implements units.View.
func (v View) Keys() units.Keys {
	k := units.Keys{Fixed: 1, FixedFacts: snapshot.MeshFacts, ServiceFacts: snapshot.ServiceFacts | snapshot.RuleFacts | snapshot.MeshFacts, Scope: v.Scope}
	if v.Scope.Only == proxy.PrivateServices {
		k.Fixed = 0
	}
	if len(v.Scope.Egress()) > 0 {
		k.ServiceFacts |= snapshot.ReferrerFacts
	}
	return k
}

// Unit implements units.View.
func (v View) Unit(s *snapshot.Snapshot, k units.Key) units.Unit {
	if k.Kind == units.FixedKey {
		return FixedClusters{router: v.Router, connectTimeout: s.Mesh.ConnectTimeout, keepAlive: s.Mesh.KeepAlive}
	}
	return v.serviceUnit(s, s.Services.Get(k.Name))
}

func (v View) serviceUnit(s *snapshot.Snapshot, svc *snapshot.MeshService) units.Unit {
	if svc == nil || !v.Scope.Sees(svc) && !v.Scope.ImportsRouteTo(s, svc) {
		return nil
	}
	rule := s.Rules.Get(svc.Key).For(v.Client)
	return ServiceClusters{
		Service: svc, Rule: rule, router: v.Router, passthrough: v.Passthrough, dns: v.dns(s, svc, rule),
		connectTimeout: s.Mesh.ConnectTimeout, autoMTLS: s.Mesh.AutoMTLS, mtlsLimits: s.Mesh.MeshTLS, tlsLimits: s.Mesh.TLSDefaults,
		keepAlive: s.Mesh.KeepAlive, h2Upgrade: s.Mesh.H2Upgrade, localityWeights: endpoints.LocalityWeightsOf(endpoints.LocalitySetting(s.Mesh, snapshot.NoDistribution, nil)),
		stats: s.Mesh.OutboundStats, defaults: s.Mesh.DefaultPolicy,
	}
}

// resolver holds the settings by which proxies resolve names; zero if they resolve none.
type resolver struct {
	families proxy.Families
	refresh  time.Duration
	subsets  wire.List[endpoints.EndpointSubset]
}

func (v View) dns(s *snapshot.Snapshot, svc *snapshot.MeshService, rule *snapshot.HostRule) resolver {
	if svc.Resolution.DNS() {
		return resolver{v.Families, s.Mesh.DNSRefresh, endpoints.EndpointSubsets(s.Mesh, svc, rule, v.Place)}
	}
	return resolver{}
}

// ServiceClusters generates the clusters of one service: one for each port and for each
// subset of a port, and for gateways that pass TLS through another one for that.
type ServiceClusters struct {
	Service               *snapshot.MeshService
	Rule                  *snapshot.HostRule // or nil
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
	localityWeights endpoints.LocalityWeights
	stats           string // Mesh.OutboundStats
}

// Type implements units.Unit.
func (u ServiceClusters) Type() string { return xdswire.ClusterType }

// Generate implements units.Unit.
func (u ServiceClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.Service.ExternalName != "" {
		return nil, nil
	}
	g := wire.Generator{Enc: enc}
	for i := range u.Service.Ports {
		port := &u.Service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		for _, subset := range endpoints.SubsetsOf(u.Rule) {
			of := ClusterOf{u, port, subset, u.Rule.PolicyOver(u.defaults, port.Number, subset)}
			c := of.Cluster(&g)
			if c == nil {
				continue
			}
			g.Cluster(c)
			if u.passthrough && endpoints.Passable(u.Service) {
				c := of.base(&g, of.name().SNI(), "") // without a transport socket
				SetHTTPOptions(&g, c, of.httpOptions())
				g.Cluster(c)
			}
		}
	}
	return g.Resources()
}

// ClusterOf is a cluster of a port: for a subset, or for the whole service if subset is
// nil.
type ClusterOf struct {
	ServiceClusters
	port   *snapshot.ServicePort
	subset *networkingv1alpha3.Subset
	policy *networkingv1alpha3.TrafficPolicy // may be nil
}

func (u ClusterOf) name() mesh.ClusterName {
	return mesh.ClusterName{Direction: mesh.Outbound, Port: u.port.Number, Subset: u.subset.GetName(), Host: u.Service.Host}
}

// Cluster returns the whole cluster. It returns nil if the cluster would have no endpoint
// whose name to resolve.
func (u ClusterOf) Cluster(g *wire.Generator) *clusterv3.Cluster {
	c, options := u.base(g, u.name().String(), u.alpn()), u.httpOptions()
	if c == nil {
		return nil
	}
	tls := u.policy.GetTls()
	switch tls.GetMode() {
	case networkingv1alpha3.ClientTLSSettings_SIMPLE, networkingv1alpha3.ClientTLSSettings_MUTUAL:
		sans := certificateNames(tls, u.Service.NamesOf(u.port.Number))
		c.TransportSocket = policyTLS(g, tls, sans, u.tlsLimits, u.mayUseCredential(tls), u.http2())
		options = autoSNI(options, tls, sans)
	case networkingv1alpha3.ClientTLSSettings_ISTIO_MUTUAL:
		c.TransportSocket = u.meshTLS(g)
	default: // DISABLE, or no TLS settings
		if tls == nil {
			u.setAutoTLS(g, c)
		}
	}
	announceClient(g, c, u.policy.GetProxyProtocol())
	SetHTTPOptions(g, c, options)
	return c
}

// base returns a cluster without its transport socket and its options of HTTP, or nil. alpn may be
// empty.
func (u ClusterOf) base(g *wire.Generator, name, alpn string) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:           name,
		AltStatName:    cmp.Or(wire.StatName(u.stats, u.Service, u.port, u.subset.GetName(), 0), name) + ";",
		ConnectTimeout: durationpb.New(u.connectTimeout),
		// By default Envoy also uses unhealthy endpoints as soon as half of all are
		// unhealthy. EDS includes unhealthy endpoints, so this is off by default.
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{
			Value: float64(u.policy.GetOutlierDetection().GetMinHealthPercent()),
		}},
		OutlierDetection: OutlierDetection(u.policy.GetOutlierDetection()),
		Metadata:         u.Metadata(alpn),
	}
	byDefault := u.localityWeights
	if u.Service.Distribution != snapshot.NoDistribution {
		byDefault = endpoints.AlwaysWeighted
	}
	weighted := endpoints.WeighsLocalities(byDefault, u.Rule.PolicyAt(u.port.Number, u.subset), u.policy)
	if weighted {
		c.CommonLbConfig.LocalityConfigSpecifier = &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig_{
			LocalityWeightedLbConfig: &clusterv3.Cluster_CommonLbConfig_LocalityWeightedLbConfig{},
		}
	}
	switch {
	case u.originalDst():
		c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
		if u.port.Target != u.port.Number && u.port.Target != 0 && u.Service.Entry {
			c.LbConfig = &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: &clusterv3.Cluster_OriginalDstLbConfig{
				UpstreamPortOverride: wrapperspb.UInt32(u.port.Target),
			}}
		}
	case u.Service.Resolution.DNS():
		if !u.resolve(c) {
			return nil
		}
		setLoadBalancer(g, c, u.loadBalancer(), weighted)
	default:
		c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_EDS)
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: wire.AdsSource(), ServiceName: name}
		setLoadBalancer(g, c, u.loadBalancer(), weighted)
	}
	SetConnectionPool(c, u.policy.GetConnectionPool(), u.keepAlive, u.policy.GetRetryBudget())
	if u.router {
		c.PerConnectionBufferLimitBytes = HostileClients
	}
	return c
}

// HostileClients bounds what Envoy reads at once from a server whose clients may be hostile, in
// bytes. Callers that send many requests and read no response would otherwise fill the memory, a MiB
// for each request, before Envoy looks at its heap.
var HostileClients = wrapperspb.UInt32(64 << 10)

// resolve makes the proxy resolve the names of a cluster's endpoints. It returns false if
// there are none.
func (u ClusterOf) resolve(c *clusterv3.Cluster) bool {
	if u.Service.Targets == nil {
		return false
	}
	subsets := endpoints.WholeAndSubsets(u.dns.subsets)
	subset := &subsets[slices.IndexFunc(subsets, func(s endpoints.EndpointSubset) bool { return s.Name == u.subset.GetName() })]
	list := subset.Of(u.Service.Targets.ByPort[u.port.Name], u.port.Number)
	if len(list) == 0 {
		return false
	}
	c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_STRICT_DNS)
	if u.Service.Resolution == snapshot.ByFirstOfDNS {
		c.ClusterDiscoveryType = wire.Discovery(clusterv3.Cluster_LOGICAL_DNS)
		list = list[:1] // Envoy refuses more
	}
	c.DnsRefreshRate = durationpb.New(u.dns.refresh) //nolint:staticcheck // as in Istio, and every Envoy reads it
	c.RespectDnsTtl = true                           //nolint:staticcheck // see above
	switch u.dns.families {
	case proxy.V4:
		c.DnsLookupFamily = clusterv3.Cluster_V4_ONLY
	case proxy.V6:
		c.DnsLookupFamily = clusterv3.Cluster_V6_ONLY
	default:
		c.DnsLookupFamily = clusterv3.Cluster_ALL
	}
	c.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: c.GetName(), Endpoints: endpoints.Assignments{Service: u.Service}.Localities(list, false, wire.ValueOf(subset.Ports, u.port.Number).Locality),
	}
	return true
}

// protocol returns the protocol by which the proxy calls the port. A VirtualService may send
// requests to a port of any protocol for which the proxy originates TLS, mostly HTTPS.
func (u ClusterOf) protocol() mesh.Protocol {
	if p := u.port.Protocol; p.IsHTTP() || !originatesTLS(u.policy.GetTls()) {
		return p
	}
	return mesh.Auto
}

// mayUseCredential reports whether the proxy may use credentialName. Most sidecars have no
// right to read Secrets, while all may read the CA certificates of ConfigMaps.
func (u ClusterOf) mayUseCredential(t *networkingv1alpha3.ClientTLSSettings) bool {
	return u.router || u.Rule.Selector != "" || strings.HasPrefix(t.GetCredentialName(), units.ConfigMapPrefix)
}

func originatesTLS(t *networkingv1alpha3.ClientTLSSettings) bool {
	return t.GetMode() == networkingv1alpha3.ClientTLSSettings_SIMPLE || t.GetMode() == networkingv1alpha3.ClientTLSSettings_MUTUAL
}

func (u ClusterOf) http2() bool {
	return speaksHTTP2(u.protocol(), u.h2Upgrade, u.policy.GetConnectionPool())
}

func (u ClusterOf) httpOptions() *httpv3.HttpProtocolOptions {
	return UpstreamHTTP(u.protocol(), !u.router && u.port.Protocol == mesh.Auto, u.http2(), u.policy.GetConnectionPool(), u.policy.GetOutlierDetection())
}

// originalDst reports whether connections go to the address that the client chose, as for
// headless services. The clients of gateways choose none.
func (u ClusterOf) originalDst() bool {
	return !u.router && (endpoints.ToDestination(u.Service) || passesThrough(u.policy.GetLoadBalancer()))
}

// setAutoTLS sets the transport sockets of a cluster without TLS settings: mTLS for
// endpoints that accept it, else plaintext.
func (u ClusterOf) setAutoTLS(g *wire.Generator, c *clusterv3.Cluster) {
	if !u.autoMTLS || u.Service.Plaintext {
		return
	}
	if u.originalDst() && (!u.Service.AllTLS || slices.Contains(u.Service.PlainPorts, u.port.Name)) {
		return // the endpoints' own modes do not count
	}
	tls := u.meshTLS(g)
	if u.originalDst() {
		c.TransportSocket = tls
		return
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: wire.TLSModeMatch(), TransportSocket: tls},
		{Name: "tlsMode-disabled", Match: wire.EveryEndpoint, TransportSocket: tlsconfig.RawBuffer()},
	}
}

// meshTLS returns the transport socket for mTLS with the certificates of the mesh.
func (u ClusterOf) meshTLS(g *wire.Generator) *corev3.TransportSocket {
	accounts, tls := u.Service.Accounts, u.policy.GetTls()
	if names := tls.GetSubjectAltNames(); len(names) > 0 {
		accounts = names
	}
	return tlsconfig.MeshUpstreamTLS(g, u.mtlsLimits, accounts, cmp.Or(tls.GetSni(), u.name().SNI()), u.http2())
}

// FixedClusters generates BlackHoleCluster and, for sidecars, PassthroughCluster.
type FixedClusters struct {
	router         bool
	connectTimeout time.Duration
	keepAlive      snapshot.KeepAlive
}

// Type implements units.Unit.
func (u FixedClusters) Type() string { return xdswire.ClusterType }

// Generate implements units.Unit.
func (u FixedClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	g := wire.Generator{Enc: enc}
	g.Cluster(&clusterv3.Cluster{
		Name:                 mesh.BlackHoleCluster,
		AltStatName:          mesh.BlackHoleCluster + ";",
		ClusterDiscoveryType: wire.Discovery(clusterv3.Cluster_STATIC),
		ConnectTimeout:       durationpb.New(u.connectTimeout),
	})
	if !u.router {
		g.Cluster(PassthroughCluster(&g, mesh.PassthroughCluster, u.connectTimeout, u.keepAlive))
	}
	return g.Resources()
}

// PassthroughCluster returns a cluster that connects to the original destination.
func PassthroughCluster(g *wire.Generator, name string, connectTimeout time.Duration, alive snapshot.KeepAlive) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          mesh.PassthroughCluster + ";",
		ClusterDiscoveryType: wire.Discovery(clusterv3.Cluster_ORIGINAL_DST),
		ConnectTimeout:       durationpb.New(connectTimeout),
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers:      Unlimited(),
	}
	setKeepAlive(c, alive)
	protocolOptions(g, c, downstreamProtocol(passthroughIdle))
	return c
}

// passthroughIdle is the idle timeout of HTTP connections to unknown destinations.
const passthroughIdle = 5 * time.Minute

// Unlimited returns circuit breakers without Envoy's default limits (1024 connections …).
var Unlimited = wire.EncodedOnce(&clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{UnlimitedThresholds()}})

// UnlimitedThresholds returns thresholds of a circuit breaker that are never reached.
func UnlimitedThresholds() *clusterv3.CircuitBreakers_Thresholds {
	return &clusterv3.CircuitBreakers_Thresholds{MaxConnections: wire.MaxCount, MaxPendingRequests: wire.MaxCount, MaxRequests: wire.MaxCount, MaxRetries: wire.MaxCount}
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

// SetHTTPOptions sets the options of HTTP connections; nil means Envoy's defaults.
func SetHTTPOptions(g *wire.Generator, c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) {
	if o != nil {
		protocolOptions(g, c, o)
	}
}

func protocolOptions(g *wire.Generator, c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) {
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": g.Any(o),
	}
}

// alpn returns the ALPN protocol of HTTP connections with TLS by a policy, which every server knows,
// not Istio's: see alpnFilter. Others have none.
func (u ClusterOf) alpn() string {
	switch {
	case !originatesTLS(u.policy.GetTls()):
		return ""
	case u.http2():
		return "h2"
	}
	return "http/1.1"
}
