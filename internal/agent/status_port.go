package agent

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/meshctl/meshctl/internal/agent/bootstrap"
	"github.com/meshctl/meshctl/internal/agent/config"
	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/metrics"
	"github.com/meshctl/meshctl/internal/agent/peer"
	"github.com/meshctl/meshctl/internal/agent/probe"
	"github.com/meshctl/meshctl/internal/agent/relay"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/sds"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/mesh"
	"github.com/meshctl/meshctl/internal/profiles"
	"github.com/meshctl/meshctl/internal/serving"
)

type statusServer struct {
	admin *adminClient // nil without an Envoy
	names *dns.Server  // nil without a DNS server
	cert  func() workloadcert.Status
	// otherCert means that Envoy gets its certificate from another SPIFFE agent.
	otherCert    bool
	profiling    bool
	localMetrics bool
	log          *slog.Logger

	now         func() time.Time
	began       time.Time // of the agent
	wasReady    sync.Once
	startup     prometheus.Gauge
	registry    *prometheus.Registry
	metrics     *metrics.Merger
	kubelet     http.Handler
	control     *control
	guard       *peer.Guard
	configured  atomic.Bool // Envoy had clusters and listeners once
	terminating atomic.Bool
	lastReason  atomic.Value // string, to log each reason once
}

func newStatus(cfg *config.Config, admin *adminClient, names *dns.Server, secrets *sds.Server, cert func() workloadcert.Status, lists func() revocation.Status, opts Options) *statusServer {
	registry := prometheus.NewRegistry()
	prometheus.WrapRegistererWithPrefix("istio_agent_", registry).MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if names != nil {
		registry.MustRegister(names.Collectors()...)
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	counter := func(name, help string, labels prometheus.Labels, value func() float64) {
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	gauge(mesh.MetricBuild, "Always 1; the version of the agent.",
		prometheus.Labels{"component": "proxy", "tag": cmp.Or(cfg.Version, "unknown")}, func() float64 { return 1 })
	csr := prometheus.Labels{"request_type": "csr"}
	gauge("istio_agent_cert_expiry_seconds", "Seconds until the workload's certificate expires; negative when it has, 0 when there is none.",
		prometheus.Labels{"resource_name": "default"}, func() float64 {
			c := cert().Certificate
			if c == nil {
				return 0
			}
			return c.NotAfter().Sub(opts.Now()).Seconds()
		})
	counter("istio_agent_num_outgoing_requests", "Requests for a certificate.", csr, func() float64 { return float64(cert().Requests) })
	counter("istio_agent_num_outgoing_retries", "Requests for a certificate after one that failed.", csr, func() float64 { return float64(cert().Retries) })
	counter("istio_agent_num_failed_outgoing_requests", "Requests for a certificate that failed.", csr, func() float64 { return float64(cert().Failures) })
	counter("istio_agent_outgoing_latency", "Milliseconds of all requests for a certificate.",
		csr, func() float64 { return float64(cert().Waited) / float64(time.Millisecond) })
	counter("istio_agent_num_file_secret_failures_total", "Secrets whose files are missing or cannot be used.",
		nil, func() float64 { return float64(cert().FileFailures + secrets.FileFailures()) })
	gauge("meshctl_agent_revocation_lists", "Revocation lists that Envoy checks its peers with.",
		nil, func() float64 { return float64(lists().Count) })
	gauge("meshctl_agent_revocation_lists_until_timestamp", "When the first of the revocation lists must be replaced, in seconds since 1970; 0 for never.",
		nil, func() float64 {
			if until := lists().Until; !until.IsZero() {
				return float64(until.Unix())
			}
			return 0
		})
	gauge("meshctl_agent_revocation_lists_problems", "1 if the agent cannot use the newest revocation lists, or if the lists in use must be replaced soon; the log has the reason.",
		nil, func() float64 {
			if lists().Err != nil {
				return 1
			}
			return 0
		})
	startup := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "istio_agent_startup_duration_seconds", Help: "Seconds from the start until a probe found the proxy ready; 0 before.",
	})
	registry.MustRegister(startup)
	merger := metrics.Merger{Applications: cfg.Scrapes, Own: ownWorkload(cfg), Log: opts.Log}
	if admin != nil {
		merger.Envoy = admin.metrics
	}
	s := &statusServer{
		admin: admin, names: names, cert: cert, otherCert: cfg.WorkloadSocket != "", profiling: opts.Profiling, log: opts.Log,
		now: opts.Now, began: opts.Now(), startup: startup, localMetrics: cfg.LocalMetrics,
		registry: registry, metrics: metrics.New(merger, registry),
		kubelet: probe.Handler(cfg.KubeletProbes),
		control: newControl(admin, opts.Log),
		guard:   peer.New(opts.Log),
	}
	s.lastReason.Store("")
	return s
}

