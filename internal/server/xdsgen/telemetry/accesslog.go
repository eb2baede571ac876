package telemetry

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	celv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/filters/cel/v3"
	grpclogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	otlplogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/open_telemetry/v3"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// defaultTextLog is the line of Istio's access log with upstream operators.
const defaultTextLog = `[%START_TIME%] "%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%" %RESPONSE_CODE% ` +
	`%RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% "%UPSTREAM_TRANSPORT_FAILURE_REASON%" ` +
	`%BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% "%REQ(X-FORWARDED-FOR)%" ` +
	`"%REQ(USER-AGENT)%" "%REQ(X-REQUEST-ID)%" "%REQ(:AUTHORITY)%" "%UPSTREAM_HOST%" %UPSTREAM_CLUSTER_RAW% ` +
	`%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%`

// defaultJSONLog returns Istio's access log in JSON.
func defaultJSONLog() *structpb.Struct {
	out := &structpb.Struct{Fields: make(map[string]*structpb.Value)}
	for key, operator := range map[string]string{
		"authority":                         "REQ(:AUTHORITY)",
		"bytes_received":                    "BYTES_RECEIVED",
		"bytes_sent":                        "BYTES_SENT",
		"connection_termination_details":    "CONNECTION_TERMINATION_DETAILS",
		"downstream_local_address":          "DOWNSTREAM_LOCAL_ADDRESS",
		"downstream_remote_address":         "DOWNSTREAM_REMOTE_ADDRESS",
		"duration":                          "DURATION",
		"method":                            "REQ(:METHOD)",
		"path":                              "REQ(X-ENVOY-ORIGINAL-PATH?:PATH)",
		"protocol":                          "PROTOCOL",
		"request_id":                        "REQ(X-REQUEST-ID)",
		"requested_server_name":             "REQUESTED_SERVER_NAME",
		"response_code":                     "RESPONSE_CODE",
		"response_code_details":             "RESPONSE_CODE_DETAILS",
		"response_flags":                    "RESPONSE_FLAGS",
		"route_name":                        "ROUTE_NAME",
		"start_time":                        "START_TIME",
		"upstream_cluster":                  "UPSTREAM_CLUSTER_RAW",
		"upstream_host":                     "UPSTREAM_HOST",
		"upstream_local_address":            "UPSTREAM_LOCAL_ADDRESS",
		"upstream_service_time":             "RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)",
		"upstream_transport_failure_reason": "UPSTREAM_TRANSPORT_FAILURE_REASON",
		"user_agent":                        "REQ(USER-AGENT)",
		"x_forwarded_for":                   "REQ(X-FORWARDED-FOR)",
	} {
		out.Fields[key] = structpb.NewStringValue("%" + operator + "%")
	}
	return out
}

// meshAccessLogs returns the access log of workloads without a Telemetry.
func meshAccessLogs(m *snapshot.Mesh) []snapshot.AccessLog {
	if m.AccessLog.File == "" {
		return nil
	}
	return []snapshot.AccessLog{m.AccessLog}
}

// AccessLogs returns the access logs of a filter. Filters with the same settings share them, so the
// caller must not change them.
func AccessLogs(g *wire.Generator, s Settings) []*accesslogv3.AccessLog {
	logs, err := g.Enc.AccessLogs.Do(s.accessLogs, func() ([]*accesslogv3.AccessLog, error) {
		own := wire.Generator{Enc: g.Enc}
		made := accessLogs(&own, s)
		return made, own.Err
	})
	g.Fail(err)
	return slices.Clip(logs)
}

func accessLogs(g *wire.Generator, s Settings) []*accesslogv3.AccessLog {
	var out []*accesslogv3.AccessLog
	for log := range s.accessLogs.All {
		var l *accesslogv3.AccessLog
		if log.Cluster != "" {
			l = otlpLog(g, log)
		} else {
			l = fileLog(g, log)
		}
		if log.Filter != "" {
			l.Filter = expressionFilter(g, log.Filter)
		}
		out = append(out, l)
	}
	return out
}

