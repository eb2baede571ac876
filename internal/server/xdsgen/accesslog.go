package xdsgen

import (
	"fmt"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filelogv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/file/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/meshctl/meshctl/internal/server/snapshot"
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

// accessLogs returns the access log of a filter, or none if no file is set.
func (g *generator) accessLogs(s snapshot.ListenerSettings) []*accesslogv3.AccessLog {
	if s.AccessLogFile == "" {
		return nil
	}
	format, err := logFormat(s)
	g.fail(err)
	file := g.any(&filelogv3.FileAccessLog{
		Path: s.AccessLogFile, AccessLogFormat: &filelogv3.FileAccessLog_LogFormat{LogFormat: format},
	})
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.file", ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: file},
	}}
}

func logFormat(s snapshot.ListenerSettings) (*corev3.SubstitutionFormatString, error) {
	if s.AccessLogJSON {
		object := defaultJSONLog()
		if s.AccessLogFormat != "" {
			object = new(structpb.Struct)
			if err := protojson.Unmarshal([]byte(s.AccessLogFormat), object); err != nil {
				return nil, fmt.Errorf("decode accessLogFormat: %w", err)
			}
		}
		return &corev3.SubstitutionFormatString{
			Format:            &corev3.SubstitutionFormatString_JsonFormat{JsonFormat: object},
			JsonFormatOptions: &corev3.JsonFormatOptions{},
		}, nil
	}
	line := s.AccessLogFormat
	if line == "" {
		line = defaultTextLog
	}
	if !strings.HasSuffix(line, "\n") {
		line += "\n"
	}
	return &corev3.SubstitutionFormatString{Format: &corev3.SubstitutionFormatString_TextFormatSource{
		TextFormatSource: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: line}},
	}}, nil
}

// refusedConnections returns the access log of a listener that takes connections to any
// port. It logs the connections without a matching filter chain.
func (g *generator) refusedConnections(s snapshot.ListenerSettings) []*accesslogv3.AccessLog {
	if s.NoListenerLog {
		return nil
	}
	logs := g.accessLogs(s)
	for _, l := range logs {
		l.Filter = &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
			ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: []string{"NR"}},
		}}
	}
	return logs
}
