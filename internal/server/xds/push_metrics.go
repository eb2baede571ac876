package xds

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
)

// pushMetrics are the metrics under Istio's names that report how long changes take and
// their causes. An observation costs a few atomic additions; the times are also in the
// history.
type pushMetrics struct {
	debounce, build, queue, converged prometheus.Observer
	push, send, size                  [numTypes]prometheus.Observer
	triggers                          *prometheus.CounterVec
	requests                          prometheus.Counter               // of triggers
	rejects                           [numTypes]*prometheus.CounterVec // nil for types that Istio does not count
}

// triggers are Istio's causes of pushes besides requests of proxies.
const (
	byService   = "service"
	byEndpoint  = "endpoint"
	byConfig    = "config"
	byNamespace = "namespace"
	bySecret    = "secret"
	byGlobal    = "global"
	byCluster   = "cluster"
)

func triggerOf(k snapshot.Kind) string {
	switch k {
	case snapshot.KindService:
		return byService
	case snapshot.KindEndpointSlice, snapshot.KindPod, snapshot.KindNode:
		return byEndpoint
	case snapshot.KindNamespace:
		return byNamespace
	case snapshot.KindSecret:
		return bySecret
	case snapshot.KindMeshSettings, snapshot.KindTrustBundle, snapshot.KindHostName, snapshot.KindKeySet:
		return byGlobal
	case snapshot.KindCluster, snapshot.KindClusterSettings:
		return byCluster
	}
	return byConfig
}

func newPushMetrics(reg prometheus.Registerer) pushMetrics {
	f := promauto.With(reg)
	// Istio's bounds, so that queries for them work, and smaller ones.
	timeBuckets := []float64{.001, .005, .01, .05, .1, .5, 1, 3, 5, 10, 20, 30}
	sizeBuckets := []float64{1, 1e4, 1e6, 4e6, 10e6, 40e6}
	times := func(name, help string) prometheus.Observer {
		return f.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: timeBuckets})
	}
	typed := func(name, help string, buckets []float64) [numTypes]prometheus.Observer {
		return byType(f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"}), strings.ToLower)
	}
	m := pushMetrics{
		debounce:  times("pilot_debounce_time", "Seconds from the first event of a batch until the snapshot was made of it."),
		build:     times("pilot_pushcontext_init_seconds", "Seconds that making a snapshot of a batch took."),
		queue:     times("pilot_proxy_queue_time", "Seconds from the generation of a change until a response with it was sent to a proxy."),
		converged: times("pilot_proxy_convergence_time", "Seconds from the first event of a change until a proxy was sent everything that it changes for it."),
		push:      typed("pilot_xds_push_time", "Seconds that a response took: generating the changes, once for all proxies, and sending it to one.", timeBuckets),
		send:      typed("pilot_xds_send_time", "Seconds from sending a response until all of it was written to the connection.", timeBuckets),
		size:      typed("pilot_xds_config_size_bytes", "Bytes of the responses sent.", sizeBuckets),
		triggers: f.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_push_triggers", Help: "Causes of pushes by kind: changed objects, only the first few of a large batch, and requests of proxies.",
		}, []string{"type"}),
	}
	for _, name := range []string{byService, byEndpoint, byConfig, byNamespace, bySecret, byGlobal, byCluster} {
		m.triggers.WithLabelValues(name) // so that it is shown before the first push
	}
	m.requests = m.triggers.WithLabelValues("proxyrequest")
	for _, i := range []int{cds, eds, lds, rds} {
		m.rejects[i] = f.NewCounterVec(prometheus.CounterOpts{
			Name: "pilot_xds_" + strings.ToLower(typeName(i)) + "_reject", Help: typeName(i) + " responses that a proxy refused, by the gRPC code that it reported.",
		}, []string{"err"})
	}
	return m
}

// rejected notes that a proxy refused a response of the type. The proxy chooses the code;
// one that gRPC does not define counts as Unknown.
func (p *pushMetrics) rejected(i int, code int32) {
	if p.rejects[i] == nil {
		return
	}
	err := codes.Unknown
	if code >= 0 && code <= int32(codes.Unauthenticated) { // the last code
		err = codes.Code(code)
	}
	p.rejects[i].WithLabelValues(err.String()).Inc()
}

// published notes a batch that the registry published.
func (p *pushMetrics) published(c *snapshot.Changes) {
	for _, cause := range c.Causes {
		p.triggers.WithLabelValues(triggerOf(cause.Kind)).Inc()
	}
	if c.Since.IsZero() || c.Taken.IsZero() { // nothing waited
		return
	}
	p.debounce.Observe(c.Built.Sub(c.Since).Seconds())
	p.build.Observe(c.Built.Sub(c.Taken).Seconds())
}

// sent notes a response of the type that gRPC has taken.
func (p *pushMetrics) sent(i int, r *history.SentResponse) {
	p.size[i].Observe(float64(r.Bytes))
	if r.Why == history.Request {
		p.requests.Inc()
	}
	if !r.Queued.IsZero() {
		p.queue.Observe(max(r.At.Sub(r.Queued), 0).Seconds())
	}
}

// written notes that a response, sent at a time, is written to the connection.
func (p *pushMetrics) written(i int, round *history.Round, at, now time.Time) {
	took := now.Sub(at)
	p.send[i].Observe(took.Seconds())
	if round != nil {
		took += round.Generated.Sub(round.Started)
	}
	p.push[i].Observe(took.Seconds())
}

// converging holds the times of a change that a stream is being sent, which may take
// several responses.
type converging struct {
	since, last time.Time // the first event of the change, and the last response
}

func (c *converging) sent(r *history.SentResponse) {
	if r.First == nil || r.First.Arrived.IsZero() {
		return
	}
	if c.since.IsZero() || r.First.Arrived.Before(c.since) {
		c.since = r.First.Arrived
	}
	c.last = r.At
}

// settle observes the convergence time when a stream has nothing more to send.
func (s *session) settle() {
	if s.converging.since.IsZero() {
		return
	}
	for i := range s.types {
		if s.types[i].waiting != nil {
			return
		}
	}
	s.hub.cfg.Metrics.push.converged.Observe(s.converging.last.Sub(s.converging.since).Seconds())
	s.converging = converging{}
}
