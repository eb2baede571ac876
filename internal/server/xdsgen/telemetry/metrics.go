package telemetry

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	logdatav3 "github.com/envoyproxy/go-control-plane/envoy/data/accesslog/v3"
	statsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stats/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	telemetryv1alpha1 "istio.io/api/telemetry/v1alpha1"

	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xdsgen/proxy"
	"github.com/meshctl/meshctl/internal/server/xdsgen/wire"
)

// Istio's standard metrics are statistics of Envoy, which an access log counts. Their tags differ
// from Istio's labels: the agent makes the labels when it serves the metrics
// (internal/agent/metrics). The tags say only what differs between the calls of a workload, so that
// workloads share their listeners, and have no value that a client chooses.

// metric is a standard metric of the listeners of a workload in one direction.
type metric struct {
	kind telemetryv1alpha1.MetricSelector_IstioMetric
	tags wire.List[metricTag] // that a Telemetry sets
	// removed lists the labels that a Telemetry removes, sorted, with commas.
	removed string
}

// metricTag sets a label to a format of Envoy.
type metricTag struct{ label, format string }

// standardMetrics holds the metrics by the order in which Envoy gets them. Envoy adds value to a
// counter and records it in a histogram. Without a value it counts.
var standardMetrics = []struct {
	kind  telemetryv1alpha1.MetricSelector_IstioMetric
	name  string
	value string
	unit  statsv3.Config_Histogram_Unit // of a histogram
	logs  metricEvent
}{
	{telemetryv1alpha1.MetricSelector_REQUEST_COUNT, mesh.MetricRequests, "", 0, requestEnd},
	{telemetryv1alpha1.MetricSelector_REQUEST_DURATION, mesh.MetricRequestDuration, "%DURATION%", statsv3.Config_Histogram_Milliseconds, requestEnd},
	{telemetryv1alpha1.MetricSelector_REQUEST_SIZE, mesh.MetricRequestBytes, "%DOWNSTREAM_WIRE_BYTES_RECEIVED%", statsv3.Config_Histogram_Bytes, requestEnd},
	{telemetryv1alpha1.MetricSelector_RESPONSE_SIZE, mesh.MetricResponseBytes, "%DOWNSTREAM_WIRE_BYTES_SENT%", statsv3.Config_Histogram_Bytes, requestEnd},
	{telemetryv1alpha1.MetricSelector_TCP_OPENED_CONNECTIONS, mesh.MetricTCPOpened, "", 0, connectionStart},
	{telemetryv1alpha1.MetricSelector_TCP_CLOSED_CONNECTIONS, mesh.MetricTCPClosed, "", 0, connectionEnd},
	{telemetryv1alpha1.MetricSelector_TCP_SENT_BYTES, mesh.MetricTCPSent, "%BYTES_SENT%", 0, connectionEnd},
	{telemetryv1alpha1.MetricSelector_TCP_RECEIVED_BYTES, mesh.MetricTCPReceived, "%BYTES_RECEIVED%", 0, connectionEnd},
}

// metricEvent is what Envoy logs when it changes a metric.
type metricEvent uint8

const (
	requestEnd metricEvent = iota
	connectionStart
	connectionEnd
)

// maxSeries bounds the counters, and the histograms, of the metrics of one Envoy. Envoy drops
// further ones.
const maxSeries = 10_000

// oldestMetrics is the minor version of Envoy 1 that first limits the number of statistics.
const oldestMetrics = 39

// supportsMetrics reports whether a proxy can count the standard metrics.
func supportsMetrics(n proxy.Node) bool {
	return n.CountsCalls && !n.Proxyless && (n.Envoy == "" || proxy.AtLeastEnvoy(n.Envoy, oldestMetrics))
}