// fileLog returns the access log of a file.
func fileLog(g *wire.Generator, log snapshot.AccessLog) *accesslogv3.AccessLog {
	format, err := logFormat(log)
	g.Fail(err)
	file := g.Any(&filelogv3.FileAccessLog{
		Path: log.File, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format},
	})
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: file},
	}
}

// otlpLog returns the access log of a collector. Its body is the line of a text log.
func otlpLog(g *wire.Generator, log snapshot.AccessLog) *accesslogv3.AccessLog {
	text := func(s string) *commonv1.AnyValue {
		return &commonv1.AnyValue{Value: &commonv1.AnyValue_StringValue{StringValue: s}}
	}
	c := &otlplogv3.OpenTelemetryAccessLogConfig{
		CommonConfig: &grpclogv3.CommonGrpcAccessLogConfig{ //nolint:staticcheck // every Envoy reads it
			LogName: log.LogName, GrpcService: collectorGRPC(log.Cluster, log.Host), TransportApiVersion: corev3.ApiVersion_V3,
		},
		DisableBuiltinLabels: true,
		Body:                 text(strings.TrimSuffix(cmp.Or(log.Format, defaultTextLog), "\n")),
	}
	if log.Labels != "" {
		var labels map[string]any
		g.Fail(json.Unmarshal([]byte(log.Labels), &labels))
		c.Attributes = new(commonv1.KeyValueList)
		for _, name := range slices.Sorted(maps.Keys(labels)) {
			value, ok := labels[name].(string)
			if !ok {
				b, err := json.Marshal(labels[name])
				g.Fail(err)
				value = string(b)
			}
			c.Attributes.Values = append(c.Attributes.Values, &commonv1.KeyValue{Key: name, Value: text(value)})
		}
	}
	return &accesslogv3.AccessLog{
		Name: "envoy.access_loggers.open_telemetry", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: g.Any(c)},
	}
}

// expressionFilter returns the filter of the requests that a CEL expression selects.
func expressionFilter(g *wire.Generator, expression string) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ExtensionFilter{
		ExtensionFilter: &accesslogv3.ExtensionFilter{
			Name:       "envoy.access_loggers.extension_filters.cel",
			ConfigType: &accesslogv3.ExtensionFilter_TypedConfig{TypedConfig: g.Any(&celv3.ExpressionFilter{Expression: expression})},
		},
	}}
}

func logFormat(log snapshot.AccessLog) (*corev3.SubstitutionFormatString, error) {
	if log.JSON {
		object := defaultJSONLog()
		if log.Format != "" {
			object = new(structpb.Struct)
			if err := protojson.Unmarshal([]byte(log.Format), object); err != nil {
				return nil, fmt.Errorf("decode the format of an access log: %w", err)
			}
		}
		return &corev3.SubstitutionFormatString{
			Format:            &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: object},
			JsonFormatOptions: &corev3.JsonFormatOptions{},
			OmitEmptyValues:   log.OmitEmpty,
		}, nil
	}
	line := log.Format
	if line == "" {
		line = defaultTextLog
	}
	if !strings.HasSuffix(line, "\n") {
		line += "\n"
	}
	return &corev3.SubstitutionFormatString{OmitEmptyValues: log.OmitEmpty, Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: line}},
	}}, nil
}

// RefusedConnections returns the access logs of a listener that takes connections to any
// port. They log the connections without a matching filter chain.
func RefusedConnections(g *wire.Generator, s Settings) []*accesslogv3.AccessLog {
	if s.NoListenerLog {
		return nil
	}
	return filtered(AccessLogs(g, s), &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
	}})
}

// filtered returns logs that have a filter beside their own ones. It does not change the given logs.
func filtered(logs []*accesslogv3.AccessLog, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	out := make([]*accesslogv3.AccessLog, len(logs))
	for i, l := range logs {
		out[i] = &accesslogv3.AccessLog{Name: l.GetName(), ConfigType: l.GetConfigType(), Filter: filter}
		if l.GetFilter() != nil {
			out[i].Filter = allFilters(filter, l.GetFilter())
		}
	}
	return out
}
