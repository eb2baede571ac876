package xdsgen

import (
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	setfilterstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/common/set_filter_state/v3"
	corsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/cors/v3"
	faultv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/fault/v3"
	grpcstatsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_stats/v3"
	grpcwebv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/grpc_web/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	httpstatev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/set_filter_state/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

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

// httpOptions is what connection managers of one port have in common.
type httpOptions struct {
	port     uint32
	settings snapshot.ListenerSettings
	filters  []snapshot.HTTPFilter // of which those for the port are inserted
	grpcWeb  bool                  // gRPC-Web comes in, gRPC goes out
}

// outboundHTTP is the connection manager of an outbound listener; its routes
// come by RDS.
func outboundHTTP(statPrefix, routeName string, o httpOptions) (*listenerv3.Filter, error) {
	h, err := baseHCM(statPrefix, o)
	if err != nil {
		return nil, err
	}
	alpn, err := alpnFilter()
	if err != nil {
		return nil, err
	}
	h.HttpFilters = slices.Insert(h.HttpFilters, len(h.HttpFilters)-1, alpn)
	if err := insertFilters(h, o.filters, o.port); err != nil {
		return nil, err
	}
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{ConfigSource: adsSource(), RouteConfigName: routeName}}
	return networkFilter(filterHCM, h)
}

// inboundHTTP is the connection manager of an inbound chain. It tells the application
// who called: x-forwarded-client-cert carries the identity that the client's
// certificate proved.
func inboundHTTP(statPrefix string, routes *routev3.RouteConfiguration, http2 bool, o httpOptions) (*listenerv3.Filter, error) {
	h, err := baseHCM(statPrefix, o)
	if err != nil {
		return nil, err
	}
	if err := insertFilters(h, o.filters, o.port); err != nil {
		return nil, err
	}
	h.RouteSpecifier = &hcmv3.HttpConnectionManager_RouteConfig{RouteConfig: routes}
	h.ServerName = "istio-envoy"
	h.ForwardClientCertDetails = hcmv3.HttpConnectionManager_APPEND_FORWARD
	h.SetCurrentClientCertDetails = &hcmv3.HttpConnectionManager_SetCurrentClientCertDetails{
		Subject: wrapperspb.Bool(true), Dns: true, Uri: true,
	}
	if http2 {
		h.Http2ProtocolOptions = &corev3.Http2ProtocolOptions{}
	}
	return networkFilter(filterHCM, h)
}

func baseHCM(statPrefix string, o httpOptions) (*hcmv3.HttpConnectionManager, error) {
	logs, err := accessLogs(o.settings)
	if err != nil {
		return nil, err
	}
	requestID, err := xdswire.Any(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: wrapperspb.Bool(true)})
	if err != nil {
		return nil, err
	}
	h := &hcmv3.HttpConnectionManager{
		StatPrefix:                   statPrefix,
		UseRemoteAddress:             wrapperspb.Bool(false),
		Proxy_100Continue:            true,
		UpgradeConfigs:               []*hcmv3.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},
		StreamIdleTimeout:            durationpb.New(0),
		NormalizePath:                wrapperspb.Bool(true),
		PathWithEscapedSlashesAction: hcmv3.HttpConnectionManager_KEEP_UNCHANGED,
		RequestIdExtension:           &hcmv3.RequestIDExtension{TypedConfig: requestID},
		AccessLog:                    logs,
		Tracing:                      tracing(o.settings),
	}
	type filter struct {
		name   string
		config proto.Message
	}
	var list []filter
	if o.grpcWeb {
		list = append(list, filter{"envoy.filters.http.grpc_web", &grpcwebv3.GrpcWeb{}})
	}
	for _, f := range append(list, []filter{
		{"envoy.filters.http.grpc_stats", &grpcstatsv3.FilterConfig{
			EmitFilterState: true,
			PerMethodStatSpecifier: &grpcstatsv3.FilterConfig_StatsForAllMethods{
				StatsForAllMethods: wrapperspb.Bool(false),
			},
		}},
		{"envoy.filters.http.fault", &faultv3.HTTPFault{}},
		{"envoy.filters.http.cors", &corsv3.Cors{}},
		{"envoy.filters.http.router", &routerv3.Router{}},
	}...) {
		a, err := xdswire.Any(f.config)
		if err != nil {
			return nil, err
		}
		h.HttpFilters = append(h.HttpFilters, &hcmv3.HttpFilter{
			Name: f.name, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a},
		})
	}
	return h, nil
}

// alpnFilter makes the upstream connection offer the ALPN values that tell
// the server's proxy that HTTP is inside, as Istio's own filter does: without
// it mTLS traffic to a port with detection is treated as TCP.
func alpnFilter() (*hcmv3.HttpFilter, error) {
	a, err := xdswire.Any(alpnState("istio-http/1.1", "istio"))
	if err != nil {
		return nil, err
	}
	return &hcmv3.HttpFilter{Name: filterSetState, ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: a}}, nil
}

// http2ALPN is the same for the hosts of services that speak HTTP/2.
func http2ALPN() (map[string]*anypb.Any, error) {
	a, err := xdswire.Any(alpnState("istio-h2", "istio"))
	if err != nil {
		return nil, err
	}
	return map[string]*anypb.Any{filterSetState: a}, nil
}

func alpnState(alpn ...string) *httpstatev3.Config {
	return &httpstatev3.Config{OnRequestHeaders: []*setfilterstatev3.FilterStateValue{{
		Key: &setfilterstatev3.FilterStateValue_ObjectKey{ObjectKey: "envoy.network.application_protocols"},
		Value: &setfilterstatev3.FilterStateValue_FormatString{FormatString: &corev3.SubstitutionFormatString{
			Format: &corev3.SubstitutionFormatString_TextFormatSource{TextFormatSource: &corev3.DataSource{
				Specifier: &corev3.DataSource_InlineString{InlineString: strings.Join(alpn, ",")},
			}},
		}},
		SharedWithUpstream: setfilterstatev3.FilterStateValue_ONCE,
	}}}
}

// tcpProxy sends a connection to a cluster.
func tcpProxy(cluster string, s snapshot.ListenerSettings) (*listenerv3.Filter, error) {
	logs, err := accessLogs(s)
	if err != nil {
		return nil, err
	}
	return networkFilter(filterTCP, &tcpv3.TcpProxy{
		AccessLog:        logs,
		StatPrefix:       cluster,
		ClusterSpecifier: &tcpv3.TcpProxy_Cluster{Cluster: cluster},
	})
}

// blackHole closes a connection and logs nothing.
func blackHole() (*listenerv3.Filter, error) {
	return tcpProxy(mesh.BlackHoleCluster, snapshot.ListenerSettings{})
}

// tracing says how many requests are traced. It names no provider: Envoy takes the
// one of its bootstrap, and without one sends no spans.
func tracing(s snapshot.ListenerSettings) *hcmv3.HttpConnectionManager_Tracing {
	if !s.Tracing {
		return nil
	}
	return &hcmv3.HttpConnectionManager_Tracing{
		ClientSampling:  &typev3.Percent{Value: 100},
		RandomSampling:  &typev3.Percent{Value: 1},
		OverallSampling: &typev3.Percent{Value: 100},
	}
}
