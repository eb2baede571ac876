package xds

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/meshctl/meshctl/internal/xdswire"
)

// Metrics counts what the hub does. The label type is CDS, EDS, LDS, RDS, SDS,
// ECDS or NDS.
type Metrics struct {
	generated, encoded                  [numTypes]prometheus.Counter
	sent, sentResources, sentBytes      [numTypes]prometheus.Counter
	nacks, expired                      [numTypes]prometheus.Counter
	failures, panics, stalled, rejected prometheus.Counter
	revoked                             prometheus.Counter
	refusedConns, badSecrets, closed    prometheus.Counter
	assigned, listed                    prometheus.Counter
	streams, waiting, views             prometheus.Gauge
	refused                             [numTypes]prometheus.Gauge
	istio                               istioMetrics
}

// NewMetrics makes the metrics and registers them. It panics when the
// registry has metrics of these names, as MustRegister does.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	m := &Metrics{}
	byType := func(dst *[numTypes]prometheus.Counter, name, help string) {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "meshctl_xds_" + name, Help: help}, []string{"type"})
		reg.MustRegister(v)
		for i, url := range xdswire.PushOrder {
			dst[i] = v.WithLabelValues(xdswire.ShortType(url))
		}
	}
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: "meshctl_xds_" + name, Help: help})
		reg.MustRegister(c)
		return c
	}
	gauge := func(name, help string) prometheus.Gauge {
		g := prometheus.NewGauge(prometheus.GaugeOpts{Name: "meshctl_xds_" + name, Help: help})
		reg.MustRegister(g)
		return g
	}
	byType(&m.generated, "generated_total", "Resources generated.")
	byType(&m.encoded, "encoded_total", "Resources encoded.")
	byType(&m.sent, "sent_total", "Responses sent.")
	byType(&m.sentResources, "sent_resources_total", "Resources in the responses sent.")
	byType(&m.sentBytes, "sent_bytes_total", "Bytes of the responses sent.")
	byType(&m.nacks, "nacks_total", "Responses that a proxy refused.")
	byType(&m.expired, "expired_nonce_total", "Requests ignored because their nonce is not that of the last response.")
	m.istioCounters(reg)
	m.istio = newIstioMetrics(reg)
	m.failures = counter("generation_failures_total", "Pieces of configuration that could not be generated; their last good version stays.")
	m.revoked = counter("revoked_streams_total", "Streams that were ended because the certificate of their caller was revoked, or lost its root.")
	m.panics = counter("panics_total", "Panics that ended one stream or one piece of generation.")
	m.stalled = counter("write_timeouts_total", "Connections closed because the peer did not read in time.")
	m.refusedConns = counter("refused_connections_total", "Connections closed because there were too many, or nobody proved whose they are.")
	m.closed = counter("closed_connections_total", "Connections closed because the peer sent or held too much, or did not finish a request.")
	m.rejected = counter("rejected_streams_total", "Streams refused or ended for what the peer is or asks.")
	m.badSecrets = counter("bad_secrets_total", "Secrets that a proxy asked for and was not given, or was given out of date.")
	m.assigned = counter("assignments_total", "Times that it was chosen which lists of resources a stream is given.")
	m.listed = counter("listed_views_total", "Lists of resources that were looked through because a change could concern them.")
	m.streams = gauge("streams", "Streams connected.")
	m.waiting = gauge("waiting_streams", "Streams that wait for their first configuration.")
	m.views = gauge("views", "Lists of resources in use.")
	m.istioFailureCounters(reg)
	gauges := func(dst *[numTypes]prometheus.Gauge, name, help string) {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "meshctl_xds_" + name, Help: help}, []string{"type"})
		reg.MustRegister(v)
		for i, url := range xdswire.PushOrder {
			dst[i] = v.WithLabelValues(xdswire.ShortType(url))
		}
	}
	gauges(&m.refused, "refused_resources", "Resources that connected proxies refused and are left without, for each proxy.")
	return m
}

// twins count under two names.
type doubleCounter struct {
	prometheus.Counter
	second prometheus.Counter
}

// Inc implements prometheus.Counter.
func (t doubleCounter) Inc() { t.Add(1) }

// Add implements prometheus.Counter.
func (t doubleCounter) Add(v float64) {
	t.Counter.Add(v)
	t.second.Add(v)
}

// istio counts some under Istio's names, too. Its label type is in lower case.
func (m *Metrics) istioCounters(reg prometheus.Registerer) {
	for _, x := range []struct {
		counters   *[numTypes]prometheus.Counter
		name, help string
	}{
		{&m.sent, "pilot_xds_pushes", "Responses sent."},
		{&m.nacks, "pilot_total_xds_rejects", "Responses that a proxy refused."},
		{&m.expired, "pilot_xds_expired_nonce", "Requests ignored because their nonce is not that of the last response."},
	} {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: x.name, Help: x.help}, []string{"type"})
		reg.MustRegister(v)
		for i, url := range xdswire.PushOrder {
			x.counters[i] = doubleCounter{x.counters[i], v.WithLabelValues(strings.ToLower(xdswire.ShortType(url)))}
		}
	}
}

// istioFailures counts what goes wrong under Istio's names, too.
func (m *Metrics) istioFailureCounters(reg prometheus.Registerer) {
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	internal := counter("pilot_total_xds_internal_errors", "Pieces of configuration that could not be generated, and panics.")
	m.failures, m.panics = doubleCounter{m.failures, internal}, doubleCounter{m.panics, internal}
	m.stalled = doubleCounter{m.stalled, counter("pilot_xds_write_timeout", "Connections closed because the peer did not read in time.")}
	m.badSecrets = doubleCounter{m.badSecrets, counter("pilot_sds_certificate_errors_total", "Secrets that a proxy asked for and was not given, or was given out of date.")}
}
