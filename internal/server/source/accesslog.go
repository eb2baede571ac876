package source

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/structpb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/meshctl/meshctl/internal/yamldoc"
)

// Bounds of access log settings, in bytes.
const (
	maxLogFile   = 4 << 10
	maxLogFormat = 16 << 10
)

// checkAccessLog replaces invalid access log settings by their defaults, with a
// warning. Envoy would refuse all listeners for one wrong operator.
func (c *conversion) checkAccessLog(m *meshv1alpha1.MeshConfig, doc yamldoc.Value) {
	if err := checkLogFile(m.AccessLogFile); err != nil {
		c.warn(inText(keyMesh, doc, faultf("accessLogFile", "%w: there is no access log", err)))
		m.AccessLogFile = ""
	}
	check := checkTextFormat
	if m.AccessLogEncoding == meshv1alpha1.MeshConfig_JSON {
		check = checkJSONFormat
	}
	if err := check(m.AccessLogFormat); m.AccessLogFormat != "" && err != nil {
		c.warn(inText(keyMesh, doc, faultf("accessLogFormat", "%w: the default format is used", err)))
		m.AccessLogFormat = ""
	}
	var used []*meshv1alpha1.MeshConfig_ExtensionProvider
	for i, p := range m.ExtensionProviders {
		if fault := providerFault(at("extensionProviders", i), p); fault != nil {
			if !c.Remote {
				c.warn(inText(keyMesh, doc, fault))
			}
			continue
		}
		used = append(used, p)
	}
	m.ExtensionProviders = used
}

// providerFault returns the reason why a provider is not used.
func providerFault(field string, p *meshv1alpha1.MeshConfig_ExtensionProvider) *FieldError {
	if z := p.GetZipkin(); z != nil {
		return collectorFault(field+".zipkin", z, z.GetPath(), z.GetHeaders())
	}
	if o := p.GetOpentelemetry(); o != nil {
		return openTelemetryFault(field+".opentelemetry", o)
	}
	if otlp := p.GetEnvoyOtelAls(); otlp != nil {
		field += ".envoyOtelAls"
		if fault := collectorFault(field, otlp, "", nil); fault != nil {
			return fault
		}
		return logFormatFault(field, otlp.GetLogFormat().GetText(), otlp.GetLogFormat().GetLabels())
	}
	if fault, is := authorizerSettingsFault(field, p); is {
		return fault
	}
	if p.GetPrometheus() != nil {
		return nil
	}
	file := p.GetEnvoyFileAccessLog()
	if file == nil {
		return noEffect(field, whyUnused(p))
	}
	field += ".envoyFileAccessLog"
	if err := checkLogFile(file.GetPath()); err != nil {
		return faultf(field+".path", "%w: the provider is not used", err)
	}
	return logFormatFault(field, file.GetLogFormat().GetText(), file.GetLogFormat().GetLabels())
}

// whyUnused returns the reason why a provider is not used.
func whyUnused(p *meshv1alpha1.MeshConfig_ExtensionProvider) string {
	set := p.ProtoReflect().WhichOneof(p.ProtoReflect().Descriptor().Oneofs().ByName("provider"))
	for _, f := range meshFields {
		if set != nil && f.Path == "extensionProviders."+set.JSONName() {
			return f.Meaning
		}
	}
	return "it has no provider"
}

// logFormatFault checks the format of a provider.
func logFormatFault(field, text string, labels *structpb.Struct) *FieldError {
	err := checkTextFormat(text)
	if labels != nil && err == nil {
		err = checkFormats(structpb.NewStructValue(labels))
	}
	if err != nil {
		return faultf(field+".logFormat", "%w: the provider is not used", err)
	}
	return nil
}

func checkLogFile(path string) error {
	switch {
	case len(path) > maxLogFile:
		return fmt.Errorf("the path has %d bytes, at most %d are accepted", len(path), maxLogFile)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("%q is not a path", path)
	}
	return nil
}

func checkJSONFormat(format string) error {
	if len(format) > maxLogFormat {
		return fmt.Errorf("it has %d bytes, at most %d are accepted", len(format), maxLogFormat)
	}
	var object structpb.Struct
	if err := protojson.Unmarshal([]byte(format), &object); err != nil {
		return fmt.Errorf("it is not a JSON object, which accessLogEncoding JSON requires")
	}
	return checkFormats(structpb.NewStructValue(&object))
}

