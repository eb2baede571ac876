package xds

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Metrics counts the work of a hub. The label type is CDS, EDS, LDS, RDS, VHDS, SDS,
// ECDS, NDS, PCDS or BDS.
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
	push                                pushMetrics
}

// byType returns the metrics of a vector by type; label turns CDS into its label.
func byType[M any](vector interface{ WithLabelValues(...string) M }, label func(string) string) (out [numTypes]M) {
	for i := range out {
		out[i] = vector.WithLabelValues(label(typeName(i)))
	}
	return out
}

// NewMetrics registers the metrics. It panics if the registry has metrics with these
// names, as MustRegister does.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	f := promauto.With(reg)
	upper := func(s string) string { return s }
	counters := func(name, help string) [numTypes]prometheus.Counter {
		return byType(f.NewCounterVec(prometheus.CounterOpts{Name: "meshctl_xds_" + name, Help: help}, []string{"type"}), upper)
	}
	counter := func(name, help string) prometheus.Counter {
		return f.NewCounter(prometheus.CounterOpts{Name: "meshctl_xds_" + name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Name: "meshctl_xds_" + name, Help: help})
	}
	m := &Metrics{
		push:          newPushMetrics(reg),
		generated:     counters("generated_total", "Resources generated."),
		encoded:       counters("encoded_total", "Resources encoded."),
		sent:          counters("sent_total", "Responses sent."),
		sentResources: counters("sent_resources_total", "Resources in the responses sent."),
		sentBytes:     counters("sent_bytes_total", "Bytes of the responses sent."),
		nacks:         counters("nacks_total", "Responses that a proxy refused."),
		expired:       counters("expired_nonce_total", "Requests ignored because they do not have the nonce of the last response."),
		failures:      counter("generation_failures_total", "Pieces of configuration that could not be generated; their last good version stays."),
		revoked:       counter("revoked_streams_total", "Streams ended because the certificate of their caller was revoked, or lost its root."),
		panics:        counter("panics_total", "Panics that ended one stream or one piece of generation."),
		stalled:       counter("write_timeouts_total", "Connections closed because the peer did not read in time."),
		refusedConns:  counter("refused_connections_total", "Connections closed because there were too many, or the peer did not authenticate."),
		closed:        counter("closed_connections_total", "Connections closed because the peer sent or held too much, or did not finish a request."),
		rejected:      counter("rejected_streams_total", "Streams refused or ended because of their peer or their requests."),
		badSecrets:    counter("bad_secrets_total", "Secrets that a proxy requested and did not get, or got expired."),
		assigned:      counter("assignments_total", "Times that the lists of resources for a stream were chosen."),
		listed:        counter("listed_views_total", "Lists of resources checked because a change might affect them."),
		streams:       gauge("streams", "Streams connected."),
		waiting:       gauge("waiting_streams", "Streams that wait for their first configuration."),
		views:         gauge("views", "Lists of resources in use."),
		refused: byType(f.NewGaugeVec(prometheus.GaugeOpts{
			Name: "meshctl_xds_refused_resources", Help: "Resources that connected proxies refused and do without, summed over proxies.",
		}, []string{"type"}), upper),
	}
	m.countForIstio(f)
	return m
}

// countForIstio makes some counters count under Istio's names, too.
func (m *Metrics) countForIstio(f promauto.Factory) {
	counters := func(counters *[numTypes]prometheus.Counter, name, help string) {
		second := byType(f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{"type"}), strings.ToLower)
		for i, c := range counters {
			counters[i] = doubleCounter{c, second[i]}
		}
	}
	counter := func(name, help string, counters ...*prometheus.Counter) {
		second := f.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		for _, c := range counters {
			*c = doubleCounter{*c, second}
		}
	}
	counters(&m.sent, "pilot_xds_pushes", "Responses sent.")
	counters(&m.nacks, "pilot_total_xds_rejects", "Responses that a proxy refused.")
	counters(&m.expired, "pilot_xds_expired_nonce", "Requests ignored because they do not have the nonce of the last response.")
	counter("pilot_total_xds_internal_errors", "Pieces of configuration that could not be generated, and panics.", &m.failures, &m.panics)
	counter("pilot_xds_write_timeout", "Connections closed because the peer did not read in time.", &m.stalled)
	counter("pilot_sds_certificate_errors_total", "Secrets that a proxy requested and did not get, or got expired.", &m.badSecrets)
}

// doubleCounter counts under two names.
type doubleCounter struct {
	prometheus.Counter
	second prometheus.Counter
}

// Inc implements prometheus.Counter.
func (c doubleCounter) Inc() { c.Add(1) }

// Add implements prometheus.Counter.
func (c doubleCounter) Add(v float64) {
	c.Counter.Add(v)
	c.second.Add(v)
}