// metricsOf returns the standard metrics of the listeners of a mode. As with Istio, an entry without
// providers is for the providers of the entry before it, and without an entry the default providers
// count. All providers are the same one, because a proxy has one set of metrics.
func metricsOf(m *snapshot.Mesh, entries []*telemetryv1alpha1.Metrics, mode telemetryv1alpha1.WorkloadMode) []metric {
	type override struct {
		disabled bool
		tags     map[string]*telemetryv1alpha1.MetricsOverrides_TagOverride
	}
	overrides := make([]override, len(standardMetrics))
	for i := range overrides {
		overrides[i].tags = make(map[string]*telemetryv1alpha1.MetricsOverrides_TagOverride)
	}
	names, on := m.MetricDefaults, false
	if len(entries) == 0 {
		on = m.HasMetricProvider(names)
	}
	for _, e := range entries {
		if len(e.GetProviders()) > 0 {
			names = nil
			for _, p := range e.GetProviders() {
				names = append(names, p.GetName())
			}
		}
		if !m.HasMetricProvider(names) {
			continue
		}
		on = true
		for _, o := range e.GetOverrides() {
			if !modeMatches(o.GetMatch().GetMode(), mode) {
				continue
			}
			for i := range overrides {
				if !selectsMetric(o.GetMatch(), standardMetrics[i].kind) {
					continue
				}
				if v := o.GetDisabled(); v != nil {
					overrides[i].disabled = v.GetValue()
				}
				maps.Copy(overrides[i].tags, o.GetTagOverrides())
			}
		}
	}
	if !on {
		return nil
	}
	var out []metric
	for i, o := range overrides {
		if o.disabled {
			continue
		}
		one := metric{kind: standardMetrics[i].kind}
		var tags []metricTag
		var removed []string
		for _, label := range slices.Sorted(maps.Keys(o.tags)) {
			if t := o.tags[label]; t.GetOperation() == telemetryv1alpha1.MetricsOverrides_TagOverride_REMOVE {
				removed = append(removed, label)
			} else {
				tags = append(tags, metricTag{label, tagFormat(t.GetValue())})
			}
		}
		one.tags, one.removed = wire.ListOf(tags), strings.Join(removed, ",")
		out = append(out, one)
	}
	return out
}

// selectsMetric reports whether a selector, which may be nil, selects a metric.
func selectsMetric(s *telemetryv1alpha1.MetricSelector, kind telemetryv1alpha1.MetricSelector_IstioMetric) bool {
	switch m := s.GetMetricMatch().(type) {
	case *telemetryv1alpha1.MetricSelector_CustomMetric:
		return false
	case *telemetryv1alpha1.MetricSelector_Metric:
		return m.Metric == telemetryv1alpha1.MetricSelector_ALL_METRICS || m.Metric == kind
	}
	return true
}

// tagFormat returns the format of Envoy for the expression of a tag. Most expressions are texts in
// quotes, which Envoy need not evaluate for each call.
func tagFormat(expression string) string {
	if text, ok := snapshot.QuotedText(expression); ok && text != "" { // Envoy refuses an empty format
		return strings.ReplaceAll(text, "%", "%%")
	}
	return "%CEL(" + expression + ")%"
}

// RequestMetrics returns the access log that counts requests, or none.
func RequestMetrics(g *wire.Generator, s Settings) []*accesslogv3.AccessLog {
	return metricLog(g, s, requestEnd, nil)
}

// SetConnectionMetrics adds the access logs that count connections to a filter. The other logs of
// the filter do not get the event that only the metrics need.
func SetConnectionMetrics(g *wire.Generator, p *tcpv3.TcpProxy, s Settings) {
	if s.metrics.Len() == 0 {
		return
	}
	const connected, ended = logdatav3.AccessLogType_TcpUpstreamConnected, logdatav3.AccessLogType_TcpConnectionEnd
	failed := &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslogv3.ResponseFlagFilter{Flags: unconnectedFlags},
	}}
	closes := metricLog(g, s, connectionEnd, logTypes(false, ended))
	opens := metricLog(g, s, connectionStart, anyFilter(logTypes(false, connected), allFilters(logTypes(false, ended), failed)))
	if len(opens) > 0 {
		p.AccessLogOptions = &tcpv3.TcpProxy_TcpAccessLogOptions{FlushAccessLogOnConnected: true}
		if s.server { // otherwise the start would be counted before the client has shown its certificate
			p.UpstreamConnectMode, p.MaxEarlyDataBytes = tcpv3.UpstreamConnectMode_ON_DOWNSTREAM_TLS_HANDSHAKE, wrapperspb.UInt32(0)
		}
		p.AccessLog = filtered(p.GetAccessLog(), logTypes(true, connected))
	}
	p.AccessLog = slices.Concat(p.GetAccessLog(), opens, closes)
}

