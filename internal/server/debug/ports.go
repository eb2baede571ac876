package debug

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/meshctl/meshctl/internal/output"
)

// StatusConfig says what the pages show. All functions are called for each request
// and must be safe from any goroutine.
type StatusConfig struct {
	// Ready returns the reasons why the control plane is not ready, none when
	// it is.
	Ready func() []string
	// Notes, when set, are what is to be known besides: /ready?verbose shows
	// them to loopback callers, ready or not.
	Notes func() []string
	// Version is shown as JSON.
	Version any
	// Debug serves /debug and all below; it decides itself who may read there.
	Debug http.Handler
	Log   *slog.Logger
}

// StatusHandler serves /ready and /version to everyone.
func StatusHandler(cfg StatusConfig) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		lines := cfg.Ready()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		if len(lines) > 0 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if cfg.Notes != nil && r.URL.Query().Has("verbose") && isLocal(r) {
			lines = append(lines, cfg.Notes()...)
		}
		for _, line := range lines {
			_, _ = io.WriteString(w, output.Escape(line)+"\n")
		}
	})
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, cfg.Version, cfg.Log) })
	if cfg.Debug != nil {
		mux.Handle("/debug", cfg.Debug)
		mux.Handle("/debug/", cfg.Debug)
	}
	return mux
}

// MonitoringConfig says what the monitoring port shows. The functions are called
// for each request and must be safe from any goroutine.
type MonitoringConfig struct {
	Metrics prometheus.Gatherer
	// Version is shown as text.
	Version string
	// Clusters returns the page /debug/clusterz.
	Clusters func() any
	Log      *slog.Logger
}

// MonitoringHandler serves /metrics and /version to everyone, and /debug/clusterz to
// callers on this machine. istioctl asks for the last two by a port-forward, and
// has no token.
func MonitoringHandler(cfg MonitoringConfig) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(cfg.Metrics, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	mux.HandleFunc("GET /version", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte(cfg.Version))
	})
	mux.HandleFunc("GET /debug/clusterz", func(w http.ResponseWriter, r *http.Request) {
		if !isLocal(r) {
			http.Error(w, "this page is served to callers on this machine only: forward the port", http.StatusForbidden)
			return
		}
		writeJSON(w, cfg.Clusters(), cfg.Log)
	})
	return mux
}

// NewServer bounds what a client of the handler may cost.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

func writeJSON(w http.ResponseWriter, v any, log *slog.Logger) {
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		log.Debug("status page not sent", "error", err)
	}
}
