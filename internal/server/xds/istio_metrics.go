package xds

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/meshctl/meshctl/internal/server/snapshot"
	"github.com/meshctl/meshctl/internal/server/xds/history"
	"github.com/meshctl/meshctl/internal/xdswire"
)

// pilotTimes are the metrics under Istio's names about how long changes take, and
// what caused them. Observing one is a few atomic additions; the times are those
// that the history is given anyway.
type istioMetrics struct {
	debounce, build, queue, converged prometheus.Observer
	push, send                        [numTypes]prometheus.Observer
	size                              [numTypes]prometheus.Observer
	triggers                          [len(triggers)]prometheus.Counter
	rejects                           [numTypes]*prometheus.CounterVec // nil for types that Istio does not count so
}

// trigger is why there was a push, in Istio's words.
type trigger uint8

const (
	byService trigger = iota
	byEndpoint
	byConfig
	byNamespace
	bySecret
	byGlobal
	byCluster
	byRequest
)

var triggers = [...]string{ // never changed
	byService: "service", byEndpoint: "endpoint", byConfig: "config", byNamespace: "namespace",
	bySecret: "secret", byGlobal: "global", byCluster: "cluster", byRequest: "proxyrequest",
}

func triggerOf(k snapshot.Kind) trigger {
	switch k {
	case snapshot.KindService:
		return byService
	case snapshot.KindEndpointSlice, snapshot.KindPod, snapshot.KindNode:
		return byEndpoint
	case snapshot.KindNamespace:
		return byNamespace
	case snapshot.KindSecret:
		return bySecret
	case snapshot.KindMeshSettings, snapshot.KindTrustBundle, snapshot.KindHostName:
		return byGlobal
	case snapshot.KindCluster, snapshot.KindClusterSettings:
		return byCluster
	}
	return byConfig
}

func newIstioMetrics(reg prometheus.Registerer) istioMetrics {
	// Istio's bounds, so that queries for one of them are answered, and smaller ones.
	timeBuckets := []float64{.001, .005, .01, .05, .1, .5, 1, 3, 5, 10, 20, 30}
	sizeBuckets := []float64{1, 1e4, 1e6, 4e6, 10e6, 40e6}
	var p istioMetrics
	one := func(name, help string) prometheus.Observer {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: timeBuckets})
		reg.MustRegister(h)
		return h
	}
	byType := func(dst *[numTypes]prometheus.Observer, name, help string, buckets []float64) {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, []string{"type"})
		reg.MustRegister(v)
		for i, url := range xdswire.PushOrder {
			dst[i] = v.WithLabelValues(strings.ToLower(xdswire.ShortType(url)))
		}
	}
	p.debounce = one("pilot_debounce_time", "Seconds from the first event of a batch until the snapshot was made of it.")
	p.build = one("pilot_pushcontext_init_seconds", "Seconds that making a snapshot of a batch took.")
	p.queue = one("pilot_proxy_queue_time", "Seconds that a change waited, generated, until a response with it was sent to a proxy.")
	p.converged = one("pilot_proxy_convergence_time", "Seconds from the first event of a change until a proxy was sent everything that it changes for it.")
	byType(&p.push, "pilot_xds_push_time", "Seconds that a response took: generating what changed, once for all proxies, and sending it to one.", timeBuckets)
	byType(&p.send, "pilot_xds_send_time", "Seconds from sending a response until it was written to the connection whole.", timeBuckets)
	byType(&p.size, "pilot_xds_config_size_bytes", "Bytes of the responses sent.", sizeBuckets)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pilot_push_triggers", Help: "What caused pushes, by kind: objects that changed, of a batch of many the first few, and requests of proxies.",
	}, []string{"type"})
	reg.MustRegister(v)
	for i, name := range triggers {
		p.triggers[i] = v.WithLabelValues(name)
	}
	for i, url := range xdswire.PushOrder {
		switch short := xdswire.ShortType(url); short {
		case "CDS", "EDS", "LDS", "RDS":
			p.rejects[i] = prometheus.NewCounterVec(prometheus.CounterOpts{
				Name: "pilot_xds_" + strings.ToLower(short) + "_reject", Help: short + " responses that a proxy refused, by the gRPC code that it gives.",
			}, []string{"err"})
			reg.MustRegister(p.rejects[i])
		}
	}
	return p
}

// rejected notes that a proxy refused a response of the type. Peers choose the
// code: what is none of gRPC's is Unknown.
func (p *istioMetrics) rejected(i int, code int32) {
	if p.rejects[i] == nil {
		return
	}
	err := codes.Unknown
	if code >= 0 && code <= int32(codes.Unauthenticated) { // the last one
		err = codes.Code(code)
	}
	p.rejects[i].WithLabelValues(err.String()).Inc()
}

// published notes what the registry made of a batch.
func (p *istioMetrics) published(c *snapshot.Changes) {
	for _, cause := range c.Causes {
		p.triggers[triggerOf(cause.Kind)].Inc()
	}
	if c.Since.IsZero() || c.Taken.IsZero() { // nothing waited
		return
	}
	p.debounce.Observe(c.Built.Sub(c.Since).Seconds())
	p.build.Observe(c.Built.Sub(c.Taken).Seconds())
}

// sent notes a response of the type, which was handed to gRPC.
func (p *istioMetrics) sent(i int, r *history.Response) {
	p.size[i].Observe(float64(r.Bytes))
	if r.Why == history.Request {
		p.triggers[byRequest].Inc()
	}
	if !r.Queued.IsZero() {
		p.queue.Observe(max(r.At.Sub(r.Queued), 0).Seconds())
	}
}

// written notes that all of a response, which was sent at a time, is written.
func (p *istioMetrics) written(i int, round *history.Round, at, now time.Time) {
	took := now.Sub(at)
	p.send[i].Observe(took.Seconds())
	if round != nil {
		took += round.Generated.Sub(round.Started)
	}
	p.push[i].Observe(took.Seconds())
}

// converging is when a stream was sent what a change changes for it, which may
// take several responses.
type converging struct {
	since, last time.Time // the first event of the change, and the last response
}

func (c *converging) sent(r *history.Response) {
	if r.First == nil || r.First.Arrived.IsZero() {
		return
	}
	if c.since.IsZero() || r.First.Arrived.Before(c.since) {
		c.since = r.First.Arrived
	}
	c.last = r.At
}

// settle is called when a stream has nothing more to send now.
func (s *session) settle() {
	if s.converging.since.IsZero() {
		return
	}
	for i := range s.types {
		if s.types[i].waiting != nil {
			return
		}
	}
	s.hub.cfg.Metrics.istio.converged.Observe(s.converging.last.Sub(s.converging.since).Seconds())
	s.converging = converging{}
}
