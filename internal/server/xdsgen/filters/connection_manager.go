// Package filters generates connection managers and TCP proxies, and the filters in them.
package filters

import (
	"cmp"
	"slices"
	"strings"
	"sync"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	ondemandv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/on_demand/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/telemetry"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Names of Envoy's filters.
const (
	FilterHCM      = "envoy.filters.network.http_connection_manager"
	FilterTCP      = "envoy.filters.network.tcp_proxy"
	filterSetState = "envoy.filters.http.set_filter_state"
)

// ServerName is the header "server" of responses to clients of a workload or gateway.
const ServerName = "istio-envoy"

// HTTPOptions holds the options of the connection managers of one port.
type HTTPOptions struct {
	Port     uint32
	Settings telemetry.Settings
	GrpcWeb  bool                // translate gRPC-Web to gRPC
	Topology snapshot.Topology   // of a gateway
	Timeouts PortTimeouts        // of connections that are not HTTP
	Streams  map[string][]Stream // routes of these, by host
	Unknown  string              // cluster of connections without a route
}

// OutboundHTTP returns the connection manager of an outbound listener. Its routes come
// by RDS.
func OutboundHTTP(g *wire.Generator, statPrefix, routeName string, o HTTPOptions) *listenerv3.Filter {
	return ConnectionManagers(g, OutboundHCM(g, o))(statPrefix, routeName)
}

// ConnectionManagers returns a function that makes connection managers with the options of h, whose
// routes come by RDS. They encode the options once: the encoding of a message is the concatenation
// of its encoded parts. The function encodes the fields that come first.
func ConnectionManagers(g *wire.Generator, h *hcmv3.HttpConnectionManager) func(statPrefix, routeName string) *listenerv3.Filter {
	routes := &hcmv3.Rds{ConfigSource: wire.AdsSource()}
	first := &hcmv3.HttpConnectionManager{CodecType: h.GetCodecType(), RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: routes}}
	h.CodecType = 0
	options, err := xdswire.Marshal(h)
	g.Fail(err)
	return func(statPrefix, routeName string) *listenerv3.Filter {
		first.StatPrefix, routes.RouteConfigName = statPrefix, routeName
		return g.NetworkFilter(FilterHCM, first, options...)
	}
}

// OutboundHCM returns the options of the connection managers of an outbound listener.
func OutboundHCM(g *wire.Generator, o HTTPOptions) *hcmv3.HttpConnectionManager {
	h := baseHCM(g, o)
	h.HttpFilters = slices.Insert(h.HttpFilters, len(h.HttpFilters)-1, alpnFilter())
	if o.Settings.RequestsHosts {
		h.HttpFilters = slices.Insert(h.HttpFilters, 0, onDemandFilter())
	}
	return h
}

// InboundHTTP returns the connection manager of an inbound chain. In the header
// x-forwarded-client-cert it reports the identity of the client's certificate to the
// application.
func InboundHTTP(g *wire.Generator, statPrefix string, routes *routev3.RouteConfiguration, o HTTPOptions) *listenerv3.Filter {
	h := baseHCM(g, o)
	h.StatPrefix = statPrefix
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	h.ServerName = ServerName
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wire.Yes, Dns: true, Uri: true,
	}
	h.Http2ProtocolOptions = &corev3.Http2ProtocolOptions{InitialStreamWindowSize: RequestWindow}
	return g.NetworkFilter(FilterHCM, h)
}

// RequestWindow bounds what a proxy holds of a request of others and of its response while one side
// does not read, in bytes. Envoy's defaults are 1 MiB with HTTP/1.1 and 16 MiB with HTTP/2, for each of
// 1,024 requests on a connection.
var RequestWindow = wrapperspb.UInt32(256 << 10)

// baseHCM returns the part of a connection manager that both directions share.
func baseHCM(g *wire.Generator, o HTTPOptions) *hcmv3.HttpConnectionManager {
	h := &hcmv3.HttpConnectionManager{
		UseRemoteAddress:             wire.No,
		Proxy_100Continue:            true,
		UpgradeConfigs:               upgrades,
		StreamIdleTimeout:            wire.NoTime,
		NormalizePath:                wire.Boolean(o.Settings.Paths != snapshot.KeepPaths),
		MergeSlashes:                 o.Settings.Paths == snapshot.MergeSlashes || o.Settings.Paths == snapshot.DecodeAndMergeSlashes,
		PathWithEscapedSlashesAction: escapedSlashes(o.Settings.Paths),
		RequestIdExtension:           requestIDs(),
		AccessLog:                    append(telemetry.AccessLogs(g, o.Settings), telemetry.RequestMetrics(g, o.Settings)...),
		Tracing:                      telemetry.Tracing(g, o.Settings.Tracing),
	}
	if o.Settings.AcceptsHTTP10 {
		h.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: true}
	}
	if idle := o.Settings.IdleTimeout; idle > 0 {
		h.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idle)}
	}
	if o.Settings.Tracing.NoRequestID {
		h.RequestIdExtension = untracedRequestIDs()
	}
	h.HttpFilters = securityFilters(g, o.Settings, o.Port)
	if o.GrpcWeb {
		h.HttpFilters = append(h.HttpFilters, grpcWebFilter())
	}
	h.HttpFilters = append(h.HttpFilters, grpcStatsFilter(), FaultFilter(), corsFilter(), RouterFilter())
	return h
}

