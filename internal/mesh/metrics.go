package mesh

import "strings"

// MetadataMetrics is the metadata, with value "true", of a node whose agent converts statistics of
// Envoy to Istio's standard metrics. The control plane then configures these statistics.
const MetadataMetrics = "MESHCTL_METRICS"

// MetricBuild is the metric by which Istio's dashboards show the versions of control planes and
// proxies.
const MetricBuild = "istio_build"

// Names of Istio's standard metrics. Envoy's statistics have the same names.
const (
	MetricRequests        = "istio_requests_total"
	MetricRequestDuration = "istio_request_duration_milliseconds"
	MetricRequestBytes    = "istio_request_bytes"
	MetricResponseBytes   = "istio_response_bytes"
	MetricTCPOpened       = "istio_tcp_connections_opened_total"
	MetricTCPClosed       = "istio_tcp_connections_closed_total"
	MetricTCPSent         = "istio_tcp_sent_bytes_total"
	MetricTCPReceived     = "istio_tcp_received_bytes_total"
)

// Tags of Envoy's statistics, from which the agent makes Istio's labels. The agent adds the labels
// that are the same for all calls of a workload, so that workloads share their listeners.
const (
	TagReporter     = "reporter"
	TagCode         = "response_code"
	TagFlags        = "response_flags"
	TagGRPCStatus   = "grpc_response_status"
	TagCluster      = "cluster"       // of Envoy, which names the called service
	TagWorkload     = "workload"      // that is called: the metadata istio.workload of its endpoint
	TagOwnIdentity  = "own_identity"  // URI in the proxy's certificate
	TagPeerIdentity = "peer_identity" // URI in the certificate of the other side
	// TagRemoved lists the labels that the metric does not have, with commas.
	TagRemoved = "removed"
	// TagSet is the prefix of tags that set the label after it.
	TagSet = "set_"
)

// The values of TagReporter.
const (
	ReporterSource      = "source"
	ReporterDestination = "destination"
)

// IsMetricLabel reports whether a name can be the name of a label in Prometheus.
func IsMetricLabel(name string) bool {
	for i, r := range name {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != "" && !strings.HasPrefix(name, "__")
}