// ownWorkload describes the workload in Istio's standard metrics.
func ownWorkload(cfg *config.Config) metrics.Workload {
	all, _ := cfg.Metadata["LABELS"].(map[string]any)
	labels := make(map[string]string, len(all))
	for name, value := range all {
		labels[name], _ = value.(string)
	}
	workload, _ := cfg.Metadata["WORKLOAD_NAME"].(string)
	return metrics.Workload{WorkloadLabels: mesh.WorkloadLabelsOf(workload, labels, cfg.Cluster), Namespace: cfg.Node.Namespace}
}

// count shows the counts of a relay, under the names of Istio's agent.
func (s *statusServer) count(r *relay.Relay) {
	counter := func(name, help string, labels prometheus.Labels, value func(relay.Counts) uint64) {
		s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "istio_agent_" + name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(r.Counts())) }))
	}
	ends := func(name, help string, value func(relay.Counts) relay.Ends) {
		counter(name, help, prometheus.Labels{"type": "cancelled"}, func(c relay.Counts) uint64 { return value(c).Cancelled })
		counter(name, help, prometheus.Labels{"type": "error"}, func(c relay.Counts) uint64 { return value(c).Error })
	}
	counter("xds_proxy_requests", "Requests of proxies.", nil, func(c relay.Counts) uint64 { return c.Requests })
	counter("xds_proxy_responses", "Responses of the control plane.", nil, func(c relay.Counts) uint64 { return c.Responses })
	counter("istiod_connection_failures", "Streams to the control plane that did not open.", nil, func(c relay.Counts) uint64 { return c.Failures })
	ends("istiod_connection_terminations", "Streams to the control plane that ended.", func(c relay.Counts) relay.Ends { return c.Terminations })
	ends("envoy_connection_terminations", "Streams of proxies that ended.", func(c relay.Counts) relay.Ends { return c.ProxyTerminations })
}

// countSockets shows how often the sockets of the agent lost their places.
func (s *statusServer) countSockets(sockets []socket) {
	s.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meshctl_agent_sockets_taken_back_total",
		Help: "How often a Unix socket of the agent was removed or replaced, and the agent put it back to its path; the log has the path.",
	}, func() float64 {
		total := uint64(0)
		for _, s := range sockets {
			if s.kept != nil {
				total += s.kept.TakenBack()
			}
		}
		return float64(total)
	}))
}

// serve answers on listener until ctx ends, and closes it.
func (s *statusServer) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.ready)
	// Envoy forwards requests for readiness and metrics only.
	direct := func(pattern string, h http.Handler) { mux.Handle(pattern, s.guard.Handler(h)) }
	for path, h := range map[string]http.HandlerFunc{
		"/metrics": s.metrics.ServeHTTP, "/stats/prometheus": s.metrics.ServeHTTP, bootstrap.PathEnvoyMetrics: s.metrics.ServeEnvoy,
	} {
		if s.localMetrics { // Envoy serves them to others
			direct("GET "+path, local(http.MethodGet, h))
		} else {
			mux.Handle("GET "+path, h)
		}
	}
	direct("GET /app-health/", s.kubelet)
	direct("GET /app-lifecycle/", s.kubelet)
	direct("/quitquitquit", local(http.MethodPost, s.control.quitNow))
	direct("/drain", local(http.MethodPost, s.control.drain))
	if s.names != nil {
		direct("/debug/ndsz", local(http.MethodGet, s.names.ServeTable))
	}
	if s.profiling {
		direct(profiles.Path, local(http.MethodGet, profiles.Handler().ServeHTTP))
	}
	server := &http.Server{
		Handler:           http.NewCrossOriginProtection().Handler(mux),
		ConnContext:       peer.KeepConnection,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      10 * time.Second, // of requests without a longer bound of their own
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if err := serving.HTTP(ctx, server, serving.Bound(listener, serving.MaxConnections, serving.MaxConnectionsOfSource)); err != nil {
		return fmt.Errorf("serve the agent's status on %s: %w", listener.Addr(), err)
	}
	return nil
}
