package xdsgen

import (
	"math"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// clusterView are the outbound clusters of all proxies that see the same
// services, with the fixed clusters.
type clusterView struct {
	scope       scope
	router      bool
	passthrough bool // a gateway that passes TLS through by its server name
}

func (v clusterView) Type() string { return xdswire.ClusterType }

func (v clusterView) Reads() snapshot.Kinds { return snapshot.ServiceFacts }

func (v clusterView) Units(s *snapshot.Snapshot, yield func(string, Unit)) {
	yield("", fixedClusters{router: v.router, connectTimeout: s.Mesh.ConnectTimeout})
	for host := range s.Services.All() {
		v.unit(s, host, yield)
	}
}

func (v clusterView) Touched(s *snapshot.Snapshot, c *snapshot.Changes, yield func(string, Unit)) {
	for host := range c.Services {
		v.unit(s, host, yield)
	}
}

func (v clusterView) unit(s *snapshot.Snapshot, host string, yield func(string, Unit)) {
	svc := s.Services.Get(host)
	if svc == nil || !v.scope.sees(svc) {
		yield(host, nil)
		return
	}
	yield(host, serviceClusters{
		service: svc, router: v.router, passthrough: v.passthrough,
		connectTimeout: s.Mesh.ConnectTimeout, autoMTLS: s.Mesh.AutoMTLS, exchange: curvesOf(s.Mesh),
	})
}

// serviceClusters are the clusters of one service: one for each port, and on
// gateways that pass TLS through a twin of each for that.
type serviceClusters struct {
	service        *snapshot.MeshService
	router         bool
	passthrough    bool
	connectTimeout time.Duration
	autoMTLS       bool
	exchange       curves
}

func (u serviceClusters) Type() string { return xdswire.ClusterType }

func (u serviceClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	if u.service.ExternalName != "" {
		return nil, nil
	}
	var out []*xdswire.Resource
	for i := range u.service.Ports {
		port := &u.service.Ports[i]
		if port.Protocol == mesh.UDP {
			continue
		}
		name := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: u.service.Host}
		c, err := u.cluster(name.String(), port)
		if err != nil {
			return nil, err
		}
		if err := u.upstreamTLS(c, name, port); err != nil {
			return nil, err
		}
		r, err := enc.Resource(xdswire.ClusterType, c.Name, c)
		if err != nil {
			return nil, err
		}
		out = append(out, r)
		if !u.passthrough || u.service.Headless || clusterLocal(u.service) {
			continue
		}
		// The gateway passes TLS through by its server name: same cluster
		// without a transport socket.
		if c, err = u.cluster(name.SNI(), port); err != nil {
			return nil, err
		}
		if r, err = enc.Resource(xdswire.ClusterType, c.Name, c); err != nil {
			return nil, err
		}
		out = append(out, r)
	}
	return out, nil
}

// cluster is everything but the transport socket.
func (u serviceClusters) cluster(name string, port *snapshot.ServicePort) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:            name,
		AltStatName:     name + ";",
		ConnectTimeout:  durationpb.New(u.connectTimeout),
		LbPolicy:        clusterv3.Cluster_LEAST_REQUEST,
		CircuitBreakers: unlimited(),
		// Unhealthy endpoints are sent as such: without this Envoy would
		// spread load over them as soon as half of all are.
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{}},
		Metadata:       serviceMetadata(u.service.Name, u.service.Namespace, u.service.Host),
	}
	if u.originalDst() {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_ORIGINAL_DST)
		c.LbPolicy = clusterv3.Cluster_CLUSTER_PROVIDED
	} else {
		c.ClusterDiscoveryType = discovery(clusterv3.Cluster_EDS)
		c.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource(), ServiceName: name}
	}
	var options *httpv3.HttpProtocolOptions
	switch {
	case port.Protocol.IsHTTP2():
		options = explicitHTTP2()
	case port.Protocol == mesh.Auto && !u.router:
		options = downstreamProtocol(0)
	}
	return c, setProtocolOptions(c, options)
}