// unconnectedFlags holds the response flags of connections that were never connected to a server.
// Envoy logs only their end.
var unconnectedFlags = []string{"UF", "UH", "UO", "NC", "UAEX"}

func logTypes(exclude bool, types ...logdatav3.AccessLogType) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_LogTypeFilter{
		LogTypeFilter: &accesslogv3.LogTypeFilter{Types: types, Exclude: exclude},
	}}
}

func allFilters(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_AndFilter{AndFilter: &accesslogv3.AndFilter{Filters: filters}}}
}

func anyFilter(filters ...*accesslogv3.AccessLogFilter) *accesslogv3.AccessLogFilter {
	return &accesslogv3.AccessLogFilter{FilterSpecifier: &accesslogv3.AccessLogFilter_OrFilter{OrFilter: &accesslogv3.OrFilter{Filters: filters}}}
}

// metricLog returns the access log of the metrics that change at an event, or none.
func metricLog(g *wire.Generator, s Settings, at metricEvent, filter *accesslogv3.AccessLogFilter) []*accesslogv3.AccessLog {
	c := &statsv3.Config{StatsScope: &typev3.Scope{
		MaxCounters: wrapperspb.UInt32(maxSeries), MaxHistograms: wrapperspb.UInt32(maxSeries), SharingName: "istio",
	}}
	for m := range s.metrics.All {
		for _, standard := range standardMetrics {
			if standard.kind != m.kind || standard.logs != at {
				continue
			}
			stat := &statsv3.Config_Stat{Name: standard.name, Tags: metricTags(s, at, m)}
			switch {
			case standard.unit != 0:
				c.Histograms = append(c.Histograms, &statsv3.Config_Histogram{Stat: stat, Unit: standard.unit, ValueFormat: standard.value})
			case standard.value != "":
				c.Counters = append(c.Counters, &statsv3.Config_Counter{Stat: stat, ValueFormat: standard.value})
			default:
				c.Counters = append(c.Counters, &statsv3.Config_Counter{Stat: stat, ValueFixed: wrapperspb.UInt64(1)})
			}
		}
	}
	if len(c.Counters)+len(c.Histograms) == 0 {
		return nil
	}
	return []*accesslogv3.AccessLog{{
		Name: "envoy.access_loggers.stats", Filter: filter, ConfigType: &accesslogv3.AccessLog_TypedConfig{TypedConfig: g.Any(c)},
	}}
}

// metricTags returns the tags of a metric.
func metricTags(s Settings, at metricEvent, m metric) []*statsv3.Config_Tag {
	var out []*statsv3.Config_Tag
	add := func(name, format string) {
		out = append(out, &statsv3.Config_Tag{Name: name, ValueFormat: format})
	}
	if s.server {
		add(mesh.TagReporter, mesh.ReporterDestination)
		add(mesh.TagOwnIdentity, "%DOWNSTREAM_LOCAL_URI_SAN%")
		add(mesh.TagPeerIdentity, "%DOWNSTREAM_PEER_URI_SAN%")
	} else {
		add(mesh.TagReporter, mesh.ReporterSource)
		add(mesh.TagOwnIdentity, "%UPSTREAM_LOCAL_URI_SAN%")
		add(mesh.TagPeerIdentity, "%UPSTREAM_PEER_URI_SAN%")
		add(mesh.TagWorkload, "%UPSTREAM_METADATA(istio:workload)%")
	}
	add(mesh.TagCluster, cmp.Or(s.Called, "%UPSTREAM_CLUSTER_RAW%"))
	add(mesh.TagFlags, "%RESPONSE_FLAGS%")
	if at == requestEnd {
		add(mesh.TagCode, "%RESPONSE_CODE%")
		add(mesh.TagGRPCStatus, "%GRPC_STATUS_NUMBER%")
	}
	for t := range m.tags.All {
		add(mesh.TagSet+t.label, t.format)
	}
	if m.removed != "" {
		add(mesh.TagRemoved, m.removed)
	}
	return out
}
