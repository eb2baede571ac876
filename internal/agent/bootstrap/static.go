package bootstrap

import (
	"crypto/tls"
	"net/netip"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
)

// packer wraps messages in Any and keeps the first error, so that composite literals stay
// readable.
type packer struct{ err error }

func (p *packer) any(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil && p.err == nil {
		p.err = err
	}
	return a
}

// forwarder returns a listener that forwards one path to the agent, where the path may be another
// one, and answers all other paths with 404.
func (p *packer) forwarder(c Config, port uint16, statPrefix, path, rewrite string) *listenerv3.Listener {
	hcm := &hcmv3.HttpConnectionManager{
		StatPrefix: statPrefix,
		RouteSpecifier: &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: &routev3.RouteConfiguration{
			VirtualHosts: []*routev3.VirtualHost{{
				Name:    "backend",
				Domains: []string{"*"},
				Routes: []*routev3.Route{{
					Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: path}},
					Action: &routev3.Route_Route{Route: &routev3.RouteAction{
						ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: mesh.AgentCluster}, PrefixRewrite: rewrite,
						Timeout: durationpb.New(0), // the agent bounds the time, by the timeout of Prometheus for example
					}},
				}},
			}},
		}},
		HttpFilters: []*hcmv3.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: p.any(&routerv3.Router{})},
		}},
	}
	l := &listenerv3.Listener{
		Name:    c.Listen.String() + "_" + strconv.Itoa(int(port)),
		Address: socketAddress(c.Listen.String(), port),
		FilterChains: []*listenerv3.FilterChain{{
			Filters: []*listenerv3.Filter{{
				Name:       "envoy.filters.network.http_connection_manager",
				ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: p.any(hcm)},
			}},
		}},
		// Readiness and metrics must answer when the proxy is overloaded.
		IgnoreGlobalConnLimit: true,
		BypassOverloadManager: true,
	}
	if c.DualStack {
		l.AdditionalAddresses = []*listenerv3.AdditionalAddress{{Address: socketAddress(netip.IPv6Unspecified().String(), port)}}
	}
	return l
}

func localCluster(name string, addr netip.Addr, port uint16) *clusterv3.Cluster {
	return staticCluster(name, clusterv3.Cluster_STATIC, 250*time.Millisecond, socketAddress(addr.String(), port))
}

// socketCluster returns the cluster of a service of the agent on a Unix socket.
func (p *packer) socketCluster(name, socket string) *clusterv3.Cluster {
	c := staticCluster(name, clusterv3.Cluster_STATIC, time.Second, &corev3.Address{
		Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: socket}},
	})
	c.TypedExtensionProtocolOptions = p.http2()
	return c
}

// prove lets Envoy and the agent prove themselves to each other on a socket.
func (p *packer) prove(cluster *clusterv3.Cluster, c Config) {
	if len(c.ProofCert) == 0 {
		return
	}
	pem := func(data []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: string(data)}}
	}
	cluster.TransportSocket = p.tls(&tlsv3.UpstreamTlsContext{CommonTlsContext: &tlsv3.CommonTlsContext{
		TlsParams:       tls13(nil),
		AlpnProtocols:   []string{"h2"},
		TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: pem(c.ProofCert), PrivateKey: pem(c.ProofKey)}},
		ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{
			ValidationContext: &tlsv3.CertificateValidationContext{TrustedCa: pem(c.ProofCert)},
		},
	}})
}

// tls13 returns the parameters of connections of the proxy itself. As a client, Envoy uses TLS 1.2
// at most by default.
func tls13(exchanges []tls.CurveID) *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		EcdhCurves:                curveNames(exchanges),
	}
}

func (p *packer) tls(context *tlsv3.UpstreamTlsContext) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: p.any(context)},
	}
}