// originalDst says that connections go to the address that the client chose:
// headless services on sidecars. A gateway has no such address.
func (u serviceClusters) originalDst() bool { return u.service.Headless && !u.router }

func (u serviceClusters) upstreamTLS(c *clusterv3.Cluster, name mesh.ClusterName, port *snapshot.ServicePort) error {
	if !u.autoMTLS || u.service.Plaintext {
		return nil
	}
	tls, err := upstreamTLS(u.exchange, u.service.Accounts, name.SNI(), port.Protocol.IsHTTP2())
	if err != nil {
		return err
	}
	if u.originalDst() {
		if u.service.AllTLS {
			c.TransportSocket = tls
		}
		return nil
	}
	plain, err := rawBuffer()
	if err != nil {
		return err
	}
	c.TransportSocketMatches = []*clusterv3.Cluster_TransportSocketMatch{
		{Name: "tlsMode-istio", Match: tlsModeMatch(), TransportSocket: tls},
		{Name: "tlsMode-disabled", Match: &structpb.Struct{}, TransportSocket: plain},
	}
	return nil
}

// fixedClusters are BlackHoleCluster and, on sidecars, PassthroughCluster.
type fixedClusters struct {
	router         bool
	connectTimeout time.Duration
}

func (u fixedClusters) Type() string { return xdswire.ClusterType }

func (u fixedClusters) Generate(enc *xdswire.Encoder) ([]*xdswire.Resource, error) {
	hole, err := enc.Resource(xdswire.ClusterType, mesh.BlackHoleCluster, &clusterv3.Cluster{
		Name:                 mesh.BlackHoleCluster,
		AltStatName:          mesh.BlackHoleCluster + ";",
		ClusterDiscoveryType: discovery(clusterv3.Cluster_STATIC),
		ConnectTimeout:       durationpb.New(u.connectTimeout),
	})
	if err != nil || u.router {
		return []*xdswire.Resource{hole}, err
	}
	c, err := passthroughCluster(mesh.PassthroughCluster, u.connectTimeout)
	if err != nil {
		return nil, err
	}
	pass, err := enc.Resource(xdswire.ClusterType, c.Name, c)
	return []*xdswire.Resource{hole, pass}, err
}

func passthroughCluster(name string, connectTimeout time.Duration) (*clusterv3.Cluster, error) {
	c := &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          mesh.PassthroughCluster + ";",
		ClusterDiscoveryType: discovery(clusterv3.Cluster_ORIGINAL_DST),
		ConnectTimeout:       durationpb.New(connectTimeout),
		LbPolicy:             clusterv3.Cluster_CLUSTER_PROVIDED,
		CircuitBreakers:      unlimited(),
	}
	return c, setProtocolOptions(c, downstreamProtocol(passthroughIdle))
}

// passthroughIdle closes HTTP connections to destinations that nobody
// describes.
const passthroughIdle = 5 * time.Minute

// unlimited turns Envoy's default limits (1024 connections …) off.
func unlimited() *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     wrapperspb.UInt32(math.MaxUint32),
		MaxPendingRequests: wrapperspb.UInt32(math.MaxUint32),
		MaxRequests:        wrapperspb.UInt32(math.MaxUint32),
		MaxRetries:         wrapperspb.UInt32(math.MaxUint32),
	}}}
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

// downstreamProtocol speaks to the upstream what the client spoke; idle 0
// keeps Envoy's idle time.
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

func setProtocolOptions(c *clusterv3.Cluster, o *httpv3.HttpProtocolOptions) error {
	if o == nil {
		return nil
	}
	a, err := xdswire.Any(o)
	if err != nil {
		return err
	}
	c.TypedExtensionProtocolOptions = map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": a,
	}
	return nil
}

// clusterLocal reports whether a service is reached only within its own
// cluster: Kubernetes' own services, and those of each node.
func clusterLocal(svc *snapshot.MeshService) bool {
	return svc.NodeLocal || snapshot.ClusterLocal(svc.Namespace, svc.Name)
}
