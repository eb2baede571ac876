package fields

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"

	"google.golang.org/protobuf/types/known/structpb"
)

// CheckFormats checks the strings of a JSON format.
func CheckFormats(v *structpb.Value) error {
	switch v := v.GetKind().(type) {
	case *structpb.Value_StringValue:
		return CheckTextFormat(v.StringValue)
	case *structpb.Value_StructValue:
		for _, key := range slices.Sorted(maps.Keys(v.StructValue.GetFields())) {
			if err := CheckFormats(v.StructValue.GetFields()[key]); err != nil {
				return fmt.Errorf("key %q: %w", key, err)
			}
		}
	case *structpb.Value_ListValue:
		for _, item := range v.ListValue.GetValues() {
			if err := CheckFormats(item); err != nil {
				return err
			}
		}
	}
	return nil
}

// CheckTextFormat checks the operators of Envoy's text format, such as %PROTOCOL%.
func CheckTextFormat(format string) error {
	if len(format) > MaxLogFormat {
		return fmt.Errorf("it has %d bytes, at most %d are accepted", len(format), MaxLogFormat)
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

// MaxLogFormat bounds the format of an access log, in bytes.
const MaxLogFormat = 16 << 10

// EnvironmentFault refuses environment variables of the proxy, but public ones, in Envoy's text
// format.
func EnvironmentFault(field, format string) *Error {
	var faults *Error
	for _, variable := range environmentOperator.FindAllStringSubmatch(format, -1) {
		if !slices.Contains(publicVariables, variable[1]) {
			faults = faults.And(Faultf(field, "the environment variable %s may hold a secret of another workload's proxy: only %s can be sent",
				variable[1], strings.Join(publicVariables, ", ")))
		}
	}
	return faults
}

// environmentOperator matches the operators that read an environment variable, beside a percent
// sign that stands for itself, too.
var environmentOperator = regexp.MustCompile(`%ENVIRONMENT\(([^)]*)\)`)

// publicVariables tell what others may know of a proxy. Routes of a namespace work in the proxies of
// its clients and in shared gateways, whose environment is not its own.
var publicVariables = []string{
	"HOSTNAME", "POD_NAME", "POD_NAMESPACE", "INSTANCE_IP", "HOST_IP", "SERVICE_ACCOUNT",
	"ISTIO_META_CLUSTER_ID", "ISTIO_META_MESH_ID", "ISTIO_META_NETWORK", "ISTIO_META_OWNER", "ISTIO_META_WORKLOAD_NAME",
}