func escapedSlashes(n snapshot.PathNormalization) hcmv3.HttpConnectionManager_PathWithEscapedSlashesAction {
	if n == snapshot.DecodeAndMergeSlashes {
		return hcmv3.HttpConnectionManager_UNESCAPE_AND_FORWARD
	}
	return hcmv3.HttpConnectionManager_KEEP_UNCHANGED
}

// Parts that all connection managers share. They must not be changed. They are made at the first
// use: commands that generate nothing start sooner.
var (
	grpcWebFilter   = httpFilter("envoy.filters.http.grpc_web", &grpcwebv3.GrpcWeb{})
	grpcStatsFilter = httpFilter("envoy.filters.http.grpc_stats", &grpcstatsv3.FilterConfig{
		EmitFilterState:        true,
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: wire.No},
	})
	FaultFilter  = httpFilter(FilterFault, &faultv3.HTTPFault{})
	corsFilter   = httpFilter("envoy.filters.http.cors", &corsv3.Cors{})
	RouterFilter = httpFilter("envoy.filters.http.router", &routerv3.Router{})
	// alpnFilter sets the ALPN protocols of upstream connections. They announce HTTP to the
	// server's proxy, as with Istio's own filter. Without it a port with protocol detection
	// handles mTLS as TCP. http2ALPN configures it for services with HTTP/2.
	alpnFilter = httpFilter(filterSetState, alpnState("istio-http/1.1", "istio"))
	HTTP2ALPN  = sync.OnceValue(func() map[string]*anypb.Any {
		return map[string]*anypb.Any{filterSetState: wire.MustAny(alpnState("istio-h2", "istio"))}
	})

	upgrades           = []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}}
	requestIDs         = requestIDExtension(true)
	untracedRequestIDs = requestIDExtension(false)
)

// httpFilter returns a filter with a constant configuration.
func httpFilter(name string, m proto.Message) func() *hcmv3.HttpFilter {
	return sync.OnceValue(func() *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: wire.MustAny(m)}}
	})
}

func requestIDExtension(traced bool) func() *hcmv3.RequestIDExtension {
	return sync.OnceValue(func() *hcmv3.RequestIDExtension {
		return &hcmv3.RequestIDExtension{
			TypedConfig: wire.MustAny(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: wire.Boolean(traced)}),
		}
	})
}

// alpnState returns the configuration of alpnFilter. The metadata of a cluster may name
// other protocols, as TLS settings of a DestinationRule need.
func alpnState(alpn ...string) *httpstatev3.Config {
	return &httpstatev3.Config{OnRequestHeaders: []*setfilterstatev3.FilterStateValue{
		alpnValue(strings.Join(alpn, ",")),
		alpnValue("%METADATA(CLUSTER:" + mesh.MetadataNamespace + ":" + MetadataALPN + ")%"),
	}}
}

// MetadataALPN is the key of ALPN protocols in the metadata of a cluster.
const MetadataALPN = "alpn"

func alpnValue(format string) *setfilterstatev3.FilterStateValue {
	return &setfilterstatev3.FilterStateValue{
		Key: &setfilterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value: &setfilterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: format},
			}},
			OmitEmptyValues: true,
		}},
		SharedWithUpstream: setfilterstatev3.FilterStateValue_ONCE,
		SkipIfEmpty:        true,
	}
}

// TCPProxy returns the filter that passes connections on to a cluster.
func TCPProxy(g *wire.Generator, cluster string, s telemetry.Settings) *listenerv3.Filter {
	return NamedTCPProxy(g, cluster, cluster, s, TCPTimeouts{})
}

// ServiceTCP returns the filter that passes connections on to a port of a service.
func ServiceTCP(g *wire.Generator, svc *snapshot.MeshService, port *snapshot.ServicePort, o HTTPOptions) *listenerv3.Filter {
	cluster := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: svc.Host}.String()
	stats := cmp.Or(wire.StatName(o.Settings.Stats, svc, port, "", 0), cluster)
	return NamedTCPProxy(g, cluster, stats, o.Settings, o.Timeouts.Of(svc, port.Number))
}

// NamedTCPProxy returns the filter that passes connections on to a cluster, with a name for its
// statistics.
func NamedTCPProxy(g *wire.Generator, cluster, stats string, s telemetry.Settings, t TCPTimeouts) *listenerv3.Filter {
	p := &tcpv3.TcpProxy{AccessLog: telemetry.AccessLogs(g, s)}
	t.Set(p)
	s.Called = cmp.Or(s.Called, cluster)
	telemetry.SetConnectionMetrics(g, p, s)
	const fieldStatPrefix, fieldCluster = 1, 2
	var room [256]byte // enough for most services
	names := protowire.AppendString(wire.AppendField(room[:0], fieldStatPrefix), stats)
	return g.NetworkFilter(FilterTCP, p, protowire.AppendString(wire.AppendField(names, fieldCluster), cluster)...)
}

// BlackHole returns the filter that closes connections without a log line.
func BlackHole(g *wire.Generator) *listenerv3.Filter {
	return TCPProxy(g, mesh.BlackHoleCluster, telemetry.Settings{})
}

// onDemandFilter comes first, because the other filters read the route. It has no effect on
// requests that have a route.
var onDemandFilter = httpFilter("envoy.filters.http.on_demand", &ondemandv3.OnDemand{})

// Stream is a VirtualService with routes for TLS or TCP connections to a host.
type Stream struct {
	Host    string
	Virtual *snapshot.VirtualService
	Client  snapshot.RouteClient // the part of the client that the routes read
	Tunnels wire.List[Tunnel]    // of the destinations
}

// FilterFault is the name of the filter that injects faults.
const FilterFault = "envoy.filters.http.fault"
