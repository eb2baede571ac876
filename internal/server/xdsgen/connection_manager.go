package xdsgen

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

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// Names of Envoy's filters.
const (
	filterHCM      = "envoy.filters.network.http_connection_manager"
	filterTCP      = "envoy.filters.network.tcp_proxy"
	filterSetState = "envoy.filters.http.set_filter_state"
)

// serverName is the header "server" of responses to clients of a workload or gateway.
const serverName = "istio-envoy"

// httpOptions holds the options of the connection managers of one port.
type httpOptions struct {
	port     uint32
	settings listenerSettings
	grpcWeb  bool                // translate gRPC-Web to gRPC
	topology snapshot.Topology   // of a gateway
	timeouts portTimeouts        // of connections that are not HTTP
	streams  map[string][]stream // routes of these, by host
	unknown  string              // cluster of connections without a route
}

// outboundHTTP returns the connection manager of an outbound listener. Its routes come
// by RDS.
func (g *generator) outboundHTTP(statPrefix, routeName string, o httpOptions) *listenerv3.Filter {
	return g.connectionManagers(g.outboundHCM(o))(statPrefix, routeName)
}

// connectionManagers returns a function that makes connection managers with the options of h, whose
// routes come by RDS. They encode the options once: the encoding of a message is the concatenation
// of its encoded parts. The function encodes the fields that come first.
func (g *generator) connectionManagers(h *hcmv3.HttpConnectionManager) func(statPrefix, routeName string) *listenerv3.Filter {
	routes := &hcmv3.Rds{ConfigSource: adsSource()}
	first := &hcmv3.HttpConnectionManager{CodecType: h.GetCodecType(), RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: routes}}
	h.CodecType = 0
	options, err := xdswire.Marshal(h)
	g.fail(err)
	return func(statPrefix, routeName string) *listenerv3.Filter {
		first.StatPrefix, routes.RouteConfigName = statPrefix, routeName
		return g.networkFilter(filterHCM, first, options...)
	}
}

// outboundHCM returns the options of the connection managers of an outbound listener.
func (g *generator) outboundHCM(o httpOptions) *hcmv3.HttpConnectionManager {
	h := g.baseHCM(o)
	h.HttpFilters = slices.Insert(h.HttpFilters, len(h.HttpFilters)-1, alpnFilter())
	if o.settings.requestsHosts {
		h.HttpFilters = slices.Insert(h.HttpFilters, 0, onDemandFilter())
	}
	return h
}

// inboundHTTP returns the connection manager of an inbound chain. In the header
// x-forwarded-client-cert it reports the identity of the client's certificate to the
// application.
func (g *generator) inboundHTTP(statPrefix string, routes *routev3.RouteConfiguration, http2 bool, o httpOptions) *listenerv3.Filter {
	h := g.baseHCM(o)
	h.StatPrefix = statPrefix
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	h.ServerName = serverName
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: yes, Dns: true, Uri: true,
	}
	if http2 {
		h.Http2ProtocolOptions = &corev3.Http2ProtocolOptions{}
	}
	return g.networkFilter(filterHCM, h)
}

// baseHCM returns the part of a connection manager that both directions share.
func (g *generator) baseHCM(o httpOptions) *hcmv3.HttpConnectionManager {
	h := &hcmv3.HttpConnectionManager{
		UseRemoteAddress:             no,
		Proxy_100Continue:            true,
		UpgradeConfigs:               upgrades,
		StreamIdleTimeout:            noTime,
		NormalizePath:                boolean(o.settings.Paths != snapshot.KeepPaths),
		MergeSlashes:                 o.settings.Paths == snapshot.MergeSlashes || o.settings.Paths == snapshot.DecodeAndMergeSlashes,
		PathWithEscapedSlashesAction: escapedSlashes(o.settings.Paths),
		RequestIdExtension:           requestIDs(),
		AccessLog:                    append(g.accessLogs(o.settings), g.requestMetrics(o.settings)...),
		Tracing:                      g.tracing(o.settings.Tracing),
	}
	if o.settings.acceptsHTTP10 {
		h.HttpProtocolOptions = &corev3.Http1ProtocolOptions{AcceptHttp_10: true}
	}
	if idle := o.settings.idleTimeout; idle > 0 {
		h.CommonHttpProtocolOptions = &corev3.HttpProtocolOptions{IdleTimeout: durationpb.New(idle)}
	}
	if o.settings.Tracing.NoRequestID {
		h.RequestIdExtension = untracedRequestIDs()
	}
	h.HttpFilters = g.securityFilters(o.settings, o.port)
	if o.grpcWeb {
		h.HttpFilters = append(h.HttpFilters, grpcWebFilter())
	}
	h.HttpFilters = append(h.HttpFilters, grpcStatsFilter(), faultFilter(), corsFilter(), routerFilter())
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
		PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{StatsForAllMethods: no},
	})
	faultFilter  = httpFilter(filterFault, &faultv3.HTTPFault{})
	corsFilter   = httpFilter("envoy.filters.http.cors", &corsv3.Cors{})
	routerFilter = httpFilter("envoy.filters.http.router", &routerv3.Router{})
	// alpnFilter sets the ALPN protocols of upstream connections. They announce HTTP to the
	// server's proxy, as with Istio's own filter. Without it a port with protocol detection
	// handles mTLS as TCP. http2ALPN configures it for services with HTTP/2.
	alpnFilter = httpFilter(filterSetState, alpnState("istio-http/1.1", "istio"))
	http2ALPN  = sync.OnceValue(func() map[string]*anypb.Any {
		return map[string]*anypb.Any{filterSetState: mustAny(alpnState("istio-h2", "istio"))}
	})

	upgrades           = []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}}
	requestIDs         = requestIDExtension(true)
	untracedRequestIDs = requestIDExtension(false)
)