// xdsCluster returns the cluster of the control plane for direct streams. Envoy connects over TLS 1.3 with the
// workload's certificate, and waits for the certificate before it opens the stream.
func (p *packer) xdsCluster(c Config) *clusterv3.Cluster {
	discovery := clusterv3.Cluster_STRICT_DNS
	if _, err := netip.ParseAddr(c.Discovery.Host); err == nil {
		discovery = clusterv3.Cluster_STATIC
	}
	cluster := staticCluster(mesh.XDSCluster, discovery, 5*time.Second, socketAddress(c.Discovery.Host, c.Discovery.Port))
	cluster.TypedExtensionProtocolOptions = p.http2()
	cluster.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{
		TcpKeepalive: &corev3.TcpKeepalive{KeepaliveTime: wrapperspb.UInt32(30)},
	}
	common := &tlsv3.CommonTlsContext{
		TlsParams:                      tls13(c.KeyExchanges),
		AlpnProtocols:                  []string{"h2"},
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsSecret(mesh.SecretCertificate)},
	}
	validation := &tlsv3.CertificateValidationContext{
		MatchTypedSubjectAltNames: []*tlsv3.SubjectAltNameMatcher{{
			SanType: tlsv3.SubjectAltNameMatcher_DNS,
			Matcher: &matcherv3.StringMatcher{MatchPattern: &matcherv3.StringMatcher_Exact{Exact: c.Discovery.Name}},
		}},
	}
	if c.XDSRootFile != "" {
		validation.TrustedCa = &corev3.DataSource{Specifier: &corev3.DataSource_Filename{Filename: c.XDSRootFile}}
		common.ValidationContextType = &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: validation}
	} else {
		common.ValidationContextType = &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         validation,
				ValidationContextSdsSecretConfig: sdsSecret(mesh.SecretRoots),
			},
		}
	}
	cluster.TransportSocket = p.tls(&tlsv3.UpstreamTlsContext{Sni: c.Discovery.Name, CommonTlsContext: common})
	return cluster
}

// sdsSecret refers to a secret of the agent. Envoy waits for it without a limit: it can do
// nothing without it.
func sdsSecret(name string) *tlsv3.SdsSecretConfig {
	return &tlsv3.SdsSecretConfig{
		Name: name,
		SdsConfig: &corev3.ConfigSource{
			ConfigSourceSpecifier: &corev3.ConfigSource_ApiConfigSource{
				ApiConfigSource: apiConfigSource(corev3.ApiConfigSource_GRPC, mesh.SDSCluster),
			},
			InitialFetchTimeout: durationpb.New(0),
			ResourceApiVersion:  corev3.ApiVersion_V3,
		},
	}
}

// staticCluster returns a cluster with one endpoint. The ';' ends its name in statistics, as
// names of other clusters hold dots.
func staticCluster(name string, discovery clusterv3.Cluster_DiscoveryType, connect time.Duration, addr *corev3.Address) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                 name,
		AltStatName:          name + ";",
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: discovery},
		ConnectTimeout:       durationpb.New(connect),
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{
				LbEndpoints: []*endpointv3.LbEndpoint{{
					HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: addr}},
				}},
			}},
		},
	}
}

func (p *packer) http2() map[string]*anypb.Any {
	return map[string]*anypb.Any{
		"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": p.any(&httpv3.HttpProtocolOptions{
			UpstreamProtocolOptions: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_{
				ExplicitHttpConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig{
					ProtocolConfig: &httpv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
						// Pings detect a control plane that vanished without closing.
						Http2ProtocolOptions: &corev3.Http2ProtocolOptions{
							ConnectionKeepalive: &corev3.KeepaliveSettings{
								Interval: durationpb.New(30 * time.Second),
								Timeout:  durationpb.New(10 * time.Second),
							},
						},
					},
				},
			},
		}),
	}
}

func socketAddress(host string, port uint16) *corev3.Address {
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(port)},
	}}}
}

func curveNames(list []tls.CurveID) []string {
	var out []string
	for _, id := range list {
		out = append(out, mesh.KeyExchangeName(id))
	}
	return out
}
