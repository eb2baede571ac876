package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshctl/meshctl/internal/agent/dns"
	"github.com/meshctl/meshctl/internal/agent/revocation"
	"github.com/meshctl/meshctl/internal/agent/workloadcert"
	"github.com/meshctl/meshctl/internal/serving"
)

type statusServer struct {
	admin *adminClient // nil without an Envoy
	names *dns.Server  // nil without a DNS server
	cert  func() workloadcert.Status
	log   *slog.Logger

	metrics     http.Handler
	configured  atomic.Bool // Envoy had clusters and listeners once
	terminating atomic.Bool
	lastReason  atomic.Value // string, to log each reason once
}

func newStatus(admin *adminClient, names *dns.Server, cert func() workloadcert.Status, lists func() revocation.Status, opts Options) *statusServer {
	registry := prometheus.NewRegistry()
	if names != nil {
		registry.MustRegister(names.Collectors()...)
	}
	gauge := func(name, help string, labels prometheus.Labels, value func() float64) {
		registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, value))
	}
	requests := func(name, help string, value func() uint64) {
		labels := prometheus.Labels{"request_type": "csr"}
		registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value()) }))
	}
	gauge("istio_agent_cert_expiry_seconds", "Seconds until the workload's certificate expires; negative when it has, 0 when there is none.",
		prometheus.Labels{"resource_name": "default"}, func() float64 {
			c := cert().Certificate
			if c == nil {
				return 0
			}
			return c.NotAfter().Sub(opts.Now()).Seconds()
		})
	requests("istio_agent_num_outgoing_requests", "Certificates asked for.", func() uint64 { return cert().Requests })
	requests("istio_agent_num_failed_outgoing_requests", "Certificates asked for and not got.", func() uint64 { return cert().Failures })
	gauge("meshctl_agent_revocation_lists", "Revocation lists that Envoy checks its peers with.",
		nil, func() float64 { return float64(lists().Count) })
	gauge("meshctl_agent_revocation_lists_until_timestamp", "When the first of the revocation lists must be replaced, in seconds since 1970; 0 for never.",
		nil, func() float64 {
			if until := lists().Until; !until.IsZero() {
				return float64(until.Unix())
			}
			return 0
		})
	gauge("meshctl_agent_revocation_lists_problems", "1 when there are no new revocation lists, or they must be replaced soon; the log has the reason.",
		nil, func() float64 {
			if lists().Err != nil {
				return 1
			}
			return 0
		})
	s := &statusServer{admin: admin, names: names, cert: cert, log: opts.Log, metrics: promhttp.HandlerFor(registry, promhttp.HandlerOpts{})}
	s.lastReason.Store("")
	return s
}

// terminate makes the proxy not ready for good.
func (s *statusServer) terminate() { s.terminating.Store(true) }

// serve answers on listener until ctx ends, and closes it.
func (s *statusServer) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz/ready", s.ready)
	mux.Handle("GET /metrics", s.metrics)
	if s.names != nil {
		mux.HandleFunc("GET /debug/ndsz", s.names.ServeTable)
	}
	server := &http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      10 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	if err := serving.HTTP(ctx, server, listener); err != nil {
		return fmt.Errorf("serve the agent's status on %s: %w", listener.Addr(), err)
	}
	return nil
}

func (s *statusServer) ready(w http.ResponseWriter, r *http.Request) {
	err := s.check(r.Context())
	if err == nil {
		s.log.Debug("ready")
		s.lastReason.Store("")
		w.WriteHeader(http.StatusOK)
		return
	}
	if s.lastReason.Swap(err.Error()) != err.Error() {
		s.log.Warn("not ready", "reason", err)
	}
	http.Error(w, "", http.StatusServiceUnavailable)
}

// readyStats selects what check reads of Envoy's statistics.
const readyStats = `^(cluster_manager\.cds|listener_manager\.lds)\.(update_success|update_rejected)$` +
	`|^server\.state$|^listener_manager\.workers_started$`

// check returns why the proxy is not ready, or nil. A proxy is ready when Envoy has clusters
// and listeners from the control plane, is live, and its workers run.
func (s *statusServer) check(ctx context.Context) error {
	if s.terminating.Load() {
		return errors.New("the agent is ending")
	}
	if c := s.cert(); c.Certificate == nil {
		if c.Err != nil {
			return fmt.Errorf("no certificate yet: %w", c.Err)
		}
		return errors.New("no certificate yet")
	}
	if s.names != nil {
		if err := s.names.Ready(); err != nil {
			return err
		}
	}
	if s.admin == nil { // no Envoy: the files of applications were written with the certificate
		return nil
	}
	body, err := s.admin.do(ctx, http.MethodGet, "/stats?usedonly&filter="+url.QueryEscape(readyStats))
	if err != nil {
		return fmt.Errorf("failed to get readiness stats: %w", err)
	}
	stats := parseStats(body)
	if err := s.checkConfigured(stats); err != nil {
		return err
	}
	if state, known := stats["server.state"]; !known || state != 0 {
		return fmt.Errorf("server is not live, current state is: %s", serverState(state, known))
	}
	if stats["listener_manager.workers_started"] != 1 {
		return errors.New("workers have not yet started")
	}
	return nil
}

// checkConfigured passes for ever once it has passed: a control plane that goes away later
// must not take proxies out of service.
func (s *statusServer) checkConfigured(stats map[string]uint64) error {
	if s.configured.Load() {
		return nil
	}
	cds, cdsBad := stats["cluster_manager.cds.update_success"], stats["cluster_manager.cds.update_rejected"]
	lds, ldsBad := stats["listener_manager.lds.update_success"], stats["listener_manager.lds.update_rejected"]
	counts := fmt.Sprintf("cds updates: %d successful, %d rejected; lds updates: %d successful, %d rejected", cds, cdsBad, lds, ldsBad)
	switch {
	case cds > 0 && lds > 0:
		s.configured.Store(true)
		return nil
	case cds+cdsBad+lds+ldsBad == 0:
		return fmt.Errorf("config not received from XDS server (is the control plane running?): %s", counts)
	case cdsBad+ldsBad > 0:
		return fmt.Errorf("config received from XDS server, but was rejected: %s", counts)
	}
	return fmt.Errorf("config not fully received from XDS server: %s", counts)
}

func serverState(state uint64, known bool) string {
	names := []string{"LIVE", "DRAINING", "PRE_INITIALIZING", "INITIALIZING"}
	if !known || state >= uint64(len(names)) {
		return "unknown"
	}
	return names[state]
}

// parseStats reads lines of the form "name: number" and skips all other lines.
func parseStats(body string) map[string]uint64 {
	out := map[string]uint64{}
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			out[name] = n
		}
	}
	return out
}