// httpFilter returns a filter with a constant configuration.
func httpFilter(name string, m proto.Message) func() *hcmv3.HttpFilter {
	return sync.OnceValue(func() *hcmv3.HttpFilter {
		return &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: mustAny(m)}}
	})
}

func requestIDExtension(traced bool) func() *hcmv3.RequestIDExtension {
	return sync.OnceValue(func() *hcmv3.RequestIDExtension {
		return &hcmv3.RequestIDExtension{
			TypedConfig: mustAny(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: boolean(traced)}),
		}
	})
}

// alpnState returns the configuration of alpnFilter. The metadata of a cluster may name
// other protocols, as TLS settings of a DestinationRule need.
func alpnState(alpn ...string) *httpstatev3.Config {
	return &httpstatev3.Config{OnRequestHeaders: []*setfilterstatev3.FilterStateValue{
		alpnValue(strings.Join(alpn, ",")),
		alpnValue("%METADATA(CLUSTER:" + mesh.MetadataNamespace + ":" + metadataALPN + ")%"),
	}}
}

// metadataALPN is the key of ALPN protocols in the metadata of a cluster.
const metadataALPN = "alpn"

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

// tcpProxy returns the filter that passes connections on to a cluster.
func (g *generator) tcpProxy(cluster string, s listenerSettings) *listenerv3.Filter {
	return g.namedTCPProxy(cluster, cluster, s, tcpTimeouts{})
}

// serviceTCP returns the filter that passes connections on to a port of a service.
func (g *generator) serviceTCP(svc *snapshot.MeshService, port *snapshot.ServicePort, o httpOptions) *listenerv3.Filter {
	cluster := mesh.ClusterName{Direction: mesh.Outbound, Port: port.Number, Host: svc.Host}.String()
	stats := cmp.Or(statName(o.settings.Stats, svc, port, "", 0), cluster)
	return g.namedTCPProxy(cluster, stats, o.settings, o.timeouts.of(svc, port.Number))
}

func (g *generator) namedTCPProxy(cluster, stats string, s listenerSettings, t tcpTimeouts) *listenerv3.Filter {
	p := &tcpv3.TcpProxy{AccessLog: g.accessLogs(s)}
	t.set(p)
	s.called = cmp.Or(s.called, cluster)
	g.setConnectionMetrics(p, s)
	const fieldStatPrefix, fieldCluster = 1, 2
	var room [256]byte // enough for most services
	names := protowire.AppendString(appendField(room[:0], fieldStatPrefix), stats)
	return g.networkFilter(filterTCP, p, protowire.AppendString(appendField(names, fieldCluster), cluster)...)
}

// blackHole returns the filter that closes connections without a log line.
func (g *generator) blackHole() *listenerv3.Filter {
	return g.tcpProxy(mesh.BlackHoleCluster, listenerSettings{})
}

// onDemandFilter comes first, because the other filters read the route. It has no effect on
// requests that have a route.
var onDemandFilter = httpFilter("envoy.filters.http.on_demand", &ondemandv3.OnDemand{})

// stream is a VirtualService with routes for TLS or TCP connections to a host.
type stream struct {
	host    string
	virtual *snapshot.VirtualService
	client  snapshot.RouteClient // the part of the client that the routes read
	tunnels list[tunnel]         // of the destinations
}

const filterFault = "envoy.filters.http.fault"