// checkFormats checks the strings of a JSON format.
func checkFormats(v *structpb.Value) error {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return checkTextFormat(v.StringValue)
	case *structpb.Value_StructValue:
		for _, key := range slices.Sorted(maps.Keys(v.StructValue.GetFields())) {
			if err := checkFormats(v.StructValue.GetFields()[key]); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
		}
	case *structpb.Value_ListValue:
		for _, item := range v.ListValue.GetValues() {
			if err := checkFormats(item); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkTextFormat(format string) error {
	if len(format) > maxLogFormat {
		return fmt.Errorf("it has %d bytes, at most %d are accepted", len(format), maxLogFormat)
	}
	for {
		at := strings.IndexByte(format, '%')
		if at < 0 {
			return nil
		}
		if format = format[at:]; strings.HasPrefix(format, "%%") { // a percent sign
			format = format[2:]
			continue
		}
		operator := logOperator().FindString(format)
		if operator == "" {
			return fmt.Errorf("%q does not begin with an operator that Envoy has, such as %%REQ(:METHOD)%%", format[:min(len(format), 40)])
		}
		format = format[len(operator):]
	}
}

// logOperator matches an operator of an access log.
var logOperator = sync.OnceValue(func() *regexp.Regexp {
	var alternatives []string
	for _, group := range logOperatorGroups {
		alternatives = append(alternatives, "(?:"+strings.Join(strings.Fields(group.names), "|")+")"+group.argument)
	}
	return regexp.MustCompile("^%(?:" + strings.Join(alternatives, "|") + ")%")
})

// AccessLogOperators returns a format with every operator that is allowed in an
// access log.
func AccessLogOperators() string {
	var out strings.Builder
	for _, group := range logOperatorGroups {
		for name := range strings.FieldsSeq(group.names) {
			out.WriteString("%" + name + group.example + "% ")
		}
	}
	return out.String()
}

// logOperatorGroups lists the operators of Envoy, grouped by their arguments.
var logOperatorGroups = []struct{ argument, example, names string }{
	{
		argument: ``, names: `
			ACCESS_LOG_TYPE BYTES_RECEIVED BYTES_RETRANSMITTED BYTES_SENT CONNECTION_ID CONNECTION_TERMINATION_DETAILS
			CUSTOM_FLAGS DOWNSTREAM_CX_RTT DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED DOWNSTREAM_DECOMPRESSED_HEADER_BYTES_SENT
			DOWNSTREAM_DETECTED_CLOSE_TYPE DOWNSTREAM_DIRECT_LOCAL_ADDRESS DOWNSTREAM_DIRECT_LOCAL_ADDRESS_ENDPOINT_ID
			DOWNSTREAM_DIRECT_LOCAL_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS DOWNSTREAM_DIRECT_REMOTE_PORT
			DOWNSTREAM_HANDSHAKE_DURATION DOWNSTREAM_HEADER_BYTES_RECEIVED DOWNSTREAM_HEADER_BYTES_SENT DOWNSTREAM_LOCAL_ADDRESS
			DOWNSTREAM_LOCAL_ADDRESS_ENDPOINT_ID DOWNSTREAM_LOCAL_CLOSE_REASON DOWNSTREAM_LOCAL_DNS_SAN DOWNSTREAM_LOCAL_EMAIL_SAN
			DOWNSTREAM_LOCAL_IP_SAN DOWNSTREAM_LOCAL_OTHERNAME_SAN DOWNSTREAM_LOCAL_PORT DOWNSTREAM_LOCAL_SUBJECT
			DOWNSTREAM_LOCAL_URI_SAN DOWNSTREAM_PEER_CERT DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_1
			DOWNSTREAM_PEER_CHAIN_FINGERPRINTS_256 DOWNSTREAM_PEER_CHAIN_SERIALS DOWNSTREAM_PEER_DNS_SAN DOWNSTREAM_PEER_EMAIL_SAN
			DOWNSTREAM_PEER_FINGERPRINT_1 DOWNSTREAM_PEER_FINGERPRINT_256 DOWNSTREAM_PEER_IP_SAN DOWNSTREAM_PEER_ISSUER
			DOWNSTREAM_PEER_ISSUER_FINGERPRINT_256 DOWNSTREAM_PEER_ISSUER_SERIAL DOWNSTREAM_PEER_OTHERNAME_SAN
			DOWNSTREAM_PEER_SERIAL DOWNSTREAM_PEER_SUBJECT DOWNSTREAM_PEER_URI_SAN DOWNSTREAM_REMOTE_ADDRESS
			DOWNSTREAM_REMOTE_PORT DOWNSTREAM_TLS_CIPHER DOWNSTREAM_TLS_GROUP DOWNSTREAM_TLS_SESSION_ID DOWNSTREAM_TLS_VERSION
			DOWNSTREAM_TRANSPORT_FAILURE_REASON DOWNSTREAM_WIRE_BYTES_RECEIVED DOWNSTREAM_WIRE_BYTES_SENT DURATION
			FILTER_CHAIN_NAME GRPC_STATUS_NUMBER HOSTNAME LISTENER_NAME LOCAL_REPLY_BODY PROTOCOL REQUESTED_SERVER_NAME
			REQUEST_DURATION REQUEST_HEADERS_BYTES REQUEST_TX_DURATION RESPONSE_CODE RESPONSE_DURATION RESPONSE_FLAGS
			RESPONSE_FLAGS_LONG RESPONSE_HEADERS_BYTES RESPONSE_TRAILERS_BYTES RESPONSE_TX_DURATION ROUNDTRIP_DURATION ROUTE_NAME
			ROUTE_RESOLUTION_COUNT ROUTE_RESOLUTION_TIME_US SPAN_ID STREAM_ID TLS_JA3_FINGERPRINT TLS_JA4_FINGERPRINT TRACE_ID
			UNIQUE_ID UPSTREAM_CLUSTER UPSTREAM_CLUSTER_RAW UPSTREAM_CONNECTION_ID UPSTREAM_CONNECTION_IDS_ATTEMPTED
			UPSTREAM_CONNECTION_POOL_READY_DURATION UPSTREAM_DECOMPRESSED_HEADER_BYTES_RECEIVED
			UPSTREAM_DECOMPRESSED_HEADER_BYTES_SENT UPSTREAM_DETECTED_CLOSE_TYPE UPSTREAM_HEADER_BYTES_RECEIVED
			UPSTREAM_HEADER_BYTES_SENT UPSTREAM_HOST UPSTREAM_HOSTS_ATTEMPTED UPSTREAM_HOSTS_ATTEMPTED_WITHOUT_PORT
			UPSTREAM_HOST_NAME UPSTREAM_HOST_NAMES_ATTEMPTED UPSTREAM_HOST_NAMES_ATTEMPTED_WITHOUT_PORT
			UPSTREAM_HOST_NAME_WITHOUT_PORT UPSTREAM_LOCAL_ADDRESS UPSTREAM_LOCAL_CLOSE_REASON UPSTREAM_LOCAL_DNS_SAN
			UPSTREAM_LOCAL_IP_SAN UPSTREAM_LOCAL_PORT UPSTREAM_LOCAL_URI_SAN UPSTREAM_PEER_CERT UPSTREAM_PEER_DNS_SAN
			UPSTREAM_PEER_IP_SAN UPSTREAM_PEER_ISSUER UPSTREAM_PEER_SUBJECT UPSTREAM_PEER_URI_SAN UPSTREAM_PROTOCOL
			UPSTREAM_REMOTE_ADDRESS UPSTREAM_REMOTE_ADDRESS_ENDPOINT_ID UPSTREAM_REMOTE_PORT UPSTREAM_REQUEST_ATTEMPT_COUNT
			UPSTREAM_SERVER_NAME UPSTREAM_TLS_CIPHER UPSTREAM_TLS_GROUP UPSTREAM_TLS_SESSION_ID UPSTREAM_TLS_VERSION
			UPSTREAM_TRANSPORT_FAILURE_REASON UPSTREAM_WIRE_BYTES_RECEIVED UPSTREAM_WIRE_BYTES_SENT VIRTUAL_CLUSTER_NAME PATH
			QUERY_PARAMS`,
	},
	{
		argument: `(?:\([^()\r\n]*\))?`, example: "(%Y)", names: `
			DOWNSTREAM_DIRECT_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT
			DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT DOWNSTREAM_PEER_CERT_V_END DOWNSTREAM_PEER_CERT_V_START
			DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT EMIT_TIME EMIT_TIME_LOCAL RESPONSE_CODE_DETAILS START_TIME START_TIME_LOCAL
			UPSTREAM_LOCAL_ADDRESS_WITHOUT_PORT UPSTREAM_PEER_CERT_V_END UPSTREAM_PEER_CERT_V_START
			UPSTREAM_REMOTE_ADDRESS_WITHOUT_PORT`,
	},
	{
		argument: `(?:\((?:CAMEL_STRING|SNAKE_STRING|NUMBER)\))?`, example: "(NUMBER)", names: `GRPC_STATUS`,
	},
	{
		argument: `\(:?[-_A-Za-z0-9]+(?:\?:?[-_A-Za-z0-9]+)?\)(?::[0-9]{1,6})?`, example: "(X-A?:PATH):10", names: `
			REQ RESP TRAILER STREAM_INFO_REQ REQUEST_HEADER RESPONSE_HEADER RESPONSE_TRAILER`,
	},
	{
		argument: `\([-_A-Za-z0-9]+\)(?::[0-9]{1,6})?`, example: "(name):10", names: `ENVIRONMENT QUERY_PARAM`,
	},
	{
		argument: `\([-._A-Za-z0-9]+(?::(?:PLAIN|TYPED))?\)(?::[0-9]{1,6})?`, example: "(a.b:PLAIN):10", names: `
			FILTER_STATE UPSTREAM_FILTER_STATE`,
	},
	{
		argument: `\([-.:_A-Za-z0-9]+\)(?::[0-9]{1,6})?`, example: "(a.b:c):10", names: `DYNAMIC_METADATA`,
	},
	{
		argument: `\([-.:_A-Za-z0-9]+\)`, example: "(a.b:c)", names: `CLUSTER_METADATA UPSTREAM_METADATA`,
	},
}
